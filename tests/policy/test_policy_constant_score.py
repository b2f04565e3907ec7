"""A metric that never moves: from which eval on it is noted, and that any other eval takes the note away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.names import EVALS_KEPT
from controller.policy.job import conditions as c
from controller.policy.job.constant_score import CONSTANT, LEAST
from controller.policy.job.curve import with_eval
from controller.policy.job.marks import Mark, health, state_reason
from controller.policy.job.record import AdmissionRecord, Condition, JobRecord
from controller.policy.types import Attempt, EvalPoint

T = 1_000_000.0
LIFE = Attempt(1, "9f2c41d0")


def run_of(scores: list[float]) -> JobRecord:
    """A run that trains, with these evals, as the operator keeps them."""
    read = Condition(c.METRICS, True, "Scraped", "read", T, 1)
    running = Condition(c.RUNNING, True, "Running", "all members are ready", T, 1)
    record = JobRecord(
        attempt=1, admission=AdmissionRecord(1, ("n1",), T, None, T), conditions=(read, running)
    )
    for at, score in enumerate(scores):
        point = EvalPoint(10 * (at + 1), score, LIFE)
        evals = (*record.evals, point)[-EVALS_KEPT:]
        curve = with_eval(record, point, None)
        record = replace(record, evals=evals, curve=curve, evals_seen=at + 1)
    return record


@pytest.mark.parametrize(
    ("scores", "noted"),
    [
        ([0.7] * 60, True),
        ([0.0] * LEAST, True),
        ([0.1 + 0.2] * 60, True),  # that has no short decimal
        ([0.7] * (LEAST - 1), False),
        ([0.7] * 59 + [0.7000001], False),
        ([0.1 * i for i in range(10)] + [1.0] * 60, False),  # it rose to its end, and stays there
    ],
)
def test_a_score_that_never_moves_is_noted_and_no_more(scores: list[float], noted: bool) -> None:
    """A stranger's judge answered 0.7 to everything, and the run looked well."""
    record = run_of(scores)
    found = [one for one in health(record, T + 1e7) if one.reason == CONSTANT]
    assert bool(found) is noted
    assert (state_reason(record) == CONSTANT) is noted
    for one in found:
        assert (one.mark, one.warning) == (Mark.BLIND, False)
        assert f"all {len(scores)} evals are exactly {scores[0]:g}" in one.message
