"""The policy code's common types: plain frozen values, standard library only.

Units: times are seconds since the epoch (simulator: since its start), GPU amounts are whole GPUs, scores
are in the metric's own unit and already oriented so that higher is better wherever a rule sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, NamedTuple

from controller.frozen import dataclass
from controller.policy.actor_types import JobKey as JobKey
from controller.policy.actor_types import Lending, LendingPlan, Part, Place, Rollout
from controller.policy.group_types import GroupsPlan, PoolSharing, SharedTraining
from controller.policy.stored import WHERE_USED, Absent, AtMost, Count, Form, NodeName, Step, Time, Word

Metric = Annotated[str, AtMost(256)]
Evaluator = Annotated[
    str,
    AtMost(128),
    Absent(""),
    "Version of the evaluator that scored them; absent: they name none.",
]


def namespace_of(key: JobKey) -> str:
    """Return the namespace in a job's key."""
    return key.partition("/")[0]


# Why a spec is refused that lacks what its pool's queue policy alone goes by.
DURATION_MISSING = "DurationMissing"


class Problem(NamedTuple):
    """A reason for which something cannot be done or does not count: in CamelCase, as a condition has one,
    and a sentence for people."""

    reason: str
    message: str


class Attempt(NamedTuple):
    """One trainer process: the operator's attempt number, and an opaque id that the process gave itself.

    A pod whose trainer was restarted keeps the number and has another life. Lives have no order of their own:
    which came later is told by which was seen first (`policy.job.lives`), never by a trainer's clock.
    ``life`` "": the trainer names none.
    """

    number: int
    life: str = ""

    @staticmethod
    def parse(text: str) -> Attempt:
        """``"3-9f2c41d0"`` -> ``Attempt(3, "9f2c41d0")``; a bare number has no life.

        Raises:
            ValueError: the text is not of that form.
        """
        number, dash, life = text.partition("-")
        if not (number.isascii() and number.isdigit()) or (dash and not _is_life(life)):
            raise ValueError(
                f"attempt {text!r}: expected '<number>-<life>', as in '1-9f2c41d0', the life of at most "
                f"{LIFE_MAX} lower-case letters and digits"
            )
        return Attempt(int(number), life)

    def __str__(self) -> str:
        return f"{self.number}-{self.life}" if self.life else str(self.number)


LIFE_MAX = 16  # characters


def _is_life(text: str) -> bool:
    return 0 < len(text) <= LIFE_MAX and all(c in "0123456789abcdefghijklmnopqrstuvwxyz" for c in text)


class Peers(NamedTuple):
    """The other runs of the same kind at the same step: the median of their running mean scores."""

    runs: int
    median: float


class PeersAt(NamedTuple):
    """`Peers` of one step, higher is better."""

    step: int
    runs: int
    median: float


class Paired(NamedTuple):
    """Per-prompt differences, score of this eval less score of a reference step, on the same fresh prompts.

    In the trainer's own orientation where it is stored, higher is better where a rule sees it.
    """

    reference_step: int  # the step it was compared with, as named in `<name>-run`
    prompts: int
    mean: float  # score units
    variance: float  # of one difference, score units squared


class PromptPair(NamedTuple):
    """Per-prompt scores of this eval less those of an earlier one, on the same prompts of the same set.

    Not `Paired`: nothing was scored anew for it. The earlier eval may be the best so far, which was lucky on
    these very prompts, so that the mean is biased; only the variance is evidence, of how noisy the difference
    of the two scores is. Evidence that counts a mean as it comes (`eProcess`) must never be fed with it.

    ``mean``: in the trainer's own orientation where it is stored, higher is better where a rule sees it.
    """

    step: int  # of the earlier eval
    prompts: int  # that both evals scored
    mean: float  # score units; the difference of the two scores
    variance: float  # of one prompt's difference (sample variance), score units squared


