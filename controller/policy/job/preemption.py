"""Preemption of a run: it reaches its next checkpoint, is suspended, loses its pods, and is queued again.

The run trains on until the trainer tells of a checkpoint that is newer than the decision, and is asked to
write one at once if it can be asked. It does not wait for longer than the pool's grace, nor for what cannot
be seen. Then it is suspended; once its pods are gone it waits again and will resume from its latest
checkpoint. The work since that checkpoint must be done anew: it is charged to the job as `JobRecord.lost`,
in GPU-seconds, the same notion as the simulator's `Result.lost`, which is in seconds of the gang.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from controller.policy.job import conditions as c
from controller.policy.job import incomplete, restarts, starvation
from controller.policy.job.context import PlanContext
from controller.policy.job.record import JobRecord, Preempting, RunProgress
from controller.policy.job.service import attained, own
from controller.policy.job.types import Plan, ScrapeOutcome, ScrapeView, SuspendWorkload, WriteRun
from controller.policy.types import JobState, Mode, Preemption


def begin(record: JobRecord, preemption: Preemption, now: float) -> JobRecord:
    """Return the record once the pool wants the job's GPUs for another: the intent, written before any
    act."""
    return replace(record, preempting=Preempting(preemption.reason, now))


def may_be_called_off(record: JobRecord) -> bool:
    """Return whether a run leaves for another job alone, and nothing has been done to it yet."""
    going, admission = record.preempting, record.admission
    if going is None or going.evicted or going.lost is not None or going.reason in starvation.REASONS:
        return False
    return admission is not None and admission.withdrawn is None


def call_off(record: JobRecord) -> JobRecord:
    """Return the record of a run that stays after all; the same one if it is too late.

    What its queue policy remembered of it is of a job that leaves; it places a running one by itself.
    """
    if not may_be_called_off(record):
        return record
    return replace(record, preempting=None, queue_policy_state=())


def carry_out(context: PlanContext) -> Plan:
    """Return the next step of a preemption, or of what follows an eviction by an external queue."""
    workload, going = context.observed.workload, context.record.preempting
    assert workload is not None
    assert going is not None
    if workload.suspended and workload.settled and not (context.pods_left or context.actors_left):
        _back_in_line(context, going)
        return context.plan(JobState.QUEUED)
    if going.evicted:
        return context.plan(JobState.PREEMPTING)  # the queue suspends it itself
    if not workload.suspended:
        if going.lost is None and (left := _waits(context, going)) is not None:
            context.wake_in(left)
            most = f"for {context.desired.preempt_grace:g} s at most"
            message = f"{going.reason}: goes on to its next checkpoint, {most}"
            context.conditions.set(c.ADMITTED, False, "Preempting", message)
            return context.plan(JobState.PREEMPTING)
        if going.lost is None:
            settle_account(context)
        context.act(SuspendWorkload("Preempted", again=True))
    message = f"{going.reason}: is being suspended"
    context.conditions.set(c.ADMITTED, False, "Preempting", message)
    return context.plan(JobState.PREEMPTING if context.record.admission is not None else JobState.QUEUED)


def _waits(context: PlanContext, going: Preempting) -> float | None:
    """For how many seconds more the run may go on at most; None: it is to be suspended now."""
    admission, scrape = context.record.admission, context.observed.scrape
    left = going.at + context.desired.preempt_grace - context.now
    if admission is None or admission.running_since is None or not context.pods_left or left <= 0:
        return None
    if going.reason in starvation.REASONS:
        return None  # its trainer has ended
    if context.desired.mode is Mode.OFF:
        return None  # its metrics are not read: nothing to wait for could be seen
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK:
        return left
    safe = _safe(scrape)
    if safe is None and scrape.request_served is None:
        return None
    if _saved_since(scrape, going):
        return None
    if going.checkpoint_step is None and safe is not None:
        context.update(preempting=replace(going, checkpoint_step=safe))
    if scrape.request_served is not None:
        _ask(context)
        return min(left, 1.0) if context.observed.run_written != context.record.run else left
    return left


def _safe(scrape: ScrapeView) -> int | None:
    """Return the step that the run would resume from: its last checkpoint, else where this process
    started."""
    return scrape.checkpoint_step if scrape.checkpoint_step is not None else scrape.resumed_step


def _saved_since(scrape: ScrapeView, going: Preempting) -> bool:
    """Return whether all that was done when the preemption was decided is in a checkpoint."""
    saved = scrape.checkpoint_step
    if saved is not None and scrape.step is not None and saved == scrape.step:
        return True
    if going.request and scrape.request_served is not None and scrape.request_served >= going.request:
        return True
    return saved is not None and going.checkpoint_step is not None and saved > going.checkpoint_step


def _ask(context: PlanContext) -> None:
    """Ask the trainer, through `<name>-run`, for a checkpoint now: once per preemption."""
    going, run = context.record.preempting, context.record.run
    assert going is not None
    if not going.request:
        run = replace(run, request_id=run.request_id + 1, evaluate=False, checkpoint=True, stop=False)
        context.update(run=run, preempting=replace(going, request=run.request_id))
    if context.observed.run_written != run:
        context.act(WriteRun(run))


class _Work(NamedTuple):
    """A run's work, and what it would keep of it if it were suspended now.

    Attributes:
        kept: the step that the run will resume from.
        lost: GPU-seconds done since.
    """

    kept: int
    lost: float
    saved: bool  # whether the present attempt has written a checkpoint itself


def settle_account(context: PlanContext) -> None:
    """Note what the suspension of a preempted run costs, and where it will go on, before it happens."""
    record, scrape = context.record, context.observed.scrape
    assert record.preempting is not None
    work = _work(context)
    lost = work.lost if work is not None else 0.0
    context.update(preempting=replace(record.preempting, lost=lost))
    restarts.note_preempted(context, work.kept if work is not None else 0)
    # A checkpoint put back for this attempt is still where the run goes on, unless it has saved a later one.
    ran = record.admission is not None and record.admission.running_since is not None
    if ran and (work is None or work.saved):
        context.update(restored=None)
    if work is not None and scrape is not None and scrape.total_steps:
        worked = attained(context.desired, record, context.now) - record.lost - lost
        known = record.progress or RunProgress(0, scrape.total_steps, 0.0)
        since = (known.first_step, known.first_worked)
        kept = RunProgress(work.kept, scrape.total_steps, max(0.0, worked), *since)
        context.update(progress=kept)


def _work(context: PlanContext) -> _Work | None:
    """Return what is secured and what is not, as far as the trainer's metrics tell; None: they do not.

    The present attempt's own pace (GPU-seconds per step) where it says which step it resumed from, else the
    pace of the whole run.
    """
    record, scrape = context.record, context.observed.scrape
    admission = record.admission
    if admission is None or admission.running_since is None:
        return None
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK or context.desired.mode is Mode.OFF:
        return None
    checkpoint, resumed = _safe(scrape), scrape.resumed_step
    if scrape.step is None or checkpoint is None:
        return None
    if resumed is not None and resumed > scrape.step:
        resumed = None  # it says so, and did not go on from there
    total = own(context.desired, record, context.now)
    spent, made = total - record.lost, scrape.step
    if resumed is not None:
        spent, made = total - record.attained, scrape.step - resumed
    # A checkpoint of later steps is one that the run had gone on from before it was put back.
    saved = (resumed or 0) <= checkpoint <= scrape.step
    kept = checkpoint if saved else (resumed or 0)
    lost = spent * (scrape.step - kept) / made if made > 0 else 0.0
    anew = saved and (resumed is None or checkpoint > resumed)
    return _Work(kept, min(lost, total - record.attained), anew)


def _back_in_line(context: PlanContext, going: Preempting) -> None:
    record = context.record
    served = own(context.desired, record, context.now)
    lost = going.lost or 0.0
    ran = record.admission is not None and record.admission.running_since is not None
    starved = going.reason in starvation.REASONS
    since = record.admission.at if record.admission is not None else 0.0
    context.update(
        preempting=None,
        admission=None,
        attained=served,
        lost=record.lost + lost,
        preemptions=record.preemptions + (not going.evicted and not starved),
        evictions=record.evictions + bool(going.evicted),
        # One that was put out before it ran keeps its place.
        queued_at=context.now if ran or not going.evicted else record.queued_at,
    )
    backoff = incomplete.back_off(context) or (starvation.back_off(context, since) if starved else None)
    message = f"resumes from its latest checkpoint when admitted; {lost:.0f} GPU-seconds of work were lost"
    if backoff is not None:
        context.update(gang_backoff=backoff)
        context.conditions.set(c.ADMITTED, False, "Queued", message)
        return
    if going.evicted:
        # Condition Admitted goes on saying by whom and why until the pool has something newer to say.
        context.conditions.set(c.RUNNING, False, going.reason, message)
        return
    context.conditions.set(c.ADMITTED, False, "Queued", "preempted; waits for its pool's GPUs")
    context.conditions.set(c.RUNNING, False, "Preempted", message)
