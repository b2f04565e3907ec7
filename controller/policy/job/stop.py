"""From a granted stop to free GPUs, for one job, step by step.

    granted -> best checkpoint secured (`retention`) -> looked once more (`withdrawal`) -> suspended
    -> pods gone -> released -> what of the copy was put off is made

Up to the suspend the run is read, judged and secured as ever, and the stop may be taken back.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import access_requests, endings, external_queue, restarts, retention, withdrawal
from controller.policy.job import conditions as c
from controller.policy.job.bests import settle_agreeing
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Decision, Operation
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.service import own
from controller.policy.job.types import (
    CreateWorkload,
    Plan,
    ReadMetrics,
    ScrapeOutcome,
    SetFinalizer,
    SuspendWorkload,
    WriteRun,
)
from controller.policy.job.withdrawal import USER
from controller.policy.types import JobState, Mode, Proposal

SAVE_WAIT = 30.0  # s a user's stop waits for the trainer to save its latest state
ASK_MOST = 4.0 * SAVE_WAIT  # s for which it is tried to tell the trainer so
ANNOUNCE_WAIT = 5.0  # s a user's stop waits for its pool to say to whom the GPUs go


def user_stop(context: PlanContext) -> None:
    """`runState: Stopped`: decide the stop here, for the user's wish needs nobody's grant.

    A job that holds no GPUs is stopped at once: it only stays out of the queue.
    """
    record = context.record
    workload = context.observed.workload
    step = record.evals[-1].step if record.evals else 0
    best = record.best.step if record.best is not None else step
    proposal = Proposal(step, best, "UserRequest", 0.0, 0.0)
    decision = Decision(USER, Mode.ENFORCE, proposal, "spec.runState is Stopped", context.now)
    no_pods = not (context.pods_left or context.actors_left)
    idle = workload is None or (workload.suspended and not workload.active and no_pods)
    if record.admission is None and idle:
        decision = replace(decision, suspended_at=context.now, pods_gone_at=context.now)
        context.conditions.set(c.ADMITTED, False, "UserRequest", "spec.runState is Stopped")
    context.conditions.drop(c.RETAINED)  # of an earlier stop
    context.update(decision=decision, preempting=None)


def carry_out_stop(context: PlanContext, use: RuleInUse | None) -> Plan:
    """Return the next step of a stop, or the stop taken back. The newest scrape has been taken in.

    ``use``: the job's rules; None: its spec cannot be carried out.
    """
    decision = context.record.decision
    assert decision is not None
    if decision.suspended_at is None and (
        external_queue.to_be_stopped(context.observed) or _no_workload(context)
    ):
        if (found := withdrawal.why(context, use)) is not None:
            return withdrawal.take_back(context, use, found)
        context.conditions.set(c.TERMINATION, True, decision.proposal.reason, decision.message)
        if use is not None:
            context.record = settle_agreeing(context.record, use)
        plan = _before_suspend(context, use)
        if plan is not None:
            return plan
        decision = context.record.decision
        assert decision is not None
    context.conditions.set(c.TERMINATION, True, decision.proposal.reason, decision.message)
    workload = context.observed.workload
    if workload is not None and not workload.suspended:
        started = decision.suspended_at is not None  # by somebody, while its pods were still going
        if started and (amiss := endings.stays_off(context, decision.proposal.reason)) is not None:
            return amiss
        external_queue.report_stopping(context, decision.settled_at or decision.at)
        return context.plan(JobState.STOPPING)
    if decision.suspended_at is None:
        if decision.settled_at is None:
            # Somebody else suspended it: what was not copied before is copied now.
            decision = replace(decision, deferred_at=context.now)
        decision = replace(decision, suspended_at=context.now)
        context.update(decision=decision)
        waited = context.record.access
        if waited is not None and waited.operation is Operation.CLAIM:
            access_requests.give_up(context)  # of a process that has ended: nobody would go on with it
    after_suspend(context)
    if endings.wait_for_pods(context):
        return context.plan(JobState.STOPPING)
    decision = context.record.decision
    assert decision is not None
    _release(context, decision)
    return context.plan(None)


def after_suspend(context: PlanContext) -> bool:
    """Make the copy that was put off; True while it is under way. The finalizer stays as long."""
    owed = retention.follows(context)
    if context.observed.finalizer != owed and not (owed and context.desired.deleting):
        context.act(SetFinalizer(owed))
    return owed


def _no_workload(context: PlanContext) -> bool:
    return context.observed.workload is None


def _before_suspend(context: PlanContext, use: RuleInUse | None) -> Plan | None:
    """Return what is still to be done before the suspend, which is the last of it; None: it is suspended."""
    decision, workload = context.record.decision, context.observed.workload
    assert decision is not None
    if workload is None and not context.desired.workload_ref:
        # Somebody deleted it. Access Jobs run by its pod template: make it again, suspended.
        context.act(CreateWorkload())
        return context.plan(JobState.STOPPING)
    if not retention.settled(context):
        return context.plan(JobState.STOPPING)
    if workload is None:
        return None  # one that was referred to: it has no GPUs left to free
    if _announces_first(context, decision):
        return context.plan(JobState.STOPPING)
    decision = context.record.decision
    assert decision is not None
    settled = decision.settled_at
    assert settled is not None
    if decision.by == USER:
        if _saves_first(context, decision, settled):
            return context.plan(JobState.STOPPING)
    elif withdrawal.runs(context):
        looked, found = withdrawal.last_look(context, settled)
        if found is not None:
            return withdrawal.take_back(context, use, found)
        if not looked:
            return context.plan(JobState.STOPPING)
    restarts.note_stop(context)
    context.act(SuspendWorkload(decision.proposal.reason))
    return context.plan(JobState.STOPPING)


def _saves_first(context: PlanContext, decision: Decision, settled: float) -> bool:
    """Return whether a user's stop still waits for the trainer to save where it is, as asked through
    `<name>-run`.

    So a stopped run loses no step when it goes on from its latest checkpoint. Only trainers that say which
    request they have served are asked, and have `SAVE_WAIT` from when they were. Who has just come into
    office has read nothing yet, and waits as long to be able to ask.
    """
    if not context.pods_left or not withdrawal.runs(context):
        return False
    scrape, run = context.observed.scrape, context.record.run
    read = scrape is not None and scrape.outcome is ScrapeOutcome.OK
    asked = decision.asked_at is not None and run.stop
    if not asked:
        if not read:
            return _waits_to_ask(context, settled)
        if scrape is None or scrape.request_served is None:
            return False
        if not run.stop:
            run = replace(run, request_id=run.request_id + 1, evaluate=False, checkpoint=True, stop=True)
        decision = replace(decision, asked_at=context.now)
        context.update(run=run, decision=decision)
    assert decision.asked_at is not None
    if context.observed.run_written != run:
        context.act(WriteRun(run))
        if context.now - decision.asked_at > 1.0 and context.now - settled < ASK_MOST:
            # It was not told yet: a crash came between.
            decision = replace(decision, asked_at=context.now)
            context.update(decision=decision)
    elif scrape is not None and scrape.request_served is not None and scrape.request_served >= run.request_id:
        return False
    left = (decision.asked_at or context.now) + SAVE_WAIT - context.now
    if left > 0:
        context.wake_in(1.0)
    return left > 0


def _waits_to_ask(context: PlanContext, settled: float) -> bool:
    """Nothing was read of the trainer lately: wait for that, unless it is known that nothing will be."""
    read = context.conditions.get(c.METRICS)
    failing = read is not None and not read.status and context.now - read.since > SAVE_WAIT
    left = settled + SAVE_WAIT - context.now
    if context.desired.mode is Mode.OFF or failing or left <= 0:
        return False
    context.act(ReadMetrics())
    context.wake_in(1.0)
    return True


def _announces_first(context: PlanContext, decision: Decision) -> bool:
    """Return whether a user's stop still waits for its pool to write its holds.

    Of an automatic stop they were written before it was granted. A pool that is gone writes none, so the wait
    has an end.
    """
    left = decision.at + ANNOUNCE_WAIT - context.now
    if decision.by != USER or context.observed.announced or left <= 0:
        return False
    context.wake_in(left)
    return True


def _release(context: PlanContext, decision: Decision) -> None:
    admission = context.record.admission
    # What a resume put back is still where the run is to go on if no attempt has run from it.
    ran = admission is not None and admission.running_since is not None
    context.update(
        decision=replace(decision, pods_gone_at=decision.pods_gone_at or context.now),
        attained=own(context.desired, context.record, context.now),
        admission=None,
        restored=None if ran else context.record.restored,
    )
    context.conditions.set(c.RELEASED, True, "PodsGone", "all pods are gone or terminal; the GPUs are free")
    context.conditions.set(c.RUNNING, False, "Stopped", decision.message)
    context.conditions.set(c.ADMITTED, False, "Stopped", decision.message)
    context.conditions.set(
        c.DECLINING, context.conditions.is_true(c.DECLINING), decision.proposal.reason, decision.message
    )
