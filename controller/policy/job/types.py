"""Input and output of a job's plan: its spec, the observed cluster, its durable record, and the plan.

The record is the RLHFJob's status in the brain's words: whatever must survive a restart of the operator is
in it, and nothing else is remembered between passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controller.policy.types import (
    Attempt,
    EvalPoint,
    FleetView,
    JobKey,
    JobState,
    LossTrend,
    Mode,
    PolicySpec,
    Proposal,
    Verdict,
)

UNKNOWN = Attempt(0)  # of what came before the operator, or without one
READINGS_KEPT = 16  # newest evals of which the pool sees score and time


class Direction(StrEnum):
    MAXIMIZE = "Maximize"
    MINIMIZE = "Minimize"


class RunState(StrEnum):
    RUN = "Run"
    STOPPED = "Stopped"


class ResumeFrom(StrEnum):
    BEST = "Best"
    LATEST = "Latest"
    STEP = "Step"


class Operation(StrEnum):
    """What an access Job does in the checkpoint store (controller/checkpoints/access.py)."""

    SECURE = "secure"  # clone or hard-link (object store: copy) the best checkpoint out of rotation's reach
    RETAIN = "retain"  # copy the secured one to where trainers cannot reach, verify its digest
    RESTORE = "restore"  # copy a retained one back to the workload's volume, verify it
    PIN = "pin"  # secure a step that the user named
    CLAIM = "claim"  # take the location for this RLHFJob, and note what lies there
    CHECK = "check"  # is a pin unchanged since its digest


class Retain(StrEnum):
    """When the best checkpoint of a run that is stopped is copied out of the trainer's reach."""

    BEFORE_SUSPEND = "BeforeSuspend"
    AFTER_SUSPEND = "AfterSuspend"  # a pin that is unchanged since its digest is enough for the suspend


class Answer(StrEnum):
    """The answer to an external queue that asked whether a workload may start on the quota it offers."""

    PENDING = "Pending"  # nothing yet
    READY = "Ready"  # it may
    RETRY = "Retry"  # not now: put it out and line it up again
    REJECTED = "Rejected"  # never


