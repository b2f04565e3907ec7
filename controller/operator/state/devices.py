"""GPUs allocated by dynamic resource allocation on the pools' nodes, if the API server serves it.

They are counted where the pods' own requests do not show them: of an RLHFJob's pod they are that job's, of
anybody else's they are a guest's. A node that has GPUs by ResourceSlices alone has its capacity from those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from controller import names
from controller.kube.cache import Cache, key_of
from controller.kube.client import Api
from controller.kube.devices import Holding, Inventory
from controller.kube.namespaced_watch import follow
from controller.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from controller.operator.state.cluster import ClusterState

Object = Mapping[str, Any]

KINDS = (RESOURCE_SLICES, RESOURCE_CLAIMS)
LOOK = 0.02  # s between looks whether they were read


class Devices:
    """Devices that claims hold, by pod and by node.

    Args:
        node_changed: called with the name of a node of which GPUs came, went, or changed hands.
    """

    def __init__(
        self,
        api: Api,
        cluster: ClusterState,
        node_changed: Callable[[str], None],
        namespaces: Sequence[str] = (),
    ) -> None:
        self._cluster, self._node_changed = cluster, node_changed
        self.cache = Cache(KINDS)
        self.watches = {
            kind: follow(
                api,
                kind,
                self._event,
                self.cache.replace,
                namespaces,
                keep=self.cache.stored,
                optional=True,
            )
            for kind in KINDS
        }
        if namespaces:
            self.cache.stores[RESOURCE_CLAIMS].spread(namespaces)
        self._inventory = Inventory(())
        self._held: dict[str, list[Holding]] = {}  # by claim
        self._of_pod: dict[str, int] = {}  # by uid: GPUs
        self.cache.subscribe(self._changed)

    async def run(self) -> None:
        """Follow both kinds until cancelled. Where nobody serves them there is nothing to follow: that is
        asked again now and then."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches.values():
                group.create_task(watch.run())

    async def read(self, seconds: float = 10.0) -> None:
        """Wait until both kinds were listed, or found not to be served, or could not be listed."""
        for _ in range(int(seconds / LOOK)):
            if all(watch.listed or watch.problem is not None for watch in self.watches.values()):
                return
            await asyncio.sleep(LOOK)

    # -- what others ask -----------------------------------------------------------------------------------

    def capacity(self, node: str) -> int:
        """Return GPUs of a node as its ResourceSlices have them."""
        return self._inventory.gpus(node)

    def gpus_of(self, uid: str) -> int:
        """Return GPUs that a pod holds through claims, beside those that it requests by name. A claim that
        several pods share counts for one of them."""
        return self._of_pod.get(uid, 0)

    def held_on(self, nodes: Container[str], besides: Container[str]) -> list[Object]:
        """Return what claims hold on these nodes for others than these pods (namespace/name): each as if it
        were a pod that requests its GPUs by name."""
        return [
            _as_pod(held)
            for found in self._held.values()
            for held in found
            if held.node in nodes and not any(key in besides for key in _holders(held)[:1])
        ]

    # -- the watches ---------------------------------------------------------------------------------------

    def _event(self, resource: Resource, obj: Object, deleted: bool) -> None:
        if deleted:
            self.cache.drop(resource, obj)
        else:
            self.cache.put(resource, obj)

    def _changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if resource == RESOURCE_SLICES:
            self._inventory = Inventory(self.cache.values(RESOURCE_SLICES))
            for node in {str((obj.get("spec") or {}).get("nodeName") or "") for obj in (old, new) if obj}:
                self._node_changed(node)
            claims: Iterable[Object] = self.cache.values(RESOURCE_CLAIMS)
            for claim in claims:
                self._take(key_of(claim), claim)
            return
        obj = new or old
        assert obj is not None
        self._take(key_of(obj), new)

    def _take(self, key: str, claim: Object | None) -> None:
        before = self._held.pop(key, [])
        after = self._inventory.holdings(claim) if claim is not None else []
        if after:
            self._held[key] = after
        if before == after:
            return
        for held, sign in [(h, -1) for h in before] + [(h, 1) for h in after]:
            for _, uid in held.pods[:1]:
                total = self._of_pod.pop(uid, 0) + sign * len(held.gpus)
                if total:
                    self._of_pod[uid] = total
        for held in (*before, *after):
            self._node_changed(held.node)
            for pod in _holders(held):
                self._cluster.touch_job_of(None, self._cluster.cache.get(PODS, pod))


def _holders(held: Holding) -> list[str]:
    """Return keys of the pods that a claim is reserved for."""
    namespace = held.claim.partition("/")[0]
    return [f"{namespace}/{name}" for name, _ in held.pods]


def _as_pod(held: Holding) -> Object:
    namespace, _, claim = held.claim.partition("/")
    pod = f"{held.pods[0][0]}, by ResourceClaim {claim}" if held.pods else f"ResourceClaim {claim}"
    gpus = {names.GPU_RESOURCE: str(len(held.gpus))}
    return {
        "metadata": {"namespace": namespace, "name": pod, "uid": f"{held.claim}/{held.node}"},
        "spec": {"nodeName": held.node, "containers": [{"name": "claim", "resources": {"limits": gpus}}]},
        "status": {"phase": "Running"},
    }
