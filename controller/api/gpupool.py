"""GPUPool: nodes whose GPUs are given out together, by which policy, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from controller import names
from controller.api import markers, rule_unions
from controller.api.base import (
    Count,
    DnsLabel,
    Spec,
    extra,
)
from controller.api.schema import status_of
from controller.api.sharing import PoolSharing
from controller.api.status import QUOTA_NAMESPACES_MAX, QUOTAS_MAX, PoolStatus
from controller.policy.queueing import POLICIES
from controller.policy.types import Delegate, FleetScope, Mode

EVERY_NAMESPACE = "*"
RESERVATION_SECONDS = 300
SHARED_FALL_PERCENT = 50
SHARED_FALL_WAIT_SECONDS = 1800
PRECISION_JOBS = 100
GANG_TIMEOUT_SECONDS = 300
MAX_WAIT_SECONDS = 7 * 86400
PREEMPT_GRACE_SECONDS = 300
RECALL_SECONDS = 10
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_TWICE = "!self.exists_one(other, n in other.namespaces)"
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_CLASS = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

if TYPE_CHECKING:
    QueuePolicy = rule_unions.OneOf
else:
    QueuePolicy = rule_unions.union_of("QueuePolicy", "queuePolicy", POLICIES)


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
    weight: Annotated[int, Field(strict=True, ge=1, le=10_000, json_schema_extra=markers.INT32)] = Field(
        default=1,
        description="Share of the pool that each such namespace is due under fairShare, relative to others.",
    )


class StopLimits(Spec):
    """Limits on all stops that rules of the pool's jobs make. Stops that users ask for are not counted."""

    per_hour: Annotated[int, Field(strict=True, ge=0, le=100_000, json_schema_extra=markers.INT32)] | None = (
        Field(
            default=None,
            alias="perHour",
            description="Stops in any hour, of all namespaces; the one that had the fewest goes next. "
            "Default: no limit.",
        )
    )
    breaker_percent: (
        Annotated[int, Field(strict=True, ge=1, le=100, json_schema_extra=markers.INT32)] | None
    ) = Field(
        default=None,
        alias="breakerPercent",
        description="Nobody of a namespace is stopped while this share of its running jobs, and at least "
        "three, were stopped in the last hour or are to be: a cause that they share is likelier. Default: no "
        "breaker.",
    )
    shared_fall_percent: Annotated[int, Field(strict=True, ge=0, le=100, json_schema_extra=markers.INT32)] = (
        Field(
            default=SHARED_FALL_PERCENT,
            alias="sharedFallPercent",
            description="Nobody is stopped for a sudden fall that this share of the namespace's jobs with "
            "evals, and at least three, took at the same moment: their rules begin anew behind it. 0: nobody "
            "looks for it.",
        )
    )
    shared_fall_wait_seconds: Annotated[
        int, Field(strict=True, ge=0, le=86400, json_schema_extra=markers.INT32)
    ] = Field(
        default=SHARED_FALL_WAIT_SECONDS,
        alias="sharedFallWaitSeconds",
        description="Seconds for which the stop of a run that fell suddenly waits for evals of the others, "
        "at least: where they are rarer, it waits for as long as the missing ones usually take.",
    )
    precision: Annotated[str, Field(pattern=r"^0[.][5-9][0-9]{0,5}$", max_length=8)] | None = Field(
        default=None,
        description='Share of a namespace\'s stops of a day that are right, in expectation, as in "0.95"; '
        "0.5 or more, below 1. RLHFJobs whose rule yields no e-value are refused then. Default: no share is "
        "promised.",
    )
    precision_jobs: Annotated[
        int, Field(strict=True, ge=1, le=1_000_000, json_schema_extra=markers.INT32)
    ] = Field(
        default=PRECISION_JOBS,
        alias="precisionJobs",
        description="At most so many jobs of one namespace run in the pool on one day (UTC): what precision "
        "rests on. The more, the more evidence a stop takes.",
    )


class Fleet(Spec):
    """Evidence that a pool's runs may give about each other."""

    scope: FleetScope = Field(
        default=FleetScope.NAMESPACE,
        description="Whose runs a run is compared with: noise, peers and shared falls come from its own "
        "namespace. Pool: what the runs of three other namespaces or more show, one vote each, may also "
        "raise its noise, to twice as much at most, or delay its stop once, for sharedFallWaitSeconds.",
    )


class Preemption(Spec):
    """Settings of preemption, where the queue policy preempts or a stop rule has demoted a run."""

    grace_seconds: Annotated[int, Field(strict=True, ge=0, le=86400, json_schema_extra=markers.INT32)] = (
        Field(
            default=PREEMPT_GRACE_SECONDS,
            alias="graceSeconds",
            description="Seconds for which a preempted run may go on until its next checkpoint. The work "
            "since its last one is lost then, and charged to the RLHFJob as lostGPUSeconds.",
        )
    )


