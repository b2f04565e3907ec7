"""A pool over time for `pool.plan` alone: gangs come, bind, run, end, are stopped, give way, pod by pod.

It stands for the operator and the cluster: carries each plan out as they would, with the delays that a real
one has (grace, pods that go one after the other, binding), and says how long each gang has waited in vain.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    Proposal,
    Reservation,
)

STOP = Proposal(60, 30, "ConsecutiveDeclines", 3, 3)
QUEUED, ADMITTED = JobState.QUEUED, JobState.ADMITTED
STOPPING, PREEMPTING = JobState.STOPPING, JobState.PREEMPTING


@dataclass(frozen=True)
class Arrival:
    """``stops``: share of its run after which its rule asks for a stop; None: it never does."""

    at: int
    key: str
    replicas: int
    size: int
    takes: int
    priority: int = 0
    stops: float | None = None
    demoted: float | None = None  # share of its run after which its rule lowers it


@dataclass
class Job:
    arrival: Arrival
    sequence: int
    state: JobState = QUEUED
    since: float = 0.0
    nodes: tuple[str, ...] = ()
    pods: list[str | None] = field(default_factory=list)  # node of each that is there; None: not bound yet
    served: int = 0  # ticks with all pods on nodes
    leaves_at: int = 0  # when its pods begin to go
    attempt: int = 0
    waited: float = 0.0
    policy_state: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        return self.arrival.replicas * self.arrival.size


class QuotaWorld:
    """``grace``, ``ending``, ``binding``: ticks until a preempted run is suspended at most, from then until
    its last pod is gone at most, and until the pod of an admitted gang has its node at most. ``extra``:
    fields of the pool's snapshots."""

    def __init__(
        self,
        nodes: dict[str, int],
        policy: PolicySpec,
        arrivals: list[Arrival],
        seed: int,
        *,
        grace: int = 3,
        ending: int = 3,
        binding: int = 2,
        **extra: Any,
    ) -> None:
        self.nodes, self.policy, self.extra = nodes, policy, extra
        self.grace, self.ending, self.binding = grace, ending, binding
        self.coming = sorted(arrivals, key=lambda a: a.at)
        self.random = random.Random(seed)
        self.jobs: dict[str, Job] = {}
        self.reservations: tuple[Reservation, ...] = ()
        self.now = 0
        self.numbered = 0
        self.ended: list[str] = []
        self.preempted: list[tuple[int, str, str]] = []  # when, who, why
        self.started: dict[str, int] = {}

    # -- what the pool sees

    def view(self, job: Job) -> JobView:
        a = job.arrival
        runs = job.state is not QUEUED
        bound = tuple((node, a.size) for node in job.pods if node is not None)
        share = job.served / a.takes
        return JobView(
            key=a.key,
            submitted=float(a.at),
            sequence=job.sequence,
            replicas=a.replicas,
            gpus_per_replica=a.size,
            priority=a.priority,
            state=job.state,
            bound=bound if runs else (),
            unbound=a.replicas - len(bound) if job.state is ADMITTED else 0,
            nodes=job.nodes if runs else (),
            attained=float(job.served * job.gpus),
            remaining=float(a.takes - job.served),
            since=job.since,
            proposal=STOP if job.state is ADMITTED and a.stops is not None and share >= a.stops else None,
            demoted=a.demoted is not None and share >= a.demoted,
            waited=job.waited,
            attempt=job.attempt,
            policy_state=job.policy_state,
        )

    def snapshot(self) -> PoolSnapshot:
        nodes = tuple(NodeView(name, gpus) for name, gpus in sorted(self.nodes.items()))
        views = tuple(self.view(job) for _, job in sorted(self.jobs.items()))
        return PoolSnapshot(
            "p", self.policy, nodes, views, self.reservations, reservation_seconds=50.0, **self.extra
        )

    # -- what happens

    def tick(self) -> tuple[PoolSnapshot, PoolPlan]:
        """What the cluster does in a second, then one pass of the pool, carried out."""
        self.now += 1
        while self.coming and self.coming[0].at <= self.now:
            arrival = self.coming.pop(0)
            self.numbered += 1
            self.jobs[arrival.key] = Job(arrival, self.numbered, since=float(self.now))
        for job in list(self.jobs.values()):
            self._goes_on(job)
        self._bind()
        snapshot = self.snapshot()
        plan = plan_pool(snapshot, float(self.now))
        self._carry_out(plan)
        return snapshot, plan

    def run(self, ticks: int) -> list[PoolPlan]:
        return [self.tick()[1] for _ in range(ticks)]

    def _goes_on(self, job: Job) -> None:
        if job.state in (STOPPING, PREEMPTING) and self.now >= job.leaves_at:
            last = self.now >= job.leaves_at + self.ending
            for _ in range(len(job.pods) if last else self.random.randint(0, len(job.pods))):
                job.pods.pop(self.random.randrange(len(job.pods)))
            if job.pods:
                return
            if job.state is STOPPING:
                del self.jobs[job.arrival.key]
            else:
                job.state, job.nodes, job.since = QUEUED, (), float(self.now)
        elif job.state is ADMITTED and job.pods and None not in job.pods:
            job.served += 1
            if job.served >= job.arrival.takes:
                self.ended.append(job.arrival.key)
                del self.jobs[job.arrival.key]

    def _bind(self) -> None:
        for job in self.jobs.values():
            if job.state is not ADMITTED:
                continue
            if not job.pods:
                job.pods = [None] * job.arrival.replicas
            for index, node in enumerate(job.pods):
                late = self.now >= job.since + self.binding
                if node is None and (late or self.random.random() < 0.5):
                    job.pods[index] = job.nodes[index]
                    assert self.free(job.nodes[index]) >= 0, "GPUs given twice"

    def free(self, node: str) -> int:
        used = (j.arrival.size * j.pods.count(node) for j in self.jobs.values())
        return self.nodes[node] - sum(used)

    def _carry_out(self, plan: PoolPlan) -> None:
        for key, policy_state in plan.policy_states:
            self.jobs[key].policy_state = policy_state
        for grant in plan.grants:
            job = self.jobs[grant.key]
            job.state, job.since, job.leaves_at = STOPPING, float(self.now), self.now
            job.pods = [node for node in job.pods if node is not None]
        for preemption in plan.preemptions:
            job = self.jobs[preemption.key]
            job.state, job.since = PREEMPTING, float(self.now)
            job.leaves_at = self.now + self.random.randint(0, self.grace)
            job.pods = [node for node in job.pods if node is not None]
            self.preempted.append((self.now, preemption.key, preemption.reason))
        for admission in plan.admissions:
            job = self.jobs[admission.key]
            job.waited, job.state = self.now - job.since, ADMITTED
            job.since, job.nodes, job.attempt = float(self.now), admission.nodes, job.attempt + 1
            self.started.setdefault(admission.key, self.now)
        self.reservations = plan.reservations


def arrivals(seed: int, count: int, spread: int, namespaces: str = "abc") -> list[Arrival]:
    """Gangs of every shape, that come and go."""
    r = random.Random(seed)
    found = []
    for n in range(count):
        replicas, size = r.choice([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (1, 8), (3, 2), (2, 8)])
        found.append(
            Arrival(
                at=r.randint(1, spread),
                key=f"{r.choice(namespaces)}/{n:03d}",
                replicas=replicas,
                size=size,
                takes=r.choice([3, 5, 10, 30, 80]),
                priority=r.choice([0, 0, 0, 1]),
                stops=r.choice([None, None, 0.5]),
                demoted=r.choice([None, None, None, 0.3]),
            )
        )
    return found
