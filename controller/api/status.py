"""Status of an RLHFJob: the operator's durable memory of it, and what people look at.

Written by the operator only, through the status subresource, by `controller.api.record`. Numbers that are
not whole are decimal strings that read back as the very same double. Lists are atomic: one writer.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from controller.api import markers
from controller.api.base import Count, JobKeyText, NumberText, Status, Step, Timestamp, Word
from controller.api.storage import PINS_MAX
from controller.names import EVALS_KEPT
from controller.policy.job import READINGS_KEPT

RULE_STATE_MAX = 2400  # characters of JSON: a rule's memory twice, under all modifiers that there are
GUARD_STATE_MAX = 1200
GUARDS_MAX = 3
TO_RELEASE_MAX = 8  # what is beyond stays on the trainer's volume
LIVES_MAX = 8
LOST_MAX = 34  # the best, each eval that is kept, and one that waits
LAYOUT_BY_MAX = 256
MESSAGE_MAX = 512

EPOCH = (
    "Term of office of the operator that wrote this last; it only grows. The API server refuses what a "
    "leader of an earlier term still writes."
)


def _text(most: int, description: str) -> Any:
    return Field(default=None, max_length=most, description=description)


class ConditionStatus(Status):
    """One aspect of the job's state, as in every Kubernetes API."""

    type: Word = Field(description="Name of the aspect.")
    status: Annotated[str, Field(max_length=7, json_schema_extra={"enum": ["True", "False", "Unknown"]})] = (
        Field(description="Whether it holds.")
    )
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec it was found for."
    )
    last_transition_time: Timestamp = Field(description="When status last changed.")
    reason: Word = Field(description="Why, as a CamelCase code.")
    message: Annotated[str, Field(max_length=MESSAGE_MAX)] = Field(description="Why, for people.")


CONDITIONS = Annotated[
    tuple[ConditionStatus, ...], Field(max_length=16, json_schema_extra=markers.list_map("type"))
]


class Best(Status):
    """The best eval so far."""

    step: Step = Field(description="Its step.")
    score: NumberText = Field(description="Its score.")
    attempt: Word | None = Field(default=None, description="Attempt and life of the trainer that made it.")


class Verdict(Status):
    """What the rule said to the newest eval."""

    verb: Word = Field(description="Continue, Confirm or Stop.")
    reason: Word = Field(description="Why, as a CamelCase code.")
    statistic: NumberText | None = Field(default=None, description="What was compared; absent: not a number.")
    threshold: NumberText | None = Field(default=None, description="With what; absent: not a number.")
    e_value: NumberText | None = Field(
        default=None, description="Evidence that the run is past its best, of rules that yield an e-value."
    )
    when_contended: bool | None = Field(
        default=None, description="Only to be let through while somebody waits for GPUs."
    )
    grade: Word | None = Field(
        default=None, description="What it asks for short of a stop: Warned or Demoted."
    )


class Rule(Status):
    """The stop rule's memory."""

    name: Word = Field(description="Name of the rule.")
    version: Count = Field(description="Version of the rule: another one may judge otherwise.")
    params_hash: Word = Field(description="Identifies rule, modifiers and all their parameters.")
    state: Annotated[str, Field(max_length=RULE_STATE_MAX)] = Field(
        description="JSON: base (before the oldest eval kept here) and state (after the newest)."
    )
    verdict: Verdict | None = Field(default=None, description="What it said to the newest eval.")
    unjudged: Count | None = Field(
        default=None, description="Oldest evals kept that it is not shown: of before a stop was called off."
    )


class Guardrail(Status):
    """A guardrail metric as last judged."""

    metric: Annotated[str, Field(max_length=200)] = Field(description="Name of the metric.")
    step: Step = Field(description="Step of its newest eval.")
    attempt: Word = Field(description="Attempt of that eval.")
    score: NumberText = Field(description="Its score.")
    params_hash: Word = Field(description="Identifies rule, modifiers and all their parameters.")
    state: Annotated[str, Field(max_length=GUARD_STATE_MAX)] = Field(
        description="JSON: the rule's memory after that eval."
    )
    verdict: Verdict | None = Field(default=None, description="What the rule said to it.")