class Lending(Spec):
    """Loans of GPUs that nobody with a right needs now to rollout actors (docs/use/rollouts.md)."""

    enabled: bool = Field(
        default=True,
        strict=True,
        description="Whether jobs with spec.rollout get spare actors, beyond those that they are admitted "
        "with. false: those that there are have to go.",
    )
    recall_seconds: Annotated[int, Field(strict=True, ge=1, le=600, json_schema_extra=markers.INT32)] = Field(
        default=RECALL_SECONDS,
        alias="recallSeconds",
        description="Seconds that a spare actor has to move its responses when somebody needs its GPUs; then "
        "its pod is deleted, and may take as long to end at most.",
    )


class Quota(Spec):
    """GPUs of some namespaces together. A gang counts whole, until it is off its GPUs."""

    model_config = extra(
        markers.cel(
            markers.rule(
                "!has(self.limit) || self.limit >= self.guaranteed",
                "limit is %d, less than the %d guaranteed: at least as many, or leave it out",
                "self.limit",
                "self.guaranteed",
            )
        )
    )

    namespaces: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63, pattern=_NAMESPACE)], ...],
        Field(min_length=1, max_length=QUOTA_NAMESPACES_MAX, json_schema_extra=markers.SET),
    ] = Field(description="Names of the namespaces; each is in one entry at most.")
    guaranteed: Annotated[int, Field(strict=True, ge=0, le=1_000_000, json_schema_extra=markers.INT32)] = (
        Field(
            default=0,
            description="GPUs that they have whenever they have use for them: what of it is idle is lent, "
            "and borrowed runs give way.",
        )
    )
    limit: Annotated[int, Field(strict=True, ge=0, le=1_000_000, json_schema_extra=markers.INT32)] | None = (
        Field(default=None, description="GPUs that they have at most. Default: no limit.")
    )


class Kueue(Spec):
    """Settings of the pool's queue in Kueue."""

    local_queue: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        alias="localQueue",
        description="LocalQueue of that name in the namespace of each RLHFJob. A template that carries the "
        f"label {names.QUEUE_LABEL} waits in the one it names.",
    )


