"""Run the best: walk jobs best first, let each that fits have its GPUs, preempt who runs and did not make it.

A job that does not fit is passed over, so that no GPU stands idle while a smaller one waits. Gangs stay
where they are: nobody is moved to make room, only preempted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controller.policy.queueing.base import NOTHING, QueueDecision, QueueJob, Room
from controller.policy.types import JobKey

Entry = tuple[Any, ...]  # a rank, its last part the job's key, so that no two are equal; then the job itself


def run_best(
    order: Iterable[QueueJob],
    running: Mapping[JobKey, QueueJob],
    leaving: Iterable[QueueJob],
    room: Room,
    reason: str,
) -> QueueDecision:
    """Who starts and who is preempted when jobs get GPUs in ``order``, best first.

    Args:
        order: waiting jobs, and those of the running ones that may be preempted.
        running: those that may be preempted. Others that run keep their GPUs by not being here.
        leaving: jobs on their way out; their GPUs are counted on, but not given out yet.
        reason: CamelCase code for the preemptions.
    """
    trial = room.trial()
    for job in leaving:
        trial.give(job)
    for job in running.values():
        trial.give(job)
    preempt = []
    for job in order:
        if job.key not in running:
            trial.take(job)
        elif not trial.keep(job):
            preempt.append((job, reason))
    admit = trial.commit()
    return QueueDecision(admit, preempt) if admit or preempt else NOTHING


class BySize:
    """Waiting jobs by gang size, each size in rank order.

    The best job that fits into what is left is the best of a few heads, however many wait: gangs come in
    few sizes.
    """

    __slots__ = ("_entries", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, list[Entry]] = {}  # GPUs -> entries in rank order
        self._entries: dict[JobKey, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QueueJob]:
        """The jobs in rank order."""
        return (entry[-1] for entry in sorted(self._entries.values()))

    def put(self, job: QueueJob, rank: Entry) -> None:
        """Add a job that is not here. ``rank`` ends with the job's key."""
        entry = (*rank, job)
        self._entries[job.key] = entry
        entries = self.sizes.get(job.gpus)
        if entries is None:
            self.sizes[job.gpus] = [entry]
        else:
            insort(entries, entry)

    def drop(self, key: JobKey) -> None:
        """Take a job out, if it is here."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            gpus = entry[-1].gpus
            entries = self.sizes[gpus]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self.sizes[gpus]

    def clear(self) -> None:
        self.sizes.clear()
        self._entries.clear()


class Heads:
    """A walk over a `BySize`: the best that fits, again and again, each job at most once."""

    __slots__ = ("_at", "_sizes")

    def __init__(self, waiting: BySize) -> None:
        self._sizes = waiting.sizes
        self._at = dict.fromkeys(waiting.sizes, 0)

    def best(self, free: int) -> Entry | None:
        """The best entry of at most ``free`` GPUs that was not passed yet; it stays at the head."""
        best: Entry | None = None
        for gpus, entries in self._sizes.items():
            if gpus <= free and (at := self._at[gpus]) < len(entries):
                entry = entries[at]
                if best is None or entry < best:
                    best = entry
        return best

    def passed(self, gpus: int) -> None:
        """The head of that size is done with."""
        self._at[gpus] += 1
