"""Input and output of a job's plan: its spec, the observed cluster, and the plan. Its record: `record.py`."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from controller.frozen import dataclass
from controller.policy.actor_types import Actor, RolloutTerms
from controller.policy.group_types import NOT_SLOW, LosesTurns, MeasuredSlowness, NotReady, ResidencyTerms
from controller.policy.job.actors import ActorSeen
from controller.policy.job.event import Event
from controller.policy.job.record import (
    FIRST_EVAL,
    UNKNOWN,
    Claim,
    FileOwner,
    FoundLayout,
    JobRecord,
    Operation,
    PodTrouble,
    ProtectedCheckpoint,
    RunFile,
)
from controller.policy.job.rollout_record import StepAside, StepMeasured, StepPlan
from controller.policy.stored import WHERE_USED
from controller.policy.types import (
    NOTHING_DECLARED,
    Attempt,
    EvalPoint,
    EvalScale,
    FleetView,
    JobKey,
    JobState,
    Mode,
    PolicySpec,
    Problem,
    Proposal,
)


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


class Retain(StrEnum):
    """Time at which the best checkpoint of a run that is stopped is copied out of the trainer's reach."""

    BEFORE_SUSPEND = "BeforeSuspend"
    AFTER_SUSPEND = "AfterSuspend"  # a pin that is unchanged since its digest is enough for the suspend


class Answer(StrEnum):
    """The answer to an external queue that asked whether a workload may start on the quota it offers."""

    PENDING = "Pending"  # nothing yet
    READY = "Ready"  # it may
    RETRY = "Retry"  # not now: put it out and line it up again
    REJECTED = "Rejected"  # never


class ScrapeOutcome(StrEnum):
    """Outcome of the last attempt to read a trainer's metrics. Only OK carries points."""

    OK = "Ok"
    NO_PODS = "NoPods"  # nothing to scrape yet
    UNREACHABLE = "Unreachable"
    TIMEOUT = "Timeout"
    TOO_LARGE = "PageTooLarge"  # not the gang: that is TooLarge
    NOT_PROMETHEUS = "NotPrometheus"
    NOT_BY_CONTRACT = "NotByContract"  # it is, and its samples lack a label, or have it in another form
    REFUSED_ADDRESS = "RefusedAddress"  # the pod's IP is of a class the settings do not allow to be scraped
    NO_SPEAKER = "NoSpeaker"  # members of the gang answer, and none says that it is of this run
    SEVERAL_SPEAKERS = "SeveralSpeakers"  # more than one says so


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    id: str
    source: ResumeFrom
    step: int | None = None  # with source STEP
    for_evals: int = 0  # for so many evals no rule stops it


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A metric that must not fall, and the rule that judges it."""

    metric: str
    rule: PolicySpec
    direction: Direction = Direction.MAXIMIZE
    scale: EvalScale = NOTHING_DECLARED
    index: int | None = field(default=None, metadata=WHERE_USED)  # in spec.metrics


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
    layout: str = ""  # of the checkpoint folder; "": it is to be found
    run_state: RunState = RunState.RUN
    resume: ResumeRequest | None = None
    deleting: bool = False
    workload_ref: str = ""  # "batch/v1 Job name" when the workload is referred to; "": made from the template
    problem: Problem | None = None  # why this job cannot be accepted as it is
    capped_off: bool = False  # its spec asks for a mode, and its pool's modeCap allows Off alone
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
    scale: EvalScale = NOTHING_DECLARED  # what is declared about the Primary metric's evals
    first_eval: float = FIRST_EVAL  # s that evals may be away before it is a warning
    metric_index: int = field(default=0, metadata=WHERE_USED)  # of the Primary metric in spec.metrics
    # What the template says against the address that is read, a clause; "": nothing.
    address_hint: str = field(default="", metadata=WHERE_USED)
    folder_hint: str = field(default="", metadata=WHERE_USED)  # the folder that the template names instead
    rollout: RolloutTerms | None = field(default=None, metadata=WHERE_USED)  # None: it has no actors
    sharing: ResidencyTerms | None = field(default=None, metadata=WHERE_USED)  # None: its GPUs are its own

    @property
    def gpus(self) -> int:
        """GPUs of its own that it is admitted with: of its gang and its base actors, lent or not."""
        gang = self.replicas * self.gpus_per_replica
        return gang if self.rollout is None else gang + self.rollout.base * self.rollout.gpus

    @property
    def minimizes(self) -> bool:
        """Return whether lower scores of the Primary metric are better."""
        return self.direction is Direction.MINIMIZE

    @property
    def minimize(self) -> tuple[str, ...]:
        """Judged metrics of which lower scores are better."""
        judged = ((self.metric, self.direction), *((g.metric, g.direction) for g in self.guardrails))
        return tuple(metric for metric, direction in judged if direction is Direction.MINIMIZE)


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
    trouble: PodTrouble | None = None  # why it does not run, or how a container of it last ended
    trainer_end: TrainerEnd | None = field(default=None, metadata=WHERE_USED)
    # Name of the scheduler that it waits for, and that has said nothing of it; "": it has.
    unseen_by: str = field(default="", metadata=WHERE_USED)
    # Its node's kubelet is not heard of: the cluster calls it not ready, and no container of it.
    unheard: bool = field(default=False, metadata=WHERE_USED)


class TrainerEnd(NamedTuple):
    """The end of the trainer's container in a pod that goes on, for other containers of it do.

    Attributes:
        container: its name.
        code: its exit code.
        going: names of the containers that run on.
    """

    container: str
    code: int
    going: tuple[str, ...]


class OrphanedPod(NamedTuple):
    """A pod of an earlier attempt that lives, and that no workload of the job owns.

    Attributes:
        name: of the pod.
        ending: it goes by itself: it is being deleted, or its owner is gone, so that the cluster deletes it.
        deleting_since: when its deletion was asked for (s); None: it was not.
    """

    name: str
    ending: bool = False
    deleting_since: float | None = None


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
    # What its fields that are to equal the gang's replicas say, by name; those that are not set: left out.
    sizes: tuple[tuple[str, int], ...] = field(default=(), metadata=WHERE_USED)


@dataclass(frozen=True, slots=True)
class QueueView:
    """An external queue's (Kueue's) record of a workload.

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
    """The identity on a metrics page: the RLHFJob's uid, and the trainer process that serves it."""

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
    member: int | None = None  # completion index of that pod; None: not known
    searching: bool = False  # nobody of the gang spoke yet, and some were not asked: the next turn goes on
    misplaced: str = ""  # how the page has the Primary metric where it is not read; "": it does not