class EvalScale(NamedTuple):
    """An RLHFJob's declarations about a metric's evals, in the trainer's own orientation."""

    prompts: int | None = None  # of each eval, where the page does not name them
    range: tuple[float, float] | None = None  # lowest and highest score of one prompt

    def reversed(self) -> EvalScale:
        """Return the same for scores of the other sign."""
        return self._replace(range=None if self.range is None else (-self.range[1], -self.range[0]))

    def counted(self, point: EvalPoint) -> EvalPoint:
        """Return an eval with the declared number of prompts, where its page names none."""
        if point.prompts is not None or self.prompts is None:
            return point
        return point._replace(prompts=self.prompts)

    def known_of(self, point: EvalPoint) -> EvalInContext:
        """Return an eval with what is declared of it: what bounds its noise."""
        return EvalInContext.of(self.counted(point), range=self.range)


NOTHING_DECLARED = EvalScale()


class FleetNoise(NamedTuple):
    """The usual noise of one eval among a namespace's runs, and how much that counts beside what a run shows.

    ``floor``: what the runs of other namespaces show, where the pool lets that count (`FleetScope`); it may
    raise what a run's own evals and its namespace come to, and does nothing else. 0: nothing is known of it.
    """

    sigma: Annotated[float, "Standard deviation of one eval, in the metric's unit; 0: not known."]
    freedom: Annotated[
        float,
        "Degrees of freedom: how much that counts beside what a run shows, as many evals. 0: of too few "
        "runs; it is a vote for others only.",
    ]
    floor: Annotated[float, Form.NOT_STORED] = 0.0  # score units


class ScoredBy(NamedTuple):
    """The namespace of a run, its metric, and the evaluator that scores it.

    Attributes:
        evaluator: its version; "": none is named.
    """

    namespace: str
    metric: str
    evaluator: str


class MetricNoise(NamedTuple):
    """The usual noise of a metric in a namespace, learned from its runs in the pool and told to them."""

    namespace: Annotated[Word, "Whose runs they are."]
    metric: Annotated[Metric, "Name of the metric."]
    evaluator: Evaluator
    noise: Annotated[FleetNoise, Form.INLINE]
    jobs: Annotated[Count, "Runs it was learned from."]

    @property
    def scored_by(self) -> ScoredBy:
        return ScoredBy(self.namespace, self.metric, self.evaluator)


class GuardrailNoise(NamedTuple):
    """The noise of one eval of a guardrail metric: of a run's own evals, or as its pool tells it."""

    metric: str
    noise: FleetNoise


class Reading(NamedTuple):
    """A score as its pool sees it, higher is better, and when it was first scraped (s)."""

    at: float
    score: float


class SharedFall(NamedTuple):
    """A sudden fall that many jobs of a namespace share; scores before and after it are not compared."""

    namespace: Annotated[Word, "Whose jobs they are."]
    metric: Annotated[Metric, Absent(""), "Metric of the jobs it concerns; absent: all of the namespace."]
    evaluator: Evaluator
    after: Annotated[Time, "When the last evals before it were read."]
    before: Annotated[Time, "When the first evals after it were read."]
    fell: Annotated[Count, "Jobs that fell."]
    of: Annotated[Count, "Jobs that had an eval after it."]

    def concerns(self, scored_by: ScoredBy) -> bool:
        """Return whether runs so scored are not compared across it."""
        if not self.metric:
            return self.namespace == scored_by.namespace
        return scored_by == (self.namespace, self.metric, self.evaluator)

    def counts(self, at: float) -> bool:
        """Return whether an eval first scraped at ``at`` (s) is on this side of it. Between the two nobody
        knows."""
        return at >= self.before


class FleetView(NamedTuple):
    """A pool's word to a job: the usual noise of its metric, and its namespace's newest shared drop.

    ``peers``: where its rule looks at them, how the others stood at the steps of evals that are new to it.
    ``guardrails``: the usual noise of its guardrail metrics, of those that the pool knows.
    """

    noise: FleetNoise | None = None
    fall: SharedFall | None = None
    peers: tuple[PeersAt, ...] = ()
    guardrails: tuple[GuardrailNoise, ...] = ()


