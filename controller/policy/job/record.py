"""One job's durable memory, as the brain has it: `JobRecord` and its parts, stored as the RLHFJob's status.

Whatever must survive a restart of the operator is in it, and nothing else is remembered between passes. What
its fields mean, and their bounds, is declared here alone (`controller.policy.stored`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from controller.frozen import dataclass
from controller.names import AUTO_LAYOUT, EVALS_KEPT, STEP_MAX, UID_MAX
from controller.policy.actor_types import Actor
from controller.policy.job.pin_method import is_linked
from controller.policy.job.rollout_record import RolloutRecord
from controller.policy.stored import (
    AtMost,
    Count,
    Form,
    KeyedBy,
    Message,
    Name,
    NodeName,
    Path,
    Step,
    Time,
    Within,
    Word,
)
from controller.policy.types import Attempt, EvalPoint, JobKey, LossTrend, Mode, Proposal, Verdict

UNKNOWN = Attempt(0)  # of what came before the operator, or without one
READINGS_KEPT = 16  # newest evals of which the pool sees score and time
PINS_MAX = 4  # each is a checkpoint on the trainer's volume, and a line in the status
GUARDS_MAX = 3
TO_RELEASE_MAX = 8  # what is beyond stays on the trainer's volume
LIVES_KEPT = 8
ACTORS_MAX = 128  # twice as many as a step may have: those that leave are there beside those that come
LOST_MAX = EVALS_KEPT + 2  # the best, each eval that is kept, and one that waits
# Characters of JSON: a rule's memory twice. It takes 2400 at most under all modifiers that there are; more
# where the gate holds or has dropped evals whose numbers are as long as a page may have them.
RULE_STATE_MAX = 8000
GUARD_STATE_MAX = 4000
GUARD_APART_KEPT = 5  # of a guardrail's evals: how far the last ones lay apart
LAST_WORDS = 200  # characters
NODE_NOT_READY = "NodeNotReady"  # what a pod waits for whose kubelet is not heard of
NO_SCHEDULER = "NoScheduler"  # what a pod waits for of which no scheduler has said anything
UNSCHEDULABLE = "Unschedulable"  # what a pod waits for that its scheduler finds no node for
FAILED_CREATE = "FailedCreate"  # what a pod waits for that the cluster does not let in
FIRST_EVAL = 1800.0  # s
QUIET_INTERVALS = 4.0  # eval intervals without a usable eval after which none is said to come any more
QUIET_LEAST = 300.0  # s: at least so long; and the interval that is assumed while none is known
CURVE_BUCKETS = 64
CURVE_MARKS = 64

Paths = Annotated[tuple[Path, ...], AtMost(TO_RELEASE_MAX)]
Nodes = tuple[NodeName, ...]
MetricName = Annotated[str, AtMost(200)]
Offer = Annotated[str, AtMost(128)]
Baseline = Annotated[Count, "Number of the eval baseline that score belongs to; absent: the first."]


class Operation(StrEnum):
    """Work of an access Job in the checkpoint store (controller/checkpoints/access.py)."""

    SECURE = "secure"  # clone or hard-link (object store: copy) the best checkpoint out of rotation's reach
    RETAIN = "retain"  # copy the secured one to where trainers cannot reach, verify its digest
    RESTORE = "restore"  # copy a retained one back to the workload's volume, verify it
    PIN = "pin"  # secure a step that the user named
    CLAIM = "claim"  # take the location for this RLHFJob, and note what lies there
    CHECK = "check"  # is a pin unchanged since its digest
    DETACH = "detach"  # make a copy of a linked pin, which the trainer may come to write over


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an object's state, as in every Kubernetes API."""

    type: Annotated[Word, "Name of the aspect."]
    status: Annotated[bool, Form.FLAG, "Whether it holds."]
    reason: Annotated[Word, "Why, as a CamelCase code."]
    message: Annotated[Message, "Why, for people."]
    since: Annotated[Time, Name("lastTransitionTime"), "When status last changed."]
    generation: Annotated[Count, Name("observedGeneration"), "Generation of the spec it was found for."] = 0


ConditionList = Annotated[tuple[Condition, ...], AtMost(20), KeyedBy("type")]


