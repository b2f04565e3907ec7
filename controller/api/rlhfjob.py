"""RLHFJob: one RLHF training run, how its quality is judged, and where its best checkpoint is kept.

The models are the source of the CRD's schema (crds/, by `controller.api.generate`): types, defaults, bounds
and CEL rules stand here once. pydantic checks what the server's schema checks, as far as building the brain's
`Desired` needs it; the rest is the server's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from controller import names
from controller.api import markers, rule_text, rule_unions, template_schema
from controller.api.base import (
    DNS_LABEL_PATTERN,
    Count,
    DecimalString,
    DnsLabel,
    DnsSubdomain,
    Spec,
    Step,
    extra,
)
from controller.api.schema import status_of
from controller.api.sharing import JobSharing
from controller.api.status import JobStatus
from controller.api.storage import Checkpoints
from controller.policy.job import (
    ANY_MEMBER,
    EXPECTED,
    FIRST_EVAL,
    GUARDS_MAX,
    INDEX_MAX,
    LABEL_PATTERN,
    PROMPTS_MAX,
    Direction,
    ResumeFrom,
    RunState,
    Speaker,
)
from controller.policy.rollout import MOST_ACTORS, Dispatch, WhenIdle
from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE, MODIFIERS, RULES
from controller.policy.types import EvalScale, Mode

NAME_MAX = 40
DEFAULT_INTERVAL_SECONDS = 15


class Role(StrEnum):
    """Part of a metric in the decision. Primary: the score that is judged, and by which the best checkpoint
    is chosen. Guardrail: what must not get worse; judged too, and its fall stops the run as well. Proxy: what
    the run optimises (the reward model); rules that look at it compare it with the Primary metric."""

    PRIMARY = "Primary"
    GUARDRAIL = "Guardrail"
    PROXY = "Proxy"


class Preset(StrEnum):
    """A usual kind of score; all of these lie in 0 to 1. Accuracy: the share of prompts answered rightly.
    WinRate: the share of comparisons won. PassAtK: the share of prompts with a right one among k answers."""

    ACCURACY = "Accuracy"
    WIN_RATE = "WinRate"
    PASS_AT_K = "PassAtK"


class Gang(Spec):
    """Pods that run together or not at all."""

    replicas: Annotated[int, Field(strict=True, ge=1, le=1024, json_schema_extra=markers.INT32)] = Field(
        default=1, description="Pods of the gang. Equals completions and parallelism of the Job."
    )
    gpus_per_replica: Annotated[int, Field(strict=True, ge=0, le=1024, json_schema_extra=markers.INT32)] = (
        Field(
            description=f"{names.GPU_RESOURCE} that each pod requests. 0 only with spec.sharing; such pods "
            "may go to any node.",
            alias="gpusPerReplica",
        )
    )


class Template(BaseModel):
    """A complete manifest of the child workload, status and namespace left out. Its fields are checked by the
    API server in a dry run, not by this schema."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra=markers.PRESERVE_UNKNOWN)

    apiVersion: str = Field(
        default="batch/v1", max_length=253, min_length=1, description="API version of the child workload."
    )
    kind: str = Field(default="Job", max_length=63, min_length=1, description="Kind of the child workload.")
    spec: Annotated[Any, WithJsonSchema(template_schema.SPEC)] = None


class WorkloadRef(Spec):
    """A workload that exists already, in the namespace of the RLHFJob. It carries label, volume and suspend
    itself (docs/understand/contracts.md)."""

    api_version: str = Field(max_length=253, min_length=1, description="Its API version, as in batch/v1.")
    kind: str = Field(max_length=63, min_length=1, description="Its kind, as in Job.")
    name: DnsSubdomain = Field(description="Its name.")


