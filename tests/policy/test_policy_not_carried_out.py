"""Actions that the API server does not let through: the condition that says so, and the mark that it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_policy_marks import ADMITTED, STOP, TRAINS, T, condition

from controller.policy.job import conditions as c
from controller.policy.job.marks import health
from controller.policy.job.not_carried_out import ACTION_REFUSED, WAIT, WEBHOOK_FAILS
from controller.policy.job.plan import plan_job
from controller.policy.job.record import Condition, JobRecord, Preempting
from controller.policy.job.types import Desired, Observed, WorkloadView
from controller.policy.types import PolicySpec, Problem

FAILS = Problem(WEBHOOK_FAILS, 'failed calling webhook "w.io"')
UNDONE = condition(c.CARRIED_OUT, False, WEBHOOK_FAILS)
STARTS = condition(c.RUNNING, False, "Starting")


@pytest.mark.parametrize(
    ("record", "mark"),
    [
        (JobRecord(conditions=(UNDONE,)), "HeldUp"),
        (replace(TRAINS, conditions=(STARTS, UNDONE)), "NotStarting"),
        (replace(TRAINS, conditions=(*TRAINS.conditions, UNDONE)), "Unsafe"),
        (replace(TRAINS, decision=STOP, conditions=(*TRAINS.conditions, UNDONE)), "Stuck"),
        (
            replace(
                TRAINS, preempting=Preempting("Preempted", "x", T), conditions=(*TRAINS.conditions, UNDONE)
            ),
            "Stuck",
        ),
        (replace(TRAINS, admission=replace(ADMITTED, withdrawn="x"), conditions=(UNDONE,)), "Stuck"),
        # Off its GPUs: what is left to be done is for its checkpoints.
        (
            replace(TRAINS, decision=replace(STOP, pods_gone_at=T), admission=None, conditions=(UNDONE,)),
            "Unsafe",
        ),
        (replace(TRAINS, finished=True, conditions=(UNDONE,)), "Unsafe"),
    ],
)
def test_the_mark_is_that_of_what_waits_for_it(record: JobRecord, mark: str) -> None:
    found = next(one for one in health(record, T) if one.reason == WEBHOOK_FAILS)
    assert (found.mark, found.since, found.due, found.warning) == (mark, T, T + WAIT, False)
    assert next(one for one in health(record, T + WAIT) if one.reason == WEBHOOK_FAILS).warning
    assert found.whose == "whoever runs the cluster"
    assert "webhook" in found.cure().text


def test_a_webhook_that_comes_back_within_its_time_is_no_warning_of_a_new_job() -> None:
    (found,) = health(JobRecord(conditions=(condition(c.ACCEPTED, False, WEBHOOK_FAILS),)), T)
    assert (found.mark, found.due) == ("Refused", T + WAIT)
    (found,) = health(JobRecord(conditions=(condition(c.ACCEPTED, False, "GangMismatch"),)), T)
    assert found.due == T, "nothing but its owner ends this one"


def told(observed: Observed, *known: Condition, problem: Problem | None = None) -> Condition | None:
    desired = Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("kDeclines", {"k": 3}), problem=problem)
    return plan_job(desired, observed, JobRecord(conditions=known), T).record.condition(c.CARRIED_OUT)


def test_it_is_told_while_it_is_so_and_kept_while_nobody_knows() -> None:
    queued = Observed(workload=WorkloadView("w", suspended=True))
    assert told(queued) is None
    for problem in (FAILS, Problem(ACTION_REFUSED, "CreateWorkload: exceeded quota: jobs")):
        found = told(replace(queued, not_carried_out=problem))
        assert found is not None
        assert (found.status, found.reason, found.message) == (False, *problem)
    assert told(queued, UNDONE) == UNDONE, "a new leader knows nothing yet"
    assert told(replace(queued, carried_out=True), UNDONE) is None


def test_what_the_condition_accepted_says_is_not_said_twice() -> None:
    assert told(Observed(not_carried_out=FAILS), problem=FAILS) is None