@dataclass(frozen=True, slots=True)
class PodTrouble:
    """Reason for which a pod of the job's workload does not run: how it ended, or what it waits for."""

    pod: Annotated[str, AtMost(253), "Its name."]
    waits: Annotated[
        Word, "What it waits for, in the cluster's word: ImagePullBackOff; absent: it ended."
    ] = ""
    exit_code: Annotated[Count | None, "Exit code of the container that ended; absent: it waits."] = None
    message: Annotated[
        str,
        AtMost(LAST_WORDS),
        Form.CUT,
        "The container's last words, from its termination message; or the cluster's own.",
    ] = ""
    count: Annotated[Count, "How often it ended so without an eval in between."] = 0
    since: Annotated[Time, "When it was first seen."] = 0.0
    container: Annotated[str, AtMost(128), "Identifies the container that ended: none is counted twice."] = ""

    @property
    def reason(self) -> str:
        """As a CamelCase code that has a cure."""
        if self.waits == FAILED_CREATE:
            return "PodsRefused"
        if self.waits in {NODE_NOT_READY, NO_SCHEDULER, UNSCHEDULABLE}:
            return self.waits
        return "PodWaits" if self.exit_code is None else "ExitCode"


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """A process of the trainer whose page was read."""

    attempt: Annotated[Attempt, "Attempt and life, as its page says."]
    pod: Annotated[str, AtMost(64), "uid of its pod."]
    pod_created: Annotated[Time, "When that pod was made."]
    at: Annotated[Time, "When it was first seen."]
    resumed: Annotated[
        Step | None, "Step it started from, 0: afresh; absent: it has not said so, and has no eval yet."
    ] = None
    member: Annotated[Count | None, "Completion index of its pod, which is asked first from then on."] = None
    saved: Annotated[
        Step | None,
        "Newest checkpoint that its page named, noted until it came to where an abandoned branch had been.",
    ] = None
    claimed: Annotated[
        bool, "Whether a claim has told how far the checkpoints go that lay there before it; of the newest."
    ] = False
    other_branch: Annotated[
        bool,
        "Whether it started from a checkpoint of none before it here, or no claim told otherwise.",
    ] = False
    checkpoint: Annotated[
        Step | None,
        "Newest checkpoint that it is known to have: one that its page named when an eval was last read, one "
        "that is pinned or retained, or that from which it said it started; absent: none is known.",
    ] = None
    reached: Annotated[Step, "Highest step that its trainer was at by then."] = 0


@dataclass(frozen=True, slots=True)
class GoesOn:
    """The newest checkpoint of a run that was put out: its next process is to go on from there."""

    step: Annotated[Step, "Its step."]
    attempt: Annotated[Count, "The attempt that was put out."]
    reached: Annotated[Step, "The step that its trainer was at."] = 0
    preempted: Annotated[
        bool, "Whether a preemption did it, and it is not known yet that nothing more than told was lost."
    ] = False


@dataclass(frozen=True, slots=True)
class Best:
    """An eval that was the best so far."""

    step: Annotated[Step, "Its step."]
    score: Annotated[float, "Its score, in the trainer's own orientation."]
    attempt: Annotated[Attempt, "Attempt and life of the trainer that made it."] = UNKNOWN

    def beside(self, other: Best) -> str:
        """Return its step in words, with its process where that of ``other`` has the same number."""
        return (
            f"step {self.step} of process {self.attempt}" if self.step == other.step else f"step {self.step}"
        )


@dataclass(frozen=True, slots=True)
class ProtectedCheckpoint:
    """A checkpoint that is pinned (linked beside rotation) or retained (copied out of trainers' reach)."""

    best_step: Annotated[Step, "Step of the best eval it stands for."]
    step: Annotated[Step, "Its own step, at most spec.checkpoints.maxStepLag earlier."]
    path: Annotated[Path, "Where it is: a relative one lies in the status's pinsFolder."]
    digest: Annotated[str, AtMost(80), "Digest of names, sizes and contents."]
    at: Annotated[Time, "When it was verified."]
    bytes: Annotated[int, Within(None, None, "int64"), "Its size."] = 0
    score: Annotated[
        float | None,
        "Score of the best eval it stands for, in the trainer's own orientation; absent: not known.",
    ] = None
    attempt: Annotated[Attempt, "Attempt and life of the trainer that made that eval."] = UNKNOWN
    baseline: Baseline = 0
    evidence: Annotated[Word, "By what it is known to be whole: SaveRecord, Manifest or Siblings."] = ""
    method: Annotated[
        str,
        AtMost(32),
        "How a pin was made: clone, link or copy, or several of them joined by +. What the trainer writes "
        "into its files reaches a link.",
    ] = ""

    @property
    def linked(self) -> bool:
        """Return whether some of its files are those of the trainer, under a second name."""
        return is_linked(self.method)

    def stands_for(self, best: Best) -> bool:
        """Return whether it was kept for that very eval."""
        return (self.attempt, self.best_step) == (best.attempt, best.step)

    def copies(self, retained: tuple[ProtectedCheckpoint, ...]) -> tuple[ProtectedCheckpoint, ...]:
        """Return those that stand for the eval that this one, a pin, stands for."""
        return tuple(k for k in retained if (k.attempt, k.best_step) == (self.attempt, self.best_step))


@dataclass(frozen=True, slots=True)
class InFlight:
    """An access Job under way, or to be tried again at ``not_before``.

    It says all that its answer needs to be recorded: the eval it is for, and that eval's score.
    """

    operation: Annotated[Operation, "claim, secure, pin, check, detach, retain or restore."]
    step: Annotated[
        Step,
        "Step it is about: of the eval (secure, retain), of the checkpoint (pin, check, detach, restore); "
        "of a claim: number of the attempt.",
    ]
    serial: Annotated[
        Count, "Number of the access Job among all of this RLHFJob: no old answer is taken for a new one."
    ] = 0
    tries: Annotated[Count, "How often it was tried and failed."] = 0
    not_before: Annotated[Time, "When it is tried next."] = 0.0
    release: Annotated[Paths, "Paths of pins that are no longer wanted and go once it has succeeded."] = ()
    attempt: Annotated[Attempt, "Attempt and life of the trainer it is about."] = UNKNOWN
    score: Annotated[float | None, "Score of the eval it is about."] = None
    baseline: Baseline = 0
    started: Annotated[Time | None, "When its Job was first asked for."] = None
    former: Annotated[Word, "Of a claim: uid of the deleted RLHFJob that is followed."] = ""
    job_uid: Annotated[
        Word,
        Name("jobUID"),
        "Uid of the access Job that was made for it: no other's answer counts. Absent: none was made yet.",
    ] = ""

    @property
    def request_id(self) -> str:
        return f"{self.operation}-{self.step}-{self.serial}"

    def is_for(self, best: Best) -> bool:
        """Return whether it was asked for on account of that very eval."""
        return (self.attempt, self.step) == (best.attempt, best.step)


