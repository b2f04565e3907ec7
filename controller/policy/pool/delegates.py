"""Decisions that each delegate leaves to the pool's plan: order, placement, or the answer to an offer.

Under an external queue (Kueue) a job waits there first. When that queue has quota for it, it asks: an offer.
The plan answers by nodes: the gang is admitted when all its GPUs are free at once, offers in order of
priority and submission, and none passes one that does not fit. So that quota does not stand idle behind such
a gang, its offer is given back after `PoolSnapshot.offer_seconds`, and the external queue lines it up behind
its equals. A gang larger than the pool is refused for good, until the pool grows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from controller.policy.pool.placement import NodeRoom, NodeTrial
from controller.policy.queueing.base import QueueJob
from controller.policy.types import Delegate, JobKey, JobState, JobView, Refusal, Waiting

TOO_LARGE = "TooLarge"
# Reasons of `Waiting` that GPUs, and nothing else, would mend.
_NO_ROOM = frozenset({"WaitingForGPUs", "NoUsableNodes", "NodesClosed", "GPUsUsedByOthers"})


class Delegation(NamedTuple):
    """Decisions that the pool's queue leaves to this operator.

    Attributes:
        orders: the pool's queue policy says who goes next.
        places: gangs start when there is room for them, on nodes planned for them.
        offers: only jobs start for which an external queue has quota.
    """

    orders: bool
    places: bool
    offers: bool = False


DELEGATIONS: Mapping[Delegate, Delegation] = {
    Delegate.BUILTIN: Delegation(orders=True, places=True),
    Delegate.NONE: Delegation(orders=False, places=False),
    Delegate.KUEUE: Delegation(orders=False, places=True, offers=True),
}


def ordered_by(delegate: Delegate, policy: str) -> str:
    """Return what orders the jobs of a pool: its queue policy, by its name, or else the delegate."""
    return policy if DELEGATIONS[delegate].orders else str(delegate)


class OfferRoom(NodeRoom):
    """A `Room` for jobs that hold an offer of quota, in the order in which they ask.

    The first one that does not fit closes it.
    """

    def __init__(self, free: Mapping[str, int], racks: Mapping[str, str], offers: Collection[JobKey]) -> None:
        super().__init__(free, racks)
        self._offers = offers
        self._closed = False

    def take(self, job: QueueJob) -> bool:
        if self._closed or job.key not in self._offers:
            return False
        self._closed = not super().take(job)
        return not self._closed

    def trial(self) -> OfferTrial:
        return OfferTrial(self, self._offers)


class OfferTrial(NodeTrial):
    """A `Trial` in an `OfferRoom`.

    A job without an offer needs quota, not free nodes: it is taken if the jobs that count as gone free enough
    GPUs.
    """

    def __init__(self, room: NodeRoom, offers: Collection[JobKey]) -> None:
        super().__init__(room)
        self._offers = offers
        self._quota = 0  # GPUs

    def give(self, job: QueueJob) -> None:
        super().give(job)
        self._quota += job.gpus

    def take(self, job: QueueJob) -> bool:
        if job.key in self._offers:
            return super().take(job)
        if job.gpus > self._quota:
            return False
        self._quota -= job.gpus
        return True


def offers(jobs: Iterable[JobView]) -> dict[JobKey, JobView]:
    """Return the queued jobs for which an external queue has quota."""
    return {j.key: j for j in jobs if j.state is JobState.QUEUED and j.offer}


def waits_for_quota(job: JobView, position: int) -> Waiting:
    """Return why a job waits that has no offer."""
    if not job.queue_message:
        return Waiting(job.key, position, "Queued", "waits for its queue to look at it")
    return Waiting(job.key, position, "WaitingForQuota", job.queue_message)


def refusals(
    offered: Mapping[JobKey, JobView], waiting: Iterable[Waiting], seconds: float, now: float
) -> tuple[Refusal, ...]:
    """Return the offers that are not taken at ``now`` (s): of gangs too large, and of those that found no
    room for ``seconds``."""
    found = []
    for why in waiting:
        job = offered.get(why.key)
        if job is None or job.offered_at is None:
            continue
        if why.reason == TOO_LARGE:
            found.append(Refusal(job.key, job.offer, TOO_LARGE, why.message, final=True))
        elif why.reason in _NO_ROOM and now - job.offered_at >= seconds:
            message = f"no room for {seconds:g} s, so its quota goes back to its queue: {why.message}"
            found.append(Refusal(job.key, job.offer, why.reason, message))
    return tuple(found)


def wake_ups(offered: Mapping[JobKey, JobView], seconds: float, now: float) -> list[float]:
    """Return when (s) offers that find no room are to be given back."""
    times = (j.offered_at + seconds for j in offered.values() if j.offered_at is not None)
    return [at for at in times if at > now]
