"""`LongestFirst`: one queue for all actors, the longest prompt first.

Actors that are ready are filled one after the other, so the longest responses share an actor: it stays to
the end, the others leave when the queue is empty and their last response has ended. A free actor takes the
next prompt with all its copies, so each prompt is prefilled once. While the queue lasts all slots of all
actors are full, and all actors are in step; so the whole is list scheduling on the slots of all actors, and
an actor that is ready later begins as many iterations later.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from controller.policy.rollout.sample import Sample
from controller.policy.rollout.types import ActorLaw

_BITS = 7  # of a key that name the actor: more than MOST_ACTORS
_MASK = (1 << _BITS) - 1


def actor_ends(sample: Sample, slots: int, law: ActorLaw, ready: Sequence[float]) -> list[float | None]:
    """Return s from the begin to the last response of each actor; None for one that gets nothing to do.

    Args:
        sample: responses, longest first.
        slots: of an actor, thinned as the sample is.
        law: of an actor.
        ready: s from the begin until each actor can take a prompt, ascending.
    """
    lengths, count = sample.lengths, len(ready)
    if not lengths:
        return [None] * count
    per_iteration = _full(sample, law)
    offsets = [round(seconds / per_iteration) for seconds in ready]
    now = sum(1 for offset in offsets if offset == 0)
    dealt = min(len(lengths), now * slots)
    heap = [(length << _BITS) | (i // slots) for i, length in enumerate(lengths[:dealt])]
    late = [(offsets[k] << _BITS) | k for k in range(now, count) for _ in range(slots)]
    if dealt < len(lengths):
        heap += late
        heapify(heap)
        for length in lengths[dealt:]:
            heapreplace(heap, heap[0] + (length << _BITS))
    last, tokens = [0] * count, [0] * count
    for key in heap:
        actor, end = key & _MASK, key >> _BITS
        more = end - offsets[actor]
        if more > 0:
            tokens[actor] += more
            if end > last[actor]:
                last[actor] = end
    if now:
        last[0] = max(last[0], sample.longest)
    whole = sum(tokens) or 1
    grown = _grown(sample, slots, dealt, tokens)
    return [
        ready[k]
        + law.seconds(
            last[k] - offsets[k],
            tokens[k] * sample.thinned,
            grown[k] * sample.thinned,
            sample.prompts * tokens[k] / whole,
        )
        if tokens[k]
        else None
        for k in range(count)
    ]


def _grown(sample: Sample, slots: int, dealt: int, tokens: Sequence[int]) -> list[float]:
    """Return half the sum of squares of each actor's lengths: of its first, and its share of the rest."""
    lengths = sample.lengths
    first = [lengths[k * slots : min(dealt, (k + 1) * slots)] for k in range(len(tokens))]
    squares = [sum(sample.squares[k * slots : min(dealt, (k + 1) * slots)]) / 2.0 for k in range(len(tokens))]
    others = [max(0, given - sum(part)) for given, part in zip(tokens, first, strict=True)]
    rest = sample.grown / sample.thinned - sum(squares)
    share = rest / sum(others) if sum(others) else 0.0
    return [square + share * other for square, other in zip(squares, others, strict=True)]


def _full(sample: Sample, law: ActorLaw) -> float:
    """Return s of an iteration of an actor whose slots are full, with its share of prefills."""
    prompts = law.slots * sample.prompts / max(1.0, sample.tokens)
    grown = law.slots * sample.grown / max(1.0, sample.tokens)
    return law.seconds(1.0, law.slots, grown, prompts)
