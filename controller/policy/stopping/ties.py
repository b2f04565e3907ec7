"""Evals that tie exactly, below everything before: a collapse that nobody needs to know the noise for.

A policy that answers nothing, or always the same, scores the same at every eval. Where the noise is only
estimated, it is not known so early. But evals that are alike to the last digit, three in a row, are evidence
by themselves where nothing like it was seen before: the level lies below every eval before it, by more than
any of these fell below the one before, and none of these tied. Few prompts tie by themselves, near 0 most of
all; then either they tied before, or the fall is one of theirs. Of flat runs on 20 to 1,024 prompts, of 5 to
20 evals, at most 1 % show it (tests/policy/test_policy_collapse.py).
"""

from __future__ import annotations

from typing import Any

LEAST_BEFORE = 3  # evals before the tie
LEAST_TIED = 3  # a scorer that is down for two evals scores 0 twice
TIED = -1.0  # in place of the largest fall: some tied before

# (evals before the present level, lowest of them, largest fall among them, fall to the level, evals on it)
TieState = tuple[Any, ...]


def initial() -> TieState:
    return (0, 0.0, 0.0, 0.0, 0)


def observe(state: TieState, last: float | None, score: float) -> TieState:
    """Take in one score; ``last`` is the one before it."""
    before, lowest, largest, fell, level = state
    if last is None:
        return (0, 0.0, 0.0, 0.0, 1)
    if score == last:
        return (before, lowest, largest, fell, level + 1)
    largest = TIED if level > 1 or largest < 0.0 else max(largest, fell)
    return (before + level, min(lowest, last) if before else last, largest, max(0.0, last - score), 1)


def fall(state: TieState, score: float) -> float | None:
    """Return how far a tie lies below everything before it, where that is evidence; else None."""
    before, lowest, largest, _, level = state
    if level < LEAST_TIED or before < LEAST_BEFORE or largest < 0.0 or lowest - score <= largest:
        return None
    return float(lowest - score)