@dataclass(frozen=True, slots=True)
class FoundLayout:
    """The layout of the checkpoint folder, found because spec.checkpoints.layout is Auto."""

    name: Annotated[Word, "Which one."]
    by: Annotated[str, AtMost(256), "The file that only its trainer writes, from the location on."]


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner of the newest checkpoint's files, as whom access Jobs run where neither the pod template's
    securityContext nor spec.checkpoints.runAs names a user."""

    user: Annotated[int, Within(0, UID_MAX, "int64"), "Number of the user."]
    group: Annotated[int, Within(0, UID_MAX, "int64"), "Number of the group."]
    by: Annotated[str, AtMost(256), "The file or folder whose owner it is, from the location on."]


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim on the checkpoint folder for an attempt, made before it started.

    What lay in the folder is noted with it.
    """

    attempt: Annotated[Count, "Number of the attempt."]
    at: Annotated[Time, "When it was made, last failed, or was last found gone."]
    life: Annotated[Word, "The process for which it was done, if it began within the attempt."] = ""
    problem: Annotated[Message, "Why it could not be done; absent: it was."] = ""
    message: Annotated[Message, "If another RLHFJob has the folder: which, and where."] = ""
    tries: Annotated[Count, "How often it has failed."] = 0
    newest_step: Annotated[Step, "Highest step of a checkpoint that lay there and is not that process's."] = 0
    gone: Annotated[Count, "How often what it had written there was found gone, and written anew."] = 0


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """The stop rule's memory. States are nested tuples of JSON scalars."""

    name: Annotated[Word, "Name of the rule."]
    version: Annotated[Count, "Version of the rule: another one may judge otherwise."]
    params_hash: Annotated[Word, "Identifies rule, modifiers and all their parameters."]
    base: Annotated[tuple[object, ...], Form.PACKED]
    state: Annotated[
        tuple[object, ...],
        Form.PACKED,
        AtMost(RULE_STATE_MAX),
        "JSON: base (before the oldest eval kept here) and state (after the newest).",
    ]
    verdict: Annotated[Verdict | None, "What it said to the newest eval."] = None
    unjudged: Annotated[
        Count,
        "Oldest evals kept that it is not shown: of before a stop was called off. base is the state before "
        "the first after these.",
    ] = 0
    settled: Annotated[
        tuple[Step, ...],
        AtMost(EVALS_KEPT),
        "Steps of evals that count whatever the rule's memory says: they had been borne out before the run "
        "went back or the rule began anew.",
    ] = ()
    refuted: Annotated[
        tuple[Step, ...],
        AtMost(EVALS_KEPT),
        "The same of evals that count for nothing: others had shown that they are none.",
    ] = ()


@dataclass(frozen=True, slots=True)
class ShortBaselines:
    """Baselines in a row that ended before the rule had evals enough to speak, up to the present one.

    Another evaluator, or another unit of the scores, ended each of them.
    """

    count: Annotated[Count, "How many."] = 0
    longest: Annotated[Count, "Most evals that the rule saw in one of them."] = 0
    evaluator: Annotated[
        str, AtMost(128), "Version of the evaluator that scored the newest of them; absent: none was named."
    ] = ""
    highest: Annotated[
        ProtectedCheckpoint | None,
        "Of the highest score in any of them, whoever scored it; still kept from rotation.",
    ] = None


@dataclass(frozen=True, slots=True)
class EvalBaseline:
    """Since when the evals kept can be compared with each other (`controller.policy.job.comparability`).

    Evals up to (``life``, ``step``) were scored otherwise and count for nothing. Scores of different
    baselines are told apart by ``number``, and never by the clocks of two leaders.
    """

    since: Annotated[Time, "When that was."]
    life: Annotated[Word, "Attempt of the last eval that does not count."] = ""
    step: Annotated[int, Within(-1, None, "int64"), "Its step."] = -1
    kept: Annotated[ProtectedCheckpoint | None, "Stood for the best before; still kept from rotation."] = None
    number: Annotated[Count, "Baselines are counted; absent: it is the first."] = 0
    unit: Annotated[
        Word,
        "What of their former size scores seem to have since: Hundredth or Hundredfold; absent: the same.",
    ] = ""
    short: Annotated[
        ShortBaselines | None,
        "Those just before it that ended before the rule could speak; absent: the last one did not.",
    ] = None

    @property
    def pins(self) -> tuple[ProtectedCheckpoint, ...]:
        """Return what is still kept from rotation of the baselines before, `kept` first."""
        found = (self.kept, self.short.highest if self.short is not None else None)
        return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True)
