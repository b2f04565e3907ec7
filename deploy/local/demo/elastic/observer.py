"""An observer of pods and nothing else: GPU-seconds of each job's actors, and GPUs of a node at each look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from controller import names
from controller.objects import is_terminal

Json = dict[str, Any]
EVERY = 0.2  # s between looks


class Observer(threading.Thread):
    """Looks at all pods until `stop`; the first fault that it meets is raised there.

    Attributes:
        held: GPU-seconds of actors by job, each from the look that first saw it on a node to its last one.
        most: GPUs that pods on a node requested at a time, by node.
    """

    def __init__(self, pods: Callable[[], list[Json]]) -> None:
        super().__init__(name="observer", daemon=True)
        self._pods, self._over = pods, threading.Event()
        self._fault: BaseException | None = None
        self.held: dict[str, float] = {}
        self.most: dict[str, int] = {}

    def run(self) -> None:
        before = time.monotonic()
        try:
            while not self._over.wait(EVERY):
                found = self._pods()
                now = time.monotonic()
                self._count(found, now - before)
                before = now
        except BaseException as fault:  # told by who stops it
            self._fault = fault

    def _count(self, pods: list[Json], seconds: float) -> None:
        used: dict[str, int] = {}
        for pod in pods:
            node, labels = pod["spec"].get("nodeName"), pod["metadata"].get("labels") or {}
            if not node or is_terminal(pod):
                continue
            gpus = gpus_of(pod)
            used[node] = used.get(node, 0) + gpus
            if labels.get(names.LABEL_COMPONENT) == "actor":
                job = labels.get(names.LABEL_JOB, "")
                self.held[job] = self.held.get(job, 0.0) + gpus * seconds
        for node, gpus in used.items():
            self.most[node] = max(gpus, self.most.get(node, 0))

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
