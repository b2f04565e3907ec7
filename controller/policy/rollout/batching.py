"""Continuous batching in iterations: all slots are full while responses wait for one.

In each iteration every live response gets a token, so a slot is a machine of list scheduling and lengths
are its times; a response starts when the first slot is free. With an iteration of b live responses taking
``a + c b``, an actor that ends after I iterations with W tokens took ``a I + c W``, whatever happened
between; responses that grow dearer with their length add half the sum of their squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from controller.policy.rollout.sample import Sample
from controller.policy.rollout.types import ActorLaw


def ends(lengths: Sequence[int], slots: int) -> list[int]:
    """Return the iteration with which each response ends, ascending, taken in the given order.

    Args:
        lengths: tokens, at least 1 each.
        slots: responses that are live at a time.
    """
    if len(lengths) <= slots:
        return sorted(lengths)
    live = list(lengths[:slots])
    heapify(live)
    # What leaves the heap leaves it in order, since everything that comes ends later.
    done = [heapreplace(live, live[0] + length) for length in lengths[slots:]]
    live.sort()
    return done + live


def last_end(lengths: Sequence[int], slots: int) -> int:
    """Return the last of `ends`, without the others; of one length at least."""
    if len(lengths) <= slots:
        return max(lengths)
    live = list(lengths[:slots])
    heapify(live)
    for length in lengths[slots:]:
        heapreplace(live, live[0] + length)
    return max(live)


def group_seconds(
    law: ActorLaw, group: Sequence[int], squares: Sequence[int], last: int, sample: Sample, groups: int
) -> float:
    """Return s that an actor takes for a group of the sample.

    Args:
        law: of the actor.
        group: tokens of the group's sampled responses.
        squares: sums of squares of the same.
        last: iteration with which its last response ends.
        sample: what the group is of.
        groups: how many groups of equal counts there are.
    """
    grown = sum(squares) / 2.0
    return law.seconds(last, sum(group) * sample.thinned, grown * sample.thinned, sample.prompts / groups)