class Workload(Spec):
    """The workload that trains: one to create, or one that exists."""

    model_config = extra(markers.cel(markers.exactly_one_of("workload", ("template", "ref"))))

    template: Template | None = Field(
        default=None, description="Workload that the operator creates and owns."
    )
    ref: WorkloadRef | None = Field(default=None, description="Workload that exists already.")

    @model_validator(mode="after")
    def _one(self) -> Workload:
        count = (self.template is not None) + (self.ref is not None)
        if count != 1:
            raise ValueError(f"{count} members, exactly one is needed of: template, ref")
        return self

    @property
    def kind(self) -> tuple[str, str]:
        """(apiVersion, kind) of the child."""
        if self.template is not None:
            return (self.template.apiVersion, self.template.kind)
        assert self.ref is not None
        return (self.ref.api_version, self.ref.kind)


if TYPE_CHECKING:
    StopRule = rule_unions.OneOf
    Modifier = rule_unions.OneOf
else:
    StopRule = rule_unions.union_of("StopRule", "stopRule", RULES)
    Modifier = rule_unions.union_of("Modifier", "modifier", MODIFIERS)


class Metric(Spec):
    """A metric the trainer publishes, by the value of its ``metric`` label."""

    model_config = extra(
        markers.cel(
            markers.rule(
                "!has(self.stopRule) || self.role == 'Guardrail'",
                "metrics[].stopRule is for role Guardrail, %s has role %s: spec.stopRule judges the Primary "
                "metric, and a Proxy is not judged",
                "self.name",
                "self.role",
            ),
            markers.rule(
                "self.role != 'Proxy' || !(has(self.preset) || has(self.range) || has(self.prompts))",
                "metrics[].preset, range and prompts are for metrics that are judged, %s has role Proxy",
                "self.name",
            ),
            markers.rule(
                "!(has(self.preset) && has(self.range))",
                "metrics[] %s has both preset and range: preset %s stands for range 0 to 1, keep one of them",
                "self.name",
                "self.preset",
            ),
        )
    )

    name: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$", description="Value of the metric label."
    )
    direction: Direction = Field(default=Direction.MAXIMIZE, description="Which way is better.")
    role: Role = Field(
        default=Role.PRIMARY,
        description="What it is to the decision. Primary: judged by spec.stopRule. Guardrail: must not fall "
        "either, whatever the Primary metric does. Proxy: what the run optimises.",
    )
    preset: Preset | None = Field(
        default=None,
        description="What its score is, in place of range: Accuracy, WinRate and PassAtK lie in 0 to 1.",
    )
    range: (
        Annotated[
            tuple[DecimalString, ...],
            Field(
                min_length=2,
                max_length=2,
                json_schema_extra=markers.ATOMIC
                | markers.cel(
                    markers.rule(
                        "self.size() != 2 || double(self[0]) < double(self[1])",
                        "range is %s to %s, expected the lowest score that one prompt can have, then the "
                        "highest",
                        "self[0]",
                        "self[1]",
                    )
                ),
            ),
        ]
        | None
    ) = Field(
        default=None,
        description='Lowest and highest score that one prompt can have, as in ["0", "1"]. With the number of '
        "prompts it bounds the noise of an eval before any was seen.",
    )
    prompts: (
        Annotated[int, Field(strict=True, ge=1, le=PROMPTS_MAX, json_schema_extra=markers.INT32)] | None
    ) = Field(
        default=None,
        description="Prompts in one eval, not answers: of several answers to a prompt it counts once. For "
        "trainers whose page does not say it; what the page says goes first.",
    )
    stop_rule: StopRule | None = Field(
        default=None,
        description="What judges a Guardrail. Default: the rule in spec.stopRule. A rule's alpha is for all "
        "judged metrics together: each gets its share.",
    )

    @model_validator(mode="after")
    def _rule_fits(self) -> Metric:
        if self.stop_rule is not None and self.role is not Role.GUARDRAIL:
            raise ValueError(
                f"stopRule is for role Guardrail, {self.name!r} has role {self.role}: spec.stopRule judges "
                "the Primary metric, and a Proxy is not judged"
            )
        return self

    @model_validator(mode="after")
    def _scores_fit(self) -> Metric:
        if self.role is Role.PROXY and (self.preset, self.range, self.prompts) != (None, None, None):
            raise ValueError(
                f"preset, range and prompts are for metrics that are judged, {self.name!r} has role Proxy"
            )
        if self.preset is not None and self.range is not None:
            raise ValueError(f"{self.name!r} has both preset and range: keep one of them")
        if self.range is not None and not float(self.range[0]) < float(self.range[1]):
            raise ValueError(
                f"range is {self.range[0]} to {self.range[1]}, expected the lowest score that one prompt can "
                "have, then the highest"
            )
        return self

    @property
    def scale(self) -> EvalScale:
        """Return what is declared about its evals, in the trainer's own orientation."""
        low_high = (0.0, 1.0) if self.preset is not None else None
        if self.range is not None:
            low_high = float(self.range[0]), float(self.range[1])
        return EvalScale(self.prompts, low_high)


