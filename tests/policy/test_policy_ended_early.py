"""A run that completed long before its last step: that it is remarked, and where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.ended_early import ENDED_EARLY, complaint
from controller.policy.job.marks import health, state_reason
from controller.policy.job.record import Condition, JobRecord, RunProgress
from controller.policy.types import Attempt, EvalPoint

DONE = Condition(c.COMPLETED, True, "Complete", "the workload ended", 1e6, 1)
LAST = (EvalPoint(60, 0.5, Attempt(1, "9f2c41d0")),)


def ended(progress: RunProgress | None, evals: tuple[EvalPoint, ...] = LAST) -> JobRecord:
    return JobRecord(
        attempt=1,
        finished="Complete",
        conditions=(DONE,),
        evals=evals,
        evals_seen=len(evals),
        progress=progress,
    )


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (ended(RunProgress(60, 4000, 10.0)), True),
        (ended(RunProgress(10, 4000, 10.0)), True),
        (ended(RunProgress(4000, 4000, 10.0)), False),
        (ended(RunProgress(2100, 4000, 10.0)), False),  # the rest may have been made since it was last read
        (ended(RunProgress(20, 100, 10.0)), False),  # its newest eval was of a later step
        (ended(RunProgress(60, 0, 10.0)), False),  # no trainer told a total
        (ended(None), False),
        (replace(ended(RunProgress(60, 4000, 10.0)), finished="Failed"), False),
        (replace(ended(RunProgress(60, 4000, 10.0)), finished=None), False),
    ],
)
def test_a_run_that_ended_with_most_of_its_steps_left_is_remarked(record: JobRecord, told: bool) -> None:
    """A shell hid its trainer's crash at 2 %: `list` and `doctor` said nothing."""
    assert bool(complaint(record)) is told
    assert (state_reason(record) == ENDED_EARLY) is told
    assert not [one for one in health(record, 2e6) if one.warning and one.reason == ENDED_EARLY]


def test_it_is_told_how_far_it_came() -> None:
    assert complaint(ended(RunProgress(20, 4000, 10.0))) == (
        "it ended by itself, without an error, at step 60 of 4000 (2%) when it was last read"
    )