class Confirming(Status):
    """A stop that waits for a fresh eval."""

    step: Step = Field(description="Step of the eval that asked for it.")
    time: Timestamp = Field(description="When that was seen.")
    request_id: Count | None = Field(
        default=None, description="Request to the trainer; absent: it cannot be asked."
    )


class PastGrades(Status):
    """GPU-seconds of service after the rule asked for less, as of the newest eval."""

    warned: NumberText | None = Field(default=None, description="While it was warned of.")
    demoted: NumberText | None = Field(
        default=None, description="While it was, or in Shadow would be, demoted."
    )
    stopped: NumberText | None = Field(default=None, description="After it would have been stopped (Shadow).")
    counted: NumberText | None = Field(default=None, description="Service up to which this is counted.")


class Checkpoint(Status):
    """A checkpoint that is pinned or retained."""

    best_step: Step = Field(description="Step of the best eval it stands for.")
    attempt: Word | None = Field(
        default=None, description="Attempt and life of the trainer that made that eval."
    )
    step: Step = Field(description="Its own step.")
    score: NumberText | None = Field(
        default=None, description="Score of the best eval it stands for; absent: not known."
    )
    path: Annotated[str, Field(max_length=1024)] = Field(
        description="Where it is: a relative one lies in the status's pinsFolder."
    )
    digest: Annotated[str, Field(max_length=80)] = Field(description="Digest of names, sizes and contents.")
    bytes: int | None = Field(default=None, json_schema_extra=markers.INT64, description="Its size.")
    time: Timestamp = Field(description="When it was verified.")
    baseline: Count | None = Field(
        default=None, description="Number of the eval baseline that score belongs to; absent: the first."
    )
    evidence: Word | None = Field(
        default=None,
        description="By what it is known to be whole: SaveRecord, Manifest or Siblings.",
    )


class EvalBaseline(Status):
    """Since when the evals can be compared: before, the evaluator was another, or the whole pool fell."""

    since: Timestamp = Field(description="When that was.")
    life: Word | None = Field(default=None, description="Attempt of the last eval that does not count.")
    step: Annotated[int, Field(ge=-1, json_schema_extra=markers.INT64)] | None = Field(
        default=None, description="Its step."
    )
    kept: Checkpoint | None = Field(
        default=None, description="Stood for the best before; still kept from rotation."
    )
    number: Count | None = Field(default=None, description="Baselines are counted; absent: it is the first.")


PATHS = Annotated[
    tuple[Annotated[str, Field(max_length=1024)], ...],
    Field(max_length=TO_RELEASE_MAX, json_schema_extra=markers.ATOMIC),
]


class Life(Status):
    """A process of the trainer whose page was read."""

    attempt: Word = Field(description="Attempt and life, as its page says.")
    pod: Annotated[str, Field(max_length=64)] = Field(description="uid of its pod.")
    pod_created: Timestamp = Field(description="When that pod was made.")
    resumed: Step | None = Field(
        default=None, description="Step it started from, 0: afresh; absent: it has not said so."
    )
    time: Timestamp = Field(description="When it was first seen.")


class FoundLayout(Status):
    """The layout of the checkpoint folder, found because spec.checkpoints.layout is Auto."""

    name: Word = Field(description="Which one.")
    by: Annotated[str, Field(max_length=LAYOUT_BY_MAX)] = Field(
        description="The file that only its trainer writes, from the location on."
    )


class Claim(Status):
    """The checkpoint folder was taken for an attempt, and what lay there was noted."""

    attempt: Count = Field(description="Number of the attempt.")
    time: Timestamp = Field(description="When.")
    life: Word | None = Field(
        default=None, description="The process for which it was done, if it began within the attempt."
    )
    problem: Annotated[str, Field(max_length=MESSAGE_MAX)] | None = Field(
        default=None, description="Why it could not be done; absent: it was."
    )
    message: Annotated[str, Field(max_length=MESSAGE_MAX)] | None = Field(
        default=None, description="If another RLHFJob has the folder: which, and where."
    )
    tries: Count | None = Field(default=None, description="How often it has failed.")


