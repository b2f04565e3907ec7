"""Rollout actors as a pool sees them: plain frozen values.

*Base* actors are those that a job is admitted with, *spare* actors all others, on GPUs that nobody with a
right needs now. Which of a job's actors are base is told by their count alone: its oldest that stay, as many
as it was admitted with. A base actor that was let go leaves a *right of return*: a number, and no GPU.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

from controller.frozen import dataclass
from controller.policy.stored import AtMost, Count, NodeName, Time, Word

JobKey = Annotated[str, AtMost(317)]  # "namespace/name"
Place = tuple[str, int]  # node, GPUs
START_SECONDS = 900.0  # s that an actor may take from its entry to being ready: models are large


class Part(NamedTuple):
    """A part of a job: so many pods of so many GPUs each."""

    pods: int
    gpus: int


class ActorState(StrEnum):
    """STARTING: its entry is written, it is not ready yet. RECALLED: it has to go, by its deadline."""

    STARTING = "Starting"
    RUNNING = "Running"
    RECALLED = "Recalled"


@dataclass(frozen=True, slots=True)
class Actor:
    """An actor's entry. It is written before its Job is made, and lasts until its pod is gone."""

    number: Annotated[Count, "It rises with every start of the job."]
    node: Annotated[NodeName, "Its node."]
    gpus: Annotated[Count, "GPUs that it holds."]
    state: Annotated[
        ActorState, "Running once it takes prompts; Recalled: it has to go; absent: Starting."
    ] = ActorState.STARTING
    since: Annotated[Time, "When its entry was written."] = 0.0
    for_whom: Annotated[
        JobKey, "Whom it was recalled for (namespace/name; of another namespace: uid:…); absent: nobody."
    ] = ""
    until: Annotated[Time | None, "By when a recalled one has to be gone."] = None
    bound: Annotated[Time | None, "When its pod got its node; absent: that was not written yet."] = None
    waits: Annotated[
        Word,
        "Why the pod of a starting one does not run, as Kubernetes says (ErrImagePull …); absent: not known.",
    ] = ""

    @property
    def stays(self) -> bool:
        return self.state is not ActorState.RECALLED


@dataclass(frozen=True, slots=True)
class Rollout:
    """A job's actors, and what it would have now.

    Attributes:
        base: how many it is admitted with.
        gpus: of each actor.
        actors: entries, oldest first.
        wants: how many its newest step plan has now, base actors among them; 0 while it does not generate.
        gain: s by which its step got shorter for each GPU of its last added actors, as measured; None: that
            has not been measured yet.
        next: number of the next actor.
    """

    base: int
    gpus: int
    actors: tuple[Actor, ...] = ()
    wants: int = 0
    gain: float | None = None
    next: int = 0

    @property
    def staying(self) -> tuple[Actor, ...]:
        """Entries of actors that are not recalled."""
        return tuple(actor for actor in self.actors if actor.stays)

    @property
    def held(self) -> tuple[Actor, ...]:
        """Base actors that stay."""
        return self.staying[: self.base]

    @property
    def spare(self) -> tuple[Actor, ...]:
        """Spare actors that stay, oldest first."""
        return self.staying[self.base :]

    @property
    def rights(self) -> int:
        """Return the number of base actors that have the right to return."""
        return max(0, self.base - len(self.staying))

    @property
    def returning(self) -> int:
        """Return the number of them that are wanted now."""
        return max(0, min(self.base, self.wants) - len(self.staying))


class KeptPlace(NamedTuple):
    """GPUs of a node that are kept."""

    node: Annotated[NodeName, "Name of the node."]
    gpus: Annotated[Count, "How many of its GPUs."]


@dataclass(frozen=True, slots=True)
class Reserved:
    """GPUs that are kept free for the job for which actors were recalled."""

    target: Annotated[JobKey, "Whose they will be (namespace/name)."]
    places: Annotated[tuple[KeptPlace, ...], AtMost(1024), "Where they are, one entry for each pod."]
    expires: Annotated[Time, "Until when."]
    returning: Annotated[bool, "For a base actor that returns; absent: for its admission."] = False


@dataclass(frozen=True, slots=True)
class RolloutTerms:
    """The terms of a job's actors, by ``spec.rollout`` and its pool.

    Attributes:
        base: how many it is admitted with: ``min``; with mode Shadow ``static``.
        gpus: of each actor.
        shadow: it keeps its base actors whatever steps plan.
        keeps: between two steps it keeps actors beyond the next one's plan (whenIdle Keep).
        recall_seconds: that its pods may take to end, as of a recall.
        start_seconds: from an entry to its pod being ready.
        bind_seconds: from an entry to its pod having a node: another pod may have been put there.
    """

    base: int
    gpus: int
    shadow: bool = False
    keeps: bool = False
    recall_seconds: float = 10.0
    start_seconds: float = START_SECONDS
    bind_seconds: float = START_SECONDS


@dataclass(frozen=True, slots=True)
class Lending:
    """A pool's terms of lending: GPUs for spare actors or not, and how fast they are taken back.

    ``recall_seconds``: s that a recalled actor has to move its responses.
    """

    enabled: bool = True
    recall_seconds: float = 10.0
    reserved: tuple[Reserved, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorStart:
    """An actor to start: its entry is to be written before its Job is made."""

    key: JobKey
    number: int
    node: str
    gpus: int
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Recall:
    """An actor that has to go by ``until`` (s); ``for_whom``: who needs its GPUs; "": nobody may borrow any
    more."""

    key: JobKey
    number: int
    for_whom: JobKey
    until: float


@dataclass(frozen=True, slots=True)
class LendingPlan:
    """The next acts upon a pool's actors; ``reserved``: to be kept for the next pass."""

    starts: tuple[ActorStart, ...] = ()
    recalls: tuple[Recall, ...] = ()
    reserved: tuple[Reserved, ...] = ()
