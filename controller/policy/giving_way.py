"""Demoted runs give way: a run that its rule has lowered goes back into the queue for anybody who waits.

In the queue a demoted job comes after all others, whatever its priority was. Which of the running ones have
to go is asked of the pool's own policy, on the room as it would be without them: nobody is sent away for a
job that would not start then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.policy.placement import NodeRoom
from controller.policy.queueing import make_policy
from controller.policy.queueing.base import queue_key
from controller.policy.types import JobKey, JobState, JobView, PolicySpec

REASON = "Demoted"
LOWEST = -(2**31)  # below every priority that the API allows


def lowered(job: JobView) -> JobView:
    """The job as its pool's policy is to see it."""
    return replace(job, priority=LOWEST) if job.demoted else job


def give_way(
    policy: PolicySpec,
    running: Sequence[JobView],
    leaving: Iterable[JobView],
    waiting: Iterable[JobView],
    free: Mapping[str, int],
    now: float,
) -> list[JobView]:
    """Which demoted runs are to be preempted at ``now`` (s), the first to be demoted last.

    Args:
        running: admitted jobs that nobody has asked to leave. leaving: those whose GPUs will be free without
            anything more. waiting: who is not admitted in this pass. free: GPUs per node then.
    """
    demoted = sorted((j for j in running if j.demoted and j.preemptible), key=queue_key, reverse=True)
    others = [j for j in waiting if not j.demoted]
    if not demoted or not others:
        return []
    room = NodeRoom(free)
    for job in leaving:
        room.give(job)
    stay = [j for j in running if not (j.demoted and j.preemptible)]
    served: set[JobKey] = set()

    def starts() -> bool:
        asked = make_policy(policy)
        asked.rebuild([*stay, *(j for j in others if j.key not in served)], now)
        begun = [job.key for job in asked.decide(now, room).admit]
        served.update(begun)
        return bool(begun)

    starts()  # these need nobody's GPUs but those that come free anyway
    go: list[JobView] = []
    given: list[JobView] = []
    for job in demoted:
        room.give(job)
        given.append(job)
        if starts():
            go += [other for other in reversed(given) if not _keeps(other, room)]
            given.clear()
    return go


def _keeps(job: JobView, room: NodeRoom) -> bool:
    """Take a run's GPUs out of the room again if nobody got them; say whether that was so."""
    on = [node for node, _ in job.bound] or list(job.nodes)
    nodes = tuple(node for node in on if node in room.free)
    if any(room.free[node] < nodes.count(node) * job.gpus_per_replica for node in nodes):
        return False
    room.place(job, nodes)
    return True


def demotable(jobs: Iterable[JobView], settled: set[JobKey]) -> list[JobView]:
    """Admitted jobs, without those that are to leave already."""
    return [j for j in jobs if j.state is JobState.ADMITTED and j.key not in settled]