class Access(Status):
    """A request to the checkpoint store that is under way."""

    operation: Word = Field(description="claim, secure, pin, check, retain or restore.")
    step: Step = Field(description="Step it is about; of a claim: number of the attempt.")
    attempt: Word | None = Field(default=None, description="Attempt and life of the trainer it is about.")
    score: NumberText | None = Field(default=None, description="Score of the eval it is about.")
    baseline: Count | None = Field(
        default=None, description="Number of the eval baseline that score belongs to; absent: the first."
    )
    started: Timestamp | None = Field(default=None, description="When its Job was first asked for.")
    former: Word | None = Field(
        default=None, description="Of a claim: uid of the deleted RLHFJob that is followed."
    )
    serial: Count | None = Field(default=None, description="Number of the access Job.")
    job_uid: Word | None = Field(
        default=None,
        alias="jobUID",
        description="Uid of the access Job that was made for it: no other's answer counts.",
    )
    tries: Count | None = Field(default=None, description="How often it was tried and failed.")
    not_before: Timestamp | None = Field(default=None, description="When it is tried next.")
    release: PATHS = Field(
        default=(), description="Paths of pins that are no longer wanted and go once it has succeeded."
    )


class Decision(Status):
    """A stop: by whom, on what evidence, and how far it has come."""

    by: Word = Field(description="Name of the rule, or User.")
    mode: Word = Field(description="Enforce, or Shadow: only recorded.")
    reason: Word = Field(description="Why, as a CamelCase code.")
    message: Annotated[str, Field(max_length=MESSAGE_MAX)] = Field(description="Why, for people.")
    step: Step = Field(description="Step of the eval that asked for it.")
    best_step: Step = Field(description="Step of the best eval at that time.")
    metric: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="The guardrail that failed; absent: the Primary metric."
    )
    statistic: NumberText | None = Field(default=None, description="What was compared; absent: not a number.")
    threshold: NumberText | None = Field(default=None, description="With what; absent: not a number.")
    e_value: NumberText | None = Field(
        default=None, description="Evidence that the run is past its best, of rules that yield an e-value."
    )
    when_contended: bool | None = Field(
        default=None, description="Only to be let through while somebody waits for GPUs."
    )
    time: Timestamp = Field(description="When it was decided.")
    retained_time: Timestamp | None = Field(
        default=None, description="When the best was out of the trainer's reach."
    )
    suspended_time: Timestamp | None = Field(default=None, description="When the workload was suspended.")
    pods_gone_time: Timestamp | None = Field(default=None, description="When its pods were gone or terminal.")
    handed_to: JobKeyText | None = Field(
        default=None,
        description="Who got the GPUs: namespace/name, or uid: and the uid of a job elsewhere.",
    )
    handed_time: Timestamp | None = Field(default=None, description="When that job was admitted to them.")
    deferred_time: Timestamp | None = Field(
        default=None,
        description="Since when the copy of the best checkpoint may follow the suspend: its pin was found "
        "unchanged (spec.checkpoints.retain), or a user's stop waits no longer.",
    )
    asked_time: Timestamp | None = Field(
        default=None, description="When the trainer was asked to save where it is, for a user's stop."
    )


class TakenBack(Status):
    """A stop that was taken back before the suspend."""

    decided_time: Timestamp = Field(description="When it had been decided.")
    time: Timestamp = Field(description="When it was taken back.")
    reason: Word = Field(description="Why, as a CamelCase code.")


AVOID = Annotated[
    tuple[Annotated[str, Field(max_length=253)], ...],
    Field(max_length=64, json_schema_extra=markers.ATOMIC),
]


class Admission(Status):
    """GPUs were granted."""

    number: Count = Field(description="The attempt that this admission starts.")
    nodes: Annotated[
        tuple[Annotated[str, Field(max_length=253)], ...],
        Field(max_length=1024, json_schema_extra=markers.ATOMIC),
    ] = Field(description="Planned node of each pod.")
    time: Timestamp = Field(description="When.")
    source: JobKeyText | None = Field(
        default=None,
        description="Whose GPUs they were: namespace/name, or uid: and the uid of a job elsewhere.",
    )
    running_since: Timestamp | None = Field(
        default=None, description="Since when all pods have been running."
    )
    unbound_since: Timestamp | None = Field(
        default=None, description="Since when some pod has had no node; absent: each has one."
    )
    withdrawn: Timestamp | None = Field(
        default=None, description="When it was taken back because not every pod found a node in time."
    )
    avoid: AVOID = Field(
        default=(), description="Then: planned nodes that no pod was bound to, newest first."
    )
    offer: str | None = _text(128, "The quota of a queue outside that it rests on.")
    ended: Annotated[tuple[Count, ...], Field(max_length=1024, json_schema_extra=markers.ATOMIC)] = Field(
        default=(), description="Members that ended well: their nodes are kept for nobody."
    )


