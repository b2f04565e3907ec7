"""Who gets an actor place that several jobs could use, and who gives one back.

*Base* actors are those that a job is admitted with: it has a right to them whenever it generates. *Spare*
actors are all others, on places that nobody with a right needs now. A job below its base takes free places
first, and then spare actors of others, of whoever has the most of them. What is left goes to the job whose
step gets shorter by the most for one more actor; a job that would gain nothing gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ActorDemand:
    """What one job wants now.

    Args:
        job: its name.
        has: actors that it holds, those that start among them.
        wants: actors that its plan has; 0 while it does not generate.
        base: actors that it has a right to while it generates.
        gain: s by which its step gets shorter with one more than this many actors; 0 or less: not at all.
    """

    job: str
    has: int
    wants: int
    base: int
    gain: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Shares:
    """``grants``: free places, by job; ``recalls``: actors that a job gives back, by job."""

    grants: dict[str, int]
    recalls: dict[str, int]


def share_actors(free: int, demands: Sequence[ActorDemand], coming: int = 0) -> Shares:
    """Return who gets free places and who gives spare actors back.

    Args:
        free: places that nobody holds.
        demands: of all jobs of the pool; ties go to the first.
        coming: places that were recalled and are not free yet.
    """
    has = {demand.job: demand.has for demand in demands}
    grants = dict.fromkeys(has, 0)
    recalls = dict.fromkeys(has, 0)
    short = 0
    for demand in demands:
        right = min(demand.base, demand.wants)
        while has[demand.job] < right and free > 0:
            free -= 1
            has[demand.job] += 1
            grants[demand.job] += 1
        short += max(0, right - has[demand.job])
    for _ in range(max(0, short - coming)):
        lender = max(demands, key=lambda d: has[d.job] - min(d.base, d.wants))
        if has[lender.job] <= min(lender.base, lender.wants):
            break
        has[lender.job] -= 1
        recalls[lender.job] += 1
    while free > 0:
        open_ = [
            d for d in demands if has[d.job] < d.wants and not recalls[d.job] and d.gain(has[d.job]) > 0.0
        ]
        if not open_:
            break
        best = max(open_, key=lambda d: d.gain(has[d.job]))
        free -= 1
        has[best.job] += 1
        grants[best.job] += 1
    return Shares(
        {job: count for job, count in grants.items() if count},
        {job: count for job, count in recalls.items() if count},
    )
