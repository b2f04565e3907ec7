"""The miniature cluster with a queue outside that behaves as Kueue does: quota, offers, evictions.

The operator's side of it is the real adapter, which reads and patches the Workload that each job has here.
The queue's side is a model of 0.15.2: what it does is what tests/kueue shows of the real one, one write at a
time, so that the operator may look, and write, between any two of them. Each write of the operator's is
checked for what must hold: nothing is started without quota and a written admission, nothing is suspended
past the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from controller import names
from controller.api.values import timestamp
from controller.delegates import EXTERNAL_QUEUES, Placement, Write
from controller.kube.resources import ADMISSION_CHECKS, WORKLOADS, Resource
from controller.policy.job.types import (
    Answer,
    RefuseOffer,
    RemakeWorkload,
    ResumeWorkload,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
)
from controller.policy.types import Delegate, Problem
from tests.support.merge_patch import merge_apply
from tests.support.policy_world import Job, PolicyWorld

QUEUE = "team"
CHECK = {"metadata": {"name": "evalstop"}, "spec": {"controllerName": names.CHECK_CONTROLLER}}
KUEUE = EXTERNAL_QUEUES[Delegate.KUEUE]


def child(key: str) -> dict[str, Any]:
    """A job's child, as far as the adapter looks at it."""
    namespace, _, name = key.partition("/")
    labels = {names.LABEL_JOB: name, names.QUEUE_LABEL: QUEUE}
    metadata = {"name": name, "namespace": namespace, "uid": f"child-{key}", "labels": labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": {"metadata": {}, "spec": {}}},
    }


class Ticket:
    """The queue's record of one job, a Workload, and what the queue writes into it."""

    def __init__(self, key: str, now: float) -> None:
        self.since = now  # for the order
        owner = {"kind": "Job", "uid": f"child-{key}", "controller": True}
        self.obj: dict[str, Any] = {
            "kind": WORKLOADS.kind,
            "metadata": {"name": key, "uid": f"{key}-{now:g}", "ownerReferences": [owner]},
            "spec": {"active": True, "podSets": [{"name": "main"}]},
            "status": {"conditions": [], "admissionChecks": [{"name": "evalstop", "state": "Pending"}]},
        }

    @property
    def active(self) -> bool:
        return bool(self.obj["spec"]["active"])

    @active.setter
    def active(self, active: bool) -> None:
        self.obj["spec"]["active"] = active

    @property
    def ours(self) -> bool:
        return names.ANNOTATION_SWITCHED_OFF in self.obj["metadata"].get("annotations", {})

    @property
    def quota(self) -> bool:
        return bool(self._reason("QuotaReserved"))

    @property
    def evicted(self) -> str:
        return self._reason("Evicted")

    @property
    def answer(self) -> Answer:
        return Answer(self.obj["status"]["admissionChecks"][0]["state"])

    def _reason(self, type_: str) -> str:
        conditions = self.obj["status"]["conditions"]
        return next((c["reason"] for c in conditions if c["type"] == type_ and c["status"] == "True"), "")

    def _set(self, type_: str, status: bool, reason: str, message: str, now: float) -> None:
        others = [c for c in self.obj["status"]["conditions"] if c["type"] != type_]
        told = {"type": type_, "status": str(status), "reason": reason, "message": message}
        self.obj["status"]["conditions"] = [*others, {**told, "lastTransitionTime": timestamp(now)}]

    def reserve(self, now: float) -> None:
        """Quota, and with it the word that it is out no more. The answers stay as they are."""
        self._set("QuotaReserved", True, "QuotaReserved", "", now)
        self._set("Evicted", False, "QuotaReserved", "", now)

    def clear(self, now: float, message: str) -> None:
        self._set("QuotaReserved", False, "Pending", message, now)

    def evict(self, why: str, now: float) -> None:
        """One write: that it is out, and its answers begin anew. Not of one that is out already."""
        if self.evicted:
            return
        self._set("Evicted", True, why, "", now)
        status = self.obj["status"]
        status["admissionChecks"] = [{"name": "evalstop", "state": "Pending"}]
        stats = status.setdefault("schedulingStats", {"evictions": [{"reason": "any", "count": 0}]})
        stats["evictions"][0]["count"] += 1


