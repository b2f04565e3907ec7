"""A cluster whose scheduler means no good, for gang admission.

Pods are bound one by one, in any order, to any node that has room, whatever the pool planned; GPUs are taken
by pods that the operator does not see.

Jobs end when all their pods have had nodes for as long as they take.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord, RunFile
from controller.policy.job.types import (
    AccessView,
    CreateWorkload,
    Desired,
    Observed,
    Plan,
    PodView,
    StartAccess,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
    WriteRun,
)
from controller.policy.job.view import job_view
from controller.policy.pool import job_outcomes
from controller.policy.pool.plan import plan_pool
from controller.policy.types import Delegate, JobView, NodeView, PolicySpec, PoolSnapshot, Reservation

TICK = 5.0  # s
FIFO = PolicySpec("fifo")


@dataclass
class Gang:
    desired: Desired
    takes: float  # s with all pods on nodes
    submitted: float
    record: JobRecord = field(default_factory=JobRecord)
    suspended: bool | None = None  # None: no workload yet
    run: RunFile | None = None
    pods: list[PodView] = field(default_factory=list)
    access: tuple[AccessView, ...] = ()
    served: float = 0.0
    partial_since: float | None = None
    longest_partial: float = 0.0
    ended: float | None = None
    plan: Plan | None = None

    def observed(self) -> Observed:
        workload = None
        if self.suspended is not None:
            settled = self.suspended and not self.pods
            finished = "Complete" if self.ended is not None else None
            workload = WorkloadView("w", self.suspended, settled, finished)
        return Observed(workload=workload, pods=tuple(self.pods), run_written=self.run, access=self.access)


class GangWorld:
    """``spread``: the scheduler takes any node with room, else the planned one. ``seed``: of its choices."""

    def __init__(
        self,
        nodes: dict[str, int],
        *,
        delegate: Delegate = Delegate.BUILTIN,
        spread: bool = True,
        seed: int = 0,
        timeout: float = 30.0,
        policy: PolicySpec = FIFO,
    ) -> None:
        self.policy = policy
        self.nodes, self.delegate, self.spread, self.timeout = nodes, delegate, spread, timeout
        self.random = random.Random(seed)
        self.hidden: dict[str, int] = {}  # GPUs taken by pods that the operator does not see
        self.jobs: dict[str, Gang] = {}
        self.reservations: tuple[Reservation, ...] = ()
        self.now = 0.0

    def submit(self, key: str, replicas: int, gpus: int = 1, takes: float = 20.0) -> Gang:
        rule = PolicySpec("kDeclines", {"k": 3})
        desired = Desired(key, f"uid-{key}", 1, "gold", replicas, gpus, rule, gang_timeout=self.timeout)
        self.jobs[key] = Gang(desired, takes, self.now)
        return self.jobs[key]

    def tick(self) -> None:
        """One pass over every job and the pool, and what the cluster does meanwhile."""
        self.now += TICK
        for job in self.jobs.values():
            self._job_pass(job)
        self._pool_pass()
        for job in self.jobs.values():
            self._job_pass(job)
            self._controller(job)
        self._bind()
        for job in self.jobs.values():
            self._watch(job)

    def until_all_ended(self, ticks: int) -> None:
        for _ in range(ticks):
            if all(job.ended is not None for job in self.jobs.values()):
                return
            self.tick()
        left = {
            key: (job.record.gang_backoff, len(job.pods)) for key, job in self.jobs.items() if not job.ended
        }
        raise AssertionError(f"after {ticks} ticks not all have run: {left}")

    def free(self, node: str) -> int:
        used = sum(p.gpus for job in self.jobs.values() for p in job.pods if p.node == node)
        return self.nodes[node] - self.hidden.get(node, 0) - used

    def _job_pass(self, job: Gang) -> None:
        job.plan = plan_job(job.desired, job.observed(), job.record, self.now)
        job.record = job.plan.record
        for action in job.plan.actions:
            if isinstance(action, CreateWorkload):
                job.suspended = True
            elif isinstance(action, WriteRun):
                job.run = action.run
            elif isinstance(action, StartWorkload):
                assert not job.pods, "started beside the pods of another attempt"
                job.suspended = False
            elif isinstance(action, SuspendWorkload):
                job.suspended = True
            elif isinstance(action, StartAccess):
                job.access = (AccessView(action.request_id, action.operation, finished=True, ok=True),)

    def _pool_pass(self) -> None:
        views = [view for job in self.jobs.values() if (view := self._view(job)) is not None]
        nodes = tuple(NodeView(name, gpus) for name, gpus in self.nodes.items())
        snapshot = PoolSnapshot(
            "p", self.policy, nodes, tuple(views), self.reservations, delegate=self.delegate
        )
        planned = plan_pool(snapshot, self.now)
        for admission in planned.admissions:
            job = self.jobs[admission.key]
            job.record = job_outcomes.admitted(job.record, admission, self.now)
        self.reservations = planned.reservations

    def _view(self, job: Gang) -> JobView | None:
        assert job.plan is not None
        return job_view(
            job.desired,
            job.observed(),
            job.record,
            job.plan,
            submitted=job.submitted,
            priority=0,
            now=self.now,
        )

    def _controller(self, job: Gang) -> None:
        """The Job's controller: makes the pods of a started workload, takes away those of a suspended one."""
        if job.suspended:
            job.pods = []
        elif job.suspended is False and not job.pods and job.ended is None:
            job.pods = [
                PodView(f"{job.desired.key}-{i}", None, job.desired.gpus_per_replica, terminal=False)
                for i in range(job.desired.replicas)
            ]

    def _bind(self) -> None:
        waiting = [(job, i) for job in self.jobs.values() for i, p in enumerate(job.pods) if p.node is None]
        self.random.shuffle(waiting)
        for job, i in waiting:
            room = [n for n in self.nodes if self.free(n) >= job.desired.gpus_per_replica]
            admission = job.record.admission
            if not self.spread and admission is not None and admission.nodes:
                room = [n for n in room if n == admission.nodes[i]]
            if room:
                job.pods[i] = replace(job.pods[i], node=self.random.choice(room), ready=True)
        assert all(self.free(n) >= 0 for n in self.nodes), "GPUs given twice"

    def _watch(self, job: Gang) -> None:
        bound = sum(1 for p in job.pods if p.node is not None)
        if 0 < bound < len(job.pods):
            job.partial_since = self.now if job.partial_since is None else job.partial_since
            job.longest_partial = max(job.longest_partial, self.now - job.partial_since)
        else:
            job.partial_since = None
        if job.pods and bound == len(job.pods):
            job.served += TICK
            if job.served >= job.takes:
                job.ended, job.pods = self.now, []


def run_all(world: GangWorld, gangs: Sequence[tuple[int, int]], ticks: int) -> None:
    """Submit gangs of (replicas, GPUs each) at once and run until all have ended."""
    for i, (replicas, gpus) in enumerate(gangs):
        world.submit(f"ns/{i:02d}", replicas, gpus)
    world.until_all_ended(ticks)