class EvalPoint(NamedTuple):
    """One evaluation of one metric, identified by its step and attempt: what is kept and compared.

    For rules that look at more than the score there is `EvalInContext`; here the rest is unknown.
    """

    step: int
    score: float
    attempt: Attempt = Attempt(0)
    stderr: float | None = None
    samples: int | None = None
    proxy: float | None = None  # what the run optimises (reward model's score) at this step
    paired: Paired | None = None
    prompts: int | None = None  # scored in this eval; answers to one prompt count once, unlike `samples`
    prompt_pairs: tuple[PromptPair, ...] = ()  # with the best so far, the last, and a step that was named

    def reversed(self) -> EvalPoint:
        """Return the eval of a metric of which lower is better as one of which higher is, or back."""
        paired = self.paired._replace(mean=-self.paired.mean) if self.paired is not None else None
        pairs = tuple(pair._replace(mean=-pair.mean) for pair in self.prompt_pairs)
        return self._replace(score=-self.score, paired=paired, prompt_pairs=pairs)

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest score that a prompt can have, higher is better; None: nobody declared it."""
        return None

    @property
    def progress(self) -> float | None:
        """Share of the whole run that is done, 0 to 1."""
        return None

    @property
    def loss(self) -> float | None:
        """Training loss at this step."""
        return None

    @property
    def peers(self) -> Peers | None:
        return None

    @property
    def fleet_noise(self) -> FleetNoise | None:
        return None

    @property
    def others(self) -> Mapping[str, float]:
        """Scores of guardrail metrics at this eval, higher is better."""
        return {}

    @property
    def others_noise(self) -> Mapping[str, FleetNoise]:
        """Usual noise of guardrail metrics, of those that the pool knows."""
        return {}

    @property
    def beside(self) -> tuple[tuple[float, float | None], ...]:
        """Score and standard error of evals just before that were dropped and count for the noise only."""
        return ()


class EvalInContext(EvalPoint):
    """An eval with its context at that moment, which is no part of its identity.

    ``progress``: share of the run that is done by its steps; above 1 it goes on beyond the total that its
    trainer told, so that nobody knows how long it is.
    """

    progress: float | None = None
    loss: float | None = None
    peers: Peers | None = None
    fleet_noise: FleetNoise | None = None
    others: Mapping[str, float] = MappingProxyType({})
    others_noise: Mapping[str, FleetNoise] = MappingProxyType({})
    range: tuple[float, float] | None = None
    beside: tuple[tuple[float, float | None], ...] = ()

    @staticmethod
    def with_lost(point: EvalPoint, lost: tuple[tuple[float, float | None], ...]) -> EvalInContext:
        """Return the eval with those that were dropped just before it."""
        seen = EvalInContext.of(
            point,
            progress=point.progress,
            loss=point.loss,
            peers=point.peers,
            fleet_noise=point.fleet_noise,
            others=point.others,
            range=point.range,
        )
        seen.others_noise = point.others_noise
        seen.beside = lost
        return seen

    @staticmethod
    def of(
        point: EvalPoint,
        *,
        progress: float | None = None,
        loss: float | None = None,
        peers: Peers | None = None,
        fleet_noise: FleetNoise | None = None,
        others: Mapping[str, float] = MappingProxyType({}),
        range: tuple[float, float] | None = None,
    ) -> EvalInContext:
        seen = EvalInContext(*point)
        seen.progress, seen.loss, seen.peers, seen.fleet_noise = progress, loss, peers, fleet_noise
        seen.others, seen.range = others, range
        return seen


class Verb(StrEnum):
    """A stop rule's request after an eval.

    CONTINUE: nothing to do. CONFIRM: a stop is due if fresh evals bear it out; the trainer is to be asked for
    one. STOP: the run is past its best; the best checkpoint is to be retained and the GPUs freed. A rule only
    proposes: the pool's plan is where a proposal becomes a release.
    """

    CONTINUE = "Continue"
    CONFIRM = "Confirm"
    STOP = "Stop"


class Grade(StrEnum):
    """A rule's request short of a stop. WARNED: people are told. DEMOTED: it gives way to who waits."""

    WARNED = "Warned"
    DEMOTED = "Demoted"


