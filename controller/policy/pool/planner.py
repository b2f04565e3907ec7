"""A pool's decisions, event by event: a queue policy and the GPUs it gives out, kept consistent.

`pool.plan` builds one from a snapshot at each pass; the simulator keeps one and tells it what happens. Both
ask the same `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.policy.queueing.base import QueueDecision, QueueJob, QueuePolicy, Room


class Planner:
    """Decides which jobs run in a pool, after each event in it.

    What `decide` admits has its GPUs taken out of the room already: carry it out and say so (`admitted`),
    or throw the planner away. A job that leaves keeps its GPUs until `removed` or `requeued`.
    """

    __slots__ = ("_room", "admitted", "leaving", "policy", "submitted", "updated")

    def __init__(self, policy: QueuePolicy, room: Room) -> None:
        """``room``: what is free. ``policy``: in `EvalStop`, where verdicts are to release jobs."""
        self.policy = policy
        self._room = room
        # Events that do not touch the room go to the policy directly.
        self.submitted = policy.submitted
        self.admitted = policy.admitted
        self.updated = policy.updated
        self.leaving = policy.leaving

    def rebuild(self, jobs: Iterable[QueueJob], now: float) -> None:
        """Forget every job and take in these, whose GPUs are out of the room already."""
        self.policy.rebuild(jobs, now)

    def decide(self, now: float) -> QueueDecision:
        """Return who starts, who is preempted, who is released at ``now`` (s)."""
        return self.policy.decide(now, self._room)

    def removed(self, job: QueueJob, now: float) -> None:
        """Free the GPUs of a job that has ended, or was stopped and has left its GPUs."""
        self.policy.removed(job, now)
        self._room.give(job)

    def requeued(self, job: QueueJob, now: float) -> None:
        """Free the GPUs of a preempted job and queue it again. Its view still names the nodes it had."""
        self._room.give(job)
        self.policy.submitted(job, now)