class Guard:
    """A guardrail metric as last judged."""

    metric: Annotated[MetricName, "Name of the metric."]
    step: Annotated[Step, "Step of its newest eval."]
    attempt: Annotated[Attempt, "Attempt of that eval."]
    score: Annotated[float, "Its score, in the trainer's own orientation."]
    params_hash: Annotated[Word, "Identifies rule, modifiers and all their parameters."]
    state: Annotated[
        tuple[object, ...],
        Form.PACKED,
        AtMost(GUARD_STATE_MAX),
        "JSON: state (the rule's memory after that eval), noise (what its evals have shown of theirs, by "
        "which the pool learns what is usual) and apart (steps between the last ones, by which it ages).",
    ]
    verdict: Annotated[Verdict | None, "What the rule said to it."] = None
    noise: Annotated[tuple[object, ...], Form.PACKED] = ()
    apart: Annotated[tuple[object, ...], Form.PACKED] = ()


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """A score that contradicts the range declared for its metric, which is not used since then."""

    metric: Annotated[MetricName, "Name of the metric."]
    step: Annotated[Step, "Step of the eval."]
    score: Annotated[float, "Its score, in the trainer's own orientation."]
    low: Annotated[float, "Lowest score of the range."]
    high: Annotated[float, "Highest score of the range."]


@dataclass(frozen=True, slots=True)
class Confirming:
    """A fresh eval that is waited for: to confirm a stop, or to bear out an eval that the gate holds back."""

    step: Annotated[Step, "Step of the eval that asked for it."]
    at: Annotated[Time, "When that was seen."]
    request_id: Annotated[Count, "Request to the trainer; absent: it cannot be asked."] = 0


@dataclass(frozen=True, slots=True)
class PastGrades:
    """GPU-seconds of service after the rule asked for less, as of the newest eval."""

    warned: Annotated[float, "While it was warned of."] = 0.0
    demoted: Annotated[float, "While it was, or in Shadow would be, demoted."] = 0.0
    stopped: Annotated[float, "After it would have been stopped (Shadow)."] = 0.0
    counted: Annotated[float, "Service up to which this is counted."] = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A stop: by whom, on what evidence, and how far it has come."""

    by: Annotated[Word, "Name of the rule, or User."]
    mode: Annotated[Mode, "Enforce, or Shadow: only recorded."]
    proposal: Annotated[Proposal, Form.INLINE]
    message: Annotated[Message, "Why, for people."]
    at: Annotated[Time, "When it was decided."]
    retained_at: Annotated[Time | None, "When the best was out of the trainer's reach."] = None
    suspended_at: Annotated[Time | None, "When the workload was suspended."] = None
    pods_gone_at: Annotated[Time | None, "When its pods were gone or terminal."] = None
    handed_to: Annotated[
        JobKey | None, "Who got the GPUs: namespace/name, or uid: and the uid of a job elsewhere."
    ] = None
    handed_at: Annotated[Time | None, "When that job was admitted to them."] = None
    deferred_at: Annotated[
        Time | None,
        "Since when the copy of the best checkpoint may follow the suspend: its pin was found unchanged "
        "(spec.checkpoints.retain), or a user's stop waits no longer. Absent: it comes before.",
    ] = None
    asked_at: Annotated[Time | None, "When the trainer was asked to save where it is, for a user's stop."] = (
        None
    )

    @property
    def held_nothing(self) -> bool:
        """Return whether it held no GPUs when it was stopped: nothing was suspended, and none came free."""
        return self.at == self.suspended_at == self.pods_gone_at

    @property
    def settled_at(self) -> float | None:
        """Return when (s) all that the suspend waits for was secured, or given up for now; None: not yet."""
        return max((t for t in (self.retained_at, self.deferred_at) if t is not None), default=None)

    def overtaken_by(self, pin: ProtectedCheckpoint | None) -> bool:
        """Return whether a checkpoint was pinned since: that of a best which came after the decision."""
        return pin is not None and pin.at > self.at


class Outcome(StrEnum):
    """Verdict on a stop, by the evals since (`job.outcome`)."""

    OPEN = "Open"
    BORNE_OUT = "BorneOut"
    REFUTED = "Refuted"


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """A run's course after its rule stopped it, or after Shadow would have."""

    decided: Annotated[Time, Name("decidedTime"), "When that was decided."]
    mode: Annotated[Mode, "Enforce: it was stopped. Shadow: it would have been."]
    step: Annotated[Step, "Step of the eval that asked for it."]
    best: Annotated[Best, "The best eval then."]
    attempt: Annotated[Attempt, "Attempt and life of the eval that asked for it."] = UNKNOWN
    best_stderr: Annotated[float | None, "Standard error of the best eval; absent: not reported."] = None
    baseline: Annotated[Count, "Number of the baseline to which those evals belong."] = 0
    verdict: Annotated[
        Outcome,
        "Refuted: an eval since then beats the best by more than noise explains. BorneOut: 8 evals, or the "
        "run's own end, and none does. Absent: Open, neither yet.",
    ] = Outcome.OPEN
    evals: Annotated[Count, "Evals since then."] = 0
    later: Annotated[Best | None, "The best of them."] = None
    later_stderr: Annotated[float | None, "Its standard error; absent: not reported."] = None
    seen_step: Annotated[Step, "Step of the newest of them."] = 0
    seen_attempt: Annotated[Attempt | None, "Attempt and life of the newest of them."] = None
    former: Annotated[
        str, AtMost(256), "The evals' last word on the stop before, in a sentence; absent: none."
    ] = ""


