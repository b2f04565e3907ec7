"""Room for a step's actors: how many there may be GPUs for when it begins.

A job's own actors that stay and what is free is at hand. Where the pool lends, GPUs of other jobs' spare
actors are room as well: they leave between their steps. A step is announced just when actors go, and for a
moment GPUs that change hands are in nobody's account: an actor is gone, and no pass of the pool was since.
"""

from __future__ import annotations

from collections.abc import Sequence

CHANGING_HANDS = 5.0  # s for which GPUs may be in nobody's account

Rooms = tuple[tuple[float, int], ...]  # when (s), and actors that there was room for, oldest first


def actor_room(at_hand: int, base: int, spare_of_others: int, gpus: int) -> int:
    """Return how many actors a pool that lends may have room for; never fewer than the job's base actors.

    Args:
        at_hand: actors of the job that stay, and those that free GPUs hold.
        base: actors that the job was admitted with.
        spare_of_others: GPUs of spare actors of the pool's other jobs.
        gpus: GPUs of an actor.
    """
    return max(base, at_hand + spare_of_others // gpus)


def lasting_room(before: Sequence[tuple[float, int]], now: float, room: int) -> Rooms:
    """Return the rooms to remember, this one the last; the first has the most that there was lately.

    Args:
        before: what this returned before.
        now: s.
        room: actors that there is room for now.
    """
    larger = [(at, was) for at, was in before if now - at < CHANGING_HANDS and was > room]
    return (*larger, (now, room))
