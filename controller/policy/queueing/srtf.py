"""Shortest remaining time first: preemptive, by the estimate of remaining time that each job has."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check
from controller.policy.queueing.base import (
    NOTHING,
    PolicyBase,
    QueueDecision,
    QueueJob,
    Ranking,
    Room,
    decided,
    starts,
)
from controller.policy.queueing.greedy import BySize, Entry, run_best
from controller.policy.types import JobKey

REASON = "ShorterJobWaits"


@dataclass(frozen=True, slots=True)
class SrtfParams:
    """No parameters."""


class Srtf(PolicyBase):
    """At every event, jobs run in the order of their remaining time; those that do not fit are passed over.

    Higher priorities first; ties: who runs first, then who came first. A job without an estimate comes
    last. A running job's remaining time falls by a second per second, so its expected end stays where it
    is: running jobs are kept in the order of their ends, waiting ones in the order of their remaining
    times, and the two are merged at `decide`.
    """

    name: ClassVar[str] = "srtf"
    params: SrtfParams

    def __init__(self, params: SrtfParams) -> None:
        check(params, self.name)
        self.params = params
        self._waiting = BySize()  # by (-priority, remaining, submitted, sequence, key)
        self._running: list[Entry] = []  # by (-priority, expected end, submitted, sequence, key)
        self._waiting_entry: dict[JobKey, Entry] = {}
        self._running_entry: dict[JobKey, Entry] = {}
        self._leaving: dict[JobKey, QueueJob] = {}
        self._coming = 0  # GPUs of leaving jobs

    @property
    def preempts(self) -> bool:
        return True

    def clear(self) -> None:
        self._waiting.clear()
        self._running.clear()
        self._waiting_entry.clear()
        self._running_entry.clear()
        self._leaving.clear()
        self._coming = 0

    def submitted(self, job: QueueJob, now: float) -> None:
        key, left = job.key, job.remaining
        if key in self._waiting_entry or key in self._running_entry or key in self._leaving:
            self.removed(job, now)
        left = math.inf if left is None else left
        entry = (-job.priority, left, job.submitted, job.sequence, key, job.gpus, job)
        self._waiting_entry[key] = entry
        self._waiting.put(entry)

    def admitted(self, job: QueueJob, now: float) -> None:
        key, left = job.key, job.remaining
        if key in self._waiting_entry:  # as nearly always
            self._waiting.drop(self._waiting_entry.pop(key))
        else:
            self.removed(job, now)
        ends = math.inf if left is None else now + left
        entry = (-job.priority, ends, job.submitted, job.sequence, key, job.gpus, job)
        self._running_entry[key] = entry
        insort(self._running, entry)

    def leaving(self, job: QueueJob, now: float) -> None:
        self.removed(job, now)
        self._leaving[job.key] = job
        self._coming += job.gpus

    def removed(self, job: QueueJob, now: float) -> None:
        key = job.key
        if key in self._waiting_entry:
            self._waiting.drop(self._waiting_entry.pop(key))
        elif key in self._running_entry:
            running = self._running
            del running[bisect_left(running, self._running_entry.pop(key))]
        elif key in self._leaving:
            self._coming -= self._leaving.pop(key).gpus

    def decide(self, now: float, room: Room) -> QueueDecision:
        if not self._waiting_entry:
            return NOTHING
        slots = room.slots
        if slots is None:
            running = {entry[-1].key: entry[-1] for entry in self._running}
            return run_best(self._order(now), running, self._leaving.values(), room, REASON)
        return self._decide_on_slots(now, slots + self._coming, room)

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        return {"priority": job.priority, "remainingSeconds": job.remaining}

    def queue(self) -> list[QueueJob]:
        return list(self._waiting)

    def _order(self, now: float) -> list[QueueJob]:
        """Return all jobs, best first: who runs comes before who waits with the same remaining time."""
        ranked = [((e[0], e[1] - now, 0, *e[2:5]), e[-1]) for e in self._running]
        ranked += [((e[0], e[1], 1, *e[2:5]), e[-1]) for e in self._waiting_entry.values()]
        ranked.sort(key=_rank)
        return [job for _, job in ranked]

    def _decide_on_slots(self, now: float, free: int, room: Room) -> QueueDecision:
        """`run_best` where only the number of GPUs counts, without a look at those who are not concerned.

        ``free``: GPUs that nobody uses or that leaving jobs will free.
        """
        passed: dict[int, int] = {}
        admit: list[QueueJob] = []
        while (first := self._first_fit(now, free, passed)) is not None:
            gpus = first[-2]
            if gpus > free:
                return self._displace(now, first, free, passed, admit, room)
            # It fits beside all who run: nobody is displaced.
            free -= gpus
            passed[gpus] = passed.get(gpus, 0) + 1
            if room.take(first[-1]):  # not, while the GPUs it is to get are still somebody else's
                admit.append(first[-1])
        return starts(admit) if admit else NOTHING

    def _first_fit(self, now: float, free: int, passed: dict[int, int]) -> Entry | None:
        """Return the best waiting job that fits into ``free`` GPUs and those of the runs behind it.

        ``passed``: how many of each size to pass over. Where a size's best job does not fit no other of that
        size does: it has fewer runs behind it.
        """
        running = self._running
        first: Entry | None = None
        for gpus, entries in self._waiting.sizes.items():
            if passed and gpus in passed:
                if passed[gpus] == len(entries):
                    continue
                head = entries[passed[gpus]]
            else:
                head = entries[0]
            if first is not None and first < head:
                continue
            needed = gpus - free
            if needed > 0:
                ahead = _ahead(head, now)
                for entry in reversed(running):
                    if entry < ahead:
                        break
                    needed -= entry[-2]
                    if needed <= 0:
                        break
            if needed <= 0:
                first = head
        return first

    def _displace(
        self,
        now: float,
        first: Entry,
        free: int,
        passed: dict[int, int],
        admit: list[QueueJob],
        room: Room,
    ) -> QueueDecision:
        """Return the walk in full, over waiting and running jobs, from the first that displaces
        somebody on."""
        waiting, running = self._waiting, self._running
        # Whoever runs ahead of it stays, and nobody who waits ahead of it fits.
        at, last = bisect_left(running, _ahead(first, now)), len(running)
        for entry in running[at:]:
            free += entry[-2]
        preempt: list[tuple[QueueJob, str]] = []
        while (best := waiting.best(free, passed)) is not None:
            if at < last:
                ahead = _ahead(best, now)
                while at < last and (entry := running[at]) < ahead:
                    at += 1
                    if entry[-2] <= free:
                        free -= entry[-2]
                    else:
                        preempt.append((entry[-1], REASON))
            gpus = best[-2]
            if gpus <= free:
                free -= gpus
                passed[gpus] = passed.get(gpus, 0) + 1
                if room.take(best[-1]):
                    admit.append(best[-1])
        for entry in running[at:]:
            if entry[-2] <= free:
                free -= entry[-2]
            else:
                preempt.append((entry[-1], REASON))
        return decided(admit, preempt)


def _ahead(waits: Entry, now: float) -> Entry:
    """Return what sorts right behind every run that goes before this waiting job: on a tie, who runs is
    first."""
    return (waits[0], waits[1] + now, math.inf)


def _rank(ranked: tuple[Entry, QueueJob]) -> Entry:
    return ranked[0]
