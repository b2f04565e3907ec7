"""Thousands of jobs at rest in minutes: one that came there by itself, copied with all that belongs to it.

To bring each of them up takes the operator, the controllers, the scheduler and the API server a third of a
second of CPU; to copy one, the API server alone a tenth of that. Nobody but the operator may be at work
meanwhile: a controller would go on from what it finds.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from controller import names
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.resources import CONFIGMAPS, JOBS, PODS, RLHFJOBS, Resource
from deploy.local.plane import Plane

Json = dict[str, Any]

AT_ONCE = 12  # jobs that are being copied
_SERVERS = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "generateName")
_UIDS = ("controller-uid", "batch.kubernetes.io/controller-uid")


class Original:
    """The objects of one job at rest, as they are when it is made.

    Args:
        name: of the RLHFJob; it must not be part of anything else's name.
    """

    def __init__(self, plane: Plane, namespace: str, name: str) -> None:
        self._plane, self._namespace, self._name = plane, namespace, name
        get = plane.client().get
        self._run = get(RLHFJOBS.path(namespace, name))
        self._workload = get(JOBS.path(namespace, name))
        self._file = get(CONFIGMAPS.path(namespace, f"{name}{names.RUN_CONFIGMAP_SUFFIX}"))
        query = f"?labelSelector={names.LABEL_JOB}%3D{name}"
        (self._pod,) = get(PODS.path(namespace) + query)["items"]
        self._node, self._ip = self._pod["spec"]["nodeName"], self._pod["status"]["podIP"]

    def copy(self, copies: Mapping[str, tuple[str, str]], say: Callable[[str], None]) -> None:
        """Make so many more: name of the RLHFJob -> the node of its pod, and the pod's address."""
        asyncio.run(self._copy_all(copies, say))

    def patch(self, statuses: Mapping[str, Json], say: Callable[[str], None]) -> None:
        """Write into the statuses of jobs: name of the RLHFJob -> fields."""
        asyncio.run(self._patch_all(statuses, say))

    async def _patch_all(self, statuses: Mapping[str, Json], say: Callable[[str], None]) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(api: Api, name: str, status: Json) -> None:
            async with slots:
                body = {"status": status}
                await api.merge_patch(RLHFJOBS, name, body, self._namespace, subresource="status")

        async with Api(await connect({"KUBECONFIG": str(self._plane.kubeconfig)})) as api:
            await asyncio.gather(*(one(api, name, status) for name, status in statuses.items()))
        say(f"{len(statuses)} statuses patched")

    async def _copy_all(self, copies: Mapping[str, tuple[str, str]], say: Callable[[str], None]) -> None:
        slots, made = asyncio.Semaphore(AT_ONCE), 0

        async def one(api: Api, name: str, node: str, ip: str) -> None:
            nonlocal made
            async with slots:
                await self._copy(api, name, node, ip)
            made += 1
            if made % 500 == 0:
                say(f"{made} of {len(copies)} jobs copied")

        async with Api(await connect({"KUBECONFIG": str(self._plane.kubeconfig)})) as api:
            await asyncio.gather(*(one(api, name, node, ip) for name, (node, ip) in copies.items()))

    async def _copy(self, api: Api, name: str, node: str, ip: str) -> None:
        def like(obj: Json) -> Json:
            text = json.dumps(obj).replace(self._name, name)
            # Not its node's name as a whole string only: messages have it, too.
            text = text.replace(self._node, node).replace(f'"{self._ip}"', f'"{ip}"')
            found: Json = json.loads(text)
            for field in _SERVERS:
                found["metadata"].pop(field, None)
            return found

        run = await self._make(api, RLHFJOBS, like(self._run))
        workload = like(self._workload)
        workload["spec"].pop("selector")  # the server makes it, with the labels that are in it
        for labels in (
            workload["metadata"].get("labels"),
            workload["spec"]["template"]["metadata"]["labels"],
        ):
            for label in (*_UIDS, "job-name", "batch.kubernetes.io/job-name"):
                (labels or {}).pop(label, None)
        workload["metadata"]["annotations"][names.ANNOTATION_JOB_UID] = run["metadata"]["uid"]
        made = await self._make(api, JOBS, _owned(workload, run))
        pod = like(self._pod)
        pod["metadata"]["name"] = f"{name}-0"
        pod["metadata"]["labels"] |= dict.fromkeys(_UIDS, made["metadata"]["uid"])
        await self._make(api, PODS, _owned(_without_token(pod), made))
        await self._make(api, CONFIGMAPS, _owned(like(self._file), run))

    async def _make(self, api: Api, resource: Resource, obj: Json) -> Json:
        metadata, status = obj["metadata"], obj.pop("status", None)
        made = await api.create(resource, obj)
        if status is not None:
            name, namespace = metadata["name"], metadata["namespace"]
            await api.merge_patch(resource, name, {"status": status}, namespace, subresource="status")
        return made


def _owned(obj: Json, owner: Json) -> Json:
    (reference,) = obj["metadata"]["ownerReferences"]
    reference["uid"] = owner["metadata"]["uid"]
    return obj


def _without_token(pod: Json) -> Json:
    """Without the volume that the API server gives each pod for its service account's token."""
    pod = copy.deepcopy(pod)
    token = [v["name"] for v in pod["spec"]["volumes"] if v["name"].startswith("kube-api-access-")]
    pod["spec"]["volumes"] = [v for v in pod["spec"]["volumes"] if v["name"] not in token]
    for container in pod["spec"]["containers"]:
        container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] not in token]
    return pod
