"""The place of a run's copies is away: told at once and until it is back, while pins go on without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_policy_marks import STOP, TRAINS, T, condition

from controller.policy.job import conditions as c
from controller.policy.job import retention
from controller.policy.job.context import PlanContext
from controller.policy.job.marks import health
from controller.policy.job.plan import plan_job
from controller.policy.job.record import Condition, JobRecord
from controller.policy.job.retention import place_is_missing, place_problem
from controller.policy.job.types import Desired, Observed, WorkloadView
from controller.policy.types import Mode, PolicySpec, Problem

MISSING = Problem(
    "ClaimMissing",
    "spec.checkpoints.retention.volumeClaim.claimName: 'kept', but the namespace has no such claim",
)
SAID = condition(c.RETAINED, False, "ClaimMissing")
RUNS = Observed(workload=WorkloadView("w", suspended=False))


def desired(mode: Mode) -> Desired:
    return Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("kDeclines", {"k": 3}), mode=mode)


def told(record: JobRecord, problem: Problem | None) -> tuple[Condition | None, JobRecord]:
    observed = replace(RUNS, no_retention=problem)
    after = plan_job(desired(Mode.ENFORCE), observed, record, T).record
    return after.condition(c.RETAINED), after


def test_a_run_whose_copies_have_no_place_is_unsafe_at_once_and_until_they_have_one() -> None:
    found, after = told(TRAINS, MISSING)
    assert found is not None
    assert (found.status, found.reason) == (False, "ClaimMissing")
    assert found.message == (
        f"{MISSING.message}. What helps: make the claim that the message names; until then the best "
        "checkpoint is pinned where the trainer writes, and no stop of its rule is carried out"
    )
    assert [(one.mark, one.warning) for one in health(after, T) if one.reason == "ClaimMissing"] == [
        ("Unsafe", True)
    ]
    assert place_is_missing(after)
    assert place_problem(after) == MISSING
    assert told(after, MISSING)[0] == found
    back, after = told(after, None)
    assert back is None
    assert not place_is_missing(after)


@pytest.mark.parametrize(
    ("record", "mode", "problem", "kept"),
    [
        (TRAINS, Mode.SHADOW, MISSING, None),  # nothing of it is to be copied
        (replace(TRAINS, conditions=(*TRAINS.conditions, SAID)), Mode.SHADOW, MISSING, None),
        (JobRecord(), Mode.ENFORCE, MISSING, None),  # condition Accepted says it before a run
        (replace(TRAINS, decision=STOP, conditions=(SAID,)), Mode.ENFORCE, None, SAID),  # a copy's own answer
    ],
)
def test_it_is_told_of_a_run_that_would_be_stopped_and_left_to_the_copy_of_one_that_is(
    record: JobRecord, mode: Mode, problem: Problem | None, kept: Condition | None
) -> None:
    context = PlanContext(desired(mode), replace(RUNS, no_retention=problem), record, T)
    retention.tell_place(context)
    assert context.conditions.get(c.RETAINED) == kept


def test_what_a_copy_came_to_besides_stays() -> None:
    other = condition(c.RETAINED, False, "OutOfSpace")
    assert told(replace(TRAINS, conditions=(*TRAINS.conditions, other)), None)[0] == other
    assert not place_is_missing(JobRecord(conditions=(other,)))
