"""How a pass ended decides when the next one comes, what is counted, and what is said of health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from controller.api.convert import StatusError
from controller.kube.errors import ApiError, Refused, Unavailable, from_response
from controller.kube.versioned import Stale
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import WorkQueue
from controller.operator.reconcile.passes import RETRY_AFTER_MOST, Failing, Partly, Passes, Result

FIRST = 0.2  # s, the back-off's
KEY = "ns/a"


class Rig:
    """Passes that end as the test says, with a clock of its own."""

    def __init__(self, **settings: Any) -> None:
        self.now, self.end = 100.0, Result("quiet")
        self.queue, self.metrics, self.reported = WorkQueue(lambda: self.now), Metrics(), list[str]()
        self.passes = Passes(
            "job",
            self._reconcile,
            self.queue,
            self.metrics,
            lambda: self.now,
            report=self._report,
            **settings,
        )

    async def _reconcile(self, key: str) -> Result:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    async def _report(self, key: str, error: Exception) -> None:
        self.reported.append(type(error).__name__)

    def run(self, end: Result | Exception) -> float | None:
        """Return after how many seconds the next pass is due; None: at no time."""
        self.end = end  # type: ignore[assignment]
        asyncio.run(self.passes.run(KEY))
        due = self.queue._due.get(KEY)
        return None if due is None else round(due - self.now, 3)

    def counted(self, outcome: str) -> float:
        return self.metrics.passes.labels("job", outcome)._value.get()  # type: ignore[no-any-return]


def unavailable(retry_after: float | None) -> ApiError:
    error = Unavailable(503, "ServiceUnavailable", "away")
    error.retry_after = retry_after
    return error


def webhook() -> ApiError:
    said = 'Internal error occurred: failed calling webhook "w.io": connection refused'
    return from_response(500, json.dumps({"reason": "InternalError", "message": said}).encode(), {})


ENDS: dict[str, tuple[Result | Exception, str, float | None, tuple[str, bool] | None]] = {
    # how it ends: outcome, next pass in s, (why it counts as failing, unexpected)
    "wrote": (Result("wrote", 7.0), "wrote", 7.0, None),
    "gone": (Result("gone"), "gone", None, None),
    "stale": (Stale("moved"), "stale", FIRST, None),
    "partly stale": (Partly({"ns/b": Stale("moved")}), "partly", FIRST, None),
    "partly": (Partly({"ns/b": Refused(422, "Invalid", "no")}), "partly", FIRST, None),
    "refused": (Refused(422, "Invalid", "no"), "refused", FIRST, (str(Refused(422, "Invalid", "no")), False)),
    "unavailable": (unavailable(None), "unavailable", FIRST, (str(unavailable(None)), False)),
    "asked to wait": (unavailable(9.0), "unavailable", 9.0, (str(unavailable(9.0)), False)),
    "asked to wait for long": (
        unavailable(900.0),
        "unavailable",
        RETRY_AFTER_MOST,
        (str(unavailable(900.0)), False),
    ),
    "webhook": (webhook(), "unavailable", FIRST, (str(webhook()), False)),
    "unreadable": (StatusError("status.x: no"), "failed", FIRST, ("status.x: no", False)),
    "failed": (ZeroDivisionError("of a secret"), "failed", FIRST, ("ZeroDivisionError", True)),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_counted_and_followed_by_the_next_pass(end: str) -> None:
    ended, outcome, again_in, failing = ENDS[end]
    rig = Rig()
    assert rig.run(ended) == again_in
    assert rig.counted(outcome) == 1
    assert rig.passes.failing() == ([Failing(KEY, 0.0, *failing)] if failing else [])
    assert rig.reported == (["ZeroDivisionError"] if end == "failed" else [])


@pytest.mark.parametrize("end", ["stale", "partly stale", "partly", "refused", "unreadable", "failed"])
def test_a_pass_that_goes_on_failing_backs_off_until_one_succeeds(end: str) -> None:
    rig = Rig()
    assert [rig.run(ENDS[end][0]) for _ in range(3)] == [FIRST, 2 * FIRST, 4 * FIRST]
    rig.run(Result("quiet"))
    assert rig.run(ENDS[end][0]) == FIRST


@pytest.mark.parametrize("end", ["stale", "partly stale"])
def test_what_is_always_changed_by_somebody_may_be_looked_at_again_without_a_back_off(end: str) -> None:
    rig = Rig(stale_again=0.05)
    assert [rig.run(ENDS[end][0]) for _ in range(3)] == [0.05] * 3
    assert rig.run(ENDS["partly"][0]) == FIRST


def test_failing_lasts_from_the_first_failure_until_a_success() -> None:
    rig = Rig()
    rig.run(ZeroDivisionError())
    rig.now += 5.0
    rig.run(Refused(422, "Invalid", "no"))
    rig.run(Stale("no failure, and no success"))
    assert rig.passes.failing() == [Failing(KEY, 5.0, str(Refused(422, "Invalid", "no")), True)]
    assert rig.passes.unexpected() == [KEY]
    rig.run(Result("quiet"))
    assert (rig.passes.failing(), rig.passes.unexpected()) == ([], [])


def test_a_pass_that_changed_what_it_went_by_is_followed_by_another() -> None:
    rig = Rig()
    rig.run(Result("wrote", requeue=True))
    assert len(rig.queue) == 1


def test_its_key_rests_as_long_as_it_says() -> None:
    rest: Callable[[], float] = lambda: 0.7  # noqa: E731
    assert asyncio.run(Rig(rest=rest).passes.run(KEY)) == 0.7
