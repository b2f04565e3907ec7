"""Rollout actors on a job's page and lent GPUs on a pool's, for viewers who may see all names, or some."""

from __future__ import annotations

import urllib.request
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from controller.policy.actor_types import Actor, ActorState
from controller.policy.job.record import JobRecord
from controller.policy.job.rollout_record import RolloutRecord, StepPlan, StepRow
from controller.policy.wording import ELSEWHERE
from controller.web.dashboard.access import Viewer
from controller.web.dashboard.feed import Job, read_job
from controller.web.dashboard.lanes import KINDS, lanes_svg
from controller.web.dashboard.rollouts import Loan, loans, rollouts
from tests.support.dashboard_world import (
    EVERYONE,
    KEY,
    Object,
    healthy,
    job_object,
    judged,
    pool_object,
    running,
    with_record,
)

NOW = 1_800_000_000.0
POOL = pool_object(status={"capacity": 8, "free": 1, "held": 0, "foreign": 0, "running": 2, "queued": 0})
ROLLOUT: dict[str, Any] = {
    "gpusPerActor": 1,
    "actors": {"min": 2, "max": 4, "static": 3},
    "template": {
        "spec": {
            "containers": [
                {"name": "engine", "image": "engine:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            ]
        }
    },
}
ROWS = (
    StepRow(7, NOW - 50.0, 12.0, 11.5, 20.0, 3, 3, 33.0, 32.0, 0, 0, 4.0, "LongestFirst", "Planned"),
    StepRow(8, NOW - 30.0, 11.0, 11.5, 20.0, 2, 2, 22.0, 23.0, 5, 0, 9.0, "LongestFirst", "Planned"),
)
PLAN = StepPlan(9, 2, "LongestFirst", "Planned", "2 actors are enough")
RECALLED = Actor(6, "gpu-4", 1, ActorState.RECALLED, NOW - 90.0, "team-c/secret", NOW + 5.0, NOW - 89.0)


def actor(number: int, node: str = "gpu-3") -> Actor:
    return Actor(number, node, 1, ActorState.RUNNING, NOW - 100.0, bound=NOW - 99.0)


def with_actors(namespace: str, name: str, *actors: Actor) -> Object:
    obj = job_object(namespace, name, created=NOW - 900.0, rollout=ROLLOUT)
    record: JobRecord = judged(obj, healthy(1, 8), NOW, POOL)
    account = RolloutRecord(PLAN, recent=ROWS)
    return with_record(obj, replace(record, actors=actors, actor_starts=9, rollout=account), POOL)


LENDER = with_actors("team-a", "lender", actor(0))
BORROWER = with_actors("team-b", "borrower", actor(3), actor(4), actor(5), RECALLED)


def as_job(obj: Object) -> Job:
    found = read_job(obj, {"research": POOL})
    assert found.problem == ""
    return found


def named(viewer: Viewer) -> Any:
    return lambda key: key if viewer.sees(key.partition("/")[0]) else ELSEWHERE


SOME = Viewer("b", frozenset({"team-b"}), True)


def test_a_jobs_actors_are_base_spare_or_leave() -> None:
    found = rollouts(as_job(BORROWER), named(EVERYONE))
    assert found is not None
    assert [(one.actor.number, one.kind, one.for_whom) for one in found.actors] == [
        (3, "base", ""),
        (4, "base", ""),
        (5, "spare", ""),
        (6, "leaves", "team-c/secret"),
    ]
    assert [step.step for step in found.steps] == [8, 7]
    hidden = rollouts(as_job(BORROWER), named(SOME))
    assert hidden is not None
    assert hidden.actors[-1].for_whom == ELSEWHERE
    lender = rollouts(as_job(LENDER), named(EVERYONE))
    assert lender is not None
    assert lender.lent == 1
    assert rollouts(as_job(job_object("team-a", "plain")), named(EVERYONE)) is None


def test_lanes_hold_to_the_steps_and_name_what_is_done() -> None:
    found = rollouts(as_job(BORROWER), named(EVERYONE))
    assert found is not None
    assert found.lanes is not None
    learner, counts, *actors = found.lanes.lanes
    times = [(bar.begin - NOW, bar.end - NOW, bar.kind) for bar in learner.bars]
    assert times == [
        (-70.0, -62.0, "trains"),
        (-62.0, -50.0, "generates"),
        (-50.0, -41.0, "trains"),
        (-41.0, -30.0, "generates"),
    ]
    assert [bar.text for bar in counts.bars] == ["3 of 3", "2 of 2"]
    assert [lane.name for lane in actors] == ["actor 3", "actor 4", "actor 5", "actor 6"]
    assert all(bar.begin <= bar.end and bar.kind in KINDS for lane in found.lanes.lanes for bar in lane.bars)
    assert actors[-1].bars[0].end == NOW + 5.0, "a recalled one has to be gone then"
    for narrow in (False, True):
        root = ET.fromstring(lanes_svg(found.lanes, "l", narrow))
        text = " ".join(root.itertext())
        assert all(word in text for word in ("learner", "actor 6", "trains", "spare", "leaves"))


@pytest.mark.parametrize(
    ("viewer", "lenders", "who"),
    [(EVERYONE, (("team-a/lender", 1),), "team-b/borrower"), (SOME, ((ELSEWHERE, 1),), "team-b/borrower")],
)
def test_lent_gpus_have_both_names_for_those_who_may_see_them(
    viewer: Viewer, lenders: tuple[tuple[str, int], ...], who: str
) -> None:
    assert loans([as_job(LENDER), as_job(BORROWER)], named(viewer)) == [Loan(who, actor(5), lenders)]
    (other,) = loans([as_job(LENDER), as_job(BORROWER)], named(Viewer("x", frozenset(), True)))
    assert (other.borrower, other.lenders) == (ELSEWHERE, ((ELSEWHERE, 1),))


def fetch(base: str, path: str) -> str:
    request = urllib.request.Request(f"{base}/view{path}", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=45) as answer:
        return str(answer.read().decode())


def test_the_pages_show_them_and_hide_names(repository: object) -> None:
    objects = [POOL, LENDER, BORROWER]
    with running(objects) as dashboard:
        page = fetch(dashboard.base, "/jobs/team-b/borrower")
        assert "Rollouts" in page
        assert "team-c/secret" in page
        assert "Plan of step 9: 2 actors, LongestFirst" in page
        assert "team-a/lender" in fetch(dashboard.base, "/pools/research")
    with running(objects, SOME) as dashboard:
        page, pool = (fetch(dashboard.base, path) for path in ("/jobs/team-b/borrower", "/pools/research"))
        assert "secret" not in page
        assert "Lent GPUs" in pool
        assert "team-b/borrower" in pool
        assert "lender</" not in pool