class ScrapeOutcome(StrEnum):
    """How the last attempt to read a trainer's metrics ended. Only OK carries points."""

    OK = "Ok"
    NO_PODS = "NoPods"  # nothing to scrape yet
    UNREACHABLE = "Unreachable"
    TIMEOUT = "Timeout"
    TOO_LARGE = "PageTooLarge"  # not the gang: that is TooLarge
    NOT_PROMETHEUS = "NotPrometheus"
    REFUSED_ADDRESS = "RefusedAddress"  # the pod's IP is of a class the settings do not allow to be scraped


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    id: str
    source: ResumeFrom
    step: int | None = None  # with source STEP


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A metric that must not fall, and the rule that judges it."""

    metric: str
    rule: PolicySpec
    direction: Direction = Direction.MAXIMIZE


@dataclass(frozen=True, slots=True)
class ProxyMetric:
    """The metric that the run optimises, where trainers export it."""

    metric: str
    direction: Direction = Direction.MAXIMIZE


@dataclass(frozen=True, slots=True)
class Desired:
    """The RLHFJob's spec, checked, with its pool's limits applied."""

    key: JobKey
    uid: str
    generation: int
    metric: str  # name of the Primary metric
    replicas: int
    gpus_per_replica: int
    rule: PolicySpec  # at its share of the false-alarm budget, where there are guardrails
    modifiers: tuple[PolicySpec, ...] = ()
    direction: Direction = Direction.MAXIMIZE
    mode: Mode = Mode.ENFORCE
    max_step_lag: int = 0  # steps the kept checkpoint may lie before the best eval
    run_state: RunState = RunState.RUN
    resume: ResumeRequest | None = None
    deleting: bool = False
    workload_ref: str = ""  # "batch/v1 Job name" when the workload is referred to; "": made from the template
    problem: tuple[str, str] | None = None  # (reason, message): why this job cannot be accepted as it is
    gang_timeout: float = 300.0  # s within which every pod of an admitted gang must have a node
    preempt_grace: float = 300.0  # s that a preempted run may go on until its next checkpoint
    guardrails: tuple[Guardrail, ...] = ()
    proxy: ProxyMetric | None = None
    expected_seconds: float | None = None  # s of running time that the user expects of the whole run
    pins: tuple[int, ...] = ()  # steps whose checkpoints the user wants kept
    queue: str = ""  # the external queue that its workload is to wait in; "": its pool's own
    note: str = ""  # what is carried out otherwise than it is written, for condition Accepted
    retain: Retain = Retain.BEFORE_SUSPEND
    scrape_interval: float = 15.0  # s between two reads of the trainer's metrics


@dataclass(frozen=True, slots=True)
class PodView:
    """``uid`` and ``created`` (s) tell pods of one name apart, and which of two came later."""

    name: str
    node: str | None
    gpus: int
    terminal: bool  # Succeeded or Failed
    ready: bool = False
    succeeded: bool = False
    deleting_since: float | None = None  # s
    admission: int | None = None  # number of the admission it was made for; None: it carries none
    uid: str = ""
    created: float = 0.0  # s


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """The child workload as last seen. ``settled``: suspended and, by its own status, with no active pods."""

    uid: str
    suspended: bool
    settled: bool = False
    finished: str | None = None  # None | "Complete" | "Failed"
    message: str = ""
    queue: str = ""  # the external queue that it was put into; "": none
    active: int = 0  # pods that, by its own status, run or are on their way out
    completed: tuple[int, ...] = ()  # members that ended well and that its controller does not start again
    expires: bool = False  # it is removed by itself some time after its end


@dataclass(frozen=True, slots=True)
class QueueView:
    """What an external queue (Kueue) has recorded about a workload.

    ``offer`` identifies the quota it has reserved now: quota that was lost and reserved again is another
    offer, and so is that of a namesake. "" while it has none, is put out or switched off.
    """

    name: str  # of its record there
    active: bool = True  # False: switched off; it gets no quota, and is stopped if it runs
    ours: bool = False  # switched off by this operator
    offer: str = ""
    offered_at: float | None = None  # s
    answer: Answer | None = None  # to that offer; None: the queue does not ask us
    evicted: str = ""  # why it was put out, in the queue's own code, until it has quota again
    message: str = ""  # the queue's own words about why it waits or was put out


class MetricPoints(NamedTuple):
    """The evals of one metric beside the Primary one, in the trainer's own orientation, oldest first."""

    metric: str
    points: tuple[EvalPoint, ...]


class Page(NamedTuple):
    """What a metrics page says it is of: the RLHFJob's uid, and the trainer process that serves it."""

    uid: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class ScrapeView:
    outcome: ScrapeOutcome
    message: str = ""
    at: float = 0.0  # s
    metrics_seen: tuple[str, ...] = ()  # names in the `metric` label, sorted
    points: tuple[EvalPoint, ...] = ()  # of the Primary metric, in the trainer's own orientation, any order
    evals_total: int | None = None
    proxy: float | None = None
    kl: float | None = None
    step: int | None = None
    total_steps: int | None = None
    checkpoint_step: int | None = None
    resumed_step: int | None = None  # step the present process resumed from; 0: started afresh
    request_served: int | None = None
    evaluator: str | None = None
    evals_labelled: bool = False  # each eval names the evaluator that scored it, and it is this one
    loss: float | None = None  # training loss
    others: tuple[MetricPoints, ...] = ()  # of the spec's further metrics, those the page has
    page: Page | None = None  # None: it does not say whose it is
    pod: str = ""  # uid of the pod that was asked
    pod_created: float = 0.0  # s


class Progress(NamedTuple):
    """How far an access Job has come, as of its last report (`job.transfer`)."""

    done: int  # bytes
    total: int  # bytes; 0: it does not know yet
    rate: float  # bytes/s, over the last few minutes; 0: not known yet
    at: float  # s, when it was asked
    moved_at: float  # s, when it was first asked and said what it says now
    phase: str = ""  # what these bytes are of: Reading, Copying, Checking; "": it names none


@dataclass(frozen=True, slots=True)
class FoundLayout:
    """The layout that was found where the spec says Auto, and the file that only its trainer writes."""

    name: str
    by: str


