"""Pods of the job's own workload that do not run: what is remembered of them, and when it is over.

A container that ended with an exit code is counted once, however often it is looked at; what it said last
stays on record when its pod is gone, so that whoever asks later need not have read its log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from controller.policy.job import starvation
from controller.policy.job.context import PlanContext
from controller.policy.job.pod_words import node_away, pod_sentence, without_numbers
from controller.policy.job.record import FAILED_CREATE, NO_SCHEDULER, UNSCHEDULABLE, JobRecord, PodTrouble
from controller.policy.job.types import PodView
from controller.policy.types import Mode

UNSEEN_AFTER = 20.0  # s that a scheduler may say nothing of a pod: it takes milliseconds
HELD = 60.0  # s after a crash that its pod's successor may wait: for a registry that hiccups, for quota
UNPLACED_AFTER = 10.0  # s that it may find no node for it: those of a pod that leaves may be about to be free
# What no new admission mends by itself, so that it stands until a pod has a node.
STANDING = frozenset({NO_SCHEDULER, UNSCHEDULABLE})
CALM = 600.0  # s that all pods are ready after which a crash counts as over, where nobody reads evals


def note(context: PlanContext) -> None:
    """Take in how the pods of this admission stand."""
    record = context.record
    admission, known = record.admission, record.pod_trouble
    if admission is None or record.finished is not None:
        return
    pods = [p for p in context.observed.pods if p.admission in (None, admission.number)]
    found = [
        p.trouble
        for p in pods
        # One that starved did not crash (`starvation`).
        if p.trouble is not None
        and p.deleting_since is None
        and not starvation.is_starved(context.desired, p.trouble)
    ]
    ended = [one for one in found if one.exit_code is not None and not _counted(record, one)]
    if _is_to_leave(record):
        ended = []
    young = {p.name for p in pods if _is_new(context, p)}
    waiting = [one for one in found if one.exit_code is None and one.pod not in young]
    waiting += filter(None, (_unscheduled(context, p) for p in pods))
    if not waiting:
        waiting = list(_unheard(context, pods))
    if context.observed.refused is not None and not waiting:
        name = context.desired.key.rpartition("/")[2]
        waiting = [PodTrouble(name, waits=FAILED_CREATE, message=context.observed.refused)]
    if ended:
        # Of several that ended together the first is the cause: the others lost their peer.
        new = min(ended, key=lambda one: (one.since, one.pod))
        context.update(pod_trouble=replace(new, count=_times(record, new) + 1))
    elif known is not None and known.exit_code is not None:
        if away := min(_unheard(context, pods), key=lambda one: one.pod, default=None):
            # A run that waits for a node does not crash any more; the node's owner is to know.
            away = replace(away, since=context.now, count=known.count)
            context.update(pod_trouble=away, crashes_over=known.since)
        elif waiting and record.evals_seen and known.count == 1:
            _wait(context, known, min(waiting, key=lambda one: one.pod))
        else:
            _calm(context, known, sum(1 for p in pods if p.ready and not p.terminal))
    elif waiting:
        new = min(waiting, key=lambda one: one.pod)
        since = known.since if known is not None else context.now
        new = replace(new, since=since, count=known.count if known is not None else 0)
        if known is None or (known.pod, known.waits) != (new.pod, new.waits) or _says_else(known, new):
            context.update(pod_trouble=new)
    elif known is not None and not (known.waits in STANDING and all(p.node is None for p in pods)):
        context.update(pod_trouble=None)


def _wait(context: PlanContext, known: PodTrouble, new: PodTrouble) -> None:
    """Have what a pod waits for that came after a crash take the crash's place. That of a run that had evals
    is a quiet note for ever, and as long as it stands no wait is told; one that recurs says enough itself."""
    if (left := known.since + HELD - context.now) > 0:
        context.wake_in(left)
    else:
        new = replace(new, since=context.now, count=known.count)
        context.update(pod_trouble=new, crashes_over=known.since)


def _times(record: JobRecord, new: PodTrouble) -> int:
    """Return how often its pods had ended before, without an eval in between. A wait that took a crash's
    place does not make good for it: only an eval does, or that it is as long ago as one is over by itself."""
    known, over = record.pod_trouble, record.crashes_over
    if known is not None and known.exit_code is not None:
        return known.count
    begun = record.admission.at if record.admission is not None else new.since
    if over is None or over < begun or (record.eval_times and record.eval_times[-1] > over):
        return 0
    if known is not None and known.count:
        return known.count
    return 1 if new.since - over < CALM else 0


def _unheard(context: PlanContext, pods: Sequence[PodView]) -> Iterator[PodTrouble]:
    """Yield which pods lie on nodes that are not heard of. One that is being deleted ends when its node is
    back or gone; it matters until others have taken its place."""
    ready = sum(1 for pod in pods if pod.ready and not pod.terminal)
    for pod in pods:
        if pod.unheard and (pod.deleting_since is None or ready < context.desired.replicas):
            yield node_away(pod.name, pod.node)


def _unscheduled(context: PlanContext, pod: PodView) -> PodTrouble | None:
    """Return that nobody schedules a pod; None: it has a node, or its scheduler has been heard of, or may
    be."""
    if not pod.unseen_by or pod.deleting_since is not None:
        return None
    if (left := pod.created + UNSEEN_AFTER - context.now) > 0:
        context.wake_in(left)
        return None
    message = (
        f"its schedulerName is {pod.unseen_by!r}, and no scheduler of that name has said anything of it for "
        f"{UNSEEN_AFTER:.0f} s: none runs, or it stands still"
    )
    return PodTrouble(pod.name, waits=NO_SCHEDULER, message=message)


def _is_new(context: PlanContext, pod: PodView) -> bool:
    """Return whether it is too soon to tell that a scheduler finds no node for a pod."""
    if pod.trouble is None or pod.trouble.waits != UNSCHEDULABLE:
        return False
    left = pod.created + UNPLACED_AFTER - context.now
    if left > 0:
        context.wake_in(left)
    return left > 0


def _says_else(known: PodTrouble, new: PodTrouble) -> bool:
    """Return whether a scheduler has other grounds now; other numbers of nodes are none."""
    return new.waits == UNSCHEDULABLE and without_numbers(known) != without_numbers(new)


def _is_to_leave(record: JobRecord) -> bool:
    """Return whether its pods are to end: it is being stopped, or preempted. A trainer that was asked for a
    last checkpoint may leave by itself before it is suspended, mostly with 143."""
    decision = record.decision
    stops = decision is not None and decision.mode is Mode.ENFORCE
    return stops or record.preempting is not None


def _counted(record: JobRecord, one: PodTrouble) -> bool:
    """Return whether this end was counted: it is the one on record, or came before it, or it is over. A
    workload keeps its failed pods, so the ends of earlier ones are seen for as long as it runs."""
    known = record.pod_trouble
    if record.crashes_over is not None and one.since <= record.crashes_over:
        return True
    if known is None or known.exit_code is None:
        return False
    return one.container == known.container or one.since <= known.since


def _calm(context: PlanContext, known: PodTrouble, ready: int) -> None:
    """Forget a crash that is over: an eval was read since, or all pods have been ready for long."""
    quiet = context.now - known.since
    newest = context.record.eval_times[-1] if context.record.eval_times else 0
    if newest > known.since or (quiet >= CALM and ready >= context.desired.replicas):
        context.update(pod_trouble=None, crashes_over=known.since)
    elif ready >= context.desired.replicas:
        context.wake_in(CALM - quiet + 1.0)


def with_last_words(record: JobRecord, message: str) -> str:
    """Return how a run failed, with how its trainer ended where that is known."""
    trouble = record.pod_trouble
    return message if trouble is None else f"{message}; {pod_sentence(trouble)}"
