"""What a queue policy is: a deterministic object in memory, without clock, randomness or I/O.

It hears of jobs by `apply`, and says by `decide` who runs. `rebuild` brings it from a snapshot to the very
state that the events behind that snapshot would have: the operator rebuilds at each pass, the simulator
applies events, both by this code. Where a gang fits is not the policy's business: it asks a `Room`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Protocol

from controller.policy.types import JobKey, JobView


class EventKind(IntEnum):
    """What happened to a job. Each event carries the job as it is after it."""

    SUBMITTED = 0  # entered the queue, for the first time or again (preempted, resumed)
    ADMITTED = 1  # got its GPUs
    UPDATED = 2  # progress, estimate, priority or proposal changed
    LEAVING = 3  # its stop or preemption began; it holds its GPUs until GONE
    GONE = 4  # left for good, or left its GPUs: nothing of it counts any more


class QueueEvent(NamedTuple):
    kind: EventKind
    job: JobView


class Room(Protocol):
    """The GPUs that may be given out in one pass."""

    def take(self, job: JobView) -> bool:
        """Reserve the whole gang if it fits; say whether it did."""
        ...

    def give(self, job: JobView) -> None:
        """Count a running gang's GPUs as free, for a policy that would preempt it."""
        ...


@dataclass(slots=True)
class QueueDecision:
    """Who starts (in order), who is preempted (with a reason), who is released (their stop is granted).

    ``wake_at`` (s): when to decide again though nothing happened; None: only on an event.
    """

    admit: list[JobView] = field(default_factory=list)
    preempt: list[tuple[JobView, str]] = field(default_factory=list)
    release: list[JobView] = field(default_factory=list)
    wake_at: float | None = None


class QueuePolicy(Protocol):
    """An order over jobs, and what to do with free GPUs."""

    name: ClassVar[str]  # as users write it: lowerCamelCase
    params: Any

    def rebuild(self, jobs: Iterable[JobView]) -> None:
        """Forget everything and take in these jobs, queued and running."""
        ...

    def apply(self, event: QueueEvent) -> None:
        """Take in one event."""
        ...

    def decide(self, now: float, room: Room) -> QueueDecision:
        """Who runs now. Calling it twice without events in between gives the same answer."""
        ...

    def queue(self) -> list[JobView]:
        """The waiting jobs, next one first."""
        ...


def queue_key(job: JobView) -> tuple[int, float, int, JobKey]:
    """Higher priority first, then the earlier submitted; the last parts make ties deterministic."""
    return (-job.priority, job.submitted, job.sequence, job.key)
