"""GPUPool: nodes whose GPUs are given out together, by which policy, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.api import markers, rules
from controller.api.base import Count, DnsLabel, JobKeyText, Spec, Status, Timestamp
from controller.api.status import CONDITIONS
from controller.policy.queueing import POLICIES
from controller.policy.types import Mode

# Of all queue policies, those whose every input the operator has. The others need estimates, loss trends or
# marks of their own, which so far only the simulator gives them; a pool must not offer what it cannot do.
OPERATED = ("fifo",)
EVERY_NAMESPACE = "*"
HOLD_SECONDS = 300
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

if TYPE_CHECKING:
    QueuePolicy = rules.Union
else:
    QueuePolicy = rules.union_of("QueuePolicy", "queuePolicy", {name: POLICIES[name] for name in OPERATED})


class NodeLabel(Spec):
    """A label that the pool's nodes carry."""

    key: str = Field(min_length=1, max_length=317, pattern=_LABEL_KEY, description="Its key.")
    value: str = Field(default="", max_length=63, pattern=_LABEL_VALUE, description="Its value.")


class AllowedNamespace(Spec):
    """A namespace whose RLHFJobs may use the pool."""

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$",
        description=f"The namespace; {EVERY_NAMESPACE} stands for every one that has no entry of its own.",
    )
    max_priority: Annotated[
        int, Field(strict=True, ge=-1_000_000, le=1_000_000, json_schema_extra=markers.INT32)
    ] = Field(default=0, description="Highest priority that an RLHFJob of the namespace may have.")


class StopLimits(Spec):
    """What the stop rules of the pool's jobs may do together. Stops that users ask for are not counted."""

    per_hour: Annotated[int, Field(strict=True, ge=0, le=100_000, json_schema_extra=markers.INT32)] | None = (
        Field(default=None, alias="perHour", description="Stops in any hour. Default: no limit.")
    )
    breaker_percent: (
        Annotated[int, Field(strict=True, ge=1, le=100, json_schema_extra=markers.INT32)] | None
    ) = Field(
        default=None,
        alias="breakerPercent",
        description="Nobody is stopped while this share of the running jobs, and at least three, were "
        "stopped in the last hour or are to be: a cause that they share is likelier. Default: no breaker.",
    )


class GPUPoolSpec(Spec):
    """Which nodes, which policy, for whom."""

    node_selector: Annotated[
        tuple[NodeLabel, ...], Field(min_length=1, max_length=16, json_schema_extra=markers.list_map("key"))
    ] = Field(description="Labels that the pool's nodes carry, all of them.")
    queue_policy: QueuePolicy = Field(
        default_factory=lambda: QueuePolicy.model_validate({"fifo": {}}),
        description="Who goes next. EvalStop's releases work with each of them.",
        json_schema_extra={"default": {"fifo": {}}},
    )
    allowed_namespaces: Annotated[
        tuple[AllowedNamespace, ...],
        Field(min_length=1, max_length=256, json_schema_extra=markers.list_map("name")),
    ] = Field(description="Namespaces whose RLHFJobs may use the pool.")
    mode_cap: Mode = Field(
        default=Mode.ENFORCE, description="How far the operator may go with any job of the pool."
    )
    stop_limits: StopLimits = Field(
        default_factory=StopLimits,
        description="What stop rules may do together.",
        json_schema_extra={"default": {}},
    )
    hold_seconds: Annotated[int, Field(strict=True, ge=1, le=86400, json_schema_extra=markers.INT32)] = Field(
        default=HOLD_SECONDS,
        alias="holdSeconds",
        description="Seconds for which freed GPUs are kept for the job they were promised to.",
    )


class HoldStatus(Status):
    """GPUs on their way from one job to another."""

    source: JobKeyText = Field(description="Whose they were (namespace/name).")
    target: JobKeyText = Field(description="Whose they will be (namespace/name).")
    nodes: Annotated[
        tuple[Annotated[str, Field(max_length=253)], ...],
        Field(max_length=1024, json_schema_extra=markers.ATOMIC),
    ] = Field(description="Planned node of each pod.")
    expires: Timestamp = Field(description="Until when.")


class GPUPoolStatus(Status):
    """What the pool has and who has it."""

    conditions: CONDITIONS = Field(default=(), description="Aspects of the pool's state.")
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec last looked at."
    )
    capacity: Count | None = Field(default=None, description="GPUs of its usable nodes.")
    free: Count | None = Field(default=None, description="GPUs that nobody has requested.")
    running: Count | None = Field(default=None, description="Jobs that hold GPUs.")
    queued: Count | None = Field(default=None, description="Jobs that wait.")
    holds: Annotated[tuple[HoldStatus, ...], Field(max_length=256, json_schema_extra=markers.ATOMIC)] = Field(
        default=(), description="GPUs on their way from one job to another."
    )


class PoolMetadata(BaseModel):
    """The parts of metadata the operator reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: DnsLabel
    uid: str = ""
    generation: Count = 0


class GPUPool(BaseModel):
    """Nodes whose GPUs are given out together, by one queue policy."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        json_schema_extra=markers.cel(
            markers.rule(
                "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
                "metadata.name: %s must be at most 63 characters without a dot: nodes are tainted with it",
                "self.metadata.name",
            )
        ),
    )

    apiVersion: Literal["evalstop.dev/v1alpha1"]
    kind: Literal["GPUPool"]
    metadata: PoolMetadata
    spec: GPUPoolSpec
    status: GPUPoolStatus | None = None

    def ceiling(self, namespace: str) -> int | None:
        """The highest priority allowed to a namespace; None: it may not use the pool."""
        entries = {entry.name: entry.max_priority for entry in self.spec.allowed_namespaces}
        return entries.get(namespace, entries.get(EVERY_NAMESPACE))
