"""Gauges of jobs: how many are in each state, and how many bear each mark as a warning and for how long.

The metrics that alerts are made of. A label is a state or a mark (`controller.policy.job.marks`), never a
job: one job's own mark is on the job, as a condition and as an Event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from sys import intern

from controller.policy.actor_types import ActorState
from controller.policy.job import MARKED, JobRecord, Mark, Outcome, health, summary
from controller.policy.types import JobKey, Mode

STATES = (
    *("Queued", "Unfit", "Preempting", "Starting", "Running", "Declining", "Demoted"),
    *("Stopping", "Stopped", "Completed", "Failed", "Refused", "RunsOn", *MARKED),
)

Series = Iterable[tuple[tuple[str, ...], float]]


class JobGauges:
    """Counts that follow the records as they are written. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state: dict[JobKey, str] = {}
        self._count: Counter[str] = Counter()
        self._outcome: dict[JobKey, tuple[Mode, Outcome]] = {}  # of those that were, or would be, stopped
        self._marked: dict[JobKey, dict[Mark, tuple[float, float]]] = {}  # of the few: (since, due), s
        self._actors: dict[JobKey, Counter[ActorState]] = {}  # of jobs that have rollout actors
        self._slowed: set[JobKey] = set()  # residents of worker groups, slower than they allow

    def note(self, key: JobKey, record: JobRecord) -> None:
        """Count the job by the state that its record shows now."""
        state = intern(summary(record.conditions))
        before = self._state.get(key)
        if before != state:
            if before is not None:
                self._count[before] -= 1
            self._count[state] += 1
            self._state[key] = state
        if record.outcome is not None:
            self._outcome[key] = (record.outcome.mode, record.outcome.verdict)
        else:
            self._outcome.pop(key, None)
        if record.actors:
            self._actors[key] = Counter(actor.state for actor in record.actors)
        else:
            self._actors.pop(key, None)
        if record.residency is not None and record.residency.group and record.residency.above:
            self._slowed.add(key)
        else:
            self._slowed.discard(key)
        found: dict[Mark, tuple[float, float]] = {}
        for one in health(record, self._clock()):
            since, due = found.get(one.mark, (one.since, one.due))
            found[one.mark] = (min(since, one.since), min(due, one.due))
        if found:
            self._marked[key] = found
        else:
            self._marked.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """Drop a job that is gone from the counts."""
        before = self._state.pop(key, None)
        if before is not None:
            self._count[before] -= 1
        self._marked.pop(key, None)
        self._outcome.pop(key, None)
        self._actors.pop(key, None)
        self._slowed.discard(key)

    def slowed(self) -> Series:
        """Return how many residents of worker groups are slower than they allow."""
        return [((), float(len(self._slowed)))]

    def actors(self) -> Series:
        """Return rollout actors of all jobs, by state."""
        counts: Counter[ActorState] = Counter()
        for found in self._actors.values():
            counts.update(found)
        return [((str(state),), float(counts[state])) for state in ActorState]

    def outcomes(self) -> Series:
        """Return jobs by whether their newest stop by a rule was right, and in which mode it was decided."""
        counts = Counter(self._outcome.values())
        return [
            ((str(mode), str(outcome)), float(counts[mode, outcome]))
            for mode in (Mode.SHADOW, Mode.ENFORCE)
            for outcome in Outcome
        ]

    def states(self) -> Series:
        """Return jobs by state; states that are not known here are one."""
        counts = {state: self._count[state] for state in STATES}
        other = sum(self._count.values()) - sum(counts.values())
        return [((state,), float(count)) for state, count in (counts | {"Other": other}).items()]

    def marked(self) -> Series:
        """Return jobs that bear a mark as a warning, by mark; a quiet note is not counted."""
        now = self._clock()
        counts = Counter(mark for found in self._marked.values() for mark in self._warnings(found, now))
        return [((str(mark),), float(counts[mark])) for mark in Mark]

    def longest(self) -> Series:
        """For how long (s) the first of them has borne it, from when it began; 0: none is warned of."""
        now = self._clock()
        oldest = dict.fromkeys(Mark, now)
        for found in self._marked.values():
            for mark in self._warnings(found, now):
                oldest[mark] = min(oldest[mark], found[mark][0])
        return [((str(mark),), max(0.0, now - since)) for mark, since in oldest.items()]

    @staticmethod
    def _warnings(found: dict[Mark, tuple[float, float]], now: float) -> list[Mark]:
        return [mark for mark, (_, due) in found.items() if now >= due]