@dataclass(frozen=True, slots=True)
class Sparing:
    """A run was resumed with the wish that no rule stops it for some evals."""

    evals: Annotated[Count, "For how many."]
    after: Annotated[Count, "Number of the last attempt before the resume: evals of later ones count."]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A stop that was withdrawn before the suspend.

    It stays on record until the next one: the pool finds by it what it had counted and promised.
    """

    decided: Annotated[Time, Name("decidedTime"), "When it had been decided."]
    at: Annotated[Time, "When it was taken back."]
    reason: Annotated[Word, "Why, as a CamelCase code."]


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """GPUs were granted."""

    number: Annotated[Count, "The attempt that this admission starts."]
    nodes: Annotated[Nodes, AtMost(1024), "Planned node of each pod."]
    at: Annotated[Time, "When."]
    source: Annotated[
        JobKey | None, "Whose GPUs they were: namespace/name, or uid: and the uid of a job elsewhere."
    ] = None
    running_since: Annotated[Time | None, "Since when all pods have been running."] = None
    unbound_since: Annotated[Time | None, "Since when some pod has had no node; absent: each has one."] = None
    withdrawn: Annotated[
        Time | None, "When it was taken back because not every pod found a node in time."
    ] = None
    avoid: Annotated[Nodes, AtMost(64), "Then: planned nodes that no pod was bound to, newest first."] = ()
    offer: Annotated[Offer, "The quota of a queue outside that it rests on."] = ""
    ended: Annotated[
        tuple[Count, ...], AtMost(1024), "Members that ended well: their nodes are kept for nobody."
    ] = ()
    bound_nodes: Annotated[
        Nodes,
        AtMost(1024),
        "Node of each pod that is bound. A scheduler that does not ask EvalStop binds pods off the plan.",
    ] = ()


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """Quota that an external queue offered and that was refused; the queue is still to be told of it."""

    offer: Annotated[Offer, "Identifies that quota."]
    reason: Annotated[Word, "Why, as a CamelCase code."]
    message: Annotated[Message, "Why, for people."]
    at: Annotated[Time, "When that was decided."]
    final: Annotated[bool, "Not before the pool changes."] = False


@dataclass(frozen=True, slots=True)
class Unread:
    """The reason for which a trainer's page had no eval when it was last looked at, or could not be read."""

    reason: Annotated[Word, "Why, as a CamelCase code."]
    message: Annotated[Message, "Why, for people."]


@dataclass(frozen=True, slots=True)
class GangBackoff:
    """A gang was admitted, but not every pod found a node in time."""

    failures: Annotated[Count, "How often in a row."]
    until: Annotated[Time, "When it may be admitted again."]
    avoid: Annotated[
        Nodes,
        AtMost(64),
        "Planned nodes that no pod was bound to, newest first: used last from now on.",
    ] = ()


@dataclass(frozen=True, slots=True)
class Preempting:
    """A preemption in progress, and what is known of the work done so far.

    A checkpoint later than ``checkpoint_step`` makes the suspension free.
    """

    reason: Annotated[Word, "Why, as a CamelCase code."]
    at: Annotated[Time, "When it was decided."]
    checkpoint_step: Annotated[
        Step | None, "Newest checkpoint when it was first looked at; the next one is waited for."
    ] = None
    request: Annotated[Count, "Request to the trainer for one more checkpoint; absent: none was made."] = 0
    lost: Annotated[
        float | None,
        Name("lostGPUSeconds"),
        "GPU-seconds of work since the last checkpoint, which the suspension costs; absent: not suspended "
        "yet.",
    ] = None
    evicted: Annotated[Word, "Why a queue outside put it out, in its own code; absent: its pool did."] = ""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The run's progress when it was last noted; kept coarse, so that steps alone cause few writes.

    Steps are what the trainer says; how fast they go by is measured from the first ones noted, by the
    operator's clock.
    """

    step: Annotated[Step, "The step it was at."]
    total_steps: Annotated[Step, "Of how many."]
    worked: Annotated[
        float, Name("workedGPUSeconds"), "GPU-seconds of service until then, without those lost."
    ]
    first_step: Annotated[
        Step, "The step it was at when it was first noted: its pace is measured from there."
    ] = 0
    first_worked: Annotated[float, Name("firstWorkedGPUSeconds"), "GPU-seconds of service until then."] = 0.0

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.step / self.total_steps)


@dataclass(frozen=True, slots=True)
class Expected:
    """The shortest running time that a run was ever expected to take; its place in a queue rests on it.

    One that takes half as long again has lost its place.
    """

    stated: Annotated[float | None, "Seconds, by spec.expectedDurationSeconds since it first ran."] = None
    paced: Annotated[float | None, "Seconds, by the pace of its steps as it was measured."] = None


@dataclass(frozen=True, slots=True)
class EvalsDue:
    """The next usable eval is waited for."""

    since: Annotated[Time, "Since the last one, or since a new process showed the metric."]
    interval: Annotated[float | None, "Seconds that one usually takes; absent: not known yet."] = None


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Steps of evals and of checkpoints side by side (`job.step_counts`), while these are not the same."""

    attempt: Annotated[Attempt, "Attempt and life of the trainer that told them."]
    first_saved: Annotated[
        Step | None, "First checkpoint that its page named, before any eval; absent: it may have had others."
    ] = None
    readings: Annotated[
        tuple[Annotated[int, Within(-1, STEP_MAX, "int64")], ...],
        AtMost(15),
        "Three of each new eval: its step, the trainer's own (-1: not told), that of the newest checkpoint. "
        "Its first, and its newest four.",
    ] = ()
    disagree: Annotated[bool, Form.FLAG, "Whether they are certain not to be counted alike."] = False