NOT_A_NUMBER = Absent(math.nan)
Statistic = Annotated[float, NOT_A_NUMBER, "What was compared, in the rule's unit; absent: not a number."]
Threshold = Annotated[float, NOT_A_NUMBER, "With what; absent: not a number."]
EValue = Annotated[float | None, "Evidence that the run is past its best, of rules that yield an e-value."]
WhenContended = Annotated[bool, "Only to be let through while somebody waits for GPUs."]


class Verdict(NamedTuple):
    """A stop rule's answer to one eval, with the numbers it saw.

    Attributes:
        e_value: evidence against "this run is not past its best": its mean is at most 1 if that is so,
            whenever one looks; None: the rule gives none.
        when_contended: the pool sees to it.
    """

    verb: Annotated[Verb, "Continue, Confirm or Stop."]
    reason: Annotated[Word, "Why, as a CamelCase code."]
    statistic: Statistic
    threshold: Threshold
    e_value: EValue = None
    when_contended: WhenContended = False
    grade: Annotated[Grade | None, "What it asks for short of a stop: Warned or Demoted."] = None


class Mode(StrEnum):
    """Reach of the operator. Order of reach: Off < Shadow < Enforce."""

    ENFORCE = "Enforce"
    SHADOW = "Shadow"
    OFF = "Off"


MODE_REACH: Mapping[Mode, int] = {Mode.OFF: 0, Mode.SHADOW: 1, Mode.ENFORCE: 2}


def cap_mode(mode: Mode, cap: Mode) -> Mode:
    """Return the lesser of what a job asks for and what its pool allows."""
    return min(mode, cap, key=MODE_REACH.__getitem__)


class Delegate(StrEnum):
    """The system that queues a pool's jobs.

    BUILTIN: the pool's queue policy; a gang starts when its GPUs are free. NONE: nobody; every job starts at
    once and kube-scheduler is left to place its pods. KUEUE: Kueue's quotas; a gang starts when Kueue has
    quota for it and its GPUs are free. What that means to `pool.plan`: `controller.policy.pool.delegates`.
    """

    BUILTIN = "Builtin"
    KUEUE = "Kueue"
    NONE = "None"


class FleetScope(StrEnum):
    """The runs that a run is compared with in its pool (`controller.policy.fleet.limits`).

    NAMESPACE: those of its own namespace. POOL: what those of the other namespaces show may also raise a
    run's noise, or delay its stop once; nothing else.
    """

    NAMESPACE = "Namespace"
    POOL = "Pool"


