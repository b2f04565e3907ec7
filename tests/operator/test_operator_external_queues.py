"""Queues outside are found when they come, believed only once they are read, and missed when they go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from controller import delegates, names
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.errors import NotFound
from controller.kube.resources import ADMISSION_CHECKS, CLUSTER_QUEUES, GPUPOOLS, RLHFJOBS, Resource
from controller.operator.state.cluster import ClusterState
from controller.operator.state.external_queues import KINDS, ExternalQueues

Object = dict[str, Any]


class KueueServer:
    """An API server that serves Kueue's kinds, or does not."""

    def __init__(self) -> None:
        self.served = False
        self.objects: dict[Resource, list[Object]] = {kind: [] for kind in KINDS}
        self.patches: list[tuple[str, Object]] = []
        self.version = 100
        self.taken_away = asyncio.Event()

    async def discover(self, resource: Resource) -> Object:
        if not self.served:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        return {}

    async def pages(
        self, resource: Resource, namespace: str | None = None, **_: str
    ) -> AsyncIterator[tuple[list[Object], str]]:
        if not self.served:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        yield self.objects[resource], str(self.version)

    async def watch(self, resource: Resource, version: str, **_: Any) -> AsyncIterator[Object]:
        """Tells nothing until the kinds are taken away."""
        await self.taken_away.wait()
        raise NotFound(404, "NotFound", "the server could not find the requested resource")
        yield {}

    async def merge_patch(
        self, resource: Resource, name: str, patch: Mapping[str, Any], *_: Any, **__: Any
    ) -> Object:
        self.patches.append((f"{resource.kind} {name}", dict(patch)))
        self.version += 1
        (found,) = [o for o in self.objects[resource] if o["metadata"]["name"] == name]
        found = {**found, **patch, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        self.objects[resource] = [found]
        return found


def obj(resource: Resource, name: str, spec: Object, namespace: str = "") -> Object:
    metadata: Object = {"name": name, "uid": name, "resourceVersion": "10", "generation": 1}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


POOL = obj(
    GPUPOOLS,
    "gpus",
    {
        "nodeSelector": [{"key": "pool", "value": "gpus"}],
        "allowedNamespaces": [{"name": "*"}],
        "delegate": "Kueue",
        "kueue": {"localQueue": "team"},
    },
)
JOB = obj(RLHFJOBS, "run", {"pool": "gpus"}, "ns")


async def until(true: Any, seconds: float = 45.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


def test_kueue_comes_and_goes() -> None:
    async def story() -> None:
        server, cache = KueueServer(), Cache()
        world = ClusterState(cache, lambda: 0.0)
        touched: list[str] = []
        world.changed = touched.append
        outside = ExternalQueues(cast(Api, server), world, lambda: 1e9)
        world.queues = outside
        running = asyncio.create_task(outside.run())
        try:
            cache.put(RLHFJOBS, JOB)
            await until(lambda: outside.absent(ADMISSION_CHECKS))
            # Nobody delegates: of the other kinds nothing is asked.
            assert not outside.absent(CLUSTER_QUEUES)
            cache.put(GPUPOOLS, POOL)
            await until(lambda: outside.absent(CLUSTER_QUEUES))
            pool = world.pool("gpus")

            def problem() -> str | None:
                queue = delegates.queue_of_pool(cast(Any, pool))
                assert queue is not None
                found = queue.pool_problem(cast(Any, pool), outside)
                return found.reason if found is not None else None

            assert problem() == "KueueNotInstalled"
            touched.clear()

            server.objects[ADMISSION_CHECKS] = [
                obj(ADMISSION_CHECKS, "evalstop", {"controllerName": names.CHECK_CONTROLLER})
            ]
            server.served = True
            await until(lambda: all(map(outside.listed, KINDS)))
            await until(lambda: "ns/run" in touched)
            assert problem() is None
            await until(lambda: server.patches)
            what, patch = server.patches[0]
            assert what == "AdmissionCheck evalstop"
            (condition,) = patch["status"]["conditions"]
            assert (condition["type"], condition["status"]) == ("Active", "True")

            touched.clear()
            server.served = False
            server.taken_away.set()
            await until(lambda: outside.absent(CLUSTER_QUEUES) and problem() == "KueueNotInstalled")
            await until(lambda: "ns/run" in touched)
            assert not outside.listed(CLUSTER_QUEUES)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    asyncio.run(story())
