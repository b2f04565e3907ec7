"""Pods of an earlier attempt that live on without a workload: nothing is started beside them.

`kubectl delete job --cascade=orphan` takes a run's Job away and leaves its pods: they train on, and write to
the checkpoint folder. A second trainer beside them would write the same files. So a job is not started, nor
resumed, while such a pod lives. One that is going by itself is waited for; one that nobody ends is named.
"""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job import endings
from controller.policy.job.context import PlanContext
from controller.policy.job.terminating_pods import NAMED, STUCK_AFTER
from controller.policy.job.types import OrphanedPod
from controller.policy.types import Mode, Problem
from controller.policy.wording import some


def refuse(context: PlanContext) -> None:
    """Refuse a job that is not started while pods live that nobody ends; once they are gone it goes on."""
    living = [one for one in context.observed.orphans if not one.ending]
    if context.problem is not None or not living or not _may_start(context):
        return
    message = (
        f"pods of an earlier attempt run on, and no workload owns them: {_named(living)}; a second trainer "
        "beside them would write to the same folder, so none is started, nor resumed, before they have ended"
    )
    context.problem = Problem(c.ORPHANED, message)


def refused(context: PlanContext) -> bool:
    """Return whether such pods keep the job from being accepted."""
    return context.problem is not None and context.problem.reason == c.ORPHANED


def wait(context: PlanContext) -> bool:
    """Return whether a job that waits is still to wait for pods of an earlier attempt to go; says so."""
    left = context.observed.orphans
    if not left:
        return False
    ages = [context.now - one.deleting_since for one in left if one.deleting_since is not None]
    stuck = any(age > STUCK_AFTER for age in ages)
    reason = "PodsStuck" if stuck else "PodsTerminating"
    context.conditions.set(c.ADMITTED, False, reason, awaited(context))
    if not stuck:
        context.wake_in(STUCK_AFTER)
    return True


def awaited(context: PlanContext) -> str:
    """Return which pods a start waits for."""
    return f"pods of an earlier attempt are still on their way out: {_named(context.observed.orphans)}"


def _named(pods: tuple[OrphanedPod, ...] | list[OrphanedPod]) -> str:
    return some(sorted(one.name for one in pods), NAMED)


def _may_start(context: PlanContext) -> bool:
    """Return whether the next that happens to the run may be a start: it waits, was stopped, or was not seen
    to end."""
    record, workload = context.record, context.observed.workload
    if record.finished is not None:
        return endings.end_is_unknown(record)
    decision = record.decision
    if decision is not None and decision.mode is Mode.ENFORCE:
        return decision.pods_gone_at is not None
    return record.admission is None or workload is None or workload.suspended