class JobState(StrEnum):
    """State of a job in its pool's queue."""

    QUEUED = "Queued"  # suspended, waiting for admission
    ADMITTED = "Admitted"  # holds GPUs, or is about to: admission written, pods not all seen yet
    STOPPING = "Stopping"  # release granted; still holds its GPUs until its pods are gone
    PREEMPTING = "Preempting"  # on its way back into the queue; still holds its GPUs


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal to stop, for the pool: which eval asked for it, and on what evidence."""

    step: Annotated[Step, "Step of the eval that asked for it."]
    best_step: Annotated[Step, "Step of the best eval at that time."]
    reason: Annotated[Word, "Why, as a CamelCase code."]
    statistic: Statistic
    threshold: Threshold
    e_value: EValue = None  # as in `Verdict`
    when_contended: WhenContended = False  # as in `Verdict`
    metric: Annotated[str, AtMost(200), "The guardrail that failed; absent: the Primary metric."] = ""

    @staticmethod
    def of(verdict: Verdict, step: int, best_step: int, metric: str = "") -> Proposal:
        """Return what a verdict on the eval at ``step`` brings before the pool."""
        v = verdict
        return Proposal(
            step, best_step, v.reason, v.statistic, v.threshold, v.e_value, v.when_contended, metric
        )


class LossTrend(NamedTuple):
    """Prediction from a job's training losses; updated by `queueing.slaq.add_loss`.

    ``drop`` and ``before`` are the last two falls of the loss per GPU-second of service, ``largest`` the
    largest so far (same unit); ``loss`` and ``service`` (GPU-seconds) are the last report itself.
    """

    loss: float
    service: float
    drop: float = 0.0
    before: float = 0.0
    largest: float = 0.0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its pool sees it. Labels of hidden truth (does it hack?) never appear here."""

    key: JobKey
    submitted: float  # s
    sequence: int  # breaks ties between jobs submitted at the same time; lower came first
    replicas: int
    gpus_per_replica: int
    priority: int = 0
    state: JobState = JobState.QUEUED
    bound: tuple[tuple[str, int], ...] = ()  # (node, GPUs) of each non-terminal pod that has a node
    unbound: int = 0  # admitted members whose pod has no node yet
    nodes: tuple[str, ...] = ()  # planned node of each member, as written at admission
    attained: float = 0.0  # GPU-seconds of service so far
    remaining: float | None = None  # s of running time left, as its user states it; None: not stated
    proposal: Proposal | None = None
    since: float | None = None  # s, when its present state began; None: unknown
    estimate: float | None = None  # s, estimate of the whole running time (`estimates.whole`)
    progress: float | None = None  # share of the run that is done, 0 to 1, as last reported
    weight: float = 1.0  # share of the pool that its namespace is due, relative to others
    loss_trend: LossTrend | None = None
    policy_state: tuple[int, ...] = ()  # what the queue policy asked to remember (`QueuePolicy.policy_state`)
    evidence: float | None = None  # e-value of its stop rule at its newest eval, proposal or not
    evaluator: str | None = None  # version of the evaluator that scored its newest eval
    metric: str = ""  # its Primary metric
    noise: FleetNoise | None = None  # of one eval, by what the run itself shows; None: too few evals to say
    readings: tuple[Reading, ...] = ()  # its newest comparable evals, oldest first
    # Of its guardrail metrics, as `noise`; None: it has none.
    guardrail_noise: tuple[GuardrailNoise, ...] | None = field(default=None, metadata=WHERE_USED)
    demoted: bool = False  # its rule has lowered it: it gives way to everybody who waits
    waited: float = 0.0  # s that it had waited when its present run was admitted
    preemptible: bool = True  # False: the operator may not touch its run for others' sake
    attempt: int = 0  # how often it was admitted
    not_before: float | None = None  # s, until when it is not admitted again: its gang found no room
    avoid: tuple[str, ...] = ()  # nodes that would not have it (`GangBackoff`): the last to be planned
    offer: str = ""  # identifies the quota that an external queue keeps for it until it is answered; "": none
    offered_at: float | None = None  # s, since when
    queue_message: str = ""  # that queue's own words about why it waits
    refused: bool = False  # it was taken out of that queue because no gang like it fits into the pool
    taken_back: float | None = None  # s, when its newest stop was taken back before the suspend
    may_return: bool = False  # pods may still come in the place of those that are gone
    delayed_at: float | None = None  # s, when its stop first waited for what other namespaces' runs show
    rollout: Rollout | None = field(default=None, metadata=WHERE_USED)  # its actors; None: it has none
    sharing: SharedTraining | None = field(default=None, metadata=WHERE_USED)  # None: its GPUs are its own
    # It is preempted for another job and trains on to its next checkpoint: it may stay yet. None: not so.
    may_stay: bool | None = field(default=None, metadata=WHERE_USED)

    @property
    def namespace(self) -> str:
        return namespace_of(self.key)

    @property
    def scored_by(self) -> ScoredBy:
        return ScoredBy(self.namespace, self.metric, self.evaluator or "")

    @property
    def gpus(self) -> int:
        """GPUs that it is admitted with: of the whole gang, of its base actors, lent or not, and its share of
        a worker group's."""
        gpus = self.private_gpus
        return gpus if self.sharing is None else gpus + self.sharing.share

    @property
    def private_gpus(self) -> int:
        """GPUs that it is admitted with and that are its own."""
        gang = self.replicas * self.gpus_per_replica
        return gang if self.rollout is None else gang + self.rollout.base * self.rollout.gpus

    @property
    def spare_gpus(self) -> int:
        """GPUs that its actors hold beyond those that it was admitted with."""
        if self.rollout is None:
            return 0
        every, base = self.rollout.actors, self.rollout.base * self.rollout.gpus
        return max(0, sum(actor.gpus for actor in every) - base)

    @property
    def base_actors(self) -> Part | None:
        return None if self.rollout is None else Part(self.rollout.base, self.rollout.gpus)

    @property
    def actor_places(self) -> tuple[Place, ...]:
        """Return the places of actors that it gives up with its GPUs: while it runs its base actors that stay
        (spare ones are taken back by recalls), once it leaves all."""
        if self.rollout is None or self.state is JobState.QUEUED:
            return ()
        actors = self.rollout.held if self.state is JobState.ADMITTED else self.rollout.actors
        return tuple((actor.node, actor.gpus) for actor in actors)

    def wakes_pool(self) -> tuple[object, ...]:
        """Return that of which any change may let the pool decide otherwise: it is to plan at once."""
        return tuple(getattr(self, name) for name in WAKES_POOL)

    def informs_pool(self) -> tuple[object, ...]:
        """Return what the pool learns from, or asks when another job is to be stopped: it may plan later."""
        return self.readings[-1:], *(getattr(self, name) for name in INFORMS_POOL if name != "readings")


