"""Jobs in an external queue (Kueue): what they wait for there, and when they were evicted.

That queue starts and suspends the workload itself. The operator answers its offers of quota, and switches
the workload's record there off and on. So what is told apart here is whose doing it was that a run is off its
GPUs: the queue's (evicted: it goes on from its checkpoint when it is admitted again), this operator's
(declined, withdrawn, preempted), somebody else's (switched off by hand), or the run's own (failed, see
`lifecycle`).
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.preemption import settle_account
from controller.policy.job.record import JobRecord, Preempting
from controller.policy.job.types import (
    Answer,
    Desired,
    Observed,
    Plan,
    QueueView,
    RefuseOffer,
    RemakeWorkload,
    ResumeWorkload,
    SuspendWorkload,
)
from controller.policy.types import JobState, Mode

LOST = "QuotaLost"
SLOW = 15.0  # s that an external queue may take to act on its record, and its news may take to come
# Conditions Running that say why a run is off its GPUs; they last until it is started again.
LEFT = frozenset({"Preempted", "PreemptedByQueue", "Evicted", "Deactivated"})
# Kueue's codes by which an eviction is shown under another word than Evicted.
_PREEMPTED = "Preempted"
_SWITCHED_OFF = "Deactivated"


def to_be_stopped(observed: Observed) -> bool:
    """Return whether a workload must still be acted on to get it off its GPUs.

    It must if it runs, or if its external queue could start it. If that queue was already told to evict it,
    it only takes time.
    """
    workload, queue = observed.workload, observed.queue
    if workload is None:
        return False
    return not workload.suspended if queue is None else queue.active


def waits_outside(desired: Desired, record: JobRecord) -> bool:
    """Return whether a job waits in an external queue: also while that can give it nothing, or does not have
    it yet, when its pool's plan is not shown it."""
    stopped = record.decision is not None and record.decision.mode is Mode.ENFORCE
    if not desired.queue or desired.problem is not None or record.finished is not None or stopped:
        return False
    known = record.condition(c.ADMITTED)
    return record.admission is None and known is not None and not known.status


def open_offer(context: PlanContext) -> QueueView | None:
    """Return the queue's record of the job if it holds an offer that is not answered."""
    queue = context.observed.queue
    if queue is None or not queue.offer or queue.answer is not Answer.PENDING:
        return None
    return queue


def evicted(context: PlanContext) -> bool:
    """Return whether the offer that the job's admission rests on is gone; its way back into the queue then
    begins. Of a run that is being preempted it is the queue's doing as long as it is not told to suspend it.
    """
    admission, queue, going = context.record.admission, context.observed.queue, context.record.preempting
    if _stays(context):
        return False
    if admission is None or queue is None or (going is not None and going.lost is not None):
        return False
    if not admission.offer:
        _rest_on_offer(context, queue)
        return False
    if queue.offer == admission.offer:
        return False
    # Its queue says so a moment later: switched off is put out.
    why = queue.evicted or (LOST if queue.active else _SWITCHED_OFF)
    context.update(preempting=Preempting(shown(why), context.now, evicted=why))
    settle_account(context)
    context.conditions.set(c.ADMITTED, False, shown(why), words(queue, why), warning=True)
    return True


def _stays(context: PlanContext) -> bool:
    """Return whether a run that was to be put out stays after all: switched off and on again before its queue
    had looked, its offer is what it was. Its way back into the queue then ends, or nobody would end it."""
    admission, queue, going = context.record.admission, context.observed.queue, context.record.preempting
    workload = context.observed.workload
    if admission is None or queue is None or workload is None or going is None:
        return False
    if not going.evicted or workload.suspended or not admission.offer or queue.offer != admission.offer:
        return False
    context.update(preempting=None)
    context.conditions.set(
        c.ADMITTED, True, "Admitted", "its queue lets it run on: the offer that it has stands"
    )
    return True


def _rest_on_offer(context: PlanContext, queue: QueueView) -> None:
    """Record the quota that the external queue has reserved as the admission of an adopted run."""
    workload, admission = context.observed.workload, context.record.admission
    if admission is not None and workload is not None and not workload.suspended and queue.offer:
        context.update(admission=replace(admission, offer=queue.offer))


def shown(code: str) -> str:
    """Return the condition's reason for a queue's own code."""
    if code == _PREEMPTED:
        return "PreemptedByQueue"
    return "Deactivated" if code.startswith(_SWITCHED_OFF) else "Evicted"


def words(queue: QueueView, code: str) -> str:
    """Return what happened, for people."""
    reason = f": {queue.message}" if queue.message else ""
    message = (
        f"its queue put it out ({code}){reason}; it goes on from its checkpoint when it is admitted again"
    )
    return f"{message}. {_switch_on(queue)}" if shown(code) == "Deactivated" and not queue.ours else message


