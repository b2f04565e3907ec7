"""Pair the starts and preemptions of a job in one run with those in the other, if their numbers differ.

A job's starts and preemptions take turns. Of the run that has more of them, those are left over that leave
the least distance between the others, in order, and what is paired with them (s). They are numbered as in
the longer row, so that a number means the same in both runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.parity.timeline import How, Lived, Stay, Timeline

Turn = tuple[bool, float]  # whether it is a start, and when it was


def paired(one: Timeline, other: Timeline) -> tuple[Timeline, Timeline]:
    """Return the same runs with all their stays numbered. A job that only one of them has keeps its own
    numbers."""
    return _numbered(one, other), _numbered(other, one)


def _numbered(timeline: Timeline, other: Timeline) -> Timeline:
    others = {job.key: job for job in other.jobs}
    return Timeline(tuple(_job(job, others.get(job.key)) for job in timeline.jobs))


def _job(job: Lived, other: Lived | None) -> Lived:
    turns = _turns(job.stays)
    found = places(turns, () if other is None else _turns(other.stays))
    # Of the longer row, every other one is a start.
    began = [place // 2 + 1 for (start, _), place in zip(turns, found, strict=True) if start]
    left = [place // 2 + 1 for (start, _), place in zip(turns, found, strict=True) if not start]
    left += [0] * (len(began) - len(left))
    stays = zip(job.stays, began, left, strict=True)
    return replace(job, stays=tuple(replace(stay, began=b, left=p) for stay, b, p in stays))


def _turns(stays: Sequence[Stay]) -> list[Turn]:
    found: list[Turn] = []
    for stay in stays:
        found.append((True, stay.admitted))
        if stay.how is How.PREEMPT:
            found.append((False, stay.end))
    return found


def places(few: Sequence[Turn], many: Sequence[Turn]) -> list[int]:
    """For each of ``few``, the place (from 0) in ``many`` of what it is paired with; or its own place where
    ``many`` are not more."""
    if len(few) >= len(many):
        return list(range(len(few)))
    # best[n]: the least distance of the first n of `few` to as many of what was looked at of `many`.
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ()), *([None] * len(few))]
    for place, (start, time) in enumerate(many):
        for n in range(min(place + 1, len(few)), 0, -1):
            before, (wanted, mine) = best[n - 1], few[n - 1]
            if before is None or wanted is not start:
                continue
            found = before[0] + abs(time - mine), (*before[1], place)
            known = best[n]
            if known is None or found[0] < known[0]:
                best[n] = found
    whole = best[-1]
    # Both begin with a start and take turns, so that the first ones alone would do.
    assert whole is not None
    return list(whole[1])