class Scrape(Spec):
    """Settings by which the trainer's metrics are read. The host is always the pod's own address."""

    port: Annotated[int, Field(strict=True, ge=1, le=65535, json_schema_extra=markers.INT32)] | None = Field(
        default=None,
        description=f"Port of the pod. Default: the container port named {names.METRICS_PORT_NAME}.",
    )
    path: str = Field(
        default="/metrics",
        max_length=256,
        pattern=r"^/[^\s#]*$",
        description="Path and query of the address.",
    )
    interval_seconds: Annotated[int, Field(strict=True, ge=5, le=3600, json_schema_extra=markers.INT32)] = (
        Field(
            default=DEFAULT_INTERVAL_SECONDS,
            alias="intervalSeconds",
            description="Seconds between two reads; more where the pool's minScrapeIntervalSeconds is more, "
            "and where a page takes long to answer.",
        )
    )

    first_eval_seconds: Annotated[
        int, Field(strict=True, ge=10, le=604800, json_schema_extra=markers.INT32)
    ] = Field(
        default=int(FIRST_EVAL),
        alias="firstEvalSeconds",
        description="Seconds that the first eval may take, and that evals may be away later, before it is "
        "a warning that nobody reads them: a wrong port looks like a model that loads.",
    )

    speaker: Annotated[
        int | str,
        Field(
            json_schema_extra=markers.INT_OR_STRING
            | markers.cel(
                markers.rule(
                    f"type(self) == int ? (self >= 0 && self <= {INDEX_MAX}) : "
                    f"(self == '{ANY_MEMBER}' || self.matches('{LABEL_PATTERN}'))",
                    f"speaker is %s, {EXPECTED}",
                    "self",
                )
            )
        ),
    ] = Field(
        default=ANY_MEMBER,
        description="Which pod of the gang is read: its completion index, or a label as key=value that only "
        "this pod has, which is read whatever it says of itself. Any: pods are asked in turn, each at most "
        "once per interval, until one answers with this run's uid and attempt; while it answers no other is "
        "asked.",
    )

    @field_validator("speaker", mode="before")
    @classmethod
    def _is_speaker(cls, value: object) -> object:
        Speaker.parse(value)
        return value

    @property
    def speaks(self) -> Speaker:
        """Return which pod is read."""
        return Speaker.parse(self.speaker)


SparedEvals = Annotated[int, Field(strict=True, ge=1, le=24, json_schema_extra=markers.INT32)]


