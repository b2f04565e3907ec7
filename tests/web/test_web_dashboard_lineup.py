"""Places worked out from statuses are the queue policy's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_web_dashboard_http import ask

from controller.policy.job import conditions as c
from controller.policy.job.record import Best, Condition, EvalBaseline, JobRecord
from controller.policy.types import EvalPoint
from controller.web.dashboard.access import Viewer
from controller.web.dashboard.feed import read_job, read_pool
from controller.web.dashboard.lineup import line_up
from tests.support.dashboard_world import Running, job_object, pool_object, running, with_record

NOW = 1_763_000_000.0
WHY = Condition(c.ADMITTED, False, "WaitingForGPUs", "0 are free", NOW, 1)


def pool(policy: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = pool_object("research")
    found["spec"] |= {"queuePolicy": policy, **more}
    return found


def waits(name: str, since: float, of: dict[str, Any], namespace: str = "team-a", **more: Any) -> Any:
    obj = job_object(namespace, name, created=since, pool="research")
    obj["spec"] |= {k: v for k, v in more.items() if k != "attained"}
    record = replace(JobRecord(), queued_at=since, conditions=(WHY,), attained=more.get("attained", 0.0))
    obj = with_record(obj, record, of)
    obj["status"]["summary"] = "Queued"
    return obj


def places(of: dict[str, Any], *jobs: dict[str, Any]) -> list[tuple[str, int | None]] | None:
    found = line_up(read_pool(of), [read_job(j, {"research": of}) for j in jobs], NOW)
    return None if found is None else [(p.job.partition("/")[2], p.position) for p in found.items]


def test_each_policy_has_its_own_order() -> None:
    for policy, expected in (
        ({"fifo": {}}, ["urgent", "old", "new"]),
        ({"srtf": {}}, ["urgent", "new", "old"]),
        ({"las": {}}, ["urgent", "new", "old"]),
    ):
        of = pool(policy)
        jobs = [
            waits("new", NOW - 100, of, expectedDurationSeconds=600),
            waits("old", NOW - 900, of, expectedDurationSeconds=60_000, attained=1e5),
            waits("urgent", NOW - 10, of, expectedDurationSeconds=90_000, priority=5),
        ]
        assert places(of, *jobs) == [(name, n) for n, name in enumerate(expected, start=1)], policy


def test_who_waited_too_long_comes_first_whatever_the_policy() -> None:
    of = pool({"srtf": {}}, maxWaitSeconds=3600)
    jobs = [
        waits("short", NOW - 10, of, expectedDurationSeconds=60),
        waits("long", NOW - 4000, of, expectedDurationSeconds=90_000),
    ]
    assert places(of, *jobs) == [("long", 1), ("short", 2)]


def test_who_is_at_the_limit_of_a_quota_has_no_place() -> None:
    of = pool({"fifo": {}})
    assert places(of, waits("one", NOW - 90, of)) == [("one", 1)]
    namespace = waits("one", NOW - 90, of)["metadata"]["namespace"]
    of["spec"]["quotas"] = [{"namespaces": [namespace], "limit": 0}]
    assert places(of, waits("one", NOW - 90, of)) == [("one", None)]


def test_who_cannot_start_has_no_place() -> None:
    of = pool({"fifo": {}})
    unfit = waits("unfit", NOW - 900, of)
    unfit["status"]["summary"] = "Unfit"
    assert places(of, unfit, waits("next", NOW, of)) == [("next", 1), ("unfit", None)]


@pytest.mark.parametrize(
    "more",
    [{"delegate": "Kueue", "kueue": {"localQueue": "research"}}, {"queuePolicy": {"srtfEst": {}}}],
)
def test_no_order_is_made_up(more: dict[str, Any]) -> None:
    of = pool({"fifo": {}})
    of["spec"] |= more
    assert places(of, waits("run", NOW, of)) is None


def test_the_page_shows_places_and_no_names_of_others() -> None:
    of = pool({"fifo": {}})
    objects = [of, waits("mine", NOW - 10, of), waits("theirs", NOW - 900, of, namespace="team-b")]
    with running(objects, Viewer("jane", frozenset({"team-a"}), True)) as board:
        _shows(board)


def _shows(board: Running) -> None:
    found = ask(board, "/view/pools/research").text
    assert "Places are the queue policy" in found
    assert "theirs" not in found
    assert found.index("a job of another namespace") < found.index("mine")
    assert "Number <strong>2</strong> in the queue" in ask(board, "/view/jobs/team-a/mine").text


def test_a_best_of_which_no_checkpoint_is_left_is_marked_in_the_list() -> None:
    of, best = pool({"fifo": {}}), Best(60, 0.9)
    record = JobRecord(best=best, evals=(EvalPoint(60, 0.9),))
    for lost in ((), (best,)):
        had = with_record(job_object("team-a", "run"), replace(record, lost_bests=lost), of)
        with running([of, had]) as board:
            assert (' <span class="note">lost</span>' in ask(board, "/view/jobs").text) is bool(lost)


def test_a_best_that_was_compared_with_nothing_is_marked_in_the_list() -> None:
    of = pool({"fifo": {}})
    record = JobRecord(best=Best(60, 0.9), evals=(EvalPoint(60, 0.9),), evals_seen=1)
    for since in (None, EvalBaseline(0.0, "1-a", 50)):
        had = with_record(job_object("team-a", "run"), replace(record, baseline=since), of)
        with running([of, had]) as board:
            said = ' <span class="note">alone</span>' in ask(board, "/view/jobs").text
        assert said is (since is not None)
