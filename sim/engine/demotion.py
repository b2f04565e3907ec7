"""The running and leaving jobs of a simulation, and which demoted runs go back into the queue for others."""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.pool import NodeRoom, SlotRoom, give_way
from controller.policy.queueing import EvalStop, Quotas
from controller.policy.queueing.base import QueueJob, QueuePolicy
from sim.engine.virtual_job import VirtualJob


class Demotions:
    """Running and leaving jobs by row; only kept where a modifier can demote runs."""

    __slots__ = ("_policy", "leaving", "running")

    def __init__(self, policy: QueuePolicy) -> None:
        """``policy``: the one that the run is under; others of its kind are made from it for a what-if."""
        self._policy = policy.base if isinstance(policy, EvalStop) else policy
        self.running: dict[int, VirtualJob] = {}
        self.leaving: dict[int, VirtualJob] = {}

    def give_way(
        self, waiting: Sequence[QueueJob], room: NodeRoom | SlotRoom, now: float
    ) -> list[VirtualJob]:
        """Return which demoted runs go back into the queue for those who wait, as the pool's plan has it."""
        demoted = [job for job in self.running.values() if job.demoted]
        if not demoted or not waiting:
            return []
        stay = [job for job in self.running.values() if not job.demoted]
        free = SlotRoom(room.slots) if isinstance(room, SlotRoom) else NodeRoom(room.free)
        return give_way(
            self._policy.fresh,
            stay,
            demoted,
            self.leaving.values(),
            waiting,
            free,
            now,
            quotas=self._policy.quotas if isinstance(self._policy, Quotas) else (),
        )
