"""Starting a stopped run again: from its best, its latest, or a named step."""

from __future__ import annotations

from controller.policy.job import access_requests, checkpoints, guardrails, retention
from controller.policy.job import conditions as c
from controller.policy.job.context import Draft
from controller.policy.job.evals import RuleInUse, restart, rewind
from controller.policy.job.types import CreateWorkload, Kept, Operation, ResumeFrom, ResumeRequest, RunState
from controller.policy.types import Attempt


def resume(draft: Draft, use: RuleInUse) -> bool:
    """Carry a resume request a step further; True once the job is back in the queue.

    A request is carried out once: its id is recorded. From best or a step, the checkpoint is first put back
    on the workload's volume and verified. The rule's memory then ends at the step resumed from.
    """
    request, decision = draft.desired.resume, draft.record.decision
    if draft.desired.run_state is not RunState.RUN:
        _withdrawn(draft)
        return False
    if request is None or request.id == draft.record.resume_id:
        _withdrawn(draft)
        # A user's stop is undone by `runState: Run` alone: the trainer goes on from its latest checkpoint.
        if decision is None or decision.by != "User":
            return False
        _back_to_queue(draft, use, None)
        return True
    if draft.observed.workload is None:
        if draft.desired.workload_ref:
            gone = f"spec.workload.ref: there is no {draft.desired.workload_ref} to resume"
            draft.conditions.set(c.RESUMED, False, "WorkloadNotFound", gone, warning=True)
        else:
            draft.act(CreateWorkload())
        return False
    if request.source is ResumeFrom.LATEST:
        draft.update(resume_id=request.id)
        _back_to_queue(draft, use, None)
        return True
    source, step, writer = _wanted(draft, request)
    if step is None:
        draft.conditions.set(
            c.RESUMED,
            False,
            "NothingRetained",
            "spec.resume.from: Best, but no checkpoint was retained",
            warning=True,
        )
        return False
    if _is_new(draft, step):
        draft.conditions.set(c.RESUMED, False, "Restoring", f"resume {request.id!r}: from {request.source}")
    restored = draft.record.restored
    if restored is None or restored.best_step != step:
        draft.update(restored=None)  # what an earlier, changed request put back
        checkpoints.restore(draft, step, source, writer)
        return False
    draft.update(resume_id=request.id)
    _back_to_queue(draft, use, restored)
    return True


def _is_new(draft: Draft, step: int) -> bool:
    """Whether nothing has been asked for yet to put this step back: once it is, its progress, its failures
    and what helps stand in the condition."""
    waited = draft.record.access
    return waited is None or (waited.operation, waited.step) != (Operation.RESTORE, step)


def answer_early(draft: Draft) -> None:
    """A resume request where nothing is stopped: answered once, and never carried out later.

    Otherwise a request written with the RLHFJob, or while it runs, would undo the next stop.
    """
    request = draft.desired.resume
    if request is None or request.id == draft.record.resume_id or draft.desired.run_state is not RunState.RUN:
        return
    draft.update(resume_id=request.id)
    if draft.record.finished is not None:
        why = f"the run has ended ({draft.record.finished}); only a stopped run can be resumed"
    else:
        why = "the run is not stopped, so there is nothing to resume"
    draft.conditions.set(c.RESUMED, False, "NothingToResume", f"resume {request.id!r}: {why}", warning=True)


def _withdrawn(draft: Draft) -> None:
    """Nobody asks to resume (any more): what was being put back for it keeps nothing else waiting."""
    waited = draft.record.access
    if waited is None or waited.operation is not Operation.RESTORE:
        return
    access_requests.give_up(draft)
    draft.update(restored=None)
    draft.conditions.set(c.RESUMED, False, "Withdrawn", "the resume was taken back before it was carried out")


def _wanted(draft: Draft, request: ResumeRequest) -> tuple[Kept | None, int | None, Attempt | None]:
    """What to restore: the retained checkpoint, if there is one, the step, and on whose branch it lies.

    From the best: by score, which is not always the newest that was retained. The pin of a better one whose
    copy is still to be made is as good: it lies where the run will read it.
    """
    record = draft.record
    if request.source is ResumeFrom.BEST:
        pinned = (record.secured,) if record.secured is not None and _not_copied(draft) else ()
        kept = retention.best_of(draft, (*record.retained, *pinned))
        if kept is None:
            return None, None, None
        return (None if kept in pinned else kept), kept.step, kept.attempt
    same = tuple(k for k in record.retained if k.step == request.step)
    kept = retention.best_of(draft, same)
    return kept, request.step, None if kept is None else kept.attempt


def _not_copied(draft: Draft) -> bool:
    """Whether the stop was carried out before its best checkpoint was copied."""
    decision = draft.record.decision
    return decision is not None and decision.deferred_at is not None and decision.retained_at is None


def _back_to_queue(draft: Draft, use: RuleInUse, restored: Kept | None) -> None:
    if restored is not None:
        draft.record = rewind(draft.record, use, restored.step)
        draft.update(guards=guardrails.rewound(draft.record.guards, restored.step))
        source = f"from the checkpoint of step {restored.step}"
    else:
        if draft.record.decision is not None and draft.record.decision.by != "User":
            # Going on past a stop is the user's will: the evals that led to it must not stop it again.
            draft.record = restart(draft.record, use)
            draft.update(guards=guardrails.begun_anew(draft.record.guards))
        source = "from the trainer's latest checkpoint"
    waited = draft.record.access
    if waited is not None and waited.operation is not Operation.SECURE:
        access_requests.give_up(draft)
    copied = draft.conditions.get(c.RETAINED)
    if _not_copied(draft) and draft.record.secured is not None:
        told = "it was resumed before its best checkpoint was copied, which stays pinned"
        draft.conditions.set(c.RETAINED, False, "ResumedFirst", told)
    elif copied is not None and not copied.status:
        draft.conditions.drop(c.RETAINED)
    draft.update(decision=None, restored=restored, queued_at=draft.now, confirming=None, finished=None)
    for type_ in (c.TERMINATION, c.RELEASED, c.DECLINING, c.DEMOTED, c.GUARDRAILS, c.FAILED):
        draft.conditions.drop(type_)
    draft.conditions.set(c.RESUMED, True, "Resumed", f"goes on {source}")
    draft.conditions.set(c.ADMITTED, False, "Queued", "resumed; waits for its pool's GPUs")