@dataclass(frozen=True, slots=True)
class EvalCurve:
    """The whole curve in buckets of equal step width, for people (`job.curve`). Nothing is judged by it."""

    width: Annotated[
        int, Within(1, STEP_MAX, "int64"), "Steps of a bucket: bucket n begins at step n * width."
    ]
    step: Annotated[Step, "Step of the newest eval in it."]
    attempt: Annotated[Attempt, "Attempt and life of that eval."]
    baseline: Annotated[Count, "Number of the baseline it belongs to; absent: the first."] = 0
    buckets: Annotated[
        tuple[Annotated[str, AtMost(96)], ...],
        AtMost(CURVE_BUCKETS),
        "Those with evals, in the order in which they were read, each as: its number n, newest, lowest and "
        "highest score, largest statistic in percent of its threshold, newest proxy, newest KL divergence. "
        "- is unknown, or for lowest and highest: as the newest. After anew the run had gone back to an "
        "earlier step.",
    ] = ()
    marks: Annotated[
        tuple[Annotated[str, AtMost(48)], ...],
        AtMost(CURVE_MARKS),
        "Its stops and resumes, oldest first: what happened, at which step, and the number of the attempt.",
    ] = ()


@dataclass(frozen=True, slots=True)
class RunFile:
    """Content of ConfigMap ``<name>-run``."""

    attempt: Annotated[Count, "Number of the attempt."] = 0
    resume_path: Annotated[Path, "Checkpoint to resume from."] = ""
    resume_step: Annotated[Step | None, "Its step."] = None
    request_id: Annotated[Count, "Number of the newest request."] = 0
    evaluate: Annotated[bool, "It asks for an eval."] = False
    checkpoint: Annotated[bool, "It asks for a checkpoint."] = False
    stop: Annotated[bool, "It asks the trainer to end."] = False
    reference_step: Annotated[
        Step | None, "Step to score beside each eval, on that eval's fresh prompts."
    ] = None
    uid: Annotated[Word, "uid of the RLHFJob."] = ""
    scrape_interval: Annotated[
        float,
        "Seconds between two reads of the trainer's metrics; absent: 15. So long a trainer that has ended "
        "stays for its last eval to be read.",
    ] = 15.0
    minimize: Annotated[
        tuple[MetricName, ...], AtMost(1 + GUARDS_MAX), "Judged metrics of which lower scores are better."
    ] = ()
    best_metric: Annotated[MetricName, "Metric of best_step."] = ""
    best_step: Annotated[
        Step | None,
        "Step of the best eval, where it is another than the one with the best score: the trainer keeps "
        "what each prompt scored in it.",
    ] = None


