"""Pods that have a node and do not start: the kubelet writes why into an Event of the pod alone.

A volume whose ConfigMap, Secret or claim is not there stands in no status: the container waits in
ContainerCreating, as one does whose image is being pulled (`event_looks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controller.kube.client import Api
from controller.operator.state.event_looks import EventLooks, Object, Waiting
from controller.policy.job import PodTrouble
from controller.policy.types import JobKey
from controller.workloads import pod_starts


@dataclass(slots=True)
class _Pod(Waiting):
    """A pod that does not start."""

    name: str = ""
    trouble: PodTrouble | None = None


class PodStarts(EventLooks[_Pod]):
    """Causes that keep a trainer's pods from starting; of one pod of each job at a time."""

    KIND: ClassVar[str] = "pod"
    LOGGER: ClassVar[str] = "evalstop.pod_starts"

    def __init__(
        self, api: Api, touch: Callable[[JobKey], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(api, touch, monotonic)
        self._waiting = self.table()

    def of(self, key: JobKey, pods: Sequence[Object]) -> PodTrouble | None:
        """Return why one of a job's pods does not start; None: they have, or nobody knows. From now on it is
        looked for."""
        late = [pod for pod in pods if pod_starts.is_starting(pod)]
        known = self._waiting.get(key)
        if not late:
            if known is not None:
                del self._waiting[key]
            return None
        if known is None or all(pod["metadata"]["uid"] != known.uid for pod in late):
            first = min(late, key=lambda pod: str(pod["metadata"]["name"]))["metadata"]
            waits = _Pod(str(first["uid"]), str(first["namespace"]), name=str(first["name"]))
            known = self.wait_for(self._waiting, key, waits)
            if known is None:
                return None
        known.seen = self._now()
        return known.trouble

    def fields(self, waits: _Pod) -> str:
        return f"involvedObject.uid={waits.uid}"

    def is_new(self, waits: _Pod, events: Sequence[Object]) -> bool:
        found = pod_starts.held_up(waits.name, events)
        changed = found != waits.trouble
        waits.trouble = found
        return changed
