"""The end of a run: how the operator learns of it, and what follows if it cannot, or if it is restarted.

A run ends with its workload: complete or failed, its status says so. A workload that had been started and is
gone has told nobody how it ended: it may have trained to its end and been cleaned up while nobody looked.
To train it again could undo what its user has; so it is told, and goes on only when its user says so.

A workload that is stopped or has ended holds no GPUs, and nobody but the operator starts it. One that
somebody else unsuspends is suspended again, and its pods count as its own until they are gone.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.policy.job import conditions as c
from controller.policy.job import external_queue, terminating_pods
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Condition, JobRecord
from controller.policy.job.types import Plan, SuspendWorkload, WorkloadView
from controller.policy.job.withdrawal import is_users
from controller.policy.types import JobState, Mode

STARTED_AGAIN = "StartedAgain"


def has_ended(context: PlanContext) -> bool:
    """Return whether the run has ended, by its workload's status or as it was recorded."""
    workload = context.observed.workload
    return context.record.finished is not None or (workload is not None and workload.finished is not None)


def is_lost(context: PlanContext) -> bool:
    """Return whether the workload is gone after it had been started, and nothing tells how it ended.

    That a start was meant is in the record before it happens: the run file that is written for it. A stop
    that is not carried out yet tells nothing: the run may have ended by itself before it.
    """
    record = context.record
    admission = record.admission
    if record.decision is not None and record.decision.suspended_at is not None:
        return False
    started = admission is not None and record.run.attempt == admission.number
    return context.observed.workload is None and started and record.finished is None


class Ending(NamedTuple):
    """The end of a run."""

    counts_as: str  # Complete or Failed
    reason: str
    message: str


def how_it_ended(context: PlanContext) -> Ending:
    """Return how a run ended whose workload is gone."""
    admission = context.record.admission
    number = admission.number if admission is not None else 0
    ours = [p for p in context.observed.pods if p.admission in (None, number)]
    if sum(1 for p in ours if p.succeeded) >= max(1, context.desired.replicas):
        return Ending("Complete", "Complete", "the workload is gone; all of its pods succeeded")
    what = context.desired.workload_ref or "its Job"
    how = "spec.resume with a new id and from: Latest"
    again = f"make it again, suspended, and set {how}" if context.desired.workload_ref else f"set {how}"
    message = (
        f"{what} is gone, and was not seen to end: it may have trained to its end, so it is "
        f"not trained again; to have it go on from its newest checkpoint, {again}"
    )
    return Ending("Failed", c.END_UNKNOWN, message)


def expiry_note(context: PlanContext) -> str:
    """Return what a workload that removes itself after its end is told of; "": it does not."""
    workload = context.observed.workload
    if workload is None or not workload.expires or workload.finished is not None:
        return ""
    return (
        f"{context.desired.workload_ref or 'its Job'} has spec.ttlSecondsAfterFinished: it may be gone "
        f"before its end was seen, and then counts as failed ({c.END_UNKNOWN}); take the field away"
    )


def end_is_unknown(record: JobRecord) -> bool:
    """Return whether the run ended in a way that nobody saw, so that its user may have it go on."""
    return record.finished is not None and _was_unseen(record.condition(c.FAILED))


def is_unknown(context: PlanContext) -> bool:
    """Return `end_is_unknown` of a run as this very pass has found it: it may be the one that notes the end,
    and a resume asked for meanwhile is for that end."""
    return context.record.finished is not None and _was_unseen(context.conditions.get(c.FAILED))


def _was_unseen(failed: Condition | None) -> bool:
    return failed is not None and failed.status and failed.reason == c.END_UNKNOWN


def is_quiet(workload: WorkloadView | None) -> bool:
    """Return whether no pod of a workload may still come: it is gone, has ended, or its controller says that
    it has taken up the suspension and that no pod of it is active."""
    if workload is None:
        return True
    return workload.settled or (workload.finished is not None and not workload.active)


def wait_for_pods(context: PlanContext) -> bool:
    """Return whether GPUs are still held, by pods or by those that may come in their place; says so."""
    if context.pods_left or context.actors_left:
        terminating_pods.report(context)
        return True
    if is_quiet(context.observed.workload):
        return False
    message = (
        "no pod is left, but the workload's status does not say yet that none is active: one may still come "
        "in the place of another; if that lasts, see whether kube-controller-manager runs"
    )
    context.conditions.set(c.RELEASED, False, c.AWAITS_CONTROLLER, message)
    return True


def stays_off(context: PlanContext, reason: str) -> Plan | None:
    """Return what to do about a stopped or ended run whose workload runs all the same; None: nothing is
    amiss.

    ``reason``: a CamelCase code, why it is off its GPUs.
    """
    condition = context.conditions.get(c.RELEASED)
    if runs_again(context):
        _started_again(context, reason)
        return context.plan(JobState.STOPPING)
    if (condition is None or condition.status) and not (context.pods_left or context.actors_left):
        return None
    if wait_for_pods(context):
        return context.plan(JobState.STOPPING)
    context.conditions.set(c.RELEASED, True, "PodsGone", "all pods are gone or terminal")
    return None


def runs_again(context: PlanContext) -> bool:
    """Return whether the workload of a stopped or ended run has been started by somebody."""
    workload = context.observed.workload
    return workload is not None and not workload.suspended and workload.finished is None


def _started_again(context: PlanContext, reason: str) -> None:
    # A user's stop is carried out also once the user wants the run to go on: that takes GPUs, which the pool
    # alone grants.
    ours = context.desired.mode is Mode.ENFORCE or is_users(context)
    done = "it is suspended again" if ours else f"mode is {context.desired.mode}, so nothing is touched"
    message = (
        f"somebody started its workload although the run is over ({reason}): {done}; a stopped run goes on "
        "by spec.runState: Run, or by a new id in spec.resume"
    )
    context.conditions.set(c.RELEASED, False, STARTED_AGAIN, message, warning=True)
    if ours and external_queue.to_be_stopped(context.observed):
        context.act(SuspendWorkload(reason))
