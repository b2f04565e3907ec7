"""A job that holds GPUs is read, and its best checkpoint secured, whatever befalls its pool or its rule: only
admissions and stops are withheld."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.types import Guardrail, RunState, StartWorkload, SuspendWorkload
from controller.policy.pool import job_outcomes
from controller.policy.types import Mode, PolicySpec, Preemption, Problem
from tests.support.policy_world import PolicyWorld

RISE, FALL = (0.1, 0.3, 0.5), (0.45, 0.4, 0.35)
PROBLEMS = [
    Problem("PriorityTooHigh", "spec.priority: 9 is above the ceiling"),
    Problem("PoolNotUsable", "spec.pool: GPUPool 'p' admits nobody: spec.queuePolicy.xyz: no such field"),
    Problem("PoolNotFound", "spec.pool: there is no GPUPool 'p'"),
]


def running() -> PolicyWorld:
    world = PolicyWorld({"n1": 2, "n2": 2})
    world.submit("ns/a", replicas=1, gpus=2)
    world.settle()
    world.scores("ns/a", 0.1)
    world.settle()
    return world


def told(world: PolicyWorld, type_: str):
    return world.jobs["ns/a"].record.condition(type_)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_befalls_a_pool_stops_neither_reading_nor_securing(problem: Problem) -> None:
    # row 9
    world = running()
    job = world.jobs["ns/a"]
    job.wish(problem=problem)
    world.scores("ns/a", *RISE)
    world.settle()
    assert [e.score for e in job.record.evals][-3:] == list(RISE)
    assert job.record.secured is not None
    assert job.record.secured.best_step == job.record.best.step
    assert told(world, c.METRICS).status
    assert told(world, c.ACCEPTED).reason == problem.reason
    world.submit("ns/b", replicas=2, gpus=2)  # somebody waits
    world.scores("ns/a", *FALL)
    world.settle()
    assert job.record.decision is None
    assert told(world, c.TERMINATION).reason == "NotAccepted"
    assert problem.message in told(world, c.TERMINATION).message
    assert told(world, c.RUNNING).status
    assert c.summary(job.record.conditions) == "RunsOn", "it was Refused, as one that holds nothing"
    assert c.rests_on(job.record.conditions) == c.ACCEPTED
    job.wish(problem=None)  # mended: what was seen meanwhile counts
    world.settle()
    assert job.record.decision is not None


@pytest.mark.parametrize("problem", PROBLEMS)
def test_nobody_is_admitted_meanwhile(problem: Problem) -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", replicas=1, gpus=2, problem=problem)
    world.settle()
    assert job.started == []
    assert not any(isinstance(a, StartWorkload) for a in world.step("ns/a").actions)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("mode", list(Mode))
def test_what_somebody_starts_meanwhile_is_suspended(problem: Problem, mode: Mode) -> None:
    # row 15: its gang was withdrawn, its child started by hand, and its user's stop was not carried out
    world = running()
    job = world.jobs["ns/a"]
    job.record = replace(job.record, admission=None)
    job.wish(problem=problem, mode=mode, run_state=RunState.STOPPED)
    found: list[str] = []
    for _ in range(60):
        world.now += world.pace
        found += [a.reason for a in world.step("ns/a").actions if isinstance(a, SuspendWorkload)]
    assert found[:1] == ["NotAccepted" if mode is Mode.ENFORCE else "UserRequest"]


@pytest.mark.parametrize(
    "spec",
    [
        {"rule": PolicySpec("kDeclines", {"k": -1})},
        {"rule": PolicySpec("")},
        {"rule": PolicySpec("noSuchRule")},
        {"modifiers": (PolicySpec("noSuchModifier"),)},
        {"guardrails": (Guardrail("kl", PolicySpec("noSuchRule")),)},
    ],
)
def test_a_rule_that_cannot_be_made_stops_neither_reading_nor_securing(spec: dict) -> None:
    # row 9
    world = running()
    job = world.jobs["ns/a"]
    before = job.desired
    job.wish(**spec)
    world.scores("ns/a", *RISE, *FALL)
    world.settle()
    assert [e.score for e in job.record.evals][-6:] == [*RISE, *FALL]
    assert job.record.best.score == max(RISE)
    assert job.record.secured is not None
    assert job.record.secured.best_step == job.record.best.step
    assert told(world, c.ACCEPTED).reason == "InvalidStopRule"
    assert told(world, c.METRICS).status
    assert job.record.decision is None
    job.desired = before  # mended: the rule's memory is made of the evals that are kept
    world.settle()
    assert job.record.decision is not None


def test_what_cannot_be_read_is_not_said_to_be() -> None:
    # row 9
    world = running()
    job = world.jobs["ns/a"]
    assert told(world, c.METRICS).status
    job.wish(metric="", problem=Problem("InvalidSpec", "spec.metrics: missing"))
    world.step("ns/a")
    assert not told(world, c.METRICS).status


def test_a_run_whose_pool_begins_to_ask_for_its_duration_is_not_refused() -> None:
    world = running()
    job = world.jobs["ns/a"]
    missing = Problem("DurationMissing", "spec.expectedDurationSeconds: not set")
    job.wish(problem=missing)
    world.scores("ns/a", *RISE)
    world.settle()
    accepted = told(world, c.ACCEPTED)
    assert (accepted.status, accepted.reason) == (True, "Valid")
    assert missing.message in accepted.message
    assert "after the jobs that state theirs" in accepted.message
    # Preempted, it waits for GPUs, and comes back once some are free.
    job.record = job_outcomes.preempted(job.record, Preemption("ns/b", "ShorterJobWaits"), world.now)
    for _ in range(80):  # (without its pool, which would call it off: nobody waits)
        if job.record.preempting is None:
            break
        world.step("ns/a", seconds=10.0)
        world._cluster(job)
    world.settle()
    assert job.record.admission is not None
    assert job.record.admission.number == 2
    # One that never ran is refused.
    other = world.submit("ns/b", replicas=1, gpus=2)
    other.wish(problem=missing)
    world.settle()
    refused = other.record.condition(c.ACCEPTED)
    assert (refused.status, refused.reason) == (False, "DurationMissing")