class PodTemplate(BaseModel):
    """A complete pod template of actors. Its fields are checked by the API server in a dry run, not by this
    schema."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra=markers.PRESERVE_UNKNOWN)


ActorCount = Annotated[int, Field(strict=True, ge=1, le=MOST_ACTORS, json_schema_extra=markers.INT32)]


class Actors(Spec):
    """Numbers of rollout actors."""

    model_config = extra(
        markers.cel(
            markers.rule(
                "self.min <= self.max",
                "rollout.actors.min is %d, max %d: expected at most max",
                "self.min",
                "self.max",
                path=".min",
            ),
            markers.rule(
                "self.min > self.max || (self.min <= self.static && self.static <= self.max)",
                "rollout.actors.static is %d, expected from min, %d, to max, %d",
                "self.static",
                "self.min",
                "self.max",
                path=".static",
            ),
        )
    )

    min: ActorCount = Field(description="Actors that the job is admitted with, together with its gang.")
    max: ActorCount = Field(description="Actors that a step may have; what is above min is lent.")
    static: ActorCount = Field(
        description="Actors of a step that cannot be planned, and of each one with mode Shadow."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Actors:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, max {self.max}: expected at most max")
        if not self.min <= self.static <= self.max:
            raise ValueError(f"static is {self.static}, expected from min, {self.min}, to max, {self.max}")
        return self


class CheapestWithin(Spec):
    """The cheapest count of those that are fast enough."""

    percent: Annotated[int, Field(strict=True, ge=0, le=1000, json_schema_extra=markers.INT32)] = Field(
        default=10, description="By how much a step may take longer than the fastest."
    )


class Weighted(Spec):
    """The smallest weighted sum of time and cost, each from its least to its most over all counts."""

    time_percent: Annotated[int, Field(strict=True, ge=0, le=100, json_schema_extra=markers.INT32)] = Field(
        default=70, alias="timePercent", description="Weight of time; the rest is that of GPU-seconds."
    )


class RolloutObjective(Spec):
    """By what a step's count of actors is chosen."""

    model_config = extra(
        markers.cel(markers.exactly_one_of("rollout.objective", ("cheapestWithin", "weighted")))
    )

    cheapest_within: CheapestWithin | None = Field(
        default=None, alias="cheapestWithin", description="The cheapest within a share of the fastest."
    )
    weighted: Weighted | None = Field(default=None, description="A weighted sum of time and GPU-seconds.")

    @model_validator(mode="after")
    def _one(self) -> RolloutObjective:
        count = (self.cheapest_within is not None) + (self.weighted is not None)
        if count != 1:
            raise ValueError(f"{count} members, exactly one is needed of: cheapestWithin, weighted")
        return self


class RolloutMode(StrEnum):
    """Enforce: actors come and go as steps are planned. Shadow: the static count stays, and what the plans
    would have saved is counted."""

    ENFORCE = "Enforce"
    SHADOW = "Shadow"


class ActorEngine(StrEnum):
    """The inference engine in the template's container."""

    PLAIN = "Plain"
    VLLM = "vLLM"


class Rollout(Spec):
    """Rollout actors: inference engines in pods of their own, whose number each step plans anew
    (docs/use/rollouts.md)."""

    mode: RolloutMode = Field(
        default=RolloutMode.ENFORCE,
        description="Enforce: actors come and go as steps are planned. Shadow: static actors stay, and what "
        "the plans would have saved is counted.",
    )
    template: PodTemplate = Field(
        description="Pod template of one actor. Its container listens on the Unix socket "
        "/run/engine/engine.sock; the operator puts the sidecar before it."
    )
    gpus_per_actor: Annotated[int, Field(strict=True, ge=1, le=1024, json_schema_extra=markers.INT32)] = (
        Field(alias="gpusPerActor", description=f"{names.GPU_RESOURCE} that each actor requests.")
    )
    actors: Actors = Field(description="How many actors there are.")
    slots: Annotated[int, Field(strict=True, ge=1, le=1_000_000, json_schema_extra=markers.INT32)] = Field(
        default=64, description="Responses that an actor generates at a time, until it reports its own."
    )
    engine: ActorEngine = Field(default=ActorEngine.PLAIN, description="Which engine the container is.")
    weights_volume: DnsLabel | None = Field(
        default=None,
        alias="weightsVolume",
        description="Name of the volume in the template that the trainer writes weights to; it is mounted "
        "read-only at /run/weights. Absent: weights are pushed, which engine vLLM cannot do.",
    )
    objective: RolloutObjective = Field(
        default_factory=lambda: RolloutObjective(cheapestWithin=CheapestWithin()),
        description="By what a step's count of actors is chosen.",
        json_schema_extra={"default": {"cheapestWithin": {"percent": 10}}},
    )
    dispatch: Dispatch = Field(
        default=Dispatch.AUTO,
        description="How responses reach actors. LongestFirst: one queue. Ranked: groups by length. Even: "
        "equal counts. Auto: the best of them.",
    )
    when_idle: WhenIdle = Field(
        default=WhenIdle.AUTO,
        alias="whenIdle",
        description="What becomes of an actor with nothing more to do in a step. Auto: it is let go if it "
        "would be idle for longer than a start and a recall take.",
    )