class ExternalQueueWorld(PolicyWorld):
    """``quota``: GPUs that the queue gives out. ``problem``: what is wrong with it; only a stopped
    one gives no quota. ``down``: it does nothing. ``close``: between two of its writes about a job the
    operator always looks at that job; else it writes about all jobs whenever the operator has looked at
    one."""

    def __init__(self, nodes: dict[str, int], quota: int, *, close: bool = False) -> None:
        super().__init__(nodes)
        self.delegate = Delegate.KUEUE
        self.quota, self.down, self.close = quota, False, close
        self.problem: Problem | None = None
        self.tickets: dict[str, Ticket] = {}
        self.answered: dict[str, list[int]] = {}  # admission numbers that were let start

    # -- what the adapter knows (`delegates.Known`)

    def get(self, resource: Resource, key: str) -> Any:
        return CHECK if resource == ADMISSION_CHECKS else None

    def values(self, resource: Resource) -> Iterable[Any]:
        return [t.obj for t in self.tickets.values()] if resource == WORKLOADS else [CHECK]

    def of_job(self, resource: Resource, job: str) -> Iterable[Any]:
        return [self.tickets[job].obj] if job in self.tickets else []

    def listed(self, resource: Resource) -> bool:
        return True

    def absent(self, resource: Resource) -> bool:
        return False

    def _send(self, writes: Sequence[Write]) -> bool:
        for write in writes:
            merged = merge_apply(write.obj, write.patch)
            write.obj.clear()  # type: ignore[attr-defined]
            write.obj.update(merged)  # type: ignore[attr-defined]
        return bool(writes)

    def submit(self, key: str, replicas: int = 1, gpus: int = 1, **spec) -> Job:
        return super().submit(key, replicas, gpus, **{"queue": QUEUE, **spec})

    def show(self, key: str) -> None:
        """The operator's watch brings what the queue has on record."""
        job = self.jobs[key]
        view = KUEUE.view(child(key), self)
        job.observed = replace(job.observed, queue=view, queue_problem=self.problem)

    def step(self, key, **more):
        self.show(key)
        return super().step(key, **more)

    def evict(self, key: str, why: str = "Preempted") -> None:
        if self.tickets[key].quota:
            self.tickets[key].evict(why, self.now)

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
            offer = seen.queue.offer if seen.queue is not None else ""
            place = Placement(action.attempt, "p", {})
            if self._send(KUEUE.start(child(key), place, self, self.now)):
                assert admission is not None
                assert (admission.number, admission.offer) == (action.attempt, offer)
                assert ticket.quota
                assert not any(not p.terminal for p in seen.pods), "started beside the old pods"
                job.nodes = action.nodes
                self.answered.setdefault(key, []).append(action.attempt)
        elif isinstance(action, SuspendWorkload):
            self._send(KUEUE.stop(child(key), action.reason, action.again, self, self.now))
        elif isinstance(action, ResumeWorkload):
            assert self.tickets[key].ours, "it was somebody else's to undo"
            self._send(KUEUE.resume(child(key), self))
        elif isinstance(action, RefuseOffer):
            self._send(KUEUE.refuse(child(key), action.message, self, self.now))
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
        self._kueue(job.desired.key if self.close else None)
        super()._cluster(job)
        self.show(job.desired.key)

    def _kueue(self, only: str | None = None) -> None:
        """The queue's next write about each job, or about one."""
        if self.down:
            return
        for key, job in self.jobs.items():
            workload = job.observed.workload
            if workload is not None and workload.queue and only in (None, key):
                self._next(self.tickets.setdefault(key, Ticket(key, self.now)), job, workload)
        if self.problem is None or not self.problem.reason.endswith("Stopped"):
            self._reserve()

    def _next(self, ticket: Ticket, job: Job, workload: WorkloadView) -> None:
        if workload.finished is not None:
            ticket.clear(self.now, "")
        elif not ticket.active and not ticket.evicted:
            ticket.evict("Deactivated", self.now)
        elif ticket.quota and ticket.answer is Answer.RETRY and not ticket.evicted:
            ticket.evict("AdmissionCheck", self.now)
            ticket.since = self.now
        elif ticket.evicted and not workload.suspended:
            self._suspend(job, workload)
        elif ticket.evicted and ticket.quota and not any(not p.terminal for p in job.observed.pods):
            ticket.clear(self.now, "insufficient quota")
        elif ticket.quota and not ticket.evicted and ticket.answer is Answer.READY and workload.suspended:
            job.observed = replace(
                job.observed, workload=WorkloadView("w", suspended=False, queue=workload.queue)
            )

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
            if ticket.answer is Answer.RETRY:
                continue  # "The workload has failed admission checks"
            if size[key] <= free:
                free -= size[key]
                ticket.reserve(self.now)
            elif not ticket.evicted:
                ticket.clear(self.now, "insufficient quota")