@dataclass(frozen=True, slots=True)
class AccessView:
    """An access Job of this RLHFJob. ``result`` fields are those of its termination message.

    Attributes:
        attempt: the process that wrote the checkpoint, as it is written; "": the answer names none.
        holder: of a refused claim, who has the location: uid, namespace/name.
    """

    request_id: str
    operation: Operation
    finished: bool
    ok: bool = False
    reason: str = ""
    message: str = ""
    step: int | None = None
    path: str = ""
    digest: str = ""
    source_digest: str = ""
    bytes: int = 0
    progress: Progress | None = None  # None: it has told none, or has ended
    since: float | None = None  # s, from when on it could have moved, and somebody looked; None: not known
    stall: float = 600.0  # s without a byte after which it is given up
    attempt: str = ""
    evidence: str = ""  # by what the checkpoint is known to be whole: SaveRecord, Manifest, Siblings
    holder: tuple[str, str] | None = None
    holder_gone: bool = False  # that RLHFJob was of the same namespace, and is deleted
    unplaced: bool = False  # its pod finds no node; the message says why, and what helps
    layout: FoundLayout | None = None  # None: it was asked for a layout by name, or found none


@dataclass(frozen=True, slots=True)
class Observed:
    """What the operator observed of the job and its objects."""

    workload: WorkloadView | None = None
    pods: tuple[PodView, ...] = ()
    scrape: ScrapeView | None = None
    access: tuple[AccessView, ...] = ()
    run_written: RunFile | None = None  # what ConfigMap `<name>-run` says now
    fleet: FleetView = field(default_factory=FleetView)  # what the pool tells of the others
    queue: QueueView | None = None  # None: no external queue knows the workload, or it is not known yet
    # (reason, message): why that queue cannot give it quota, whatever else happens.
    queue_problem: tuple[str, str] | None = None
    finalizer: bool = False  # ours is on the RLHFJob
    # Access Jobs that we made and have not set going: request id, uid of the Job.
    made: tuple[tuple[str, str], ...] = ()
    announced: bool = (
        True  # its pool has said in its status that it is being stopped, and to whom its GPUs go
    )


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: bool
    reason: str
    message: str
    since: float  # s, last change of status
    generation: int


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """A trainer process whose page was read.

    Attributes:
        pod: uid of its pod.
        pod_created: when its pod was made (s).
        resumed: the step it started from, 0: afresh; None: it has not reported it and has no eval yet.
    """

    attempt: Attempt
    pod: str
    pod_created: float
    at: float  # s, when it was first seen
    resumed: int | None = None


class BranchLife(NamedTuple):
    """A trainer process and the step ``after`` which its checkpoints count."""

    attempt: Attempt
    after: int
    base: int | None = None  # the step it resumed from, where that checkpoint lay there before the job


@dataclass(frozen=True, slots=True)
class Best:
    step: int
    score: float  # the trainer's own orientation
    attempt: Attempt = UNKNOWN


@dataclass(frozen=True, slots=True)
class ProtectedCheckpoint:
    """A checkpoint that is pinned (linked beside rotation) or retained (copied out of reach)."""

    best_step: int  # the eval it stands for
    step: int  # its own step, at most max_step_lag earlier
    path: str
    digest: str  # "sha256:…" over names and contents
    at: float
    bytes: int = 0
    score: float | None = None  # of the eval it stands for, the trainer's own orientation; None: not known
    attempt: Attempt = UNKNOWN  # of that eval
    baseline: int = 0  # on which its score is (`EvalBaseline.number`)
    evidence: str = ""  # by what it is known to be whole (`AccessView.evidence`)

    def stands_for(self, best: Best) -> bool:
        """Return whether it was kept for that very eval."""
        return (self.attempt, self.best_step) == (best.attempt, best.step)