class Resume(Spec):
    """A wish to run on from a checkpoint; carried out once per id, with runState Run."""

    model_config = extra(
        markers.cel(
            markers.rule(
                "(self.from == 'Step') == has(self.step)",
                "resume.step is needed with from: Step and only with it, from is %s",
                "self.from",
            )
        )
    )

    id: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Any text; another id is another request.",
    )
    from_: ResumeFrom = Field(
        default=ResumeFrom.BEST, alias="from", description="Which checkpoint to run on from."
    )
    step: Step | None = Field(default=None, description="The checkpoint's step, with from: Step.")
    for_evals: SparedEvals | None = Field(
        default=None, description="For so many evals its rules speak but stop nothing."
    )

    @model_validator(mode="after")
    def _step_fits(self) -> Resume:
        if (self.from_ is ResumeFrom.STEP) != (self.step is not None):
            raise ValueError(f"step is needed with from: Step and only with it, from is {self.from_}")
        return self


_DEFAULT_RULE: dict[str, Any] = rule_text.written(DEFAULT_RULE, RULES)
_DEFAULT_MODIFIERS: list[Any] = [rule_text.written(modifier, MODIFIERS) for modifier in DEFAULT_MODIFIERS]

_PRIMARIES = "self.filter(m, m.role == 'Primary').size()"
_GUARDRAILS = "self.filter(m, m.role == 'Guardrail').size()"
_PROXIES = "self.filter(m, m.role == 'Proxy').size()"


