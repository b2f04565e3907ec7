"""EvalStop around any base policy: the only place where a verdict becomes a stop.

The wrapper watches the proposals that jobs bring with them (`lifecycle.plan` makes them from a stop rule's
verdict), releases those jobs, and leaves everything else to the base policy, to which a job that proposes
is already on its way out. With rules that never propose it decides exactly as its base does.

A proposal for contended pools only (`Proposal.when_contended`) is granted while a job waits for whom neither
free GPUs nor those on their way out will do, and only as many of them as it takes; until then its job is to
the base policy as any other.
"""

from __future__ import annotations

from typing import ClassVar

from controller.policy.queueing.base import (
    QueueDecision,
    QueueJob,
    QueuePolicy,
    Room,
    Wrapper,
    decided,
    queue_key,
)
from controller.policy.types import JobKey, JobState


class EvalStop(Wrapper):
    """Stop every admitted job with a proposal, some only if others wait; leave the rest to ``base``."""

    name: ClassVar[str] = "evalStop"

    def __init__(self, base: QueuePolicy) -> None:
        super().__init__(base)
        self._proposed: dict[JobKey, QueueJob] = {}
        self._patient: dict[JobKey, QueueJob] = {}  # propose to be stopped when somebody waits
        self._leaving: dict[JobKey, QueueJob] = {}

    def clear(self) -> None:
        self._proposed.clear()
        self._patient.clear()
        self._leaving.clear()
        self.base.rebuild(())

    # Nearly always there is nothing to forget: the question is asked here, without a call.

    def submitted(self, job: QueueJob, now: float) -> None:
        if self._leaving or self._proposed or self._patient:
            self._forget(job)
        self.base.submitted(job, now)

    def admitted(self, job: QueueJob, now: float) -> None:
        if self._leaving or self._proposed or self._patient:
            self._forget(job)
        proposal = job.proposal
        if proposal is None or job.state is not JobState.ADMITTED:
            self.base.admitted(job, now)
        elif proposal.when_contended:
            self._patient[job.key] = job
            self.base.admitted(job, now)
        else:
            self._proposed[job.key] = job
            self.base.leaving(job, now)

    def shielded(self, job: QueueJob, now: float) -> None:
        self._forget(job)
        self.base.shielded(job, now)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._forget(job)
        self._leaving[job.key] = job
        self.base.leaving(job, now)

    def removed(self, job: QueueJob, now: float) -> None:
        if self._leaving or self._proposed or self._patient:
            self._forget(job)
        self.base.removed(job, now)

    def _forget(self, job: QueueJob) -> None:
        for known in (self._proposed, self._patient, self._leaving):
            if known:
                known.pop(job.key, None)

    def decide(self, now: float, room: Room) -> QueueDecision:
        decision = self.base.decide(now, room)
        if not self._proposed and not self._patient:
            return decision
        released = list(self._proposed.values())
        preempted = decision.preempt
        if self._patient:
            needed = self._needed(decision, room)
            released += needed.values()
            preempted = [(job, why) for job, why in preempted if job.key not in needed]
        if len(released) > 1:
            released.sort(key=queue_key)
        return decided(decision.admit, preempted, decision.wake_at, released)

    def _needed(self, decision: QueueDecision, room: Room) -> dict[JobKey, QueueJob]:
        """Return the patient ones whose GPUs somebody waits for, last in the queue's order first.

        One that the base would put back into the queue is stopped instead: its GPUs are wanted.
        """
        started = {job.key for job in decision.admit}
        waiting = [job for job in self.base.queue() if job.key not in started]
        if not waiting:
            return {}
        going = {job.key: job for job, _ in decision.preempt}
        needed = {key: job for key, job in going.items() if key in self._patient}
        trial = room.trial()
        for job in (self._leaving | self._proposed | going).values():
            trial.give(job)
        left = sorted((j for j in self._patient.values() if j.key not in needed), key=queue_key)
        for job in waiting:
            while not trial.take(job):
                if not left:
                    return needed
                one = left.pop()
                needed[one.key] = one
                trial.give(one)
        return needed

    def queue(self) -> list[QueueJob]:
        return self.base.queue()

    def fresh(self) -> QueuePolicy:
        return EvalStop(self.base.fresh())