@dataclass(frozen=True, slots=True)
class InFlight:
    """An access Job under way, or to be tried again at ``not_before``.

    It says all that its answer needs to be recorded: the eval it is for, and that eval's score. ``baseline``:
    to which baseline the score belongs (`EvalBaseline.number`; 0: all evals of the run can be compared).
    """

    operation: Operation
    step: int  # secure, retain: of the eval; pin, restore: of the checkpoint; claim: number of the attempt
    serial: int = 0  # numbers all access Jobs of this RLHFJob, so that no old answer is taken for a new one
    tries: int = 0
    not_before: float = 0.0
    release: tuple[str, ...] = ()  # paths of pins that are no longer wanted, let go by this Job
    attempt: Attempt = UNKNOWN
    score: float | None = None
    baseline: int = 0
    started: float | None = None  # s, when its Job was first asked for
    former: str = ""  # claim: uid of a deleted RLHFJob that may be followed
    job_uid: str = ""  # of the Job that was made for it; no other's answer counts. "": none was made yet

    @property
    def request_id(self) -> str:
        return f"{self.operation}-{self.step}-{self.serial}"

    def is_for(self, best: Best) -> bool:
        """Return whether it was asked for on account of that very eval."""
        return (self.attempt, self.step) == (best.attempt, best.step)


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim on the checkpoint folder for an attempt, made before it started.

    What lay in the folder is noted with it.

    Attributes:
        life: the process it was made for, where one was seen to begin within an attempt.
        problem: why it could not be made, and what was said of it; "": it was.
        tries: how often it has failed, the last time at ``at``.
    """

    attempt: int
    at: float  # s
    life: str = ""
    problem: str = ""
    message: str = ""
    tries: int = 0


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """The stop rule's memory: ``base`` is its state before the oldest eval kept, ``state`` after the newest.

    States are nested tuples of JSON scalars. ``unjudged``: so many of the oldest evals kept came before a
    stop that a user called off, and are not part of it: ``base`` is the state before the first after these.
    """

    name: str
    version: int
    params_hash: str
    base: tuple[object, ...]
    state: tuple[object, ...]
    verdict: Verdict | None = None
    unjudged: int = 0


@dataclass(frozen=True, slots=True)
class EvalBaseline:
    """Since when the evals kept can be compared with each other (`controller.policy.job.comparability`).

    Evals up to (``life``, ``step``) were scored otherwise and count for nothing.

    Attributes:
        kept: the checkpoint that stood for the best of them, still pinned; None: there was none.
        number: counts the baselines of a run, 0 is the first: scores are told apart by it, and never by the
            clocks of two leaders.
    """

    since: float  # s
    life: str = ""  # as `Attempt` is written
    step: int = -1
    kept: ProtectedCheckpoint | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """The record of a guardrail metric: its newest eval, its rule's state after it, and the verdict."""

    metric: str
    step: int
    attempt: Attempt
    score: float  # the trainer's own orientation
    params_hash: str
    state: tuple[object, ...]
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Confirming:
    """A stop that waits for a fresh eval: which eval asked, since when, by which request to the trainer."""

    step: int
    at: float
    request_id: int = 0  # 0: the trainer cannot be asked


@dataclass(frozen=True, slots=True)
class PastGrades:
    """GPU-seconds of service that a run had after its rule asked for less, as of its newest eval."""

    warned: float = 0.0
    demoted: float = 0.0
    stopped: float = 0.0  # since it would have been stopped, in Shadow
    counted: float = 0.0  # service (GPU-seconds) up to which this is counted


@dataclass(frozen=True, slots=True)
class Decision:
    """A stop, as decided: by whom (rule name or ``User``), on what numbers, and how far it has come.

    Attributes:
        deferred_at: s, since when the copy of the best checkpoint may follow the suspend, because its pin was
            found unchanged (`Retain.AFTER_SUSPEND`) or a user's stop waits no longer; None: it comes before.
        asked_at: s, when the trainer was asked to save where it is, for a user's stop.
    """

    by: str
    mode: Mode
    proposal: Proposal
    message: str
    at: float
    retained_at: float | None = None
    suspended_at: float | None = None
    pods_gone_at: float | None = None
    handed_to: JobKey | None = None
    handed_at: float | None = None
    deferred_at: float | None = None
    asked_at: float | None = None


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A stop that was withdrawn before the suspend: when it was decided, when it was withdrawn (s), and why.

    It stays on record until the next one: the pool finds by it what it had counted and promised.
    """

    decided: float
    at: float
    reason: str  # CamelCase code


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    number: int  # the attempt this admission starts
    nodes: tuple[str, ...]
    at: float
    source: JobKey | None = None
    running_since: float | None = None  # all members' pods running
    unbound_since: float | None = None  # s, since when some member has had no node; None: each has one
    withdrawn: float | None = None  # s, when it was taken back because the gang found no room (gangs.py)
    avoid: tuple[str, ...] = ()  # then: as in `GangBackoff`
    offer: str = ""  # of the external queue that it rests on (`QueueView.offer`); "": on none
    ended: tuple[int, ...] = ()  # members that ended well: nobody comes to their nodes any more


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """A refused offer of quota (`types.Refusal`), about which the external queue is still to be told."""

    offer: str
    reason: str
    message: str
    at: float  # s
    final: bool = False


@dataclass(frozen=True, slots=True)
class GangBackoff:
    """How often in a row a gang was not bound whole in time, and when (s) it may be admitted again.

    ``avoid``: nodes that these admissions had planned and on which none of its pods was bound, newest first.
    """

    failures: int
    until: float
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preempting:
    """A preemption in progress: why, since when (s), and what is known of the work done so far.

    Attributes:
        checkpoint_step: the newest checkpoint the trainer had told of when it was first looked at after the
            decision; a later one makes the suspension free.
        request: id of the request to the trainer for one more checkpoint; 0: none was made.
        lost: GPU-seconds of work that the suspension costs, noted before it is carried out; None: the run is
            not suspended yet.
    """

    reason: str
    at: float
    checkpoint_step: int | None = None
    request: int = 0
    lost: float | None = None
    evicted: str = ""  # an external queue put it out, by this code of its own; "": its pool did


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run had come when it was last noted, and the GPU-seconds of work that took.

    ``first_step``, ``first_worked``: the same when it was first noted. Steps are what the trainer says; how
    fast they go by is measured from there on, by the operator's clock.
    """

    step: int
    total_steps: int
    worked: float
    first_step: int = 0
    first_worked: float = 0.0

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.step / self.total_steps)


