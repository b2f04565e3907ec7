"""Preempt demoted runs when a queued job would then fit.

In the queue a demoted job comes after all others, whatever its priority was. Which of the running ones have
to go is asked of the pool's own policy, on the room as it would be without them: nobody is sent away for a
job that would not start then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from controller.policy.pool.placement import NodeRoom, SlotRoom
from controller.policy.queueing.base import QueueJob, QueuePolicy, queue_key
from controller.policy.queueing.quota_ledger import QuotaLedger
from controller.policy.types import JobKey, JobView, Quota

REASON = "Demoted"
Job = TypeVar("Job", bound=QueueJob)

LOWEST = -(2**31)  # below every priority that the API allows


def as_demoted(job: JobView) -> JobView:
    """Return the job as its pool's policy is to see it."""
    return replace(job, priority=LOWEST) if job.demoted else job


def give_way(
    fresh: Callable[[], QueuePolicy],
    stay: Sequence[QueueJob],
    demoted: Iterable[Job],
    leaving: Iterable[QueueJob],
    waiting: Iterable[QueueJob],
    room: NodeRoom | SlotRoom,
    now: float,
    *,
    quotas: Sequence[Quota] = (),
) -> list[Job]:
    """Return which demoted runs are to be preempted at ``now`` (s), the first to be demoted last.

    Args:
        fresh: makes the pool's queue policy anew.
        stay: admitted jobs that keep their GPUs.
        demoted: runs that may have to go.
        leaving: jobs whose GPUs become free without anything more.
        waiting: jobs that are not admitted in this pass.
        room: what is free then; it is used up.
        now: time (s).
        quotas: those that ``fresh`` gives its policies: they count what each namespace has.
    """
    candidates = sorted(demoted, key=queue_key, reverse=True)
    others = [j for j in waiting if not j.demoted]
    if not candidates or not others:
        return []
    for gone in leaving:
        room.give(gone)
    served: dict[JobKey, QueueJob] = {}
    go: list[Job] = []
    given: list[Job] = []
    kept: list[Job] = []

    def starts() -> bool:
        asked = fresh()
        left = [j for j in others if j.key not in served]
        if quotas:
            asked.rebuild([*stay, *still(), *left], now)
            for job in served.values():
                asked.admitted(job, now)
        else:
            asked.rebuild([*stay, *left], now)
        begun = asked.decide(now, room).admit
        served.update((job.key, job) for job in begun)
        return bool(begun)

    def still() -> list[Job]:
        out = {j.key for j in (*go, *given)}
        return [j for j in candidates if j.key not in out]

    def keeps(job: Job) -> bool:
        """Return whether nobody got its GPUs, nor its part of what its namespace may have."""
        ledger = QuotaLedger(quotas)
        others: Sequence[QueueJob] = [*stay, *still(), *served.values(), *kept]
        for other in others:
            ledger.charge(other.key, other.gpus)
        if ledger.bars(job.key, job.gpus) or not _keeps(job, room):
            return False
        kept.append(job)
        return True

    starts()  # these need nobody's GPUs but those that come free anyway
    for job in candidates:
        room.give(job)
        given.append(job)
        if starts():
            go += [other for other in reversed(given) if not keeps(other)]
            given.clear()
            kept.clear()
    return go


def _keeps(job: QueueJob, room: NodeRoom | SlotRoom) -> bool:
    """Take a run's GPUs out of the room again if nobody got them; say whether that was so."""
    return room.take(job) if isinstance(room, SlotRoom) else room.keep(job)