class Refusal(Status):
    """Quota that a queue outside offered and that its pool has no nodes for."""

    offer: Annotated[str, Field(max_length=128)] = Field(description="Identifies that quota.")
    reason: Word = Field(description="Why, as a CamelCase code.")
    message: Annotated[str, Field(max_length=MESSAGE_MAX)] = Field(description="Why, for people.")
    time: Timestamp = Field(description="When that was decided.")
    final: bool | None = Field(default=None, description="Not before the pool changes.")


class Preempting(Status):
    """On the way back into the queue."""

    reason: Word = Field(description="Why, as a CamelCase code.")
    time: Timestamp = Field(description="When it was decided.")
    checkpoint_step: Step | None = Field(
        default=None, description="Newest checkpoint when it was first looked at; the next one is waited for."
    )
    request: Count | None = Field(default=None, description="Request to the trainer for one more checkpoint.")
    lost_gpu_seconds: NumberText | None = Field(
        default=None,
        alias="lostGPUSeconds",
        description="GPU-seconds of work since the last checkpoint; absent: not suspended yet.",
    )
    evicted: Word | None = Field(
        default=None, description="Why a queue outside put it out, in its own code; absent: its pool did."
    )


class Progress(Status):
    """How far the run had come when it was last noted; kept coarse, so that steps alone cause few writes."""

    step: Step = Field(description="The step it was at.")
    total_steps: Step = Field(description="Of how many.")
    worked_gpu_seconds: NumberText = Field(
        alias="workedGPUSeconds", description="GPU-seconds of service until then, without those lost."
    )
    first_step: Step | None = Field(
        default=None,
        description="The step it was at when it was first noted: its pace is measured from there.",
    )
    first_worked_gpu_seconds: NumberText | None = Field(
        default=None, alias="firstWorkedGPUSeconds", description="GPU-seconds of service until then."
    )


class Expected(Status):
    """The least running time that the run was ever to take: what its place in a queue rested on. One that
    takes half as long again has lost its place."""

    stated: NumberText | None = Field(
        default=None, description="Seconds, by spec.expectedDurationSeconds since it first ran."
    )
    paced: NumberText | None = Field(
        default=None, description="Seconds, by the pace of its steps as it was measured."
    )


class EvalsDue(Status):
    """The next usable eval is waited for."""

    since: Timestamp = Field(description="Since the last one, or since a new process showed the metric.")
    interval: NumberText | None = Field(
        default=None, description="Seconds that one usually takes; absent: not known yet."
    )


class GangBackoff(Status):
    """The job was admitted, but not every pod found a node in time."""

    failures: Count = Field(description="How often in a row.")
    until: Timestamp = Field(description="When it may be admitted again.")
    avoid: AVOID = Field(
        default=(), description="Planned nodes that no pod was bound to, newest first: used last from now on."
    )


class Run(Status):
    """What the trainer is told through the ConfigMap <name>-run."""

    attempt: Count | None = Field(default=None, description="Number of the attempt.")
    resume_path: str | None = _text(1024, "Checkpoint to resume from.")
    resume_step: Step | None = Field(default=None, description="Its step.")
    request_id: Count | None = Field(default=None, description="Number of the newest request.")
    evaluate: bool | None = Field(default=None, description="It asks for an eval.")
    checkpoint: bool | None = Field(default=None, description="It asks for a checkpoint.")
    stop: bool | None = Field(default=None, description="It asks the trainer to end.")
    reference_step: Step | None = Field(
        default=None, description="Step to score beside each eval, on that eval's fresh prompts."
    )
    uid: Word | None = Field(default=None, description="uid of the RLHFJob.")
    scrape_interval: NumberText | None = Field(
        default=None, description="Seconds between two reads of the trainer's metrics; absent: 15."
    )


