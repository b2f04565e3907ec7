"""A bound on every job's wait, for any queue policy: overdue jobs come first, and no other passes them.

Each policy alone can leave somebody waiting for ever: srtf, srtfEst and las a long job behind a stream of
short ones, slaq one whose loss is flat, fifo one of low priority (with backfill a large gang, too), fairShare
a large gang of a namespace at its share. Within this wrapper a job that has waited for ``max_wait`` is
overdue. Overdue jobs go before all others, whatever the policy and the priorities, those who have waited the
longest first, and while the first of them does not fit nobody else starts.

A policy that preempts makes room for it at once. What runs after such a wait is not preempted again before it
has run for ``max_wait`` itself, or it would hardly get anywhere.

**The bound.** Let ``a`` be the number of jobs that wait when a job enters the queue, ``L`` the longest time
for which a run holds its GPUs, ``g`` the longest time from a preemption to its free GPUs (grace, suspension,
pods gone). Then it is admitted after at most

    max_wait + (a + 1) x (R + g),   R = min(L, max_wait) if the policy preempts, else L.

For: after ``max_wait`` it is overdue, and of those before it in that order all were in the queue when it
came, at most ``a``. While the first of them waits nobody starts; whatever runs then and may not be preempted
is done or may be preempted after ``R``, and its GPUs are free after another ``g``. An empty pool holds every
gang that this policy is asked about. So at least every ``R + g`` one of the ``a + 1`` is admitted.

**With rollout actors** (`pool.lending`) it is that plus ``r``, with ``g`` the longest time to free GPUs from
a preemption or from a recall. Base actors count as held by their job, lent or not, so who runs is done after
``R`` as before; spare ones have no right to stay and are gone ``g`` after they were recalled. Whom to recall
for is asked of this very policy, so while the first overdue job waits nobody is recalled for another. Only
GPUs that were recalled for others before it was overdue are kept for those, at most for ``r``, the time for
which a recall reserves GPUs; the bound counts from the end of that.

It holds per stay in the queue; a job that its rule has demoted (`JobView.demoted`) has no such right.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from math import inf
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.queueing.base import (
    NOTHING,
    QueueDecision,
    QueueJob,
    QueuePolicy,
    Room,
    Wrapper,
    decided,
    queue_key,
    waits_since,
)
from controller.policy.queueing.greedy import Entry, run_best
from controller.policy.types import JobKey

REASON = "OverdueJobWaits"


@dataclass(frozen=True, slots=True)
class AgeingParams:
    max_wait: float = param(
        604800.0, unit="s", doc="after such a wait a job comes first and nobody passes it", gt=0.0, le=1e12
    )


def overdue(job: QueueJob, most: float, now: float) -> bool:
    """Return whether a job that is queued has waited for ``most`` s, and may go before all others."""
    return not job.demoted and now - waits_since(job) >= most


class Ageing(Wrapper):
    """Decides as the base policy does, except for overdue jobs (see the bound above)."""

    name: ClassVar[str] = "ageing"

    def __init__(self, base: QueuePolicy, params: AgeingParams) -> None:
        check(params, base.name)
        super().__init__(base)
        self._most = params.max_wait
        self.clear()

    def clear(self) -> None:
        self._waiting: list[Entry] = []  # (since, submitted, sequence, key, job)
        self._entries: dict[JobKey, Entry] = {}
        self._running: dict[JobKey, tuple[QueueJob, float]] = {}  # and when it was last heard of
        self._until: dict[JobKey, float] = {}  # until when a run that waited for long is not preempted
        self._shielded: set[JobKey] = set()
        self._leaving: dict[JobKey, QueueJob] = {}
        self._now = -inf  # of the newest decision, or of what was taken in since
        self.base.rebuild(())

    def rebuild(self, jobs: Iterable[QueueJob], now: float = 0.0) -> None:
        super().rebuild(jobs, now)
        self._now = now

    # -- events

    def submitted(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        entry = (inf if job.demoted else waits_since(job), job.submitted, job.sequence, job.key, job)
        self._entries[job.key] = entry
        insort(self._waiting, entry)
        self.base.submitted(job, now)

    def admitted(self, job: QueueJob, now: float) -> None:
        key = job.key
        until = self._until.get(key)
        if until == inf:  # it was left alone for another reason, until now
            until = None
        if key not in self._running:
            entry = self._entries.get(key)
            waited = job.waited if entry is None else now - entry[0]
            if waited >= self._most and self.preempts and not job.demoted:
                until = (now if job.since is None else job.since) + self._most
        self._forget(key)
        self._running[key] = (job, now)
        if until is not None and now < until and not job.demoted:
            self._until[key] = until
            self._shielded.add(key)
            self.base.shielded(job, now)
        else:
            self.base.admitted(job, now)

    def shielded(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self._running[job.key] = (job, now)
        self._until[job.key] = inf
        self._shielded.add(job.key)
        self.base.shielded(job, now)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self._leaving[job.key] = job
        self.base.leaving(job, now)

    def removed(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self.base.removed(job, now)

    def _forget(self, key: JobKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._waiting[bisect_left(self._waiting, entry)]
        self._running.pop(key, None)
        self._leaving.pop(key, None)
        self._until.pop(key, None)
        self._shielded.discard(key)

    # -- decisions

    def decide(self, now: float, room: Room) -> QueueDecision:
        self._now = now
        self._lower_shields(now)
        admit: list[QueueJob] = []
        for entry in self._overdue():
            job = entry[-1]
            if room.take(job):
                admit.append(job)
            elif not room.bars(job):
                return self._make_room(job, admit, room, now)
        for job in admit:
            # To the base they are as good as running: it hears of it for good when that is so.
            if self.preempts:
                self.base.shielded(job, now)
            else:
                self.base.admitted(job, now)
        found = self.base.decide(now, room)
        starts = [*admit, *found.admit]
        wake_at = min(self._next(starts), inf if found.wake_at is None else found.wake_at)
        # What a run reached while it was left alone the base hears late, and may want to have seen before.
        wake_at = wake_at if wake_at > now else now + 1.0
        if not starts and not found.preempt and wake_at == inf:
            return NOTHING
        return decided(starts, found.preempt, None if wake_at == inf else wake_at)

    def queue(self) -> list[QueueJob]:
        overdue = [entry[-1] for entry in self._overdue()]
        first = {job.key for job in overdue}
        return [*overdue, *(job for job in self.base.queue() if job.key not in first)]

    def look(self, now: float) -> None:
        """Set the time (s) as of which `queue` says who is overdue."""
        self._now = now

    def overdue(self, job: QueueJob, now: float) -> bool:
        """Return whether a waiting job comes before all others, and nobody may pass it."""
        return overdue(job, self._most, now)

    def fresh(self) -> QueuePolicy:
        return Ageing(self.base.fresh(), AgeingParams(self._most))

    def _overdue(self) -> list[Entry]:
        """Return who has waited for too long by the newest decision, longest first."""
        waiting, now, most = self._waiting, self._now, self._most
        count = 0
        while count < len(waiting) and waiting[count][0] + most <= now:
            count += 1
        return waiting[:count]

    def _make_room(self, first: QueueJob, admit: list[QueueJob], room: Room, now: float) -> QueueDecision:
        """Nobody passes the overdue job that does not fit; runs give way to it if the policy preempts."""
        if not self.preempts:
            return decided(admit, ()) if admit else NOTHING
        open_ = {key: job for key, (job, _) in self._running.items() if key not in self._shielded}
        # Of those who could give way, those who have had the least service stay where there is a choice.
        stay = sorted(open_.values(), key=lambda j: (-j.priority, self._served(j, now), *queue_key(j)))
        found = run_best([first, *stay], open_, self._leaving.values(), room, REASON)
        shield = min((self._until[key] for key in self._shielded), default=inf)
        if admit:
            shield = min(shield, now + self._most)
        return decided(admit, found.preempt, None if shield == inf else shield)

    def _served(self, job: QueueJob, now: float) -> float:
        """Return GPU-seconds up to ``now``."""
        return job.attained + (now - self._running[job.key][1]) * job.gpus

    def _lower_shields(self, now: float) -> None:
        for key in [key for key in self._shielded if self._until[key] <= now]:
            self._shielded.discard(key)
            # Counted from when it was last heard of: it ran all the while.
            self.base.admitted(*self._running[key])

    def _next(self, starts: list[QueueJob]) -> float:
        """Return when the next job will be overdue, or a run may be preempted again for one that waits."""
        begun = {job.key for job in starts}
        left = next((entry for entry in self._waiting if entry[3] not in begun), None)
        if left is None:
            return inf
        times: list[float] = [left[0] + self._most, *(self._until[key] for key in self._shielded)]
        if self.preempts and any(self._entries[job.key][0] + self._most <= self._now for job in starts):
            times.append(self._now + self._most)
        return min(times)
