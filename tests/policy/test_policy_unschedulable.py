"""Pods that their scheduler finds no node for: told in its words, and GPUs are not held for them again and
again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.marks import Finding, Mark, health
from controller.policy.job.pod_troubles import UNPLACED_AFTER
from controller.policy.job.record import LAST_WORDS, PodTrouble
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.support.policy_world import PolicyWorld

KEY = "ns/a"
AVAILABLE = "0/4 nodes are available: "
SELECTOR = (
    f"{AVAILABLE}1 node(s) had untolerated taint(s), 3 node(s) didn't match Pod's node affinity/selector"
)
FULL = f"{AVAILABLE}2 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector"
CLOSED = f"{AVAILABLE}2 node(s) are planned for others, 2 node(s) didn't match Pod's node affinity/selector"
AWAY = (
    f"{AVAILABLE}2 node(s) had untolerated taint {{node.kubernetes.io/not-ready: }}, "
    "2 node(s) didn't match Pod's node affinity/selector"
)


class Unplaced(PolicyWorld):
    """Of its pods the scheduler says these words; "" once: they have their nodes."""

    words = SELECTOR
    pace = 5.0

    def go(self, seconds: float) -> list[str]:
        """Return reasons and messages of Events of that time."""
        told: list[str] = []
        end = self.now + seconds
        while self.now < end:
            plan = self.step(KEY)
            told += [f"{event.reason}: {event.message}" for event in plan.events]
            job = self.jobs[KEY]
            self._cluster(job)
            pods = tuple(self._pod(p) for p in job.observed.pods)
            scrape = ScrapeView(ScrapeOutcome.NO_PODS, "no pod has an address")
            job.observed = replace(job.observed, pods=pods, scrape=scrape if self.words else None)
            self.pool_pass()
            self.now += self.pace
        return told

    def _pod(self, pod):
        if not self.words:
            return replace(pod, node="n0", ready=True, trouble=None)
        created = pod.created if pod.trouble is not None else self.now
        trouble = PodTrouble(pod.name, waits="Unschedulable", message=self.words)
        return replace(pod, created=created, node=None, ready=False, trouble=trouble)


def submitted(words: str = SELECTOR, **more: float) -> Unplaced:
    world = Unplaced({"n0": 2})
    world.words = words
    job = world.submit(KEY, gpus=2, gang_timeout=100.0, **more)
    while not job.started:
        world.go(1.0)
    return world


def first(world: Unplaced) -> Finding | None:
    return next(iter(health(world.jobs[KEY].record, world.now)), None)


@pytest.mark.parametrize(
    ("words", "key", "quiet"),
    [
        (SELECTOR, "NodesDontMatch", 30.0),
        (f"{AVAILABLE}4 node(s) had untolerated taint(s)", "NodesDontMatch", 30.0),
        (f"{AVAILABLE}4 node(s) had volume node affinity conflict", "Unschedulable", 30.0),
        (f"{SELECTOR}, 1 node(s) had volume node affinity conflict", "Unschedulable", 30.0),
        (AWAY, "Unschedulable", 30.0),
        (FULL, "Unschedulable", 300.0),
        ("", "", 0.0),
    ],
)
def test_what_its_scheduler_says_is_told_and_soon_a_warning(words: str, key: str, quiet: float) -> None:
    world = submitted(words)
    world.go(UNPLACED_AFTER - world.pace)
    assert world.jobs[KEY].record.pod_trouble is None, "GPUs may be about to be free"
    world.go(2 * world.pace)
    found = first(world)
    if not words:
        assert found is None
        return
    assert found is not None
    assert (found.mark, found.reason, found.warning) == (Mark.NOT_STARTING, "Unschedulable", False)
    assert words in found.message
    assert found.code == key
    assert found.due == found.since + quiet


def test_numbers_that_change_are_no_write_and_other_grounds_are_told() -> None:
    world = submitted(FULL)
    world.go(UNPLACED_AFTER + 5.0)
    writes = world.writes
    world.words = FULL.replace("2 Insufficient", "1 Insufficient")
    world.go(10.0)
    assert world.writes == writes
    world.words = SELECTOR
    world.go(10.0)
    found = first(world)
    assert found is not None
    assert SELECTOR in found.message


def test_it_stays_told_from_one_try_to_the_next_and_the_pauses_grow() -> None:
    world = submitted()
    job = world.jobs[KEY]
    events = world.go(UNPLACED_AFTER + 40.0)
    attention = job.record.condition(c.ATTENTION)
    assert attention is not None
    assert (attention.status, attention.reason) == (True, "NotStarting")
    pauses: list[float] = []
    held = 0.0
    for _ in range(600):
        before = job.record.gang_backoff
        events += world.go(5.0)
        held += 5.0 * (job.record.admission is not None)
        after = job.record.gang_backoff
        if after is not None and after != before:
            pauses.append(round(after.until - world.now, -1))
        found = first(world)
        assert found is not None
        assert (found.mark, found.reason, found.warning) == (Mark.NOT_STARTING, "Unschedulable", True)
    assert pauses[:4] == [100.0, 200.0, 300.0, 400.0]
    assert held < 0.5 * 3000.0
    assert not any(one.startswith("Recovered") for one in events)
    withdrawn = [one for one in events if "pods had no node" in one]
    assert len(withdrawn) >= len(pauses)
    assert all(SELECTOR in one for one in withdrawn)
    admitted = job.record.condition(c.ADMITTED)
    if not admitted.status:
        assert SELECTOR in admitted.message
    world.words = ""
    events = world.go(700.0)
    assert job.record.condition(c.RUNNING).status
    assert job.record.pod_trouble is None
    assert job.record.gang_backoff is None
    assert sum(one.startswith("Recovered") for one in events) == 1


@pytest.mark.parametrize("words", [FULL, CLOSED, AWAY])
def test_a_gang_that_another_node_may_take_is_tried_again_as_soon_as_ever(words: str) -> None:
    world = submitted(words)
    job = world.jobs[KEY]
    while job.record.gang_backoff is None:
        world.go(5.0)
    assert job.record.gang_backoff.until - world.now <= 10.0


def test_one_that_waits_for_gpus_alone_is_not_told_as_starting_between_two_tries() -> None:
    world = submitted(FULL, first_eval=30.0)
    job = world.jobs[KEY]
    while job.record.gang_backoff is None:
        world.go(5.0)
    found = first(world)
    assert found is None or found.mark is not Mark.NOT_STARTING
    assert len(SELECTOR) <= LAST_WORDS