# Each field of a `JobView` is in one of the three; a test holds that, so that none is forgotten.
WAKES_POOL = (
    *("state", "bound", "unbound", "nodes", "priority", "replicas", "gpus_per_replica"),
    *("proposal", "demoted", "offer", "queue_message", "refused", "rollout", "sharing"),
)
INFORMS_POOL = ("readings", "evaluator", "noise", "guardrail_noise", "progress", "loss_trend")
NO_NEWS_TO_POOL = (
    *("key", "submitted", "sequence", "metric"),  # the same for a job's life
    *("attained", "remaining", "estimate", "since", "waited"),  # with the time; a policy asks to be woken
    *("weight", "preemptible", "policy_state", "delayed_at"),  # the pool's own
    *("attempt", "not_before", "avoid", "taken_back", "may_return", "may_stay"),  # come with another state
    *("evidence", "offered_at"),  # come with a reading, an offer
)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of a pool.

    Attributes:
        foreign: GPUs requested by non-terminal pods of no job in the snapshot.
        leaving: those of them whose pods are being deleted.
    """

    name: str
    gpus: int
    foreign: int = 0
    leaving: int = 0
    rack: str = ""  # "": it names none


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs on their way from one job to another."""

    source: Annotated[JobKey, "Whose they were (namespace/name)."]
    target: Annotated[JobKey, "Whose they will be (namespace/name)."]
    nodes: Annotated[tuple[NodeName, ...], AtMost(1024), "Planned node of each pod, by member index."]
    expires: Annotated[Time, "Until when."]
    admission: Annotated[Count, "Number of the target's admission that they are held for."] = 0
    group: Annotated[Word | None, "Worker group of which it gets the residency; absent: none."] = field(
        default=None, metadata=WHERE_USED
    )


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy or rule chosen by name, with its parameters by field name."""

    name: str
    params: Mapping[str, float | int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs that the jobs of some namespaces are guaranteed together, and may have at most (`quotas`)."""

    namespaces: tuple[str, ...]
    guaranteed: int = 0
    limit: int | None = None  # None: no limit


@dataclass(frozen=True, slots=True)
class StopLimits:
    """Limits of a pool to its jobs' stop rules together; None: none (`controller.policy.fleet.limits`)."""

    per_hour: int | None = None  # stops in any hour
    breaker_percent: int | None = None  # of the running jobs: as many at once are not believed
    shared_fall_percent: int | None = 50  # of the jobs with evals: what as many share is no run's own fall
    shared_fall_wait: float = 1800.0  # s that a sudden fall waits for the others' evals
    precision: float | None = None  # least share of a namespace's stops that are right, in expectation
    precision_jobs: int = 100  # jobs of one namespace that run within one day, at most
    scope: FleetScope = FleetScope.NAMESPACE


class PastStop(NamedTuple):
    """A stop that counts against spec.stopLimits, whatever became of its RLHFJob since."""

    at: Annotated[Time, "When it was granted."]
    e_value: Annotated[float | None, Absent(None), "Its rule's e-value then; absent: the rule yields none."]
    job: Annotated[JobKey, "Who was stopped (namespace/name)."]

    @property
    def namespace(self) -> str:
        return namespace_of(self.job)


