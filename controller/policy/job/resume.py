"""Starting a stopped run again: from its best, its latest, or a named step."""

from __future__ import annotations

from controller.policy.job import (
    access_requests,
    checkpoints,
    gone_copies,
    guardrails,
    lives,
    progress,
    restarts,
    retention,
)
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.evals import restart, rewind
from controller.policy.job.record import Operation, ProtectedCheckpoint, Sparing
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import CreateWorkload, ResumeFrom, ResumeRequest, RunState
from controller.policy.types import Attempt
from controller.policy.wording import counted


def resume(context: PlanContext, use: RuleInUse) -> bool:
    """Carry a resume request a step further; True once the job is back in the queue.

    A request is carried out once: its id is recorded. From best or a step, the checkpoint is first put back
    on the workload's volume and verified. The rule's memory then ends at the step resumed from.
    """
    request, decision = context.desired.resume, context.record.decision
    if context.desired.run_state is not RunState.RUN:
        _withdrawn(context)
        return False
    if request is None or request.id == context.record.resume_id:
        _withdrawn(context)
        # A user's stop is undone by `runState: Run` alone: the trainer goes on from its latest checkpoint, or
        # from what a resume had put back if it was stopped before it ran.
        if decision is None or decision.by != "User":
            return False
        _back_to_queue(context, use, context.record.restored)
        return True
    if context.observed.workload is None:
        if context.desired.workload_ref:
            gone = f"spec.workload.ref: there is no {context.desired.workload_ref} to resume"
            context.conditions.set(c.RESUMED, False, "WorkloadNotFound", gone, warning=True)
        else:
            context.act(CreateWorkload())
        return False
    if request.source is ResumeFrom.LATEST:
        context.update(resume_id=request.id)
        _back_to_queue(context, use, None, request.for_evals)
        return True
    source, step, attempt = _wanted(context, request)
    if step is None:
        context.conditions.set(
            c.RESUMED,
            False,
            "NothingRetained",
            "spec.resume.from: Best, but no checkpoint was retained",
            warning=True,
        )
        return False
    if _is_new(context, step, attempt):
        context.conditions.set(c.RESUMED, False, "Restoring", f"resume {request.id!r}: from {request.source}")
    restored = context.record.restored
    if restored is None or (restored.attempt, restored.best_step) != (attempt, step):
        context.update(restored=None)  # what an earlier, changed request put back
        checkpoints.restore(context, step, source, attempt)
        return False
    context.update(resume_id=request.id)
    _back_to_queue(context, use, restored, request.for_evals)
    return True


def _is_new(context: PlanContext, step: int, attempt: Attempt) -> bool:
    """Return whether nothing has been asked for yet to put this step back: once it is, its progress, its
    failures and what helps stand in the condition."""
    waited = context.record.access
    if waited is None:
        return True
    return (waited.operation, waited.step, waited.attempt) != (Operation.RESTORE, step, attempt)


def answer_early(context: PlanContext) -> None:
    """Answer a resume request while the run is not stopped: once, and it is never carried out later.

    Otherwise a request written with the RLHFJob, or while it runs, would undo the next stop.
    """
    request = context.desired.resume
    if (
        request is None
        or request.id == context.record.resume_id
        or context.desired.run_state is not RunState.RUN
    ):
        return
    context.update(resume_id=request.id)
    if context.record.finished is not None:
        why = f"the run has ended ({context.record.finished}); only a stopped run can be resumed"
    else:
        why = "the run is not stopped, so there is nothing to resume"
    context.conditions.set(c.RESUMED, False, "NothingToResume", f"resume {request.id!r}: {why}", warning=True)


def _withdrawn(context: PlanContext) -> None:
    """Nobody asks to resume (any more): what was being put back for it keeps nothing else waiting."""
    waited = context.record.access
    if waited is None or waited.operation is not Operation.RESTORE:
        return
    access_requests.give_up(context)
    context.update(restored=None)
    context.conditions.set(
        c.RESUMED, False, "Withdrawn", "the resume was taken back before it was carried out"
    )


def _wanted(
    context: PlanContext, request: ResumeRequest
) -> tuple[ProtectedCheckpoint | None, int | None, Attempt]:
    """Return what to restore: the retained checkpoint, if there is one, the step (None: none), and of which
    process. A step that was not retained is looked for on the newest one's branch.

    From the best: by score, which is not always the newest that was retained. The pin of a better one, whose
    copy is still to be made, or will not be since the run ended first, is as good: it lies where the run will
    read it.
    """
    record, newest = context.record, lives.newest(context.record)
    if request.source is ResumeFrom.BEST:
        pin = record.secured
        pinned = (pin,) if pin is not None and not pin.copies(record.retained) else ()
        kept = retention.best_of(context, (*record.retained, *pinned))
        if kept is None:
            return None, None, newest
        here = kept in pinned or gone_copies.takes_the_pin(record, kept)
        return (None if here else kept), kept.step, kept.attempt
    same = tuple(k for k in record.retained if k.step == request.step)
    kept = retention.best_of(context, same)
    if kept is None:
        return None, request.step, newest
    return (None if gone_copies.takes_the_pin(record, kept) else kept), request.step, kept.attempt


def _not_copied(context: PlanContext) -> bool:
    """Return whether the stop was carried out before its best checkpoint was copied."""
    decision = context.record.decision
    return decision is not None and decision.deferred_at is not None and decision.retained_at is None


def _back_to_queue(
    context: PlanContext, use: RuleInUse, restored: ProtectedCheckpoint | None, for_evals: int = 0
) -> None:
    if restored is not None:
        context.record = restarts.from_named(rewind(context.record, use, restored.step), restored.step)
        context.record = progress.put_back(context.record, restored.step)
        context.update(guards=guardrails.rewind(context.record.guards, restored.step, use.guards))
        source = f"from the checkpoint of step {restored.step}"
    else:
        if context.record.decision is not None and context.record.decision.by != "User":
            # Going on past a stop is the user's will: the evals that led to it must not stop it again.
            context.record = restart(context.record, use)
            context.update(guards=guardrails.begun_anew(context.record.guards, use.guards))
        source = "from the trainer's latest checkpoint"
    waited = context.record.access
    if waited is not None and waited.operation is not Operation.SECURE:
        access_requests.give_up(context)
    copied = context.conditions.get(c.RETAINED)
    if _not_copied(context) and context.record.secured is not None:
        message = "it was resumed before its best checkpoint was copied, which stays pinned"
        context.conditions.set(c.RETAINED, False, "ResumedFirst", message)
    elif copied is not None and not copied.status:
        context.conditions.drop(c.RETAINED)
    context.update(
        decision=None,
        restored=restored,
        queued_at=context.now,
        confirming=None,
        finished=None,
        sparing=Sparing(for_evals, context.record.attempt) if for_evals else None,
    )
    for type_ in (c.TERMINATION, c.RELEASED, c.DECLINING, c.DEMOTED, c.GUARDRAILS, c.FAILED):
        context.conditions.drop(type_)
    spared = f"; for {counted(for_evals, 'eval')} no rule stops it" if for_evals else ""
    context.conditions.set(c.RESUMED, True, "Resumed", f"goes on {source}{spared}")
    context.conditions.set(c.ADMITTED, False, "Queued", "resumed; waits for its pool's GPUs")
