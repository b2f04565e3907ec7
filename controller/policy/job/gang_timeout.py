"""Gang admission: if not all pods of a gang get a node in time, the gang returns all its GPUs.

The pool admits a gang only when its GPUs are free for it whole, so on paper each admission fits. The cluster
may think otherwise: a node goes away, a pod of nobody's takes the GPUs, a node selector of the user's own
rules a node out. A gang that then waits half placed keeps GPUs that others need; two such gangs could wait
for each other for ever. So a gang that is not bound whole within its time-out is suspended again, whatever it
had is counted as free once its pods are gone, and it stays out of the queue for a while that doubles with
each failure; of a gang whose pods every node is ruled out for by labels or taints it is longer from the
first on. While it is out, the others come first, with all that is free: so nobody waits for GPUs that a
waiting gang sits on, and of the gangs that can run at all, each is tried again for as long as it takes.

The cluster may rule out a node for one gang alone and for ever, so the planned nodes that none of its pods
was bound to are remembered until it is bound whole, and are the last to be planned for it (`placement`).

A member that ended well is not started again by its workload. A gang that is suspended after that cannot be
whole any more, however often it is admitted: it is tried rarely, and told what would help.

The back-off has no jitter, and needs none: the pool admits one gang after the other (and, where nobody
queues, tries those that failed one by one: `pool`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job import incomplete, pod_troubles, residency, terminating_pods
from controller.policy.job.context import PlanContext
from controller.policy.job.pod_words import ruled_out
from controller.policy.job.preemption import settle_account
from controller.policy.job.record import FAILED_CREATE, AdmissionRecord, GangBackoff, Preempting
from controller.policy.job.service import own
from controller.policy.job.types import Desired, Observed, Plan, PodView, SuspendWorkload
from controller.policy.types import JobState, Mode, Problem

REASON = "GangTimedOut"
BACKOFF_FIRST = 10.0  # s
BACKOFF_MOST = 600.0  # s
AVOIDED_MAX = 64  # nodes
START_SOON = 1.0  # s from admission to start that make no difference to the time-out


def backoff_seconds(failures: int) -> float:
    """Return how long a gang stays out of the queue after its ``failures``-th time-out in a row: 10, 20, …
    600 s.

    Raises:
        ValueError: ``failures`` is less than 1.
    """
    if failures < 1:
        raise ValueError(f"failures: {failures}, expected at least 1")
    return min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(failures - 1, 32))


def note_ended(context: PlanContext) -> None:
    """Note which members ended well: their planned nodes are free, for the extender too."""
    admission, workload = context.record.admission, context.observed.workload
    if admission is not None and workload is not None and workload.completed != admission.ended:
        context.update(admission=replace(admission, ended=workload.completed))


def unplaced(desired: Desired, observed: Observed, admission: AdmissionRecord) -> int:
    """Members of an admission that have no node: pods without one, and pods not there yet.

    A pod of this admission that ended had a node: whether it is made again is its workload's affair.
    """
    ours = [p for p in observed.pods if p.admission is None or p.admission == admission.number]
    whole = admission.running_since is not None
    waiting = sum(1 for p in ours if not p.terminal and p.node is None)
    placed = sum(1 for p in ours if p.node is not None and not p.succeeded)
    return max(waiting, desired.replicas - placed - _ended_here(observed, ours, whole=whole))


def _ended_here(observed: Observed, ours: Sequence[PodView], *, whole: bool) -> int:
    """Members that ended well in this admission, also those whose pods somebody has removed since.

    ``whole``: all ran at once in it, so that none had ended before.
    """
    seen = sum(1 for p in ours if p.node is not None and p.succeeded)
    workload = observed.workload
    return max(seen, len(workload.completed)) if whole and workload is not None else seen


def ended_well(observed: Observed) -> int:
    """Return how many members of a gang that was whole have ended well."""
    return _ended_here(observed, observed.pods, whole=True)


def watch_binding(context: PlanContext) -> bool:
    """Note since when some member of an admitted gang has had no node; True: its time is over.

    A gang whose start nothing but this operator holds up has lost no time yet (`started`).
    In Shadow and Off a gang that was bound whole once, or that ran before its RLHFJob, is left alone.
    """
    admission, workload = context.record.admission, context.observed.workload
    assert admission is not None
    if workload is not None and workload.suspended and context.pods_left == 0:
        return False
    if not unplaced(context.desired, context.observed, admission):
        if admission.unbound_since is not None:
            context.update(admission=replace(admission, unbound_since=None), gang_backoff=None)
        return False
    if admission.unbound_since is None:
        if context.desired.mode is not Mode.ENFORCE or not _any_waits(context):
            return False
        admission = replace(admission, unbound_since=context.now)
        context.update(admission=admission)
    assert admission.unbound_since is not None
    left = admission.unbound_since + context.desired.gang_timeout - context.now
    if left > 0:
        context.wake_in(left)
        return False
    return True


def started(context: PlanContext) -> None:
    """Record that the workload of an admitted gang is being started: from now on its members can be bound."""
    admission = context.record.admission
    assert admission is not None
    since = admission.unbound_since
    # Admission and start are mostly one pass apart: for that, the status is not changed.
    if since is not None and context.now - since > START_SOON:
        context.update(admission=replace(admission, unbound_since=context.now))


def withdraw(context: PlanContext) -> Plan:
    """Take the admission back: suspend, wait until the pods are gone, queue again after the back-off.

    A gang that had run before it lost a node is charged for the work since its last checkpoint, like a
    preempted one. One that never ran keeps its place in the queue and the checkpoint it is to resume from.
    """
    workload, record = context.observed.workload, context.record
    assert workload is not None
    assert record.admission is not None
    failures = 1 + (record.gang_backoff.failures if record.gang_backoff is not None else 0)
    pause = _pause(context, failures)
    if record.admission.withdrawn is None:
        _begin(context, record.admission, pause)
    going = context.record.preempting
    timed_out = going is None or going.reason in (REASON, *residency.GIVEN_UP)
    if not workload.suspended:
        context.act(SuspendWorkload(REASON if going is None else going.reason))
    elif workload.settled and not (context.pods_left or context.actors_left):
        backoff = GangBackoff(failures, context.now + pause, record.admission.avoid)
        tried = backoff if timed_out else record.gang_backoff
        _back_in_line(context, record.admission, incomplete.back_off(context) or tried)
        return context.plan(JobState.QUEUED if context.problem is None else None)
    elif context.pods_left or context.actors_left:
        terminating_pods.report(context)
    return context.plan(JobState.PREEMPTING)


def give_back(context: PlanContext, problem: Problem) -> Plan:
    """Take an admission back whose gang is not started, and may not be: others have use for its GPUs."""
    admission = context.record.admission
    assert admission is not None
    context.conditions.set(c.ADMITTED, False, *problem, warning=True)
    context.conditions.set(c.RUNNING, False, *problem)
    withdrawn = replace(admission, withdrawn=context.now)
    context.update(admission=withdrawn, preempting=Preempting(problem.reason, context.now))
    settle_account(context)
    context.wake_in(0.0)
    return context.plan(JobState.PREEMPTING)


def _begin(context: PlanContext, admission: AdmissionRecord, pause: float) -> None:
    missing = unplaced(context.desired, context.observed, admission)
    message = (
        f"{missing} of {context.desired.replicas} pods had no node {context.desired.gang_timeout:g} s after "
        f"the gang was admitted or lost one, so none may keep one; tried again {pause:g} s after they are "
        f"gone"
    )
    trouble = context.record.pod_trouble
    if trouble is not None and trouble.waits in {FAILED_CREATE, *pod_troubles.STANDING}:
        message = pod_troubles.with_last_words(context.record, message)
    context.conditions.set(c.ADMITTED, False, REASON, message, warning=True)
    context.conditions.set(c.RUNNING, False, REASON, "not every pod found a node in time")
    admission = replace(admission, withdrawn=context.now, avoid=_avoided(context, admission))
    context.update(admission=admission, preempting=Preempting(REASON, context.now))
    settle_account(context)


def _pause(context: PlanContext, failures: int) -> float:
    """Return how long (s) the gang stays out of the queue. One whose pods no node takes by its labels holds
    its GPUs for nothing at each try: for at least as many time-outs as it has failed."""
    pause = backoff_seconds(failures)
    if not ruled_out(context.record.pod_trouble):
        return pause
    return max(pause, min(BACKOFF_MOST, failures * context.desired.gang_timeout))


def _avoided(context: PlanContext, admission: AdmissionRecord) -> tuple[str, ...]:
    """Planned nodes that no member was bound to, of this admission and the failed ones before it."""
    ours = (p for p in context.observed.pods if p.admission is None or p.admission == admission.number)
    bound = {p.node for p in ours}
    before = context.record.gang_backoff.avoid if context.record.gang_backoff is not None else ()
    nodes = dict.fromkeys(node for node in (*admission.nodes, *before) if node not in bound)
    return tuple(nodes)[:AVOIDED_MAX]


def _back_in_line(context: PlanContext, admission: AdmissionRecord, backoff: GangBackoff | None) -> None:
    record = context.record
    lost = record.preempting.lost if record.preempting is not None else None
    context.update(
        admission=None,
        preempting=None,
        attained=own(context.desired, record, context.now),
        lost=record.lost + (lost or 0.0),
        queued_at=record.queued_at if admission.running_since is None else context.now,
        gang_backoff=backoff,
    )
    context.conditions.drop(c.RELEASED)


def _any_waits(context: PlanContext) -> bool:
    """Return whether a pod is there that has no node: one that is not there may be its workload's own
    pause."""
    return any(not p.terminal and p.node is None for p in context.observed.pods)