class Ended(NamedTuple):
    """Number of jobs of a namespace that have left a pool."""

    namespace: str
    jobs: int


class StopCount(NamedTuple):
    """The number of a pool's stops, and its limits."""

    last_hour: int = 0
    today: int = 0  # in the day (UTC) over which `StopLimits.precision` counts
    breaker_since: float | None = None  # s, since when some namespace's breaker has been open; None: none is
    held: int = 0  # jobs that ask to be stopped and are held back
    reason: str = ""  # why the first of them is: CamelCase code
    message: str = ""  # the same as a sentence with the numbers


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Reason for which a proposed stop was not released: a CamelCase code and a sentence with the numbers."""

    key: JobKey
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Everything the pool's plan may look at."""

    pool: str
    policy: PolicySpec
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    reservations: tuple[Reservation, ...] = ()
    reservation_seconds: float = 300.0
    delegate: Delegate = Delegate.BUILTIN
    limits: StopLimits = StopLimits()
    stopped: tuple[PastStop, ...] = ()
    ended: tuple[Ended, ...] = ()  # jobs that left today otherwise than by a stop that a rule had asked for
    breaker_since: float | None = None  # s, as in `StopCount`
    offer_seconds: float = 300.0  # s for which an offer of quota may wait for nodes before it is given back
    noise: tuple[MetricNoise, ...] = ()  # as learned so far
    falls: tuple[SharedFall, ...] = ()  # as known so far, newest last
    closed: tuple[NodeView, ...] = ()  # its nodes that take no new pods now: not ready, cordoned, tainted
    quotas: tuple[Quota, ...] = ()  # no namespace in two of them; only where the pool's own policy queues
    lending: Lending | None = field(default=None, metadata=WHERE_USED)  # None: no job of it has actors
    sharing: PoolSharing | None = field(default=None, metadata=WHERE_USED)  # None: it offers no sharing


@dataclass(frozen=True, slots=True)
class Grant:
    """The one place where a verdict becomes a release: this job is to be stopped."""

    key: JobKey
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Admission:
    """A job to start.

    Attributes:
        nodes: one entry per member.
        source: the job whose freed GPUs it gets, if they were reserved for it.
        actors: one entry per base actor; None: it has none.
        group: the worker group in which it has a residency; None: it asked for none.
    """

    key: JobKey
    nodes: tuple[str, ...]
    source: JobKey | None = None
    offer: str = ""  # the offer of quota that it answers, if an external queue makes offers
    actors: tuple[str, ...] | None = field(default=None, metadata=WHERE_USED)
    group: str | None = field(default=None, metadata=WHERE_USED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused offer of quota: a CamelCase code and a sentence with the numbers.

    ``final``: not before the pool changes; else the job goes back to its queue, behind its equals.
    """

    key: JobKey
    offer: str
    reason: str
    message: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running job to put back into the queue at its next checkpoint."""

    key: JobKey
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Reason for which a queued job was not admitted: a CamelCase code and a sentence with the numbers."""

    key: JobKey
    position: int  # 1 = next
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A pool's plan: all that is to happen in it now.

    Attributes:
        wake_at: when to plan again even if nothing happens (s).
    """

    grants: tuple[Grant, ...] = ()
    admissions: tuple[Admission, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lifted: tuple[JobKey, ...] = ()  # of those refused for good before: they would fit by now
    reservations: tuple[Reservation, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    policy_states: tuple[tuple[JobKey, tuple[int, ...]], ...] = ()  # what the policy asks to remember, if new
    stops: StopCount = field(default_factory=StopCount)
    noise: tuple[MetricNoise, ...] = ()  # to be kept for the next pass, and told to the jobs
    falls: tuple[SharedFall, ...] = ()  # the same
    wake_at: float | None = None
    lending: LendingPlan | None = field(default=None, metadata=WHERE_USED)  # None: no job has actors
    sharing: GroupsPlan | None = field(default=None, metadata=WHERE_USED)  # None: no sharing is offered
    # Preempted jobs that stay: nobody waits any more. None: there are none.
    called_off: tuple[JobKey, ...] | None = field(default=None, metadata=WHERE_USED)
