"""The contract of a queue policy: a deterministic object in memory, without clock, randomness or I/O.

It hears of jobs by events, and says by `decide` who runs. `rebuild` brings it from a snapshot to the very
state that the events behind that snapshot would have: the operator rebuilds at each pass, the simulator
sends events, both to this code. Where a gang fits is not the policy's business: it asks a `Room`.

A view's ``attained`` and ``remaining`` are as of the moment the policy is given it; from then on the policy
counts a running job's time itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Protocol

from controller.policy.actor_types import Part, Place
from controller.policy.group_types import SharedTraining
from controller.policy.types import JobKey, JobState, LossTrend, Proposal
from controller.policy.wording import counted


class QueueJob(Protocol):
    """A job as queue policies read it. `JobView` is one; the simulator has a lighter one of its own."""

    @property
    def key(self) -> JobKey: ...
    @property
    def submitted(self) -> float: ...
    @property
    def sequence(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def gpus_per_replica(self) -> int: ...
    @property
    def gpus(self) -> int:
        """GPUs of all its parts: what it counts for, in every rank and quota."""
        ...

    @property
    def base_actors(self) -> Part | None:
        """The part that is admitted beside the gang; None: there is none."""
        ...

    @property
    def actor_places(self) -> tuple[Place, ...]:
        """Return the places of its actors that it gives up with its GPUs."""
        ...

    @property
    def sharing(self) -> SharedTraining | None:
        """The residency that it asks for, or has; None: its GPUs are its own."""
        ...

    @property
    def spare_gpus(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def state(self) -> JobState: ...
    @property
    def bound(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def attained(self) -> float: ...
    @property
    def remaining(self) -> float | None: ...
    @property
    def proposal(self) -> Proposal | None: ...
    @property
    def since(self) -> float | None: ...
    @property
    def estimate(self) -> float | None: ...
    @property
    def progress(self) -> float | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def loss_trend(self) -> LossTrend | None: ...
    @property
    def policy_state(self) -> tuple[int, ...]: ...
    @property
    def waited(self) -> float: ...
    @property
    def demoted(self) -> bool: ...
    @property
    def avoid(self) -> tuple[str, ...]: ...


def sizes(job: QueueJob) -> str:
    """Return the parts of a job for people: "2 x 4 GPUs", or "2 x 4 GPUs and, for base actors, 3 x 1 GPU";
    of one that asks for a residency its private ones."""
    gang, actors = f"{job.replicas} x {counted(job.gpus_per_replica, 'GPU')}", job.base_actors
    if actors is None:
        return gang
    return f"{gang} and, for base actors, {actors.pods} x {counted(actors.gpus, 'GPU')}"


class EventKind(IntEnum):
    """Kind of an event of a job. Each event carries the job in its state after the event."""

    SUBMITTED = 0  # entered the queue, for the first time or again (preempted, resumed)
    ADMITTED = 1  # got its GPUs
    UPDATED = 2  # progress, estimate, priority or proposal changed
    LEAVING = 3  # its stop or preemption began; it holds its GPUs until GONE
    REMOVED = 4  # left for good, or left its GPUs: nothing of it counts any more


class QueueEvent(NamedTuple):
    """An event as a value; ``at`` (s) is when it happened."""

    kind: EventKind
    job: QueueJob
    at: float = 0.0


class PlacementTrial(Protocol):
    """A what-if on a room, for policies that preempt: GPUs in use can be counted as if they were free.

    Take jobs best first. `commit` makes real what can start at once, on GPUs that are free already; the
    rest of what was taken waits until those whose GPUs it is to get are gone.
    """

    def give(self, job: QueueJob) -> None:
        """Count the GPUs of a running or leaving gang as available; of those who run, best first."""
        ...

    def keep(self, job: QueueJob) -> bool:
        """Leave a running gang where it is, if nobody better has taken its GPUs."""
        ...

    def take(self, job: QueueJob) -> bool:
        """Find GPUs for a waiting gang: free ones, then those of who leaves, then of who was given last; say
        whether there are any."""
        ...

    def commit(self) -> list[QueueJob]:
        """Reserve, in the room, the GPUs of the taken gangs that can start now; return those gangs."""
        ...

    def withhold(self) -> Callable[[], None]:
        """After `commit`: keep from everybody else, in the room and in new trials of it, what the rest of the
        taken gangs waits for. The call that is returned gives it back."""
        ...


class Room(Protocol):
    """The GPUs that may be given out in one pass."""

    @property
    def slots(self) -> int | None:
        """Free GPUs where any will do for any gang; None where it matters which node they are on."""
        ...

    def take(self, job: QueueJob) -> bool:
        """Reserve the whole gang if it fits; say whether it did."""
        ...

    def give(self, job: QueueJob) -> None:
        """Count a gang's GPUs as free from now on."""
        ...

    def trial(self) -> PlacementTrial:
        """Return a what-if that starts from what is free now."""
        ...

    def bars(self, job: QueueJob) -> bool:
        """Return whether a gang that found no room may have no GPUs now, be they free or not: it blocks
        nobody."""
        ...