class RLHFJobSpec(Spec):
    """One RLHF training run."""

    model_config = extra(
        markers.cel(
            *rule_unions.warm_up_rules(RULES, MODIFIERS),
            markers.rule(
                "type(self.scrape.speaker) != int || self.scrape.speaker < self.gang.replicas",
                "scrape.speaker is %d, gang.replicas %d: expected a completion index below that",
                "self.scrape.speaker",
                "self.gang.replicas",
                path=".scrape.speaker",
            ),
            *template_schema.GANG_RULES,
            markers.rule(
                "!has(self.rollout) || has(self.workload.template)",
                "spec.rollout: is not allowed with workload.ref, whose pods get no token for the step API: "
                "bring the workload as workload.template, or leave rollout out",
                path=".rollout",
            ),
            markers.rule(
                "!has(self.sharing) || has(self.workload.template)",
                "spec.sharing: is not allowed with workload.ref, whose pods get no token for their group: "
                "bring the workload as workload.template, or leave sharing out",
                path=".sharing",
            ),
            markers.rule(
                "has(self.sharing) || self.gang.gpusPerReplica > 0",
                "gang.gpusPerReplica is 0, which is allowed with spec.sharing only: expected at least 1",
                path=".gang.gpusPerReplica",
            ),
        )
    )

    pool: DnsLabel = Field(description="GPUPool whose GPUs it waits for.")
    priority: Annotated[
        int, Field(strict=True, ge=-1_000_000, le=1_000_000, json_schema_extra=markers.INT32)
    ] = Field(default=0, description="Higher goes first. The pool sets a ceiling for each namespace.")
    expected_duration_seconds: (
        Annotated[int, Field(strict=True, ge=1, le=315_360_000, json_schema_extra=markers.INT32)] | None
    ) = Field(
        default=None,
        description="Seconds of running time that the whole run is expected to take. Pools with the policy "
        "srtf need it; those with srtfEst use it until the run, or others like it, show how long it takes.",
    )
    gang: Gang = Field(description="Pods that run together, and their GPUs.")
    workload: Workload = Field(description="What trains.")
    rollout: Rollout | None = Field(
        default=None, description="Its rollout actors. Default: it has none, or starts them itself."
    )
    sharing: JobSharing | None = Field(
        default=None,
        description="Its residency in a worker group. Default: it has none; its GPUs are its own.",
    )
    metrics: Annotated[
        tuple[Metric, ...],
        Field(
            min_length=1,
            max_length=8,
            json_schema_extra=markers.list_map("name")
            | markers.cel(
                markers.rule(
                    f"{_PRIMARIES} == 1",
                    "metrics need exactly one of role Primary, found %d",
                    _PRIMARIES,
                ),
                markers.rule(
                    f"{_GUARDRAILS} <= {GUARDS_MAX}",
                    f"metrics may have at most {GUARDS_MAX} of role Guardrail, found %d",
                    _GUARDRAILS,
                ),
                markers.rule(
                    f"{_PROXIES} <= 1", "metrics may have at most one of role Proxy, found %d", _PROXIES
                ),
            ),
        ),
    ] = Field(description="Metrics of the run; exactly one is Primary.")
    stop_rule: StopRule = Field(
        default_factory=lambda: StopRule.model_validate(_DEFAULT_RULE),
        description="When the run is past its best. Why scan by default: docs/use/stop-rules.md.",
        json_schema_extra={"default": _DEFAULT_RULE},
    )
    modifiers: Annotated[
        tuple[Modifier, ...],
        Field(max_length=8, json_schema_extra=markers.ATOMIC),
    ] = Field(
        default_factory=lambda: tuple(Modifier.model_validate(m) for m in _DEFAULT_MODIFIERS),
        description="Wrap the stop rule, in their order: the first is the innermost, but for gate, which "
        "comes before everything else. An empty list: the bare rule.",
        json_schema_extra={"default": _DEFAULT_MODIFIERS},
    )
    mode: Mode = Field(
        default=Mode.ENFORCE,
        description="Enforce: stop the run. Shadow: record what would be done, no more. Off: do not judge.",
    )
    checkpoints: Checkpoints = Field(description="Where checkpoints lie and are kept.")
    scrape: Scrape = Field(
        default_factory=Scrape, description="How metrics are read.", json_schema_extra={"default": {}}
    )
    run_state: RunState = Field(
        default=RunState.RUN, description="Stopped: keep the best checkpoint and free the GPUs now."
    )
    resume: Resume | None = Field(default=None, description="Run on from a kept checkpoint.")

    @model_validator(mode="after")
    def _metrics_fit(self) -> RLHFJobSpec:
        primaries = [m.name for m in self.metrics if m.role is Role.PRIMARY]
        if len(primaries) != 1:
            raise ValueError(f"metrics: exactly one of role Primary is needed, found {len(primaries)}")
        for role, most in ((Role.GUARDRAIL, GUARDS_MAX), (Role.PROXY, 1)):
            found = sum(1 for m in self.metrics if m.role is role)
            if found > most:
                raise ValueError(f"metrics: at most {most} of role {role}, found {found}")
        if len({m.name for m in self.metrics}) != len(self.metrics):
            raise ValueError(f"metrics: names must differ, found {[m.name for m in self.metrics]}")
        return self

    @model_validator(mode="after")
    def _speaker_fits(self) -> RLHFJobSpec:
        index = self.scrape.speaks.index
        if index is not None and index >= self.gang.replicas:
            raise ValueError(
                f"scrape.speaker is {index}, gang.replicas {self.gang.replicas}: expected a completion index "
                "below that"
            )
        return self

    @model_validator(mode="after")
    def _rollout_fits(self) -> RLHFJobSpec:
        if self.rollout is not None and self.workload.template is None:
            raise ValueError(
                "rollout: is not allowed with workload.ref, whose pods get no token for the step API: bring "
                "the workload as workload.template, or leave rollout out"
            )
        return self

    @model_validator(mode="after")
    def _sharing_fits(self) -> RLHFJobSpec:
        if self.sharing is not None and self.workload.template is None:
            raise ValueError(
                "sharing: is not allowed with workload.ref, whose pods get no token for their group: bring "
                "the workload as workload.template, or leave sharing out"
            )
        if self.sharing is None and not self.gang.gpus_per_replica:
            raise ValueError("gang.gpusPerReplica: 0 is allowed with sharing only, expected at least 1")
        return self

    @property
    def primary(self) -> Metric:
        """The metric that is judged."""
        return next(m for m in self.metrics if m.role is Role.PRIMARY)


