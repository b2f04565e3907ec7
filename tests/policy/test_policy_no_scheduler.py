"""Pods of which no scheduler says anything: told as that, until one binds a pod."""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health
from controller.policy.job.pod_troubles import UNSEEN_AFTER
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.support.policy_world import PolicyWorld

KEY = "ns/a"
SCHEDULER = "evalstop-schedulr"


class Unscheduled(PolicyWorld):
    """Its pods wait for a scheduler of that name; "" once: they have their nodes."""

    scheduler = SCHEDULER
    pace = 5.0

    def go(self, seconds: float) -> list[str]:
        """Return the reasons of Events of that time."""
        told: list[str] = []
        end = self.now + seconds
        while self.now < end:
            plan = self.step(KEY)
            told += [event.reason for event in plan.events]
            job = self.jobs[KEY]
            self._cluster(job)
            if self.scheduler:
                waits = {"node": None, "ready": False, "unseen_by": self.scheduler}
                seen = tuple(
                    p if p.unseen_by else replace(p, created=self.now, **waits) for p in job.observed.pods
                )
                job.observed = replace(job.observed, pods=seen)
            else:
                job.observed = replace(
                    job.observed,
                    pods=tuple(replace(p, node="n0", ready=True, unseen_by="") for p in job.observed.pods),
                )
            self.pool_pass()
            self.now += self.pace
        return told


def attention(world: PolicyWorld) -> tuple[bool, str]:
    found = world.jobs[KEY].record.condition(c.ATTENTION)
    return (found.status, found.reason) if found is not None else (False, "")


def test_pods_that_nobody_schedules_are_told_and_stay_told_until_one_is_bound() -> None:
    world = Unscheduled({"n0": 2})
    job = world.submit(KEY, gpus=2, gang_timeout=60.0)
    while not job.started:
        world.go(1.0)
    world.go(10.0)
    assert job.record.pod_trouble is None, "it may be about to"
    world.go(UNSEEN_AFTER)
    (found, *_) = health(job.record, world.now)
    assert (found.mark, found.reason, found.warning) == (Mark.NOT_STARTING, "NoScheduler", False)
    assert SCHEDULER in found.message
    told = world.go(35.0)
    assert attention(world) == (True, "NotStarting")
    told += world.go(600.0)
    assert len(job.started) > 2, "it was tried again and again"
    assert "Recovered" not in told
    assert attention(world) == (True, "NotStarting")
    assert health(job.record, world.now)[0].reason == "NoScheduler"
    world.scheduler = ""
    told = world.go(900.0)
    assert job.record.condition(c.RUNNING).status
    assert job.record.pod_trouble is None
    assert told.count("Recovered") == 1


def test_a_gang_that_is_tried_again_after_a_time_out_has_not_recovered() -> None:
    """Its scheduler says why it finds no node."""
    world = Unscheduled({"n0": 2})
    job = world.submit(KEY, gpus=2, gang_timeout=60.0, first_eval=30.0)
    unseen, told = {"node": None, "ready": False}, []
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.NO_PODS, "no pod has an address"))
    for _ in range(200):
        told += [event.reason for event in world.step(KEY).events]
        world._cluster(job)
        job.observed = replace(job.observed, pods=tuple(replace(p, **unseen) for p in job.observed.pods))
        world.pool_pass()
        world.now += 5.0
    assert told.count("GangTimedOut") > 1
    assert attention(world) == (True, "Unwatched")
    assert "Recovered" not in told