class QueueDecision(NamedTuple):
    """Jobs to start (in order), jobs to preempt (with a reason), and granted stops to carry out.

    Who starts fits into GPUs that are free: nobody is admitted to GPUs of a job that is still leaving.
    ``wake_at`` (s): when to decide again though nothing happened, this decision carried out; None: only on an
    event.
    """

    admit: Sequence[QueueJob] = ()
    preempt: Sequence[tuple[QueueJob, str]] = ()
    release: Sequence[QueueJob] = ()
    wake_at: float | None = None


NOTHING = QueueDecision()


# A policy decides at every event: these two make a decision without the detour over keywords and defaults.


def starts(admit: Sequence[QueueJob], _new: Any = tuple.__new__) -> QueueDecision:
    """Return a decision to start these, and no more."""
    decision: QueueDecision = _new(QueueDecision, (admit, (), (), None))
    return decision


def decided(
    admit: Sequence[QueueJob],
    preempt: Sequence[tuple[QueueJob, str]],
    wake_at: float | None = None,
    release: Sequence[QueueJob] = (),
    _new: Any = tuple.__new__,
) -> QueueDecision:
    """Any decision."""
    decision: QueueDecision = _new(QueueDecision, (admit, preempt, release, wake_at))
    return decision


# What a job is ranked by, by name; times in s, service in GPU-seconds. None: not known, or without bound.
Ranking = dict[str, float | int | str | None]


class QueuePolicy(Protocol):
    """An order over jobs, and what to do with free GPUs.

    Every event drops what was known of its job before, so that a repeated or out-of-order one does no harm.
    """

    name: ClassVar[str]  # as users write it: lowerCamelCase
    params: Any

    @property
    def watches(self) -> bool:
        """Return whether it decides by progress or losses, and so must hear of every eval."""
        ...

    @property
    def preempts(self) -> bool:
        """Return whether it sends runs back into the queue for better ones."""
        ...

    def rebuild(self, jobs: Iterable[QueueJob], now: float = 0.0) -> None:
        """Forget everything and take in these jobs, queued and running, as they are at ``now`` (s)."""
        ...

    def apply(self, event: QueueEvent) -> None:
        """Take in one event, by the method of its kind."""
        ...

    def submitted(self, job: QueueJob, now: float) -> None: ...

    def admitted(self, job: QueueJob, now: float) -> None: ...

    def updated(self, job: QueueJob, now: float) -> None: ...

    def leaving(self, job: QueueJob, now: float) -> None: ...

    def removed(self, job: QueueJob, now: float) -> None: ...

    def shielded(self, job: QueueJob, now: float) -> None:
        """Note that a running job must not be preempted until the next event about it (`ageing`)."""
        ...

    def decide(self, now: float, room: Room) -> QueueDecision:
        """Return who runs now. Calling it twice without events in between gives the same answer."""
        ...

    def queue(self) -> list[QueueJob]:
        """Return the waiting jobs, next one first, but for those that are barred."""
        ...

    def barred(self) -> list[QueueJob]:
        """Return the waiting jobs that may have no GPUs now, be they free or not."""
        ...

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        """Return the quantities by which it orders a job, most important first.

        Args:
            job: the job.
            jobs: the running jobs of its namespace.
        """
        ...

    def policy_state(self, key: JobKey) -> tuple[int, ...]:
        """Return what must be kept on a job's view for `rebuild` to come out the same; () for nearly all."""
        ...

    def fresh(self) -> QueuePolicy:
        """Another one of the same kind and parameters that knows of no job, for a what-if."""
        ...


