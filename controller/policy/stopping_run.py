"""From a granted stop to freed GPUs, for one job: carried out step by step."""

from __future__ import annotations

from dataclasses import replace

from controller.policy import conditions as c
from controller.policy import endings, outside, safekeeping
from controller.policy.draft import Draft
from controller.policy.history import keepable
from controller.policy.jobs import (
    CreateWorkload,
    Decision,
    Operation,
    Plan,
    SetFinalizer,
    SuspendWorkload,
    WriteRun,
)
from controller.policy.service import attained
from controller.policy.types import JobState, Mode, Proposal

SAVE_WAIT = 30.0  # s a user's stop waits for the trainer to save its latest state
ANNOUNCE_WAIT = 5.0  # s a user's stop waits for its pool to say to whom the GPUs go
USER_STOP_TRIES = 2  # tries to secure the best before a user's stop goes on without it


def user_stop(draft: Draft) -> None:
    """`runState: Stopped`: decide the stop here, for the user's wish needs nobody's grant.

    A job that holds no GPUs is stopped at once: it only stays out of the queue.
    """
    record = draft.record
    workload = draft.observed.workload
    step = record.evals[-1].step if record.evals else 0
    best = record.best.step if record.best is not None else step
    proposal = Proposal(step, best, "UserRequest", 0.0, 0.0)
    decision = Decision("User", Mode.ENFORCE, proposal, "spec.runState is Stopped", draft.now)
    idle = workload is None or (workload.suspended and not workload.active and draft.pods_left == 0)
    if record.admission is None and idle:
        decision = replace(decision, suspended_at=draft.now, pods_gone_at=draft.now)
        draft.conditions.set(c.ADMITTED, False, "UserRequest", "spec.runState is Stopped")
    draft.update(decision=decision, preempting=None)


def carry_out_stop(draft: Draft, *, retain_only: bool = False) -> Plan:
    """The next step of a granted stop: retain and verify, suspend, wait until the pods are gone.

    ``retain_only``: the RLHFJob is being deleted; its workload goes anyway, the best checkpoint must not.
    """
    decision = draft.record.decision
    assert decision is not None
    draft.conditions.set(c.TERMINATION, True, decision.proposal.reason, decision.message)
    workload = draft.observed.workload
    if decision.retained_at is None:
        if _saves_first(draft, decision) and not retain_only:
            return draft.plan(JobState.STOPPING)
        if workload is None and not draft.desired.workload_ref and not retain_only:
            # Somebody deleted it. Access Jobs run by its pod template: make it again, suspended.
            draft.act(CreateWorkload())
            return draft.plan(JobState.STOPPING)
        if _secures_first(draft, decision):
            return draft.plan(JobState.STOPPING)
        if not _skip_retention(draft, decision):
            return _retain(draft, decision)
    if draft.observed.finalizer:
        draft.act(SetFinalizer(False))
    if retain_only:
        return draft.plan(JobState.STOPPING)
    if outside.to_be_stopped(draft.observed):
        if _announces_first(draft, decision):
            return draft.plan(JobState.STOPPING)
        draft.act(SuspendWorkload(decision.proposal.reason))
        return draft.plan(JobState.STOPPING)
    if workload is not None and not workload.suspended:
        outside.report_stopping(draft, decision.retained_at or decision.at)
        return draft.plan(JobState.STOPPING)
    if decision.suspended_at is None:
        decision = replace(decision, suspended_at=draft.now)
        draft.update(decision=decision)
    if endings.wait_for_pods(draft):
        return draft.plan(JobState.STOPPING)
    _release(draft, decision)
    return draft.plan(None)