def _switch_on(queue: QueueView) -> str:
    return (
        f"Workload {queue.name}: spec.active is false, and it was not this operator that wrote it; set it to "
        "true to have the job wait for quota again"
    )


def wait(context: PlanContext) -> Plan | None:
    """Queued in an external queue; None: it waits in its pool's own."""
    workload, wanted = context.observed.workload, context.desired.queue
    assert workload is not None
    if workload.queue != wanted and not context.desired.workload_ref:
        return _move(context)
    if not wanted:
        return None
    if context.observed.queue_problem is not None:
        context.conditions.set(c.ADMITTED, False, *context.observed.queue_problem, warning=True)
        _leave_quota_to_others(context, context.observed.queue_problem.reason)
        return context.plan(None)
    queue = context.observed.queue
    if queue is None:
        message = (
            f"queue {wanted!r} has no Workload of it yet; if that lasts: Kueue's configuration must have "
            "batch/job in integrations.frameworks, and its managedJobsNamespaceSelector match the namespace"
        )
        context.conditions.set(c.ADMITTED, False, "NotQueued", message)
        return context.plan(None)
    return _in_line(context, queue)


def _leave_quota_to_others(context: PlanContext, reason: str) -> None:
    """Switch off a job whose offer nobody answers while something is wrong with its queue. Not at once: that
    it was mended may be known a moment later than the offer that came of it."""
    queue = open_offer(context)
    if queue is None or queue.offered_at is None:
        return
    if (left := queue.offered_at + SLOW - context.now) > 0:
        context.wake_in(left)
    else:
        context.act(SuspendWorkload(reason))


def _move(context: PlanContext) -> Plan:
    """Delete a child that waits in the wrong queue, so that it is made again: its label cannot change."""
    workload = context.observed.workload
    assert workload is not None
    there, here = workload.queue or "its pool's own", context.desired.queue or "its pool's own"
    message = f"its workload is made anew, to wait in queue {here} instead of {there}"
    context.conditions.set(c.ADMITTED, False, "QueueChanged", message)
    if workload.suspended and context.pods_left == 0:
        context.act(RemakeWorkload())
    return context.plan(None)


def _in_line(context: PlanContext, queue: QueueView) -> Plan:
    record = context.record
    refusal, backoff = record.refusal, record.gang_backoff
    if refusal is not None and not refusal.final and queue.offer != refusal.offer:
        context.update(refusal=None)  # the queue has taken it back
        refusal = None
    if refusal is not None and refusal.final:
        if queue.active:
            context.act(SuspendWorkload(refusal.reason))
        return context.plan(JobState.QUEUED)
    if not queue.active:
        if not queue.ours:
            context.conditions.set(c.ADMITTED, False, "Deactivated", _switch_on(queue), warning=True)
            return context.plan(None)
        if backoff is not None and backoff.until > context.now:
            context.wake_in(backoff.until - context.now)
        else:
            context.act(ResumeWorkload())
        return context.plan(JobState.QUEUED)
    if refusal is not None and queue.answer is Answer.PENDING:
        context.act(RefuseOffer(refusal.reason, refusal.message))
    return context.plan(JobState.QUEUED)


def may_start(context: PlanContext) -> bool:
    """Return whether an admitted job's start is this operator's to carry out now; if not, says what it waits
    for."""
    workload = context.observed.workload
    if workload is None or not workload.queue:
        return True
    if open_offer(context) is not None:
        return True
    admission = context.record.admission
    number = admission.number if admission is not None else 0
    message = f"attempt {number}: Kueue was told that it may start; if that lasts, see whether it runs"
    context.conditions.set(c.RUNNING, False, "Starting", message)
    return False


def keep_off(context: PlanContext, reason: str) -> None:
    """Keep a stopped job suspended, even if somebody has put it back into its queue."""
    queue = context.observed.queue
    if queue is not None and queue.active and context.observed.workload is not None:
        context.act(SuspendWorkload(reason))


def report_stopping(context: PlanContext, since: float) -> None:
    """Say in condition GPUsReleased that the external queue does not suspend a deactivated workload."""
    queue, workload = context.observed.queue, context.observed.workload
    if queue is None or queue.active or workload is None or workload.suspended:
        return
    if (left := since + SLOW - context.now) > 0:
        context.wake_in(left)
        return
    message = (
        f"Workload {queue.name}: spec.active is false, but Kueue has not suspended its Job yet; if that "
        "lasts, see whether kueue-controller-manager runs"
    )
    context.conditions.set(c.RELEASED, False, "WaitingForQueue", message, warning=True)
