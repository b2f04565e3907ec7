"""A virtual job as policies see it.

It holds facts a scheduler may know and no way back to the truth behind them: neither the workload nor the
engine, only numbers. `sequence` is the job's row in the workload, of which a policy has no use.
"""

from __future__ import annotations

from controller.policy.actor_types import Part, Place
from controller.policy.group_types import SharedTraining
from controller.policy.types import JobKey, JobState, LossTrend, Proposal
from controller.policy.wording import counted

_QUEUED = JobState.QUEUED


class VirtualJob:
    """A `QueueJob` on slots, without evals, priority or anything else that would tell jobs apart."""

    __slots__ = ("attained", "gpus", "key", "remaining", "sequence", "since", "state", "submitted")

    replicas: int = 1
    priority: int = 0
    weight: float = 1.0
    estimate: float | None = None
    progress: float | None = None
    proposal: Proposal | None = None
    loss_trend: LossTrend | None = None
    nodes: tuple[str, ...] = ()
    bound: tuple[tuple[str, int], ...] = ()
    policy_state: tuple[int, ...] = ()
    waited: float = 0.0
    demoted: bool = False
    avoid: tuple[str, ...] = ()
    base_actors: Part | None = None
    actor_places: tuple[Place, ...] = ()
    spare_gpus: int = 0
    sharing: SharedTraining | None = None

    def __init__(self, key: JobKey, submitted: float, sequence: int, gpus: int, remaining: float) -> None:
        self.key = key
        self.submitted = submitted
        self.sequence = sequence
        self.gpus = gpus
        self.remaining: float | None = remaining
        self.attained: float = 0.0
        self.state = _QUEUED
        self.since: float | None = submitted

    @property
    def gpus_per_replica(self) -> int:
        return self.gpus

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, {counted(self.gpus, 'GPU')}, {self.state})"


class JudgedJob(VirtualJob):
    """A `QueueJob` that can be proposed for a stop."""

    __slots__ = ("proposal",)

    def __init__(self, key: JobKey, submitted: float, sequence: int, gpus: int, remaining: float) -> None:
        # Not by the base's: with one for each job of a large workload a call counts.
        self.key = key
        self.submitted = submitted
        self.sequence = sequence
        self.gpus = gpus
        self.remaining = remaining
        self.attained = 0.0
        self.state = _QUEUED
        self.since = submitted
        self.proposal = None


class DetailedJob(JudgedJob):
    """A `QueueJob` with everything of its own: gang, nodes, priority, weight, estimate, evals."""

    __slots__ = (
        "actor_nodes",
        "base_actors",
        "demoted",
        "estimate",
        "gpus_each",
        "loss_trend",
        "nodes",
        "priority",
        "progress",
        "replicas",
        "weight",
    )

    def __init__(self, key: JobKey, submitted: float, sequence: int, gpus: int, remaining: float) -> None:
        super().__init__(key, submitted, sequence, gpus, remaining)
        self.replicas = 1
        self.gpus_each = gpus
        self.base_actors = None
        self.nodes: tuple[str, ...] = ()
        self.actor_nodes: tuple[str, ...] = ()
        self.priority = 0
        self.weight = 1.0
        self.demoted = False
        self.estimate = None
        self.progress = None
        self.loss_trend = None

    @property
    def gpus_per_replica(self) -> int:
        return self.gpus_each

    @property
    def actor_places(self) -> tuple[Place, ...]:  # type: ignore[override]
        size = 0 if self.base_actors is None else self.base_actors.gpus
        return tuple((node, size) for node in self.actor_nodes)
