"""Demoted runs give way: a run that its rule has lowered goes back into the queue for anybody who waits.

In the queue a demoted job comes after all others, whatever its priority was. Which of the running ones have
to go is asked of the pool's own policy, on the room as it would be without them: nobody is sent away for a
job that would not start then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from controller.policy.placement import NodeRoom, SlotRoom
from controller.policy.queueing.base import QueueJob, QueuePolicy, queue_key
from controller.policy.types import JobKey, JobView

REASON = "Demoted"
Job = TypeVar("Job", bound=QueueJob)

LOWEST = -(2**31)  # below every priority that the API allows


def lowered(job: JobView) -> JobView:
    """The job as its pool's policy is to see it."""
    return replace(job, priority=LOWEST) if job.demoted else job


def give_way(
    fresh: Callable[[], QueuePolicy],
    stay: Sequence[QueueJob],
    demoted: Iterable[Job],
    leaving: Iterable[QueueJob],
    waiting: Iterable[QueueJob],
    room: NodeRoom | SlotRoom,
    now: float,
) -> list[Job]:
    """Which demoted runs are to be preempted at ``now`` (s), the first to be demoted last.

    Args:
        fresh: makes the pool's queue policy anew. stay: admitted jobs that keep their GPUs. demoted: those
            that may have to go. leaving: those whose GPUs will be free without anything more. waiting: who is
            not admitted in this pass. room: what is free then; it is used up.
    """
    candidates = sorted(demoted, key=queue_key, reverse=True)
    others = [j for j in waiting if not j.demoted]
    if not candidates or not others:
        return []
    for gone in leaving:
        room.give(gone)
    served: set[JobKey] = set()

    def starts() -> bool:
        asked = fresh()
        asked.rebuild([*stay, *(j for j in others if j.key not in served)], now)
        begun = [job.key for job in asked.decide(now, room).admit]
        served.update(begun)
        return bool(begun)

    starts()  # these need nobody's GPUs but those that come free anyway
    go: list[Job] = []
    given: list[Job] = []
    for job in candidates:
        room.give(job)
        given.append(job)
        if starts():
            go += [other for other in reversed(given) if not _keeps(other, room)]
            given.clear()
    return go


def _keeps(job: QueueJob, room: NodeRoom | SlotRoom) -> bool:
    """Take a run's GPUs out of the room again if nobody got them; say whether that was so."""
    if isinstance(room, SlotRoom):
        return room.take(job)
    on = [node for node, _ in job.bound] or list(job.nodes)
    nodes = tuple(node for node in on if node in room.free)
    if any(room.free[node] < nodes.count(node) * job.gpus_per_replica for node in nodes):
        return False
    room.place(job, nodes)
    return True
