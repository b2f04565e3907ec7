"""`Even`: groups of equal counts in the trainer's own order, as most trainers do today.

A forecast does not say that order, so a fixed pseudo-random one stands for it. Copies of a prompt stay
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist, fmean

from controller.policy.rollout.batching import group_seconds, last_end
from controller.policy.rollout.sample import Sample
from controller.policy.rollout.types import ActorLaw

_NORMAL = NormalDist()


def shuffled(sample: Sample, together: int) -> Sample:
    """Return the sample in the order that stands for the trainer's, ``together`` at a time."""
    size = len(sample.lengths)
    blocks = sorted(range(0, size, max(1, together)), key=_mixed)
    order = [place for block in blocks for place in range(block, min(size, block + max(1, together)))]
    lengths, squares = (tuple(of[place] for place in order) for of in (sample.lengths, sample.squares))
    return replace(sample, lengths=lengths, squares=squares)


def actor_ends(
    sample: Sample,
    slots: int,
    law: ActorLaw,
    ready: Sequence[float],
    together: float = 1.0,
) -> list[float | None]:
    """Return s from the begin to the last response of each actor; None for one that gets nothing to do.

    Args:
        sample: in a trainer's order, as `shuffled` has it.
        slots: of an actor, thinned as the sample is.
        law: of an actor.
        ready: s from the begin until each actor can take a prompt.
        together: prompts that stay together in that order; where there are several, because the sample is of
            many, groups of it differ more than those of single prompts, by the root of that.
    """
    count = len(ready)
    found: list[float | None] = []
    taken: list[float] = []
    for k in range(count):
        part = slice(k * len(sample.lengths) // count, (k + 1) * len(sample.lengths) // count)
        group = sample.lengths[part]
        if group:
            last = last_end(group, slots)
            taken.append(group_seconds(law, group, sample.squares[part], last, sample, count))
            found.append(ready[k] + taken[-1])
        else:
            found.append(None)
    if taken:
        if together > 1.0:
            middle, root = fmean(taken), math.sqrt(together)
            taken = [middle + (seconds - middle) / root for seconds in taken]
            having = [k for k, end in enumerate(found) if end is not None]
            for k, seconds in zip(having, taken, strict=True):
                found[k] = ready[k] + seconds
        # The slowest of one order is luck: what is to be expected of the slowest stands for it.
        slowest = max(range(count), key=lambda k: found[k] or 0.0)
        middle = fmean(taken)
        # `fsum` rounds alike in every Python; `statistics.stdev` took a tenth of a plan.
        spread = math.sqrt(math.fsum((seconds - middle) ** 2 for seconds in taken) / max(1, len(taken) - 1))
        expected = middle + spread * _NORMAL.inv_cdf(1.0 - 0.5 / (count + 0.5))
        others = max((end for k, end in enumerate(found) if k != slowest and end is not None), default=0.0)
        longest = sample.longest
        alone = law.seconds(
            longest, longest, longest * longest / 2.0, 1.0
        )  # one actor has the longest response
        found[slowest] = max(others, ready[slowest] + max(expected, alone))
    return found


def _mixed(number: int) -> int:
    """Return 32 bits that look random (the finaliser of MurmurHash3)."""
    h = (number + 1) & 0xFFFFFFFF
    h = (h ^ (h >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ (h >> 16)