class Printed(Status):
    """Short texts for kubectl's columns, made from the rest of the status; nothing reads them back."""

    step: Step | None = Field(default=None, description="Step of the newest eval.")
    eval: Word | None = Field(default=None, description="Newest score, rounded.")
    best: Word | None = Field(default=None, description="Best score, rounded.")
    streak: Word | None = Field(default=None, description="The rule's statistic and threshold, as in 2/3.")
    gpus: Word | None = Field(default=None, description="GPUs held and wanted, as in 4/4.")


class RLHFJobStatus(Status):
    """What the operator knows, decided and did."""

    conditions: CONDITIONS = Field(default=(), description="Aspects of the job's state.")
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec last looked at."
    )
    epoch: Count | None = Field(default=None, description=EPOCH)
    summary: Word | None = Field(
        default=None, description="The condition that matters most now, in one word."
    )
    printed: Printed | None = Field(default=None, description="Short texts for kubectl's columns.")
    attempt: Count | None = Field(default=None, description="How often it was started.")
    evals: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...],
        Field(max_length=EVALS_KEPT, json_schema_extra=markers.ATOMIC),
    ] = Field(
        default=(),
        description=f"The last {EVALS_KEPT} evals of the Primary metric, newest last, each as: step, score, "
        "standard error, samples, attempt. The last two stand only where they change; - is unknown. "
        "proxy=… and paired=mean/variance/step/prompts follow where the trainer reports them; "
        "of paired, the last two where they change.",
    )
    eval_times: Annotated[
        tuple[Annotated[int, Field(ge=0, json_schema_extra=markers.INT64)], ...],
        Field(max_length=READINGS_KEPT, json_schema_extra=markers.ATOMIC),
    ] = Field(
        default=(),
        description="When the newest of them were first read, newest last, in seconds since 1970.",
    )
    evals_due: EvalsDue | None = Field(
        default=None, description="Since when the next usable eval is waited for."
    )
    delayed_time: Timestamp | None = Field(
        default=None,
        description="When its stop first waited for what other namespaces' runs show, which it does once.",
    )
    evaluator: Annotated[str, Field(max_length=128)] | None = Field(
        default=None, description="Version of the evaluator that scored the newest eval."
    )
    baseline: EvalBaseline | None = Field(
        default=None, description="Since when the evals can be compared; absent: all of them can."
    )
    evals_seen: Count | None = Field(default=None, description="Evals the rule has seen.")
    earlier_sum: NumberText | None = Field(
        default=None, description="Sum of the scores of those of them that are no longer kept."
    )
    abandoned_step: Count | None = Field(
        default=None,
        description="Highest step of an eval that was dropped because the run went back before it.",
    )
    evals_missed: Count | None = Field(
        default=None, description="Evals that were gone before they were read."
    )
    evals_in_attempt: Count | None = Field(
        default=None, description="Evals that the trainer's newest process counted when last read."
    )
    best: Best | None = Field(default=None, description="The best eval.")
    beside: Checkpoint | None = Field(
        default=None, description="Checkpoint of the eval in awaiting, pinned beside that of the best."
    )
    awaiting: Best | None = Field(
        default=None,
        description="Pinned beside the best: an eval above it that waits for the next ones to bear it out, "
        "or, where the best itself may yet be found to be none, the best of the others.",
    )
    rule: Rule | None = Field(default=None, description="The stop rule's memory.")
    guardrails: Annotated[
        tuple[Guardrail, ...], Field(max_length=GUARDS_MAX, json_schema_extra=markers.ATOMIC)
    ] = Field(default=(), description="The guardrail metrics as last judged.")
    confirming: Confirming | None = Field(default=None, description="A stop that waits for a fresh eval.")
    past_grades: PastGrades | None = Field(
        default=None,
        description="GPU-seconds of service after the rule asked to warn of, demote or stop the run: what "
        "acting on it would have saved at most.",
    )
    access: Access | None = Field(default=None, description="Request to the checkpoint store under way.")
    access_serial: Count | None = Field(default=None, description="Number of the newest access Job.")
    pins_folder: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, description="The folder that relative paths of pins are in."
    )
    secured: Checkpoint | None = Field(
        default=None,
        description="Kept from rotation by a clone or link (object store: a copy) while the run goes on.",
    )
    retained: Annotated[tuple[Checkpoint, ...], Field(max_length=4, json_schema_extra=markers.ATOMIC)] = (
        Field(default=(), description="Copied out of the trainer's reach and verified, newest last.")
    )
    pinned: Annotated[
        tuple[Checkpoint, ...], Field(max_length=PINS_MAX, json_schema_extra=markers.ATOMIC)
    ] = Field(default=(), description="Kept from rotation because spec.checkpoints.pins names their steps.")
    to_release: PATHS = Field(
        default=(),
        description="Paths of pins that nothing wants any more and that go with the next one made.",
    )
    lives: Annotated[tuple[Life, ...], Field(max_length=LIVES_MAX, json_schema_extra=markers.ATOMIC)] = Field(
        default=(), description="The trainer's processes whose pages were read, in that order, newest last."
    )
    claim: Claim | None = Field(default=None, description="For which attempt the checkpoint folder is taken.")
    layout: FoundLayout | None = Field(
        default=None, description="Whose habits the folder follows, where spec.checkpoints.layout is Auto."
    )
    lost_bests: Annotated[tuple[Best, ...], Field(max_length=LOST_MAX, json_schema_extra=markers.ATOMIC)] = (
        Field(default=(), description="Evals whose checkpoint is gone, newest last.")
    )
    lost_tried: Timestamp | None = Field(
        default=None, description="When the best of them was last looked for again."
    )
    changed_bests: Annotated[
        tuple[Best, ...], Field(max_length=LOST_MAX, json_schema_extra=markers.ATOMIC)
    ] = Field(default=(), description="Those of lostBests whose checkpoint was changed once it was pinned.")
    restored: Checkpoint | None = Field(default=None, description="What the next start resumes from.")
    decision: Decision | None = Field(default=None, description="The newest decision to stop.")
    admission: Admission | None = Field(default=None, description="GPUs as granted.")
    preempting: Preempting | None = Field(
        default=None, description="Why it is on its way back into the queue, and how far that is."
    )
    preemptions: Count | None = Field(default=None, description="How often its pool preempted it.")
    evictions: Count | None = Field(default=None, description="How often a queue outside put it out.")
    refusal: Refusal | None = Field(
        default=None, description="Quota that was offered and not taken; absent: none is outstanding."
    )
    queued_time: Timestamp | None = Field(
        default=None, description="When it last came back into the queue; absent: when it was created."
    )
    queue_policy_state: Annotated[
        tuple[Annotated[int, Field(json_schema_extra=markers.INT64)], ...],
        Field(max_length=8, json_schema_extra=markers.ATOMIC),
    ] = Field(default=(), description="What the pool's queue policy asked to remember of it.")
    progress: Progress | None = Field(default=None, description="How far the run had come.")
    expected: Expected | None = Field(default=None, description="How long the run was to take as a whole.")
    loss_trend: (
        Annotated[tuple[NumberText, ...], Field(max_length=5, json_schema_extra=markers.ATOMIC)] | None
    ) = Field(
        default=None,
        description="Training loss, GPU-seconds of service at that report, the last two falls of the loss "
        "per GPU-second, and the largest one.",
    )
    gang_backoff: GangBackoff | None = Field(
        default=None, description="Why it is not admitted again at once."
    )
    run: Run | None = Field(default=None, description="What the trainer is told.")
    resume_id: Word | None = Field(default=None, description="Newest resume request carried out.")
    attained_gpu_seconds: NumberText | None = Field(
        default=None, alias="attainedGPUSeconds", description="GPU-seconds of finished service."
    )
    lost_gpu_seconds: NumberText | None = Field(
        default=None,
        alias="lostGPUSeconds",
        description="GPU-seconds of that service that preemptions cost: work since the last checkpoint.",
    )
    taken_back: TakenBack | None = Field(
        default=None, description="The newest stop that was taken back before the suspend."
    )
    finished: Word | None = Field(
        default=None, description="Complete or Failed, once the workload has ended."
    )
