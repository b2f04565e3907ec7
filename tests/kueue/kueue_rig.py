"""The operator's rig on the plane that has Kueue, with a real kube-scheduler that asks a real extender."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from controller import names
from controller.kube.errors import NotFound
from controller.kube.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CONFIGMAPS,
    EVENTS,
    FLAVORS,
    LOCAL_QUEUES,
    RLHFJOBS,
    WORKLOADS,
    Resource,
)
from tests.support.operator_rig import Object, Rig, eventually
from tests.support.store_work import KUEUE_API

QUEUE = "team"


class KueueRig(Rig):
    """Each test has queues of its own, named after its pool. LocalQueue: `QUEUE`."""

    async def make_queues(self, gpus: int = 8, check: bool = True, **cluster_queue: Any) -> None:
        name = self.pool_name
        await self.create(
            ADMISSION_CHECKS, name, {"controllerName": names.CHECK_CONTROLLER if check else "some.body/else"}
        )
        await self.create(FLAVORS, name, {})
        quota = {"name": names.GPU_RESOURCE, "nominalQuota": gpus}
        groups = [
            {"coveredResources": [names.GPU_RESOURCE], "flavors": [{"name": name, "resources": [quota]}]}
        ]
        checks = {"admissionChecks": [{"name": name}]}
        spec = {"namespaceSelector": {}, "resourceGroups": groups, "admissionChecksStrategy": checks}
        await self.create(CLUSTER_QUEUES, name, spec | cluster_queue)
        await self.create(LOCAL_QUEUES, QUEUE, {"clusterQueue": name})

    async def make_kueue_pool(self, scheduler: str = "", **spec: Any) -> None:
        queue = {"localQueue": QUEUE}
        await self.make_pool(delegate="Kueue", kueue=queue, schedulerName=scheduler, **spec)

    async def create(self, resource: Resource, name: str, spec: Object) -> Object:
        metadata = {"name": name} | ({"namespace": self.namespace} if resource.namespaced else {})
        body = {"apiVersion": KUEUE_API, "kind": resource.kind, "metadata": metadata, "spec": spec}
        return await self.api.create(resource, body)

    async def change(self, resource: Resource, name: str, spec: Object) -> None:
        where = self.namespace if resource.namespaced else None
        await self.api.merge_patch(resource, name, {"spec": spec}, where)

    async def kueues(self, name: str) -> Object:
        """The Workload of a job's child."""
        uid = (await self.workload(name))["metadata"]["uid"]
        found = (await self.api.list(WORKLOADS, self.namespace))[0]
        return next(w for w in found if w["metadata"]["ownerReferences"][0]["uid"] == uid)

    async def kueue_condition(self, name: str, type_: str) -> Object | None:
        conditions = (await self.kueues(name)).get("status", {}).get("conditions") or ()
        return next((c for c in conditions if c["type"] == type_ and c["status"] == "True"), None)

    async def runs(self, name: str, after: int = 0) -> bool:
        """All its pods run, under a number above ``after``. Which number that is, is Kueue's affair, too:
        while it takes a queue in it may take quota back before a job has started on it."""
        return await self.is_true(name, "Running") and (await self.record(name)).attempt > after

    async def waits_because(self, name: str, reason: str) -> str:
        """Condition Admitted with that reason: its message."""

        async def told() -> str | None:
            found = await self.condition(name, "Admitted")
            return found[2] if found is not None and found[1] == reason else None

        message: str = await eventually(told, what=f"{name} to wait because of {reason}")
        return message

    async def run_file(self, name: str) -> Object:
        """What a job's trainer is told."""
        found = await self.api.get(CONFIGMAPS, f"{name}-run", self.namespace)
        told: Object = json.loads(found["data"]["run.json"])
        return told

    async def events(self, name: str) -> list[str]:
        """Reasons of the Events on an RLHFJob."""
        found = (await self.api.list(EVENTS, self.namespace))[0]
        about = {"kind": "RLHFJob", "name": name}
        return [e["reason"] for e in found if about.items() <= e["involvedObject"].items()]

    async def clear(self) -> None:
        """Take away what later operators and Kueue would see: other tests share the plane."""
        for job in (await self.api.list(RLHFJOBS, self.namespace))[0]:
            gone = {"metadata": {"finalizers": None}}
            await self.api.merge_patch(RLHFJOBS, job["metadata"]["name"], gone, self.namespace)
            await self.api.delete(RLHFJOBS, job["metadata"]["name"], self.namespace, job["metadata"]["uid"])
        for resource, name in (
            (CLUSTER_QUEUES, self.pool_name),
            (FLAVORS, self.pool_name),
            (ADMISSION_CHECKS, self.pool_name),
        ):
            with contextlib.suppress(NotFound):  # not made in this test
                found = await self.api.get(resource, name)
                await self.api.delete(resource, name, None, found["metadata"]["uid"])


Story = Callable[[KueueRig], Awaitable[None]]
