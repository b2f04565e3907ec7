"""Run the best jobs: in order of rank each that fits gets GPUs, and running jobs that do not are preempted.

A job that does not fit is passed over, so that no GPU stands idle while a smaller one waits. Gangs stay
where they are: nobody is moved to make room, only preempted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from math import inf
from typing import Any

from controller.policy.queueing.base import NOTHING, QueueDecision, QueueJob, Room, starts
from controller.policy.types import JobKey

Entry = tuple[Any, ...]  # a rank, its last part the job's key, so that no two are equal; then the job itself


def run_best(
    order: Iterable[QueueJob],
    running: Mapping[JobKey, QueueJob],
    leaving: Iterable[QueueJob],
    room: Room,
    reason: str,
) -> QueueDecision:
    """Return who starts and who is preempted when jobs get GPUs in ``order``, best first.

    Args:
        order: waiting jobs, and those of the running ones that may be preempted.
        running: those that may be preempted. Others that run keep their GPUs by not being here.
        leaving: jobs on their way out; their GPUs are counted on, but not given out yet.
        room: what is free; changed.
        reason: CamelCase code for the preemptions.
    """
    ordered = list(order)
    waiting = [job for job in ordered if job.key not in running]
    if not waiting:
        return NOTHING
    # Where all who wait fit into what is free, nobody who runs or leaves is concerned.
    trial = room.trial()
    if all(map(trial.take, waiting)):
        return starts(trial.commit())
    trial = room.trial()
    for job in leaving:
        trial.give(job)
    for job in ordered:
        if job.key in running:
            trial.give(job)
    preempt = []
    for job in ordered:
        if job.key not in running:
            trial.take(job)
        elif not trial.keep(job):
            preempt.append((job, reason))
    admit = trial.commit()
    return QueueDecision(admit, preempt) if admit or preempt else NOTHING


class BySize:
    """Waiting jobs by gang size, each size in rank order.

    The best job that fits into what is left is the best of a few heads, however many wait: gangs come in
    few sizes. An entry is a rank that ends with the job's key, then the job's GPUs, then the job.
    """

    __slots__ = ("sizes", "smallest")

    def __init__(self) -> None:
        self.sizes: dict[int, list[Entry]] = {}  # GPUs -> entries in rank order, never empty
        self.smallest: float = inf  # GPUs of the smallest gang that waits

    def clear(self) -> None:
        self.sizes.clear()
        self.smallest = inf

    def __iter__(self) -> Iterator[QueueJob]:
        """Return the jobs in rank order."""
        return (entry[-1] for entry in sorted(chain.from_iterable(self.sizes.values())))

    def put(self, entry: Entry) -> None:
        """Add a job that is not here."""
        gpus = entry[-2]
        entries = self.sizes.get(gpus)
        if entries is None:
            self.sizes[gpus] = [entry]
            if gpus < self.smallest:
                self.smallest = gpus
        elif entries[-1] < entry:  # as most often
            entries.append(entry)
        else:
            insort(entries, entry)

    def drop(self, entry: Entry) -> None:
        """Take out a job that is here, by its very entry."""
        gpus = entry[-2]
        entries = self.sizes[gpus]
        del entries[0 if entries[0] is entry else bisect_left(entries, entry)]
        if not entries:
            del self.sizes[gpus]
            if gpus == self.smallest:
                self.smallest = min(self.sizes, default=inf)

    def best(self, free: int, passed: dict[int, int]) -> Entry | None:
        """Return the best entry of at most ``free`` GPUs. ``passed``: GPUs -> how many of that size to pass
        over."""
        best: Entry | None = None
        for gpus, entries in self.sizes.items():
            if gpus <= free:
                at = passed.get(gpus, 0) if passed else 0
                if at < len(entries) and (best is None or entries[at] < best):
                    best = entries[at]
        return best