def _saves_first(draft: Draft, decision: Decision) -> bool:
    """Whether a user's stop still waits for the trainer to save where it is, as asked through `<name>-run`.

    So a stopped run loses no step when it goes on from its latest checkpoint. Only trainers that say which
    request they have served are asked, and not for longer than `SAVE_WAIT`.
    """
    scrape, run = draft.observed.scrape, draft.record.run
    if decision.by != "User" or scrape is None or scrape.request_served is None or not draft.pods_left:
        return False
    if draft.now - decision.at >= SAVE_WAIT:
        return False
    if not run.stop:
        run = replace(run, request_id=run.request_id + 1, checkpoint=True, stop=True)
        draft.update(run=run)
    if draft.observed.run_written != run:
        draft.act(WriteRun(run))
    draft.wake_in(1.0)
    return scrape.request_served < run.request_id


def _announces_first(draft: Draft, decision: Decision) -> bool:
    """Whether a user's stop still waits for its pool to write its holds.

    Of an automatic stop they were written before it was granted. A pool that is gone writes none, so the wait
    has an end.
    """
    left = decision.at + ANNOUNCE_WAIT - draft.now
    if decision.by != "User" or draft.observed.announced or left <= 0:
        return False
    draft.wake_in(left)
    return True


def _secures_first(draft: Draft, decision: Decision) -> bool:
    """Whether a user's stop still waits for its best checkpoint to be secured; bounded by tries."""
    record = draft.record
    if decision.by != "User" or record.best is None or draft.observed.workload is None:
        return False
    best = keepable(record, draft.desired.direction)
    if best is None or (record.secured is not None and record.secured.stands_for(best)):
        return False
    if record.access is not None and record.access.tries >= USER_STOP_TRIES:
        return False
    safekeeping.secure_best(draft)
    waited = draft.record.access
    return waited is not None and waited.operation in (Operation.SECURE, Operation.PIN)


def _skip_retention(draft: Draft, decision: Decision) -> bool:
    """Whether the stop goes on without a retained checkpoint, which is then said.

    A user's stop does not wait for a checkpoint that does not exist; an automatic one does. A workload that
    was referred to and is gone has no GPUs left to free and no volumes to work on.
    """
    if draft.observed.workload is None and draft.desired.workload_ref:
        why = "the workload is gone; the best checkpoint stays secured where the trainer wrote"
    elif decision.by == "User" and draft.record.secured is None:
        why = "stopped on request; no checkpoint could be secured"
    else:
        return False
    draft.conditions.set(c.RETAINED, False, "NothingRetained", why, warning=True)
    return True


def _retain(draft: Draft, decision: Decision) -> Plan:
    secured = draft.record.secured
    if secured is None:
        # Cannot be: a grant rests on a secured checkpoint. Whatever happened, the run goes on.
        draft.update(decision=None)
        draft.conditions.set(
            c.TERMINATION, False, "NoVerifiableCheckpoint", "no checkpoint is in safety", warning=True
        )
        return draft.plan(JobState.ADMITTED)
    retained = next(
        (
            k
            for k in draft.record.retained
            if (k.attempt, k.best_step) == (secured.attempt, secured.best_step) and k.at >= decision.at
        ),
        None,
    )
    if retained is not None:
        draft.update(decision=replace(decision, retained_at=retained.at))
        draft.wake_in(0.0)
        return draft.plan(JobState.STOPPING)
    if not draft.observed.finalizer:
        draft.act(SetFinalizer(True))
    safekeeping.retain_secured(draft, secured)
    return draft.plan(JobState.STOPPING)


def _release(draft: Draft, decision: Decision) -> None:
    draft.update(
        decision=replace(decision, pods_gone_at=decision.pods_gone_at or draft.now),
        attained=attained(draft.desired, draft.record, draft.now),
        admission=None,
        restored=None,
    )
    draft.conditions.set(c.RELEASED, True, "PodsGone", "all pods are gone or terminal; the GPUs are free")
    draft.conditions.set(c.RUNNING, False, "Stopped", decision.message)
    draft.conditions.set(c.ADMITTED, False, "Stopped", decision.message)
    draft.conditions.set(
        c.DECLINING, draft.conditions.is_true(c.DECLINING), decision.proposal.reason, decision.message
    )
