"""The API server's objects and what controllers, schedulers and kubelets make of them: what truly is.

Objects are values: what somebody has read stays as it was read. Each RLHFJob and each child workload has a
version that grows with every write.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from controller.policy.job.record import RunFile
from tests.faults.trainer import Files, Life

Json = dict[str, Any]
NAMESPACE = "team"


@dataclass(frozen=True, slots=True)
class Child:
    """The workload of an RLHFJob, a batch Job."""

    uid: str
    version: int
    suspended: bool = True
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    finished: str | None = None


@dataclass(eq=False)
class Pod:
    uid: str
    name: str
    created: float
    gpus: int
    attempt: int
    index: int
    node: str | None = None
    ready: bool = False
    ended: str | None = None  # None | "Succeeded" | "Failed"
    deleting: float | None = None
    goes: float = 0.0  # s, when it is gone once it is being deleted


@dataclass
class Node:
    name: str
    gpus: int
    ready: bool = True


@dataclass(eq=False)
class Access:
    """An access Job. ``runs``: when its program does its work at once; ``ends``: when its answer is there."""

    id: str
    manifest: Json
    created: float
    runs: float
    ends: float
    hangs: bool = False
    kill_at: int | None = None  # operation
    beside: int | None = None  # operation before which the trainer does something
    ran: bool = False
    message: str | None = None
    failed: str | None = None
    operation: str = ""


@dataclass(eq=False)
class Job:
    """An RLHFJob and all that belongs to it."""

    name: str
    obj: Json
    files: Files
    submitted: float
    replicas: int
    gpus: int
    version: int = 1
    finalizer: bool = False
    gone: bool = False
    child: Child | None = None
    pods: list[Pod] = field(default_factory=list)
    run: RunFile | None = None
    access: dict[str, Access] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    level: float = 0.5  # what its policy is truly worth
    best_level: float = 0.5
    trained: str | None = None  # how its training truly ended, once it did
    next_from: int | None = None  # step of the checkpoint its next process starts from; None: the newest
    restarts_at: float = 0.0  # s, before which no process starts again
    names_itself: bool = True  # its page says whose it is
    serves: bool = True  # it answers requests

    @property
    def key(self) -> str:
        return f"{NAMESPACE}/{self.name}"

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    @property
    def life(self) -> Life | None:
        """The process that runs now."""
        return self.lives[-1] if self.lives and self.lives[-1].alive else None

    @property
    def live_pods(self) -> list[Pod]:
        return [p for p in self.pods if p.ended is None]

    def spec(self, path: str, default: Any = None) -> Any:
        node: Any = self.obj["spec"]
        for part in path.split("."):
            if not isinstance(node, dict) or part not in node:
                return default
            node = node[part]
        return node


class Cluster:
    """Nodes, and the controllers that act on jobs each tick."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.nodes = {name: Node(name, gpus) for name, gpus in nodes.items()}
        self.jobs: dict[str, Job] = {}
        self.serial = 0
        self.grace = 5.0  # s that a deleted pod takes to go
        self.stuck: set[str] = set()  # pods that do not go

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def used(self, node: str) -> int:
        return sum(p.gpus for j in self.jobs.values() for p in j.live_pods if p.node == node)

    def tick(self, now: float) -> None:
        for job in list(self.jobs.values()):
            self._controller(job, now)
        for job in self.jobs.values():
            self._schedule(job)
            self._kubelet(job, now)

    def _controller(self, job: Job, now: float) -> None:
        """The batch Job's controller: pods are made, or deleted."""
        child = job.child
        if not job.pods and (child is None or child.suspended):
            return
        wanted = job.replicas if child is not None and not child.suspended and not child.finished else 0
        if wanted:
            assert child is not None
            for index in range(wanted):
                if not any(p.index == index and p.ended is None for p in job.pods):
                    uid = f"pod-{self.number()}"
                    pod = Pod(uid, f"{job.name}-{index}-{uid}", now, job.gpus, child.attempt, index)
                    job.pods = [p for p in job.pods if not (p.index == index and p.ended)] + [pod]
        elif child is None or child.finished is None:
            for pod in job.live_pods:
                self.delete(pod, now)
        job.pods = [p for p in job.pods if p.deleting is None or p.uid in self.stuck or now < p.goes]
        self._ends_with_its_pods(job)

    def delete(self, pod: Pod, now: float) -> None:
        if pod.deleting is None:
            pod.deleting, pod.goes = now, now + self.grace

    def _ends_with_its_pods(self, job: Job) -> None:
        """A process dies with its pod; in a gang all start anew when one is lost."""
        life = job.life
        if life is None:
            return
        ready = [p for p in job.live_pods if p.ready and p.deleting is None]
        if len(ready) < job.replicas or not any(p.uid == life.pod for p in ready):
            life.alive = False

    def _schedule(self, job: Job) -> None:
        child = job.child
        if child is None or child.suspended:
            return
        for pod in job.live_pods:
            if pod.node is not None or pod.deleting is not None:
                continue
            planned = child.nodes[pod.index] if pod.index < len(child.nodes) else None
            for name in [planned] if planned else list(self.nodes):
                node = self.nodes.get(name or "")
                if node is not None and node.ready and self.used(node.name) + pod.gpus <= node.gpus:
                    pod.node = node.name
                    break

    def _kubelet(self, job: Job, now: float) -> None:
        for pod in job.live_pods:
            node = self.nodes.get(pod.node or "")
            if node is not None and not node.ready:
                pod.ready = False
                self.delete(pod, now)  # evicted once its node is lost
            elif pod.node is not None and pod.deleting is None:
                pod.ready = True

    def end(self, job: Job, how: str) -> None:
        """The training ends by itself."""
        assert job.child is not None
        for pod in job.live_pods:
            pod.ended, pod.ready = ("Succeeded" if how == "Complete" else "Failed"), False
        if job.life is not None:
            job.life.alive = False
        job.child = replace(job.child, finished=how, version=job.child.version + 1)
