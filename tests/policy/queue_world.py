"""The miniature cluster with a queue outside that behaves as Kueue does: quota, offers, evictions.

What it does is what tests/kueue shows of the real one. It checks of the operator what must hold at each
write: nothing is started without quota and a written admission, and nothing is suspended past the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from policy_world import Job, World

from controller.policy.jobs import (
    Answer,
    QueueView,
    RefuseOffer,
    RemakeWorkload,
    ResumeWorkload,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
)
from controller.policy.types import Delegate

QUEUE = "team"


@dataclass
class Ticket:
    """The queue's record of one job."""

    since: float  # for the order
    active: bool = True
    ours: bool = False
    quota: bool = False
    at: float = 0.0
    answer: Answer = Answer.PENDING
    evicted: str = ""
    evictions: int = 0

    @property
    def offer(self) -> str:
        return f"{self.evictions}/{self.at:g}" if self.quota and self.active and not self.evicted else ""

    def evict(self, why: str) -> None:
        if not self.evicted:
            self.evicted, self.evictions, self.answer = why, self.evictions + 1, Answer.PENDING


class QueueWorld(World):
    """``quota``: GPUs that the queue gives out. ``problem``: what is wrong with it; only a stopped
    one gives no quota. ``down``: it does nothing."""

    def __init__(self, nodes: dict[str, int], quota: int) -> None:
        super().__init__(nodes)
        self.delegate = Delegate.KUEUE
        self.quota, self.down = quota, False
        self.problem: tuple[str, str] | None = None
        self.tickets: dict[str, Ticket] = {}
        self.answered: dict[str, list[int]] = {}  # admission numbers that were let start

    def submit(self, key: str, replicas: int = 1, gpus: int = 1, **spec) -> Job:
        return super().submit(key, replicas, gpus, **{"queue": QUEUE, **spec})

    def show(self, key: str) -> None:
        """The operator's watch brings what the queue has on record."""
        ticket, job = self.tickets.get(key), self.jobs[key]
        view = None
        if ticket is not None:
            view = QueueView(
                key,
                ticket.active,
                ticket.ours,
                ticket.offer,
                ticket.at if ticket.offer else None,
                ticket.answer,
                ticket.evicted,
                "insufficient quota" if not ticket.quota else "",
            )
        job.observed = replace(job.observed, queue=view, queue_problem=self.problem)

    def step(self, key, **more):
        self.show(key)
        return super().step(key, **more)

    def evict(self, key: str, why: str = "Preempted") -> None:
        if self.tickets[key].quota:
            self.tickets[key].evict(why)

    def switch(self, key: str, active: bool) -> None:
        """By a hand."""
        self.tickets[key].active = active

    def finish(self, key: str) -> None:
        super().finish(key)
        seen = self.jobs[key].observed
        assert seen.workload is not None
        self.jobs[key].observed = replace(seen, workload=replace(seen.workload, queue=QUEUE))

    def _carry_out(self, job: Job, action: object) -> None:
        key, seen = job.desired.key, job.observed
        if seen.workload is not None and not seen.workload.queue and not isinstance(action, RemakeWorkload):
            super()._carry_out(job, action)  # a child of before
            return
        if isinstance(action, StartWorkload):
            ticket, admission = self.tickets[key], job.record.admission
            if ticket.answer is Answer.PENDING and ticket.offer:
                assert admission is not None
                assert (admission.number, admission.offer) == (action.attempt, ticket.offer)
                assert not any(not p.terminal for p in seen.pods), "started beside the old pods"
                ticket.answer = Answer.READY
                job.nodes = action.nodes
                self.answered.setdefault(key, []).append(action.attempt)
        elif isinstance(action, SuspendWorkload):
            ticket = self.tickets[key]
            if action.again:
                ticket.answer = Answer.RETRY
            elif ticket.active:
                ticket.active, ticket.ours = False, True
        elif isinstance(action, ResumeWorkload):
            ticket = self.tickets[key]
            assert ticket.ours, "it was somebody else's to undo"
            ticket.active, ticket.ours = True, False
        elif isinstance(action, RefuseOffer):
            assert self.tickets[key].answer is Answer.PENDING
            self.tickets[key].answer = Answer.RETRY
        elif isinstance(action, RemakeWorkload):
            assert seen.workload is not None
            assert seen.workload.suspended
            assert not seen.pods
            job.observed = replace(seen, workload=None)
            self.tickets.pop(key, None)
        else:
            super()._carry_out(job, action)
            made = job.observed.workload
            if made is not None and not made.queue and seen.workload is None:
                job.observed = replace(job.observed, workload=replace(made, queue=job.desired.queue))

    def _cluster(self, job: Job) -> None:
        self._kueue()
        super()._cluster(job)
        self.show(job.desired.key)

    def _kueue(self) -> None:
        if self.down:
            return
        for key, job in self.jobs.items():
            workload = job.observed.workload
            if workload is None or not workload.queue:
                continue
            ticket = self.tickets.setdefault(key, Ticket(self.now))
            if workload.finished is not None:
                ticket.quota = False
                continue
            if not ticket.active:
                ticket.evict("Deactivated")
            elif ticket.quota and ticket.answer is Answer.RETRY:
                ticket.evict("AdmissionCheck")
                ticket.since = self.now
            if ticket.evicted:
                self._suspend(job, workload)
                if ticket.quota and not any(not p.terminal for p in job.observed.pods):
                    ticket.quota = False
            elif ticket.quota and ticket.answer is Answer.READY and workload.suspended:
                job.observed = replace(
                    job.observed, workload=WorkloadView("w", suspended=False, queue=workload.queue)
                )
        if self.problem is None or not self.problem[0].endswith("Stopped"):
            self._reserve()

    def _suspend(self, job: Job, workload: WorkloadView) -> None:
        if not workload.suspended:
            suspended = WorkloadView("w", suspended=True, queue=workload.queue)
            job.observed = replace(job.observed, workload=suspended)

    def _reserve(self) -> None:
        size = {key: job.desired.replicas * job.desired.gpus_per_replica for key, job in self.jobs.items()}
        free = self.quota - sum(size[key] for key, t in self.tickets.items() if t.quota)
        for key, ticket in sorted(self.tickets.items(), key=lambda item: (item[1].since, item[0])):
            finished = self.jobs[key].observed.workload
            if ticket.quota or not ticket.active or finished is None or finished.finished is not None:
                continue
            if size[key] <= free:
                free -= size[key]
                ticket.quota, ticket.at, ticket.evicted = True, self.now, ""
                ticket.answer = Answer.PENDING