@dataclass(frozen=True, slots=True)
class ResidencyRecord:
    """A residency, from its admission until worker and state are gone. Its figures are as of the newest
    eval."""

    group: Annotated[Word, "Worker group; absent: none any more."]
    number: Annotated[Count, "Number of the admission that it came with."]
    since: Annotated[Time, "When it was given."]
    joined: Annotated[bool, "The group has taken the job in."] = False
    leaving: Annotated[bool, "The job has left its pods: the group is told to end the residency."] = False
    not_in: Annotated[
        tuple[Word, ...], AtMost(8), "Groups that it had to leave because somebody there was too slow."
    ] = ()
    charged: Annotated[float, Name("chargedGPUSeconds"), "GPU-seconds of the group that it was charged."] = (
        0.0
    )
    slowdown: Annotated[
        float | None, "Its steps take so many times as long as alone; absent: not measured."
    ] = None
    took: Annotated[float, "Microseconds of its newest steps, a faded sum."] = 0.0
    alone: Annotated[float, "What they would have taken alone."] = 0.0
    above: Annotated[Count, "Steps in a row after which it was slower than it allows."] = 0
    profiled: Annotated[bool, "Enough steps of its kind were measured alone."] = False
    unanswered: Annotated[
        Time | None,
        "Since when the group, which is to end the residency, has not answered; absent: it answers, or need "
        "not.",
    ] = None
    lost_since: Annotated[
        Time | None, "Since when the group has lost each turn of the job; absent: it does not."
    ] = None
    lost_why: Annotated[Message, "How it lost one of them."] = ""
    trouble: Annotated[
        PodTrouble | None,
        "How a pod of the group ended, or what it waits for, before the group is ready; of a group that had "
        "not taken the job in it stays while the job waits for another one.",
    ] = None
    waits_since: Annotated[
        Time | None,
        "Since when the group cannot start, or is not ready that had taken the job in; absent: it is ready, "
        "or has not been yet.",
    ] = None
    waits_why: Annotated[Message, "Why it cannot start; empty: it starts."] = ""

    @property
    def kind_measured(self) -> bool | None:
        """Return whether enough steps of its kind were measured alone; None: not known, as no eval of this
        residency has brought its figures."""
        return self.profiled or (False if self.charged > 0.0 else None)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job's durable memory."""

    conditions: Annotated[ConditionList, "Aspects of the job's state."] = ()
    attempt: Annotated[Count, "How often it was started."] = 0
    evals: Annotated[
        tuple[EvalPoint, ...],
        AtMost(EVALS_KEPT),
        f"The last {EVALS_KEPT} evals of the Primary metric, newest last, each as: step, score, "
        "standard error, samples, attempt. The last two stand only where they change; - is unknown. "
        "proxy=… and paired=mean/variance/step/prompts follow where the trainer reports them; "
        "of paired, the last two where they change. prompts=… stands where it changes; pairs=step/mean/"
        "variance,… are its differences to earlier evals on the same prompts.",
    ] = ()
    eval_times: Annotated[
        tuple[Annotated[int, Within(0, None, "int64")], ...],
        AtMost(READINGS_KEPT),
        "When the newest of them were first read, newest last, in seconds since 1970.",
    ] = ()
    curve: Annotated[
        EvalCurve | None, "All evals in at most 64 buckets, for people; absent: none was read."
    ] = None
    evals_due: Annotated[
        EvalsDue | None,
        "Since when the next usable eval is waited for; absent: no page has shown the metric yet.",
    ] = None
    step_counts: Annotated[
        StepCounts | None,
        "Steps of evals and of checkpoints, as they were read together; absent: they are the same.",
    ] = None
    delayed_at: Annotated[
        Time | None,
        "When its stop first waited for what other namespaces' runs show, which it does once.",
    ] = None
    evaluator: Annotated[
        str,
        AtMost(128),
        "Version of the evaluator that scored the newest eval; absent: the trainer names none.",
    ] = ""
    baseline: Annotated[
        EvalBaseline | None, "Since when the evals can be compared; absent: all of them can."
    ] = None
    evals_seen: Annotated[Count, "Evals the rule has seen."] = 0
    out_of_range: Annotated[
        tuple[OutOfRange, ...], AtMost(1 + GUARDS_MAX), "The first score outside of a declared range."
    ] = ()
    earlier_sum: Annotated[
        float | None,
        "Sum of the scores of those of them that are no longer kept; absent: all are, or it is not known.",
    ] = None
    abandoned_step: Annotated[
        Step, "Highest step of an eval, or of a checkpoint, that the run is known to have gone back before."
    ] = 0
    evals_missed: Annotated[Count, "Evals that were gone before they were read."] = 0
    evals_in_attempt: Annotated[Count, "Evals that the trainer's newest process counted when last read."] = 0
    best: Annotated[Best | None, "The best eval."] = None
    beside: Annotated[
        ProtectedCheckpoint | None,
        "Checkpoint of the eval in awaiting, pinned beside that of the best.",
    ] = None
    awaiting: Annotated[
        Best | None,
        "Pinned beside the best: an eval above it that waits for the next ones to bear it out, or, where the "
        "best itself may yet be found to be none, the best of the others.",
    ] = None
    rule: Annotated[RuleRecord | None, "The stop rule's memory."] = None
    guards: Annotated[
        tuple[Guard, ...], AtMost(GUARDS_MAX), Name("guardrails"), "The guardrail metrics as last judged."
    ] = ()
    confirming: Annotated[Confirming | None, "A fresh eval that is waited for."] = None
    past_grades: Annotated[
        PastGrades | None,
        "GPU-seconds of service after the rule asked to warn of, demote or stop the run: what acting on it "
        "would have saved at most.",
    ] = None
    access: Annotated[InFlight | None, "Request to the checkpoint store under way."] = None
    access_serial: Annotated[Count, "Number of the newest access Job."] = 0
    secured: Annotated[
        ProtectedCheckpoint | None,
        "Kept from rotation by a clone or link (object store: a copy) while the run goes on.",
    ] = None
    retained: Annotated[
        tuple[ProtectedCheckpoint, ...],
        AtMost(4),
        "Copied out of the trainer's reach and verified, newest last.",
    ] = ()
    retained_gone: Annotated[
        tuple[Path, ...],
        AtMost(4),
        "Paths of those among them that a resume found gone or changed.",
    ] = ()
    pinned: Annotated[
        tuple[ProtectedCheckpoint, ...],
        AtMost(PINS_MAX),
        "Kept from rotation because spec.checkpoints.pins names their steps.",
    ] = ()
    to_release: Annotated[
        Paths, "Paths of pins that nothing wants any more and that go with the next one made."
    ] = ()
    lives: Annotated[
        tuple[LifeRecord, ...],
        AtMost(LIVES_KEPT),
        "The trainer's processes whose pages were read, in that order, newest last.",
    ] = ()
    claim: Annotated[Claim | None, "For which attempt the checkpoint folder is taken."] = None
    layout: Annotated[
        FoundLayout | None,
        "Whose habits the folder follows, where spec.checkpoints.layout is Auto; absent: not found yet.",
    ] = None
    file_owner: Annotated[
        FileOwner | None,
        "As whom access Jobs run where the spec does not say it; absent: it does, or no checkpoint was seen.",
    ] = None
    empty_at: Annotated[
        Word,
        "Attempt and life before which nothing lay in the checkpoint folder, where it is not known yet as "
        "whom to write that into it.",
    ] = ""
    lost_bests: Annotated[
        tuple[Best, ...], AtMost(LOST_MAX), "Evals whose checkpoint is gone, newest last."
    ] = ()
    lost_tried: Annotated[Time | None, "When the best of them was last looked for again."] = None
    changed_bests: Annotated[
        tuple[Best, ...],
        AtMost(LOST_MAX),
        "Those of lostBests whose checkpoint was changed once it was pinned; it is not looked for again.",
    ] = ()
    restored: Annotated[ProtectedCheckpoint | None, "What the next start resumes from."] = None
    goes_on: Annotated[
        GoesOn | None,
        "From which of its own checkpoints it is to go on; absent: it was not put out, or none is known.",
    ] = None
    decision: Annotated[Decision | None, "The newest decision to stop."] = None
    admission: Annotated[AdmissionRecord | None, "GPUs as granted."] = None
    preempting: Annotated[
        Preempting | None, "Why it is on its way back into the queue, and how far that is."
    ] = None
    preemptions: Annotated[Count, "How often its pool preempted it."] = 0
    evictions: Annotated[Count, "How often a queue outside put it out."] = 0
    refusal: Annotated[
        RefusalRecord | None, "Quota that was offered and not taken; absent: none is outstanding."
    ] = None
    queued_at: Annotated[
        Time | None, "When it last came back into the queue; absent: when it was created."
    ] = None
    queue_policy_state: Annotated[
        tuple[Annotated[int, Within(None, None, "int64")], ...],
        AtMost(8),
        "What the pool's queue policy asked to remember of it.",
    ] = ()
    progress: Annotated[RunProgress | None, "How far the run had come."] = None
    expected: Annotated[Expected | None, "How long the run was to take as a whole."] = None
    loss_trend: Annotated[
        LossTrend | None,
        "Training loss, GPU-seconds of service at that report, the last two falls of the loss per "
        "GPU-second, and the largest one.",
    ] = None
    gang_backoff: Annotated[
        GangBackoff | None,
        "Why it is not admitted again at once; absent: the last admission was bound whole.",
    ] = None
    run: Annotated[RunFile, "What the trainer is told."] = RunFile()
    resume_id: Annotated[Word, "Newest resume request carried out."] = ""
    attained: Annotated[float, Name("attainedGPUSeconds"), "GPU-seconds of finished service."] = 0.0
    lost: Annotated[
        float,
        Name("lostGPUSeconds"),
        "GPU-seconds of that service that preemptions cost: work since the last checkpoint.",
    ] = 0.0
    taken_back: Annotated[TakenBack | None, "The newest stop that was taken back before the suspend."] = None
    sparing: Annotated[
        Sparing | None, "It was resumed with spec.resume.forEvals: so long no rule stops it."
    ] = None
    outcome: Annotated[
        StopOutcome | None, "Whether its rule's newest stop was right, by the evals since."
    ] = None
    finished: Annotated[Word | None, "Complete or Failed, once the workload has ended."] = None
    pod_trouble: Annotated[
        PodTrouble | None, "Why a pod of it does not run, or how the last one ended; absent: all is well."
    ] = None
    crashes_over: Annotated[
        Time | None,
        "Ends of its pods' containers up to then are over: an eval was read since, or all of its pods were "
        "ready for long. Pods that failed stay listed; absent: none was over yet.",
    ] = None
    unread: Annotated[
        Unread | None,
        "Why none of its evals was read while a pod was there to read, told again of a run that completed "
        "without one; absent: some were, or none of its pages was asked for yet.",
    ] = None
    blind_since: Annotated[
        Time | None, "Since when its rule has lacked what it judges by; absent: it has it."
    ] = None
    first_eval: Annotated[
        float, Name("firstEvalSeconds"), "Seconds that evals may be away unwarned; absent: 1800."
    ] = FIRST_EVAL
    actors: Annotated[
        tuple[Actor, ...],
        AtMost(ACTORS_MAX),
        "Its rollout actors, oldest first, each from before its Job is made until its pod is gone.",
    ] = ()
    actor_starts: Annotated[Count, "How many actors were ever started: number of the next one."] = 0
    rollout: Annotated[
        RolloutRecord | None, "Its rollout steps; absent: it has no actors, or none has been yet."
    ] = None
    residency: Annotated[ResidencyRecord | None, "Its residency in a worker group; absent: it has none."] = (
        None
    )
    charged: Annotated[
        float,
        Name("chargedGPUSeconds"),
        "GPU-seconds of worker groups that earlier residencies were charged.",
    ] = 0.0

    @property
    def baseline_number(self) -> int:
        """Of the baseline to which the evals kept belong."""
        return self.baseline.number if self.baseline is not None else 0

    @property
    def best_is_alone(self) -> bool:
        """Return whether the best was compared with no other eval: all before it were scored otherwise."""
        cut = self.baseline is not None and self.baseline.step >= 0
        return cut and self.evals_seen == 1 and self.best is not None

    @property
    def best_is_lost(self) -> bool:
        """Return whether the best eval's checkpoint is lost, and no pin or copy of it was made before."""
        return self.best is not None and self.best in self.lost_bests and not self.keeps(self.best)

    def keeps(self, one: Best) -> bool:
        """Return whether a pin or a copy stands for this eval."""
        return any(k is not None and k.stands_for(one) for k in (self.secured, self.beside, *self.retained))

    @property
    def spared(self) -> int | None:
        """Evals for which no rule stops the run, as it was resumed; 0: the newest is the last of them; None:
        they are over, or nobody wished it."""
        if self.sparing is None:
            return None
        seen = sum(1 for p in self.evals if p.attempt.number > self.sparing.after)
        return self.sparing.evals - seen if seen <= self.sparing.evals else None

    def layout_of(self, named: str) -> str:
        """Return the layout of the checkpoint folder; "": not known.

        Args:
            named: by spec.checkpoints.layout; "" or Auto: it is the one that was found.
        """
        if named not in ("", AUTO_LAYOUT):
            return named
        return self.layout.name if self.layout is not None else ""

    def condition(self, type_: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type_), None)
