"""A pool counts a stop as long as it counts, whatever becomes of the RLHFJob that was stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api import fleet as fleet_status
from controller.api.schema import structural
from controller.api.status import PoolStatus
from controller.operator.reconcile.fleet import past_stops
from controller.policy.fleet.ebh import day_start
from controller.policy.fleet.limits import HOUR, STOPS_KEPT, limit_stops
from controller.policy.job.record import Decision, JobRecord, TakenBack
from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    JobState,
    JobView,
    Mode,
    NodeView,
    PastStop,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    StopCount,
    StopLimits,
)
from tests.support import pool_memory

NOW = 1_782_907_200.0 + 5.0  # five seconds into an hour, at noon UTC


def stop(at: float, by: str = "scan", mode: Mode = Mode.ENFORCE, e_value: float | None = None) -> Decision:
    return Decision(by, mode, Proposal(10, 5, "Fell", 3.0, 2.0, e_value), "", at)


def _records(decisions: dict[str, Decision | None]) -> list[tuple[str, JobRecord]]:
    return [(key, JobRecord(decision=decision)) for key, decision in decisions.items()]


def asks(name: str) -> JobView:
    proposal = Proposal(10, 5, "Fell", 3.0, 2.0)
    return JobView(name, 0.0, 0, 1, 1, state=JobState.ADMITTED, proposal=proposal, nodes=("n",))


def seen(
    status: dict[str, object], jobs: dict[str, Decision | None], limits: StopLimits, now: float = NOW
) -> PoolSnapshot:
    stopped = past_stops(_records(jobs), fleet_status.stops(status).granted, now)
    return PoolSnapshot(
        "p", PolicySpec("fifo"), (NodeView("n", 8),), (asks("ns/other"),), limits=limits, stopped=stopped
    )


@pytest.mark.parametrize("since", [{"ns/a": None}, {}], ids=["resumed", "deleted"])
def test_an_hours_budget_is_spent_though_the_stopped_job_is(since: dict[str, Decision | None]) -> None:
    limits = StopLimits(per_hour=1)
    first = seen({}, {"ns/a": stop(NOW - 60)}, limits)
    status = pool_memory.stored(plan_pool(first, NOW).stops, (), (), first.stopped)
    after = seen(status, since, limits)
    assert after.stopped == (PastStop(NOW - 60, None, "ns/a"),)
    (held,) = limit_stops(after.jobs, after, NOW).held
    assert held.reason == "StopBudgetSpent"
    later = seen(status, since, limits, NOW - 60 + HOUR)
    assert limit_stops(later.jobs, later, NOW - 60 + HOUR).grant != ()


def test_a_stop_keeps_its_place_in_the_days_precision() -> None:
    limits = StopLimits(precision=0.95, precision_jobs=10)
    kept = {"stops": {"granted": [{"job": "ns/a", "time": "2026-07-01T12:00:00Z", "eValue": "500"}]}}
    asking = replace(asks("ns/b"), proposal=Proposal(10, 5, "Fell", 3.0, 2.0, 120.0))
    alone = replace(seen({}, {}, limits), jobs=(asking,))
    second = replace(seen(kept, {}, limits), jobs=(asking,))  # J / (2 alpha) = 100, J / alpha = 200
    assert (limit_stops(alone.jobs, alone, NOW).grant, len(limit_stops(second.jobs, second, NOW).grant)) == (
        (),
        1,
    )


def test_what_its_job_tells_is_counted_once_and_users_stops_are_not() -> None:
    known = [PastStop(NOW - 5, 7.0, "ns/a"), PastStop(NOW - 5, None, "ns/c")]
    jobs = {
        "ns/a": stop(NOW - 5, e_value=7.0),
        "ns/u": stop(NOW - 4, by="User"),
        "ns/s": stop(NOW - 3, mode=Mode.SHADOW),
        "ns/b": stop(NOW - 2),
        "ns/run": None,
    }
    found = past_stops(_records(jobs), known, NOW)
    assert [s.job for s in found] == ["ns/a", "ns/c", "ns/b"]


@given(st.lists(st.floats(NOW - 3 * 86400, NOW), max_size=8))
def test_only_the_stops_that_still_count_are_kept(times: list[float]) -> None:
    known = [PastStop(at, None, f"ns/{i}") for i, at in enumerate(times)]
    found = {stop.at for stop in past_stops([], known, NOW)}
    assert found == {at for at in times if at > NOW - HOUR or at >= day_start(NOW)}


def test_the_status_keeps_the_newest_and_no_more_than_its_schema_allows() -> None:
    many = past_stops([], [PastStop(NOW - 900 + i, 1.5, f"ns/{i}") for i in range(STOPS_KEPT + 3)], NOW)
    stored = pool_memory.stored(StopCount(), past=many)
    assert fleet_status.stops(stored).granted == many[3:]
    schema = structural(PoolStatus)["properties"]["stops"]["properties"]["granted"]
    assert len(stored["stops"]["granted"]) == STOPS_KEPT == schema["maxItems"]


def test_an_entry_that_does_not_read_back_is_named() -> None:
    with pytest.raises(fleet_status.StatusError, match=r"status\.stops\.granted"):
        fleet_status.stops({"stops": {"granted": [{"job": "ns/a"}]}})


def test_a_stop_that_was_taken_back_is_counted_no_more() -> None:
    # row 5: before, what was granted once was spent for the hour and the day, though the run went on
    status = {"stops": {"granted": [{"job": "ns/a", "time": "2026-07-01T12:00:00Z"}]}}
    known = fleet_status.stops(status).granted
    decided = known[0].at
    back = JobRecord(taken_back=TakenBack(decided, decided + 60, "NoLongerDeclining"))
    assert past_stops([("ns/a", JobRecord())], known, NOW) == known
    assert past_stops([("ns/a", back)], known, NOW) == ()
    again = replace(back, decision=stop(NOW - 1))
    assert [s.at for s in past_stops([("ns/a", again)], known, NOW)] == [NOW - 1]
