"""Evals that are reported by a process of their own for each checkpoint, in the trainer's pod."""

from __future__ import annotations

import pytest

from controller.policy.types import Attempt, PolicySpec
from tests.support.policy_world import PolicyWorld

SCORES = [0.5 + 0.02 * i if i < 6 else 0.62 - 0.03 * (i - 6) for i in range(14)]


@pytest.mark.parametrize("resumed", [None, "step"])
def test_they_are_evals_of_one_run(resumed: str | None) -> None:
    """None says where it started from, or each its own checkpoint: all their evals count."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a", rule=PolicySpec("kDeclines", {"k": 3}))
    world.settle()
    for i, score in enumerate(SCORES):
        life = Attempt(job.record.attempt, f"life-{i}")
        world.scores("ns/a", score, attempt=life)
        newest = job.observed.scrape.points[-1:]
        said = None if resumed is None else newest[0].step
        world.scrape("ns/a", points=newest, checkpoint_step=newest[0].step, resumed_step=said)
        world.settle()
        if job.record.decision is not None:
            break
    assert job.record.best is not None
    assert job.record.best.step == 70
    assert job.record.decision is not None, "the fall of three evals in a row was seen"
