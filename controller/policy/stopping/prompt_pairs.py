"""Differences of two evals on the same prompts, of any pair of steps for which they can be known.

A trainer pairs each eval with three others at most. Of the pairs a - b and b - c follows what a - c can be:
its mean is the sum of theirs, and its standard deviation at most the sum of theirs (Minkowski's inequality).
Where the two are independent and equally wide the bound is the square root of two too wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from controller.policy.types import PromptPair

Pairs = Mapping[int, Sequence[PromptPair]]  # of each eval, by its step


def between(pairs: Pairs, now: int, then: int) -> PromptPair | None:
    """Return the eval at step ``now`` less that at ``then``, prompt by prompt; None: they are not paired.

    It is their own pair, else the one of least variance through one other step that both are paired with,
    in which ``variance`` is an upper bound.
    """
    direct = _less(pairs, now, then)
    if direct is not None or now == then:
        return direct
    shared = {pair.step for step in (now, then) for pair in pairs.get(step, ())}
    shared |= {step for step, given in pairs.items() if any(pair.step in (now, then) for pair in given)}
    found = []
    for step in sorted(shared - {now, then}):
        first, second = _less(pairs, now, step), _less(pairs, step, then)
        if first is not None and second is not None and first.prompts == second.prompts:
            widest = math.sqrt(first.variance) + math.sqrt(second.variance)
            found.append(PromptPair(then, first.prompts, first.mean + second.mean, widest * widest))
    return min(found, key=lambda pair: pair.variance, default=None)


def _less(pairs: Pairs, now: int, then: int) -> PromptPair | None:
    """Return the pair of two steps, whichever of both it was published with."""
    for pair in pairs.get(now, ()):
        if pair.step == then:
            return pair
    for pair in pairs.get(then, ()):
        if pair.step == now:
            return PromptPair(then, pair.prompts, -pair.mean, pair.variance)
    return None