class JobMetadata(BaseModel):
    """The parts of metadata the operator reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(max_length=NAME_MAX, pattern=DNS_LABEL_PATTERN)
    namespace: str = ""
    uid: str = ""
    generation: Count = 0


def _fixed(field: str, since: str, cure: str) -> markers.Extra:
    """Return a transition rule: ``field`` (below spec) keeps its value once ``since`` holds of the old
    object."""
    return markers.rule(
        f"!({since}) || self.spec.{field} == oldSelf.spec.{field}",
        f"spec.{field} {cure}",
        path=f".spec.{field}",
    )


_CONDITIONS = "has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions"
_ACCEPTED = f"{_CONDITIONS}.exists(c, (c.type == 'Accepted' && c.status == 'True') || c.type == 'Admitted')"
_HOLDS_GPUS = "has(oldSelf.status) && has(oldSelf.status.admission)"
_JUDGED = "has(oldSelf.status) && has(oldSelf.status.evals) && oldSelf.status.evals.size() > 0"
_MADE = "cannot change once the job is accepted: its workload exists; make another RLHFJob"

ROOT_RULES = (
    markers.rule(
        f"self.metadata.name.size() <= {NAME_MAX} && self.metadata.name.matches('{DNS_LABEL_PATTERN}')",
        f"metadata.name: %s has %d characters, expected at most {NAME_MAX} of a-z, 0-9 and -, no dot: "
        "names of pods and access Jobs are made from it",
        "self.metadata.name",
        "self.metadata.name.size()",
    ),
    _fixed("gang", _ACCEPTED, _MADE),
    _fixed("workload", _ACCEPTED, _MADE),
    _fixed(
        "checkpoints.location",
        _ACCEPTED,
        "cannot change once the job is accepted: what is secured lies there",
    ),
    _fixed(
        "checkpoints.layout",
        f"{_ACCEPTED} && (oldSelf.spec.checkpoints.layout != 'Auto' || has(oldSelf.status.layout))",
        "cannot change once the job is accepted, or once it was found: what is secured has it",
    ),
    _fixed(
        "checkpoints.retention",
        _ACCEPTED,
        "cannot change once the job is accepted: what is retained lies there",
    ),
    markers.rule(
        f"!({_HOLDS_GPUS}) || (has(self.spec.rollout) == has(oldSelf.spec.rollout) && "
        "(!has(self.spec.rollout) || self.spec.rollout == oldSelf.spec.rollout))",
        "spec.rollout cannot change while the job holds GPUs: set runState to Stopped first",
        path=".spec.rollout",
    ),
    markers.rule(
        f"!({_HOLDS_GPUS}) || (has(self.spec.sharing) == has(oldSelf.spec.sharing) && "
        "(!has(self.spec.sharing) || self.spec.sharing == oldSelf.spec.sharing))",
        "spec.sharing cannot change while the job holds GPUs: set runState to Stopped first",
        path=".spec.sharing",
    ),
    _fixed("pool", _HOLDS_GPUS, "cannot change while the job holds GPUs: set runState to Stopped first"),
    markers.rule(
        f"!({_JUDGED}) || self.spec.metrics.exists(m, m.role == 'Primary' && oldSelf.spec.metrics.exists(o, "
        "o.role == 'Primary' && o.name == m.name && o.direction == m.direction))",
        "name and direction of the Primary metric cannot change once evals were read: they are its scores",
        path=".spec.metrics",
    ),
)


class RLHFJob(BaseModel):
    """An RLHF training run that EvalStop watches, stops past its best, and whose best checkpoint it keeps."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, json_schema_extra=markers.cel(*ROOT_RULES, markers.EPOCHS_GROW)
    )

    apiVersion: Literal["evalstop.dev/v1alpha1"]
    kind: Literal["RLHFJob"]
    metadata: JobMetadata
    spec: RLHFJobSpec
    status: Annotated[Any, status_of(JobStatus)] = None
