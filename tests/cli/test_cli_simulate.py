"""`evalstop simulate` shows rules a job's evals as the operator does: with what the job declares of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.cli import job_view
from controller.cli.simulate import differences, judged
from controller.policy.job import JobRecord
from controller.policy.job.record import Best
from controller.policy.types import Attempt, EvalPoint
from tests.support import cli_world as w

SCORES = (0.3, 0.5, 0.6, 0.62, 0.05, 0.04, 0.05)  # of so few, none tells how noisy it is


def stops(record: JobRecord, **declared: Any) -> int | None:
    obj = w.whole("run", w.running())
    obj["spec"] |= {
        "metrics": [{"name": "gold_reward", "role": "Primary", **declared}],
        "stopRule": {"scan": {"alpha": "0.04"}},
        "modifiers": [],
    }
    (own,) = judged(job_view.Reading(obj, record), [])
    return own.stopped_step


def test_prompts_and_their_range_are_shown_to_the_rule_as_far_as_they_hold() -> None:
    life = Attempt(1, "9")
    record = replace(JobRecord(), evals=tuple(EvalPoint(10 * n, s, life) for n, s in enumerate(SCORES, 1)))
    assert stops(record, prompts=200, preset="Accuracy") == 50
    assert stops(record) is None


def test_where_it_differs_from_the_run_itself_is_told() -> None:
    """Its own rule "STOPPED 30" where the run was stopped at 40; the best of its picture was not KEPT."""

    def told(record: JobRecord) -> str:
        job = job_view.read(w.whole("over", record))
        return " ".join(differences(job, judged(job, [])[0]))

    record = w.stopped()
    assert told(record) == "", "it agrees"
    assert record.decision is not None
    asked = replace(record.decision.proposal, step=200)
    assert "its rule came to a stop at step 200" in told(
        replace(record, decision=replace(record.decision, proposal=asked))
    )
    assert "its rule does not stop it now" in told(replace(record, decision=None))
    assert "the run's own best, step 140, is the highest" in told(replace(record, best=Best(140, 0.74)))