class GPUPoolSpec(Spec):
    """The pool's nodes, its queue policy and the namespaces it serves."""

    model_config = extra(
        markers.cel(
            markers.rule(
                "(self.delegate == 'Kueue') == has(self.kueue)",
                "spec.delegate is %s: spec.kueue.localQueue, the LocalQueue that jobs wait in, is needed "
                "with delegate Kueue and allowed with no other",
                "self.delegate",
            ),
            markers.rule(
                "self.delegate == 'Builtin' || !has(self.quotas) || self.quotas.size() == 0",
                "spec.quotas: is not allowed with delegate %s, only with Builtin: leave it out; with Kueue "
                "its ClusterQueues have quotas",
                "self.delegate",
            ),
            markers.rule(
                "self.delegate == 'Builtin' || !has(self.sharing)",
                "spec.sharing: is not allowed with delegate %s, only with Builtin: leave it out",
                "self.delegate",
                path=".sharing",
            ),
        )
    )

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
    quotas: Annotated[
        tuple[Quota, ...],
        Field(
            max_length=QUOTAS_MAX,
            json_schema_extra=markers.ATOMIC
            | markers.cel(
                markers.rule(
                    "self.all(q, q.namespaces.all(n, self.exists_one(other, n in other.namespaces)))",
                    "spec.quotas: a namespace is in two of the entries %s, name each in one",
                    f"self.filter(q, q.namespaces.exists(n, {_TWICE})).map(q, q.namespaces)",
                )
            ),
        ),
    ] = Field(
        default=(),
        description="GPUs that namespaces are guaranteed, and may have at most (docs/operate/queueing.md). "
        "Those in no entry are guaranteed none and not limited. Only with delegate Builtin.",
    )
    mode_cap: Mode = Field(
        default=Mode.ENFORCE, description="How far the operator may go with any job of the pool."
    )
    stop_limits: StopLimits = Field(
        default_factory=StopLimits,
        description="What stop rules may do together.",
        json_schema_extra={"default": {}},
    )
    fleet: Fleet = Field(
        default_factory=Fleet,
        description="What its runs may say about each other.",
        json_schema_extra={"default": {}},
    )
    max_wait_seconds: Annotated[
        int, Field(strict=True, ge=60, le=31_536_000, json_schema_extra=markers.INT32)
    ] = Field(
        default=MAX_WAIT_SECONDS,
        alias="maxWaitSeconds",
        description="Seconds after which a waiting job comes first, whatever the policy and its priority, "
        "and nobody passes it until it fits: what bounds every wait (docs/operate/queueing.md).",
    )
    preemption: Preemption = Field(
        default_factory=Preemption,
        description="How runs give way.",
        json_schema_extra={"default": {}},
    )
    lending: Lending = Field(
        default_factory=Lending,
        description="How GPUs are lent to rollout actors.",
        json_schema_extra={"default": {}},
    )
    sharing: PoolSharing | None = Field(
        default=None,
        description="Worker groups that jobs train on by turns (docs/use/sharing.md). Default: none; every "
        "job's GPUs are its own. Only with delegate Builtin.",
    )
    delegate: Delegate = Field(
        default=Delegate.BUILTIN,
        description="Who queues the jobs. Builtin: the queue policy; a gang starts when its GPUs are free. "
        "None: nobody; every job starts at once, and kube-scheduler places its pods. Kueue: its quotas; a "
        "gang starts when Kueue has quota for it and its GPUs are free (docs/operate/kueue.md).",
    )
    kueue: Kueue | None = Field(default=None, description="With delegate Kueue, and only with it: its queue.")
    scheduler_name: str = Field(
        default="",
        max_length=253,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
        alias="schedulerName",
        description=f"Scheduler of the jobs' pods, as in {names.SCHEDULER_NAME}, which asks the scheduler "
        "extender (docs/operate/extender.md). Default: the cluster's default scheduler.",
    )
    priority_class_name: str = Field(
        default=names.PRIORITY_CLASS,
        max_length=253,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
        alias="priorityClassName",
        description="PriorityClass of the jobs' pods whose template names none; the default is shipped and "
        'evicts nobody. "": none.',
    )
    min_scrape_interval_seconds: Annotated[
        int, Field(strict=True, ge=5, le=3600, json_schema_extra=markers.INT32)
    ] = Field(
        default=5,
        alias="minScrapeIntervalSeconds",
        description="Seconds that are at least between two reads of a trainer's metrics: an RLHFJob whose "
        "spec.scrape.intervalSeconds is smaller is read as often as this says.",
    )
    allowed_priority_classes: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=_CLASS)], ...],
        Field(max_length=16, json_schema_extra=markers.SET),
    ] = Field(
        default=(),
        alias="allowedPriorityClasses",
        description="PriorityClasses that templates and workloads may name besides priorityClassName: by a "
        "higher one their pods evict others'. Default: none.",
    )
    gang_timeout_seconds: Annotated[
        int, Field(strict=True, ge=1, le=86400, json_schema_extra=markers.INT32)
    ] = Field(
        default=GANG_TIMEOUT_SECONDS,
        alias="gangTimeoutSeconds",
        description="Seconds within which every pod of an admitted gang must have a node. After them it is "
        "suspended again, gives back what it has, and is tried again after a back-off of 10 s that "
        "doubles with each failure, up to 600 s.",
    )
    reservation_seconds: Annotated[
        int, Field(strict=True, ge=1, le=86400, json_schema_extra=markers.INT32)
    ] = Field(
        default=RESERVATION_SECONDS,
        alias="reservationSeconds",
        description="Seconds for which freed GPUs are kept for the job they are reserved for.",
    )

    @model_validator(mode="after")
    def _queue_fits(self) -> GPUPoolSpec:
        if (self.delegate is Delegate.KUEUE) != (self.kueue is not None):
            found = "missing" if self.kueue is None else "set"
            raise ValueError(
                f"kueue: {found} with delegate {self.delegate}; kueue.localQueue is needed with delegate "
                "Kueue and allowed with no other"
            )
        return self

    @model_validator(mode="after")
    def _sharing_fits(self) -> GPUPoolSpec:
        if self.sharing is not None and self.delegate is not Delegate.BUILTIN:
            raise ValueError(
                f"sharing: is not allowed with delegate {self.delegate}, only with Builtin: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _quotas_fit(self) -> GPUPoolSpec:
        if self.quotas and self.delegate is not Delegate.BUILTIN:
            raise ValueError(
                f"quotas: is not allowed with delegate {self.delegate}, only with Builtin: leave it out"
            )
        seen: dict[str, int] = {}
        for number, quota in enumerate(self.quotas):
            if quota.limit is not None and quota.limit < quota.guaranteed:
                raise ValueError(
                    f"quotas[{number}].limit: {quota.limit} is less than the {quota.guaranteed} guaranteed, "
                    "expected at least as many, or none"
                )
            for name in quota.namespaces:
                if name in seen:
                    where = f"in quotas[{seen[name]}] already" if seen[name] != number else "there twice"
                    raise ValueError(
                        f"quotas[{number}].namespaces: {name!r} is {where}, expected each namespace once"
                    )
                seen[name] = number
        return self


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
            ),
            markers.EPOCHS_GROW,
        ),
    )

    apiVersion: Literal["evalstop.dev/v1alpha1"]
    kind: Literal["GPUPool"]
    metadata: PoolMetadata
    spec: GPUPoolSpec
    status: Annotated[Any, status_of(PoolStatus)] = None

    def ceiling(self, namespace: str) -> int | None:
        """Return the highest priority allowed to a namespace; None: it may not use the pool."""
        entry = self._entry(namespace)
        return None if entry is None else entry.max_priority

    def allows(self, namespace: str) -> bool:
        """Return whether RLHFJobs of a namespace may use the pool."""
        return self._entry(namespace) is not None

    def weight(self, namespace: str) -> int:
        """Return the share that a namespace is due, relative to others."""
        entry = self._entry(namespace)
        return 1 if entry is None else entry.weight

    def _entry(self, namespace: str) -> AllowedNamespace | None:
        entries = {entry.name: entry for entry in self.spec.allowed_namespaces}
        return entries.get(namespace, entries.get(EVERY_NAMESPACE))