@dataclass(frozen=True, slots=True)
class Expected:
    """The shortest running time (s) that a run was ever expected to take; its place in a queue rests on it.

    Attributes:
        stated: by its user, since it first ran; None: unknown.
        paced: by the pace that was measured; None: unknown.
    """

    stated: float | None = None
    paced: float | None = None


@dataclass(frozen=True, slots=True)
class EvalsDue:
    """Since when (s) the next usable eval is expected.

    It begins with the last usable eval, or with the first page of a process that showed the metric.

    Attributes:
        interval: usual time between evals (s); None: unknown.
    """

    since: float
    interval: float | None = None


@dataclass(frozen=True, slots=True)
class RunFile:
    """Content of ConfigMap ``<name>-run``."""

    attempt: int = 0
    resume_path: str = ""
    resume_step: int | None = None
    request_id: int = 0
    evaluate: bool = False
    checkpoint: bool = False
    stop: bool = False
    reference_step: int | None = None  # step to score beside each eval on its fresh prompts (`Paired`)
    uid: str = ""  # of the RLHFJob
    scrape_interval: float = 15.0  # s: how long a trainer that has ended stays for its last eval to be read


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job's durable memory (status of the RLHFJob)."""

    attempt: int = 0
    evals: tuple[EvalPoint, ...] = ()  # newest last, at most EVALS_KEPT, the trainer's own orientation
    eval_times: tuple[int, ...] = ()  # s, when each of the newest `READINGS_KEPT` of them was first scraped
    evaluator: str = ""  # version that scored the newest eval; "": the trainer names none
    baseline: EvalBaseline | None = None  # None: all evals of the run so far can be compared
    evals_seen: int = 0
    earlier_sum: float | None = None  # of the scores of those no longer kept; None: all are, or unknown
    abandoned_step: int = 0  # highest step of an eval that was dropped because the run went back before it
    evals_missed: int = 0  # evals that left the trainer's window before they were scraped
    evals_in_attempt: int = 0  # the trainer's own count in its newest life, when last scraped
    rule: RuleRecord | None = None
    guards: tuple[Guard, ...] = ()
    confirming: Confirming | None = None
    past_grades: PastGrades | None = None
    best: Best | None = None
    access: InFlight | None = None
    access_serial: int = 0
    secured: ProtectedCheckpoint | None = None
    retained: tuple[ProtectedCheckpoint, ...] = ()
    pinned: tuple[ProtectedCheckpoint, ...] = ()  # because the user named them, by step
    to_release: tuple[str, ...] = ()  # paths of pins that nothing wants any more, still to be let go
    lives: tuple[LifeRecord, ...] = ()  # processes whose pages were read, in that order, newest last
    claim: Claim | None = None
    layout: FoundLayout | None = None  # None: the spec names one, or none was found yet
    lost_bests: tuple[Best, ...] = ()  # evals whose checkpoint is gone, newest last
    lost_tried: float | None = None  # s, when the best of them was last looked for again
    # Those of them whose checkpoint was changed after it had been pinned: what lies there is not looked for.
    changed_bests: tuple[Best, ...] = ()
    decision: Decision | None = None
    admission: AdmissionRecord | None = None
    preempting: Preempting | None = None  # while on the way back into the queue
    queued_at: float | None = None  # s, when it last came back into the queue; None: it never left it
    queue_policy_state: tuple[int, ...] = ()  # what its pool's queue policy asked to remember of it
    progress: RunProgress | None = None
    expected: Expected | None = None  # None: it has not run yet, or nothing is known
    loss_trend: LossTrend | None = None
    lost: float = 0.0  # GPU-seconds of work that preemptions cost; part of `attained`
    preemptions: int = 0
    evictions: int = 0  # how often an external queue put it out
    refusal: RefusalRecord | None = None
    gang_backoff: GangBackoff | None = None  # None: the last admission was bound whole
    restored: ProtectedCheckpoint | None = None  # checkpoint the next start resumes from
    run: RunFile = field(default_factory=RunFile)
    resume_id: str = ""  # last resume request carried out
    attained: float = 0.0  # GPU-seconds of finished service
    conditions: tuple[Condition, ...] = ()
    finished: str | None = None  # None | "Complete" | "Failed"
    awaiting: Best | None = None  # to be pinned beside the best: which of the two counts shows later
    beside: ProtectedCheckpoint | None = None  # its checkpoint
    taken_back: TakenBack | None = None  # the newest stop that was
    evals_due: EvalsDue | None = None  # None: no page has shown the metric yet
    delayed_at: float | None = None  # s, when its stop first waited for what other namespaces' runs show

    @property
    def baseline_number(self) -> int:
        """Of the baseline to which the evals kept belong."""
        return self.baseline.number if self.baseline is not None else 0

    def condition(self, type_: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type_), None)


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the child from the template, suspended."""


@dataclass(frozen=True, slots=True)
class WriteRun:
    run: RunFile


@dataclass(frozen=True, slots=True)
class StartWorkload:
    """Inject the pool's placement and unsuspend; ``nodes`` has one entry per member."""

    attempt: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SuspendWorkload:
    """Have its pods end. ``again``: an external queue may line it up anew at once; else it keeps it out."""

    reason: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class ResumeWorkload:
    """Let an external queue admit a workload again that was kept out of it."""


