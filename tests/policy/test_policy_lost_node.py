"""A node that is not heard of under a run: named, whichever of its pods was there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.policy.job import conditions as c
from controller.policy.job.marks import NODE_AWAY_AFTER, Mark, health, state_reason
from controller.policy.job.record import NODE_NOT_READY, PodTrouble
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.support.policy_world import PolicyWorld

KEY = "ns/a"


def running() -> tuple[PolicyWorld, Any]:
    """Return a run of two pods that trains, on two nodes."""
    world = PolicyWorld({"n0": 1, "n1": 1})
    job = world.submit(KEY, replicas=2, gpus=1)
    for _ in range(10):
        go(world, 1.0)
    assert job.record.condition(c.RUNNING).status
    return world, job


def go(world: PolicyWorld, seconds: float, *lost: str, **more: Any) -> list[str]:
    """Return the reasons of Events of that time, in which pods on these nodes are not heard of."""
    told: list[str] = []
    end = world.now + seconds
    while world.now < end:
        told += [event.reason for event in world.step(KEY).events]
        job = world.jobs[KEY]
        world._cluster(job)
        pods = (
            replace(p, ready=False, unheard=True, **more)
            if p.node in lost
            else replace(p, ready=True, unheard=False)
            for p in job.observed.pods
        )
        job.observed = replace(job.observed, pods=tuple(pods))
        world.pool_pass()
        world.now += 1.0
    return told


def test_a_run_whose_node_is_lost_names_it_and_not_its_page() -> None:
    world, job = running()
    go(world, 2.0, "n1")
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.TIMEOUT, "no answer within 5 s"))
    told = go(world, 10.0, "n1")
    (found,) = health(job.record, world.now)
    assert (found.mark, found.reason, found.warning) == (Mark.STUCK, "NodeNotReady", False)
    assert found.message.endswith(" is not ready: n1 is down, or cut off from the cluster")
    assert found.whose == "whoever runs the cluster"
    cure = found.cure().filled("a", "ns", "p", "", found.message)
    assert cure.command == "kubectl describe node n1"
    assert state_reason(job.record) == "NodeNotReady"
    assert "Stuck" not in told
    assert "Stuck" in go(world, NODE_AWAY_AFTER, "n1")
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.OK, ""))
    go(world, 5.0)
    assert job.record.pod_trouble is None
    assert Mark.STUCK not in {one.mark for one in health(job.record, world.now)}


def test_pods_that_the_cluster_deletes_there_are_told_until_others_have_taken_their_place() -> None:
    world, job = running()
    go(world, 70.0, "n1", deleting_since=world.now)
    assert [one.reason for one in health(job.record, world.now)] == ["NodeNotReady"]
    former = next(p for p in job.observed.pods if p.node == "n1")
    kept = replace(former, unheard=True, ready=False, deleting_since=world.now)
    fresh = replace(former, name="pod-9", node="n0", uid="fresh", ready=True, unheard=False)
    others = [p for p in job.observed.pods if p.node != "n1"]
    job.observed = replace(job.observed, pods=(*others, fresh, kept))
    world.step(KEY)
    assert job.record.pod_trouble is None


def test_a_node_that_is_lost_after_a_crash_is_named_instead_of_it() -> None:
    world, job = running()
    end = PodTrouble("a-0", exit_code=1, message="out of memory", since=world.now, container="c/1")
    pods = (replace(job.observed.pods[0], trouble=end, ready=False), *job.observed.pods[1:])
    job.observed = replace(job.observed, pods=pods)
    world.step(KEY)
    assert job.record.pod_trouble is not None
    assert job.record.pod_trouble.exit_code == 1
    go(world, 3.0, "n1")
    assert job.record.pod_trouble.waits == NODE_NOT_READY
    # The crash is not counted again once the node is back.
    pods = (replace(job.observed.pods[0], trouble=end), *job.observed.pods[1:])
    job.observed = replace(job.observed, pods=pods)
    go(world, 5.0)
    assert job.record.pod_trouble is None