class Progress(NamedTuple):
    """Progress of an access Job, as of its last report (`job.transfer`)."""

    done: int  # bytes
    total: int  # bytes; 0: it does not know yet
    rate: float  # bytes/s, over the last few minutes; 0: not known yet
    at: float  # s, when it was asked
    moved_at: float  # s, when it was first asked and said what it says now
    phase: str = ""  # what these bytes are of: Reading, Copying, Checking; "": it names none


class Hindrance(StrEnum):
    """Reason for which the pod of an access Job that was started does not run, as its condition has it."""

    UNSCHEDULABLE = "AccessPodUnschedulable"  # there is no node for it
    REFUSED = "AccessJobRefused"  # the cluster lets it not be made
    USER_REFUSED = "UserRefused"  # nor as this user


@dataclass(frozen=True, slots=True)
class AccessView:
    """An access Job of this RLHFJob. ``result`` fields are those of its termination message.

    Attributes:
        attempt: the process that wrote the checkpoint, as it is written; "": the answer names none.
        holder: of a refused claim, who has the location: uid, namespace/name.
        lowest: of a pin that found no checkpoint, the lowest step of which any file lies there.
    """

    request_id: str
    operation: Operation
    finished: bool
    ok: bool = False
    reason: str = ""
    message: str = ""
    step: int | None = None  # of a claim: the highest of the checkpoints there that are not this process's
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
    hindered: Hindrance | None = None  # its pod does not run; the message says why and what helps
    method: str = ""  # how the pin was made: clone, link, copy, joined by "+" where files differ
    changed: tuple[str, ...] = ()  # paths of pins that it found changed
    folder_gone: bool = False  # what the claim on record had written there was gone, and with it the pins
    layout: FoundLayout | None = None  # None: it was asked for a layout by name, or found none
    file_owner: FileOwner | None = None  # None: it was not asked for, or no checkpoint lies there
    deferred: bool = False  # of a claim: nothing lies there, and nothing was written: as whom is not known
    other_branch: bool = False  # of a claim: its process started from a checkpoint of none on its branch
    lowest: int | None = None


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A job's rollout actors as the cluster shows them, and what its steps want of them.

    Attributes:
        actors: their Jobs that are there.
        planned: plan of the newest step that was announced or has begun; None: there is none yet, or who
            planned it leads no more.
        generating: that step is between its begin and its end.
        released: numbers of actors that have nothing more to do in it and are to end.
        going: numbers of actors whose deletion this process has asked for.
        bound: (number, when its pod got its node (s)) of each actor that this process has seen bound.
        ended: the newest step that has ended.
        gain: as `rollout.measured_gain` has it.
        due: that step is under way, or so near that actors which are still to start for it have to start now.
        aside: actors that the step under way has lost or put aside so far; None: none.
    """

    actors: tuple[ActorSeen, ...] = ()
    planned: StepPlan | None = None
    generating: bool = False
    released: tuple[int, ...] = ()
    going: tuple[int, ...] = ()
    bound: tuple[tuple[int, float], ...] = ()
    ended: StepMeasured | None = None
    gain: float | None = None
    due: bool = True
    aside: StepAside | None = None


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A job's worker group, by what the group says of the job's residency.

    Attributes:
        name: of the group.
        joined: it has taken the job in, and can grant turns.
        gone: worker and state of the residency are gone on all members, or the group is.
        charged: GPU-seconds of this residency.
        slowness: measured steps since the newest resident came.
        profiled: enough is known of its kind.
        unanswered: s, since when the group answers nobody, once it was ready; None: it answers.
        problem: how the newest question to it failed.
        loses: it loses each of the job's turns; None: it does not.
        trouble: how a pod of it ended, or what it waits for, while it is not ready.
        unready: it is not ready; None: it is, or closes.
    """

    name: str
    joined: bool = False
    gone: bool = False
    charged: float = 0.0
    slowness: MeasuredSlowness = NOT_SLOW
    profiled: bool = False
    unanswered: float | None = None
    problem: str = ""
    loses: LosesTurns | None = None
    trouble: PodTrouble | None = None
    unready: NotReady | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of the job and its objects, as the operator observed it."""

    workload: WorkloadView | None = None
    pods: tuple[PodView, ...] = ()
    scrape: ScrapeView | None = None
    access: tuple[AccessView, ...] = ()
    run_written: RunFile | None = None  # what ConfigMap `<name>-run` says now
    run_gone: bool = False  # there is none of that name
    fleet: FleetView = field(default_factory=FleetView)  # what the pool tells of the others
    queue: QueueView | None = None  # None: no external queue knows the workload, or it is not known yet
    queue_problem: Problem | None = None  # why that queue cannot give it quota, whatever else happens
    finalizer: bool = False  # ours is on the RLHFJob
    # Access Jobs that we made and have not set going: request id, uid of the Job.
    made: tuple[tuple[str, str], ...] = ()
    announced: bool = (
        True  # its pool has said in its status that it is being stopped, and to whom its GPUs go
    )
    rollout: RolloutView | None = field(default=None, metadata=WHERE_USED)  # None: it has no actors
    group: GroupSeen | None = field(default=None, metadata=WHERE_USED)  # None: nothing is known of one
    # Why the cluster makes no more pods of the workload, in its words; None: it does, or nobody knows.
    refused: str | None = field(default=None, metadata=WHERE_USED)
    orphans: tuple[OrphanedPod, ...] = field(default=(), metadata=WHERE_USED)
    # Why the API server let an action of the last plan not through; None: it did, or nobody knows.
    not_carried_out: Problem | None = field(default=None, metadata=WHERE_USED)
    # All of the last plan was let through, after something was not; None: nothing is to be taken back.
    carried_out: bool | None = field(default=None, metadata=WHERE_USED)
    # Why copies of its checkpoints have no place, as a claim that is missing; None: they have, or nobody
    # knows.
    no_retention: Problem | None = field(default=None, metadata=WHERE_USED)


class BranchLife(NamedTuple):
    """A trainer process and the step ``after`` which its checkpoints count."""

    attempt: Attempt
    after: int
    base: int | None = None  # the step it resumed from, where that checkpoint lay there before the job


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
    source: ProtectedCheckpoint | None = None  # retain, check, detach: the pin; restore: the retained one
    attempt: Attempt = UNKNOWN  # of the eval; claim: number and, if one began within it, life
    branch: tuple[BranchLife, ...] = ()  # whose checkpoints count, newest life first
    later: tuple[Attempt, ...] = ()  # processes after those
    known: tuple[Attempt, ...] = ()  # claim: all processes on record
    former: str = ""  # claim: uid of a deleted RLHFJob that may be followed
    job_uid: str = ""
    layout: str = ""  # that was found before, where the spec names none
    file_owner: FileOwner | None = None  # as whom it works where the spec does not say it
    empty_at: str = ""  # attempt before which nothing lay there, where that is not written there yet
    claimed: Claim | None = None  # the claim that wrote there whose the folder is; None: none has


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


@dataclass(frozen=True, slots=True)
class MakeActor:
    """Make the Job of a rollout actor whose entry is on record."""

    actor: Actor
    attempt: int


@dataclass(frozen=True, slots=True)
class DeleteActor:
    """Delete the Job of a rollout actor; its pods may take ``grace`` s to end."""

    number: int
    grace: float


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
    | MakeActor
    | DeleteActor
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A job's plan: write ``record`` to the status if it changed, then ``actions`` in order, then ``events``.

    ``queue`` is how the job stands before its pool (None: it does not compete for GPUs).
    ``requeue_after`` (s): plan again then though nothing happened. ``minor``: what the record has that is new
    is no reason to write it; it is written with the next change (None: it is one).
    """

    record: JobRecord
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    queue: JobState | None = None
    proposal: Proposal | None = None
    requeue_after: float | None = None
    minor: bool | None = field(default=None, metadata=WHERE_USED)