class PolicyBase:
    """The part of a policy that is the same for all: events by kind, and rebuilding by replaying states."""

    @property
    def watches(self) -> bool:
        return False

    @property
    def preempts(self) -> bool:
        return False

    def submitted(self, job: QueueJob, now: float) -> None:
        raise NotImplementedError

    def admitted(self, job: QueueJob, now: float) -> None:
        raise NotImplementedError

    def leaving(self, job: QueueJob, now: float) -> None:
        raise NotImplementedError

    def removed(self, job: QueueJob, now: float) -> None:
        raise NotImplementedError

    def shielded(self, job: QueueJob, now: float) -> None:
        # Out of its sight, unless a policy's order goes by the GPUs that others hold.
        self.removed(job, now)

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        return {"priority": job.priority}

    def clear(self) -> None:
        """Forget every job."""
        raise NotImplementedError

    def updated(self, job: QueueJob, now: float) -> None:
        if job.state is JobState.QUEUED:
            self.submitted(job, now)
        elif job.state is JobState.ADMITTED:
            self.admitted(job, now)
        else:
            self.leaving(job, now)

    def apply(self, event: QueueEvent) -> None:
        match event.kind:
            case EventKind.SUBMITTED:
                self.submitted(event.job, event.at)
            case EventKind.ADMITTED:
                self.admitted(event.job, event.at)
            case EventKind.UPDATED:
                self.updated(event.job, event.at)
            case EventKind.LEAVING:
                self.leaving(event.job, event.at)
            case EventKind.REMOVED:
                self.removed(event.job, event.at)

    def rebuild(self, jobs: Iterable[QueueJob], now: float = 0.0) -> None:
        self.clear()
        for job in sorted(jobs, key=queue_key):
            self.updated(job, now)

    def barred(self) -> list[QueueJob]:
        return []

    def policy_state(self, key: JobKey) -> tuple[int, ...]:
        return ()

    def fresh(self) -> QueuePolicy:
        mine: Any = self
        another: QueuePolicy = type(mine)(mine.params)
        return another


class Wrapper(PolicyBase):
    """A policy around another one, ``base``, which decides whatever a subclass does not override."""

    def __init__(self, base: QueuePolicy) -> None:
        self.base = base
        self.params: Any = base.params

    @property
    def watches(self) -> bool:
        return self.base.watches

    @property
    def preempts(self) -> bool:
        return self.base.preempts

    def barred(self) -> list[QueueJob]:
        return self.base.barred()

    def policy_state(self, key: JobKey) -> tuple[int, ...]:
        return self.base.policy_state(key)

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        return self.base.ranking(job, jobs)


def waits_since(job: QueueJob) -> float:
    """Return since when (s) a job waits, or runs, in this stay."""
    return job.submitted if job.since is None else job.since


def stay_key(job: QueueJob) -> tuple[float, float, int, JobKey]:
    """Return a sort key by which the job that has waited, or run, the longest comes first.

    The last parts make ties deterministic.
    """
    return (waits_since(job), job.submitted, job.sequence, job.key)


def queue_key(job: QueueJob) -> tuple[int, float, int, JobKey]:
    """Higher priority first, then the earlier submitted; the last parts make ties deterministic."""
    return (-job.priority, job.submitted, job.sequence, job.key)
