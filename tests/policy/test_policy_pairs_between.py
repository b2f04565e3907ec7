"""Pairs of evals that were never paired: bounded through one that both were paired with, or none."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.stopping.prompt_pairs import Pairs, between
from controller.policy.types import PromptPair

VECTORS = st.integers(2, 12).flatmap(
    lambda n: st.lists(st.lists(st.floats(-100, 100), min_size=n, max_size=n), min_size=3, max_size=6)
)


def pair(now: list[float], then: list[float], step: int) -> PromptPair:
    found = [a - b for a, b in zip(now, then, strict=True)]
    return PromptPair(step, len(found), statistics.fmean(found), statistics.variance(found))


@given(VECTORS, st.data())
def test_the_bound_holds_for_any_scores(scores: list[list[float]], data: st.DataObject) -> None:
    """Each eval is paired with some of those before it, as a trainer does; every other pair is asked for."""
    pairs: dict[int, list[PromptPair]] = {}
    for i, now in enumerate(scores):
        kept = data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        pairs[i] = [pair(now, scores[j], j) for j in sorted(kept)]
    for i in range(len(scores)):
        for j in range(len(scores)):
            found = between(pairs, i, j)
            if found is None:
                continue
            true = pair(scores[i], scores[j], j)
            assert (found.step, found.prompts) == (j, true.prompts)
            assert found.mean == pytest.approx(true.mean, rel=1e-6, abs=1e-6)
            assert found.variance >= true.variance * (1 - 1e-9) - 1e-9


PAIRS: Pairs = {
    20: [PromptPair(10, 100, 0.5, 4.0)],
    30: [PromptPair(20, 100, -0.25, 1.0), PromptPair(5, 100, 0.5, 0.01)],
    40: [PromptPair(5, 100, 0.75, 0.04), PromptPair(20, 50, 0.1, 0.04)],
}


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        (20, 10, PromptPair(10, 100, 0.5, 4.0)),  # as published
        (10, 20, PromptPair(20, 100, -0.5, 4.0)),  # turned round
        (30, 10, PromptPair(10, 100, 0.25, 9.0)),  # (1 + 2) squared, through 20
        (40, 30, PromptPair(30, 100, 0.25, 0.09)),  # through 5; through 20 the prompts are others
        (40, 10, None),  # through 20, but over other prompts
        (30, 30, None),
        (30, 99, None),
    ],
)
def test_through_one_shared_step(now: int, then: int, expected: PromptPair | None) -> None:
    found = between(PAIRS, now, then)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found[:2] == expected[:2]
    assert found[2:] == pytest.approx(expected[2:])
