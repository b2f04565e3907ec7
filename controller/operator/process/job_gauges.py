"""Gauges of jobs: how many are in each state, and how many are in trouble and for how long.

The metrics that alerts are made of. A label is a state or a kind of trouble, never a job: one job's own
trouble is on the job, as a condition and as an Event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from sys import intern

from controller.policy.job import BLIND, JobRecord, Operation, summary
from controller.policy.job import conditions as c
from controller.policy.types import JobKey, Mode

# What can be wrong with a job for too long. Each is also a state that every job may pass through: an alert
# asks for how long.
NO_METRICS = "NoMetrics"  # it runs, and its evals are not being read
BLIND_RULE = (
    "BlindRule"  # its rule lacks what it judges by (noise, paired differences, peers): nothing stops it
)
NOT_SECURED = "NotSecured"  # the checkpoint store refuses its best checkpoint
NOT_RETAINED = "NotRetained"  # it is to be stopped, and its best checkpoint cannot be copied out of reach
STOPPING = "Stopping"  # its stop is decided, and its GPUs are not free yet
TERMINATING = "Terminating"  # it is suspended, and pods of it are still there
UNFIT = "Unfit"  # it waits for GPUs that its pool does not have
TROUBLES = (NO_METRICS, BLIND_RULE, NOT_SECURED, NOT_RETAINED, STOPPING, TERMINATING, UNFIT)
STATES = (
    *("Queued", "Unfit", "Preempting", "Starting", "Running", "Declining", "Demoted"),
    *("Stopping", "Stopped", "Completed", "Failed", "Refused"),
)

Series = Iterable[tuple[tuple[str, ...], float]]


def troubles(record: JobRecord) -> Mapping[str, float]:
    """Kind of trouble -> since when (s)."""
    found: dict[str, float] = {}
    conditions = {condition.type: condition for condition in record.conditions}

    def false(type_: str) -> float | None:
        condition = conditions.get(type_)
        return condition.since if condition is not None and not condition.status else None

    running = conditions.get(c.RUNNING)
    if running is not None and running.status:
        if (since := false(c.METRICS)) is not None:
            found[NO_METRICS] = max(since, running.since)
        verdict = record.rule.verdict if record.rule is not None else None
        if verdict is not None and verdict.reason in BLIND:
            found[BLIND_RULE] = running.since
    failing = record.access is not None and record.access.tries > 0
    if failing and record.access is not None and record.access.operation is not Operation.RESTORE:
        retaining = record.access.operation is Operation.RETAIN
        since = false(c.RETAINED if retaining else c.SECURED)
        if since is not None:
            found[NOT_RETAINED if retaining else NOT_SECURED] = since
    decision = record.decision
    target = conditions.get(c.TERMINATION)
    under_way = decision is not None and decision.mode is Mode.ENFORCE and decision.pods_gone_at is None
    if decision is not None and under_way and target is not None and target.status:
        found[STOPPING] = decision.at
        if decision.suspended_at is not None:
            found[TERMINATING] = decision.suspended_at
    admitted = conditions.get(c.ADMITTED)
    if admitted is not None and not admitted.status and admitted.reason == "TooLarge":
        found[UNFIT] = admitted.since
    return found


class Standing:
    """Counts that follow the records as they are written. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state: dict[JobKey, str] = {}
        self._count: Counter[str] = Counter()
        self._trouble: dict[JobKey, Mapping[str, float]] = {}  # of the few that have any

    def note(self, key: JobKey, record: JobRecord) -> None:
        """Count the job by the state that its record shows now."""
        state = intern(summary(record.conditions))
        before = self._state.get(key)
        if before != state:
            if before is not None:
                self._count[before] -= 1
            self._count[state] += 1
            self._state[key] = state
        if found := troubles(record):
            self._trouble[key] = found
        else:
            self._trouble.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """Drop a job that is gone from the counts."""
        before = self._state.pop(key, None)
        if before is not None:
            self._count[before] -= 1
        self._trouble.pop(key, None)

    def states(self) -> Series:
        """Return jobs by state; states that are not known here are one."""
        counts = {state: self._count[state] for state in STATES}
        other = sum(self._count.values()) - sum(counts.values())
        return [((state,), float(count)) for state, count in (counts | {"Other": other}).items()]

    def troubled(self) -> Series:
        """Return jobs in trouble, by kind."""
        counts = Counter(kind for found in self._trouble.values() for kind in found)
        return [((kind,), float(counts[kind])) for kind in TROUBLES]

    def longest(self) -> Series:
        """For how long (s) the first of them has been, by kind; 0: none is."""
        now = self._clock()
        oldest = dict.fromkeys(TROUBLES, now)
        for found in self._trouble.values():
            for kind, since in found.items():
                oldest[kind] = min(oldest[kind], since)
        return [((kind,), now - since) for kind, since in oldest.items()]
