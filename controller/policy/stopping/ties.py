"""Evals that tie exactly, below everything before: a collapse that nobody needs to know the noise for.

A policy that answers nothing, or always the same, scores the same at every eval. Where the noise is only
estimated, it is not known so early. But evals that are alike to the last digit, three in a row, are evidence
by themselves where nothing like it was seen before: the level lies below every eval before it, by more than
any of these fell below the one before, and none of these tied. Few prompts tie by themselves, near 0 most of
all; then either they tied before, or the fall is one of theirs. Of flat runs on 20 to 1,024 prompts, of 5 to
20 evals, at most 1 % show it (tests/policy/test_policy_collapse.py).
"""

from __future__ import annotations

import struct
from binascii import a2b_base64, b2a_base64
from typing import Any

from controller.policy.stopping.windows import single

LEAST_BEFORE = 3  # evals before the tie
LEAST_TIED = 3  # a scorer that is down for two evals scores 0 twice
TIED = -1.0  # in place of the largest fall: some tied before
ALIKE = 1e-6  # of the larger score: falls that differ by no more are alike, as numbers are kept

# (evals before the present level, evals on it; lowest of those before, largest fall among them and fall to
# the level, packed)
TieState = tuple[Any, ...]
_NUMBERS = struct.Struct("<3f")


def initial() -> TieState:
    return (0, 0, "")


def lowest(state: TieState) -> float:
    """Return the lowest score before the present level; 0 where there is none."""
    return _numbers(state)[0]


def _numbers(state: TieState) -> tuple[float, ...]:
    return _NUMBERS.unpack(a2b_base64(state[2])) if state[2] else (0.0, 0.0, 0.0)


def observe(state: TieState, last: float | None, score: float) -> TieState:
    """Take in one score; ``last`` is the one before it."""
    before, level, packed = state
    if last is None:
        return (0, 1, "")
    if score == last:
        return (before, level + 1, packed)
    lowest, largest, fell = _numbers(state)
    largest = TIED if level > 1 or largest < 0.0 else max(largest, fell)
    lowest = min(lowest, single(last)) if before else single(last)
    numbers = _NUMBERS.pack(lowest, largest, single(max(0.0, last - score)))
    return (before + level, 1, b2a_base64(numbers, newline=False).decode("ascii"))


def fall(state: TieState, score: float) -> float | None:
    """Return how far a tie lies below everything before it, where that is evidence; else None."""
    before, level, _ = state
    if level < LEAST_TIED or before < LEAST_BEFORE:
        return None
    lowest, largest, _ = _numbers(state)
    below = lowest - score
    alike = largest + ALIKE * max(abs(lowest), abs(score))
    return None if largest < 0.0 or below <= alike else float(below)
