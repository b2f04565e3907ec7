"""Starting a stopped run again: from its best, its latest, or a named step."""

from __future__ import annotations

from controller.policy import conditions as c
from controller.policy import guarding, safekeeping
from controller.policy.draft import Draft
from controller.policy.history import RuleInUse, restart, rewind
from controller.policy.jobs import CreateWorkload, Kept, Operation, ResumeFrom, ResumeRequest, RunState


def resume(draft: Draft, use: RuleInUse) -> bool:
    """Carry a resume request a step further; True once the job is back in the queue.

    A request is carried out once: its id is recorded. From best or a step, the checkpoint is first put back
    on the workload's volume and verified. The rule's memory then ends at the step resumed from.
    """
    if draft.desired.run_state is not RunState.RUN:
        return False
    request, decision = draft.desired.resume, draft.record.decision
    if request is None or request.id == draft.record.resume_id:
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
    draft.conditions.set(c.RESUMED, False, "Restoring", f"resume {request.id!r}: from {request.source}")
    if request.source is ResumeFrom.LATEST:
        draft.update(resume_id=request.id)
        _back_to_queue(draft, use, None)
        return True
    source, step = _wanted(draft, request)
    if step is None:
        draft.conditions.set(
            c.RESUMED,
            False,
            "NothingRetained",
            "spec.resume.from: Best, but no checkpoint was retained",
            warning=True,
        )
        return False
    restored = draft.record.restored
    if restored is None or restored.best_step != step:
        draft.update(restored=None)  # what an earlier, changed request put back
        safekeeping.restore(draft, step, source)
        return False
    draft.update(resume_id=request.id)
    _back_to_queue(draft, use, restored)
    return True


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


def _wanted(draft: Draft, request: ResumeRequest) -> tuple[Kept | None, int | None]:
    """The retained checkpoint to restore, if there is one, and the step."""
    if request.source is ResumeFrom.BEST:
        kept = draft.record.retained[-1] if draft.record.retained else None
        return kept, kept.step if kept is not None else None
    kept = next((k for k in reversed(draft.record.retained) if k.step == request.step), None)
    return kept, request.step


def _back_to_queue(draft: Draft, use: RuleInUse, restored: Kept | None) -> None:
    if restored is not None:
        draft.record = rewind(draft.record, use, restored.step)
        draft.update(guards=guarding.rewound(draft.record.guards, restored.step))
        source = f"from the checkpoint of step {restored.step}"
    else:
        if draft.record.decision is not None and draft.record.decision.by != "User":
            # Going on past a stop is the user's will: the evals that led to it must not stop it again.
            draft.record = restart(draft.record, use)
            draft.update(guards=guarding.begun_anew(draft.record.guards))
        source = "from the trainer's latest checkpoint"
    waited = draft.record.access
    if waited is not None and waited.operation is not Operation.SECURE:
        draft.update(access=None)
    draft.update(decision=None, restored=restored, queued_at=draft.now, confirming=None, finished=None)
    for type_ in (c.TERMINATION, c.RELEASED, c.DECLINING, c.DEMOTED, c.GUARDRAILS, c.FAILED):
        draft.conditions.drop(type_)
    draft.conditions.set(c.RESUMED, True, "Resumed", f"goes on {source}")
    draft.conditions.set(c.ADMITTED, False, "Queued", "resumed; waits for its pool's GPUs")
