"""An observer of pods and nothing else: GPU-seconds of each job's actors, GPUs of a node at each look, and
who ran on GPUs that a job's actors had left for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from controller import names
from controller.kube.errors import Unavailable
from controller.objects import is_terminal

Json = dict[str, Any]
EVERY = 0.2  # s between looks
PATIENCE = 60.0  # s for which a busy API server may not answer; the next look counts for all of them


class Seen(NamedTuple):
    """A pod on a node. ``actor``: whether it is a rollout actor's."""

    name: str
    job: str
    gpus: int
    actor: bool


class Observer(threading.Thread):
    """Looks at all pods until `stop`; the first fault that it meets is raised there.

    Attributes:
        held: GPU-seconds of actors by job, each from the look that first saw it on a node to its last one.
        most: GPUs that pods on a node requested at a time, by node.
        actors: pods of actors that had a node at a time, the most of all looks.
    """

    def __init__(self, pods: Callable[[], list[Json]], gpus: int = 0) -> None:
        """``gpus``: of each node; 0: not known, and nobody is found on GPUs that were left."""
        super().__init__(name="observer", daemon=True)
        self._pods, self._gpus, self._over = pods, gpus, threading.Event()
        self._fault: BaseException | None = None
        self.held: dict[str, float] = {}
        self.most: dict[str, int] = {}
        self.actors = 0
        self._before: dict[str, dict[str, Seen]] = {}  # by node and uid, at the last look
        self._left: dict[str, tuple[Seen, frozenset[str]]] = {}  # by full node: who left, and who stayed
        self._taken: list[tuple[Seen, Seen, str]] = []  # who left, who came, on which node
        self._later: set[tuple[str, str]] = (
            set()
        )  # jobs that had an actor again, and whose pod came meanwhile

    def run(self) -> None:
        before = time.monotonic()
        try:
            while not self._over.wait(EVERY):
                try:
                    found = self._pods()
                except Unavailable:
                    if time.monotonic() - before > PATIENCE:
                        raise
                    continue
                now = time.monotonic()
                self._count(found, now - before)
                before = now
        except BaseException as fault:  # told by who stops it
            self._fault = fault

    def _count(self, pods: list[Json], seconds: float) -> None:
        nodes: dict[str, dict[str, Seen]] = {}
        actors = 0
        for pod in pods:
            metadata, node = pod["metadata"], pod["spec"].get("nodeName")
            labels = metadata.get("labels") or {}
            if not node or is_terminal(pod):
                continue
            seen = Seen(
                metadata.get("name", ""),
                labels.get(names.LABEL_JOB, ""),
                gpus_of(pod),
                labels.get(names.LABEL_COMPONENT) == "actor",
            )
            nodes.setdefault(node, {})[metadata.get("uid") or str(id(pod))] = seen
            if seen.actor:
                actors += 1
                self.held[seen.job] = self.held.get(seen.job, 0.0) + seen.gpus * seconds
        self.actors = max(actors, self.actors)
        for node, here in nodes.items():
            used = sum(one.gpus for one in here.values())
            self.most[node] = max(used, self.most.get(node, 0))
        for node in {*nodes, *self._before}:
            self._follow(node, self._before.get(node, {}), nodes.get(node, {}))
        self._before = nodes

    def _follow(self, node: str, before: dict[str, Seen], here: dict[str, Seen]) -> None:
        """Note who comes to a node that was full until an actor left it, while all others are still there: it
        has that actor's GPUs."""
        gone, new = before.keys() - here.keys(), here.keys() - before.keys()
        full = self._gpus and sum(one.gpus for one in before.values()) == self._gpus
        if full and len(gone) == 1 and before[next(iter(gone))].actor:
            self._left[node] = before[next(iter(gone))], frozenset(before.keys() - gone)
        if node in self._left and new:
            left, stayed = self._left.pop(node)
            came = here[next(iter(new))]
            if stayed <= here.keys() and came.job != left.job:
                self._taken.append((left, came, node))
        for uid in new:
            if here[uid].actor:
                self._later |= {
                    (left.job, came.name) for left, came, _ in self._taken if left.job == here[uid].job
                }

    @property
    def lent(self) -> list[str]:
        """Pods, in words, that ran on GPUs which another job's actor had left, and that job had actors again
        after that: between two of its steps, or in one."""
        return [
            f"{came.name} of {came.job} on {node}, after {left.name} of {left.job}"
            for left, came, node in self._taken
            if (left.job, came.name) in self._later
        ]

    def stop(self) -> None:
        """End it. Raises: whatever fault it met."""
        self._over.set()
        self.join(30)
        if self._fault is not None:
            raise self._fault


def gpus_of(pod: Json) -> int:
    """Return the GPUs that a pod's containers request."""
    limits = ((c.get("resources") or {}).get("limits") or {} for c in pod["spec"]["containers"])
    return sum(int(one.get(names.GPU_RESOURCE, 0)) for one in limits)
