"""A job's memory once its user has chosen another stop rule, which cannot read what the old one kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_policy_identity import FIRST, GATED, KEY, SECOND, running, show

from controller.policy.job.record import Operation
from controller.policy.job.types import ResumeFrom, ResumeRequest
from controller.policy.types import PolicySpec

PLAIN = {"rule": PolicySpec("kDeclines", {"k": 2}), "modifiers": ()}
DRAWDOWN = {"rule": PolicySpec("drawdown"), "modifiers": (PolicySpec("gate"),)}
FALLING = {10: 0.5, 20: 0.6, 30: 0.5, 40: 0.4, 50: 0.3, 60: 0.2}
RULES = [(PLAIN, DRAWDOWN), (DRAWDOWN, PLAIN), (PLAIN, GATED), (GATED, PLAIN)]


@pytest.mark.parametrize(("before", "after"), RULES)
def test_a_stopped_run_is_resumed_under_another_rule(before: dict, after: dict) -> None:
    world, job = running(**before)
    for count in range(1, len(FALLING) + 1):
        show(world, FIRST, dict(list(FALLING.items())[:count]))
        world.settle()
    if job.record.decision is None:  # this rule waits for more evals
        return
    job.desired = replace(job.desired, resume=ResumeRequest("again", ResumeFrom.BEST), **after)
    job.observed = replace(job.observed, scrape=None)
    world.settle()
    assert job.started == [1, 2]
    assert job.record.resume_id == "again"
    assert [p.step for p in job.record.evals] == [10, 20]


@pytest.mark.parametrize(("before", "after"), RULES)
def test_a_process_begins_anew_right_after_its_rule_was_edited(before: dict, after: dict) -> None:
    world, job = running(**before)
    show(world, FIRST, {10: 0.5, 20: 0.6, 30: 0.55})
    world.settle()
    job.desired = replace(job.desired, **after)
    show(world, SECOND, {30: 0.65}, resumed_step=20)
    world.settle()
    assert [(p.attempt, p.step) for p in job.record.evals] == [(FIRST, 10), (FIRST, 20), (SECOND, 30)]


@pytest.mark.parametrize(("before", "after"), RULES)
def test_a_run_ends_right_after_its_rule_was_edited(before: dict, after: dict) -> None:
    world, job = running(**before)
    show(world, FIRST, {10: 0.5, 20: 0.6, 30: 0.55})
    world.settle()
    job.desired = replace(job.desired, **after)
    workload = job.observed.workload
    assert workload is not None
    job.observed = replace(job.observed, scrape=None, workload=replace(workload, finished="Complete"))
    world.settle()
    assert job.record.finished is not None
    assert job.record.best is not None
    assert job.record.best.step == 20


def test_a_best_of_a_branch_that_was_left_keeps_no_user_s_pin_waiting() -> None:
    """Its checkpoint was looked for in vain; the process ended, and the next went on from before it."""
    world, job = running()
    show(world, FIRST, {10: 0.5})
    world.settle()
    world.slow = frozenset({Operation.SECURE})
    world.failing = "CheckpointIncomplete"
    show(world, FIRST, {10: 0.5, 20: 0.6})
    world.step(KEY)
    world.step(KEY)
    assert job.record.access is not None
    assert (job.record.access.operation, job.record.access.step) == (Operation.SECURE, 20)
    job.desired = replace(job.desired, pins=(10,))
    show(world, SECOND, {20: 0.4}, resumed_step=10)
    world.settle()
    assert [kept.step for kept in job.record.pinned] == [10]