@dataclass(frozen=True, slots=True)
class RefuseOffer:
    """Refuse the quota that the external queue has reserved; it queues the workload again."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RemakeWorkload:
    """Delete a suspended child without pods that waits in the wrong queue, so that it is made again."""


@dataclass(frozen=True, slots=True)
class StartAccess:
    """Create an access Job; or unsuspend it, once its uid is recorded as ``job_uid``."""

    request_id: str
    operation: Operation
    step: int  # the step wanted
    max_step_lag: int = 0
    release: tuple[str, ...] = ()  # paths of former pins to let go once the new one is verified
    source: ProtectedCheckpoint | None = None  # retain, check: the pinned one; restore: the retained one
    attempt: Attempt = UNKNOWN  # of the eval; claim: number and, if one began within it, life
    branch: tuple[BranchLife, ...] = ()  # whose checkpoints count, newest life first
    former: str = ""  # claim: uid of a deleted RLHFJob that may be followed
    job_uid: str = ""
    layout: str = ""  # that was found before, where the spec names none


@dataclass(frozen=True, slots=True)
class ForgetAccess:
    """Delete an access Job whose result is recorded, or that is no longer wanted."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    present: bool


@dataclass(frozen=True, slots=True)
class ReadMetrics:
    """Read the trainer's metrics now, out of turn."""


Action = (
    CreateWorkload
    | WriteRun
    | StartWorkload
    | SuspendWorkload
    | ResumeWorkload
    | RefuseOffer
    | RemakeWorkload
    | StartAccess
    | ForgetAccess
    | SetFinalizer
    | ReadMetrics
)


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event to post on the RLHFJob after the status is written."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: write ``record`` to the status if it changed, then ``actions`` in order, then ``events``.

    ``queue`` is how the job stands before its pool (None: it does not compete for GPUs).
    ``requeue_after`` (s): plan again then though nothing happened.
    """

    record: JobRecord
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    queue: JobState | None = None
    proposal: Proposal | None = None
    requeue_after: float | None = None
