"""One node at work: the pods bound to it, their addresses, their workers."""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
from collections.abc import Iterator

from controller.kube.client import Object
from controller.kube.resources import PODS
from deploy.local.agent.affinity import asks
from deploy.local.agent.context import Node
from deploy.local.agent.fit import Refusal, refusal
from deploy.local.agent.follow import follow
from deploy.local.agent.pod import PodWorker
from deploy.local.agent.process import kill_left_behind

log = logging.getLogger(__name__)

_TERMINAL = ("Succeeded", "Failed")


class NodeAgent:
    """Follows the pods of one node and gives each a worker."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.workers: dict[str, PodWorker] = {}  # by pod uid
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving = False
        self._last_address = 1

    async def clean(self) -> None:
        """Before anything runs: end the processes that a former agent has left."""
        if killed := await kill_left_behind(self.node.folder / "pods"):
            log.warning("node %s: ended %d containers that a former agent had left", self.node.name, killed)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async for change in follow(self.node.api, PODS, fields=f"spec.nodeName={self.node.name}"):
            if self._leaving:
                return
            if change.kind == "LISTED":
                await self._listed(change.items)
            elif change.kind == "DELETED":
                self._remove(change.items[0]["metadata"]["uid"])
            else:
                await self._seen(change.items[0])

    async def stop(self, seconds: float) -> None:
        """Stop all containers, within `seconds` and each pod's own grace; the API is not told."""
        self._leaving = True
        for worker in self.workers.values():
            worker.shut_down(seconds)
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of a pod by its name; of two with one name, the younger."""
        found = [
            worker
            for worker in self.workers.values()
            if (worker.pod["metadata"]["namespace"], worker.pod["metadata"]["name"]) == (namespace, name)
        ]
        return found[-1] if found else None

    async def _listed(self, pods: list[Object]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self.workers if uid not in present]:
            self._remove(uid)
        # Those that ran before us come first: they were admitted already.
        for pod in sorted(pods, key=lambda pod: (pod.get("status") or {}).get("startTime") or "9999"):
            await self._seen(pod)
        folder = self.node.folder / "pods"
        known = present | {*self.workers}
        for stale in (
            [entry for entry in folder.iterdir() if entry.name not in known] if folder.is_dir() else []
        ):
            await asyncio.to_thread(shutil.rmtree, stale, ignore_errors=True)

    def _remove(self, uid: str) -> None:
        if uid in self.workers:
            self.workers[uid].removed()

    async def _seen(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        try:
            if uid not in self.workers:
                await self._admit(pod)
            if uid in self.workers:
                self.workers[uid].update(pod)
        except Exception:  # one pod that we do not understand must not take the others down
            log.exception("pod %s/%s", pod["metadata"].get("namespace"), pod["metadata"].get("name"))

    async def _admit(self, pod: Object) -> None:
        node = self.node
        refused = None
        status = pod.get("status") or {}
        if status.get("phase") not in _TERMINAL and not pod["metadata"].get("deletionTimestamp"):
            labels = await node.labels.now() if asks(pod) else {}
            if self._leaving:  # `stop` has told the workers meanwhile; a new one would not hear of it
                return
            neighbours = [worker.pod for worker in self.workers.values() if not worker.terminal]
            refused = refusal(pod, node.name, labels, node.allocatable, neighbours)
        address = "" if refused else self._address(pod)
        if not (address or refused):
            refused = Refusal("OutOfAddresses", f"Pod was rejected: {node.ip[:-1]}0/24 has no address left")
        uid = pod["metadata"]["uid"]
        worker = self.workers[uid] = PodWorker(node, pod, address, refused)
        if refused:
            worker.terminal = True
        task = self._tasks[uid] = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['name']}")
        task.add_done_callback(functools.partial(self._ended, uid))

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        del self.workers[uid]
        del self._tasks[uid]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pod %s: %s", uid, error, exc_info=error)

    def _address(self, pod: Object) -> str:
        """Return the pod's own loopback address (on the host network: the node's); "" when all are in use."""
        if pod["spec"].get("hostNetwork"):
            return self.node.ip
        taken = {worker.pod_ip for worker in self.workers.values() if not worker.terminal}
        former = (pod.get("status") or {}).get("podIP") or ""
        for address in [former, *self._addresses()]:
            if address.startswith(self.node.ip[:-1]) and address != self.node.ip and address not in taken:
                return address
        return ""

    def _addresses(self) -> Iterator[str]:
        """Yield all of the node's addresses, those not used for the longest time first."""
        block = self.node.ip[:-1]
        for _ in range(253):
            self._last_address = (self._last_address - 1) % 253 + 2
            yield f"{block}{self._last_address}"
