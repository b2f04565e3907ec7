"""A trainer that has ended while its pods go on is told as that, with a cure that ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.marks import RUN_ON_AFTER, Mark, health
from controller.policy.job.types import RunState, ScrapeOutcome, ScrapeView, TrainerEnd
from tests.support.policy_world import PolicyWorld

REFUSED = "10.0.0.1:9400: not reachable (Connection refused)"


def running(members: int = 1) -> PolicyWorld:
    world = PolicyWorld({"n0": 2, "n1": 2})
    world.submit("ns/a", replicas=members, gpus=2)
    world.settle()
    world.scores("ns/a", 0.1, 0.3, 0.5)
    world.settle()
    assert world.jobs["ns/a"].record.condition(c.METRICS).status
    return world


def silent(world: PolicyWorld, *, first: dict, outcome: ScrapeOutcome = ScrapeOutcome.UNREACHABLE) -> None:
    """Its page is not read any more, and the first of its pods stands so."""
    job = world.jobs["ns/a"]
    pods = (replace(job.observed.pods[0], **first), *job.observed.pods[1:])
    job.observed = replace(job.observed, pods=pods, scrape=ScrapeView(outcome, REFUSED, at=world.now))


SIDECAR = {"ready": False, "trainer_end": TrainerEnd("trainer", 0, ("proxy",))}
ENDED = {"ready": False, "terminal": True, "succeeded": True}


@pytest.mark.parametrize(
    ("members", "first", "outcome", "reason", "said", "command"),
    [
        (
            1,
            SIDECAR,
            ScrapeOutcome.UNREACHABLE,
            "TrainerEnded",
            "for proxy of it runs on",
            "evalstop stop a -n ns",
        ),
        (1, SIDECAR, ScrapeOutcome.TIMEOUT, "TrainerEnded", "(exit code 0)", "evalstop stop a -n ns"),
        (2, ENDED, ScrapeOutcome.NO_SPEAKER, "MembersRunOn", "pod pod-1 runs on", "kubectl logs -n ns pod-1"),
    ],
)
def test_a_run_whose_trainer_has_ended_is_told_as_that_and_not_as_a_wrong_port(
    members: int, first: dict, outcome: ScrapeOutcome, reason: str, said: str, command: str
) -> None:
    world = running(members)
    job = world.jobs["ns/a"]
    silent(world, first=first, outcome=outcome)
    world.step("ns/a")
    told = job.record.condition(c.METRICS)
    assert (told.status, told.reason) == (False, reason)
    assert said in told.message
    (found,) = health(job.record, world.now)
    assert (found.mark, found.reason, found.warning) == (Mark.STUCK, reason, False)
    (found,) = health(job.record, world.now + RUN_ON_AFTER)
    assert found.warning
    assert found.cure().filled("a", "ns", "pool", "", found.message).command == command
    events = len(world.step("ns/a").events)
    assert events == 0, "it is told once"


@pytest.mark.parametrize("first", [{}, {"ready": False}])
def test_a_wrong_port_is_told_as_before(first: dict) -> None:
    world = running()
    silent(world, first=first)
    world.step("ns/a")
    assert world.jobs["ns/a"].record.condition(c.METRICS).reason == "Unreachable"


def test_a_member_that_waits_for_a_node_does_not_run_on() -> None:
    world = running(2)
    job = world.jobs["ns/a"]
    silent(world, first=ENDED, outcome=ScrapeOutcome.NO_SPEAKER)
    done, other = job.observed.pods
    job.observed = replace(job.observed, pods=(done, replace(other, node=None, ready=False)))
    world.step("ns/a")
    assert job.record.condition(c.METRICS).reason != "MembersRunOn"


def test_the_page_of_a_run_that_still_answers_counts() -> None:
    """A container that ended may not have been the trainer's."""
    world = running()
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, pods=(replace(job.observed.pods[0], **SIDECAR),))
    world.step("ns/a")
    assert job.record.condition(c.METRICS).status


def test_the_stop_that_is_advised_frees_its_gpus() -> None:
    world = running()
    job = world.jobs["ns/a"]
    silent(world, first=SIDECAR)
    world.step("ns/a")
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert c.summary(job.record.conditions) == "Stopped"
    assert 30 in job.kept
