"""A node's presence at the API server: its Node object, its lease, its Ready condition."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from datetime import UTC, datetime

from controller.kube.client import Api, Object
from controller.kube.errors import AlreadyExists, ApiError, NotFound
from controller.kube.resources import LEASES, NODES
from controller.names import GPU_RESOURCE
from deploy.local.agent import terminal
from deploy.local.agent.config import NodeConfig
from deploy.local.agent.events import now_text
from deploy.local.agent.quantity import Amounts, amounts
from deploy.local.versions import KUBERNETES

log = logging.getLogger(__name__)

_LEASE_NAMESPACE = "kube-node-lease"
_STATUS_EVERY = 300.0  # s without a change, as kubelet


def labels_of(config: NodeConfig) -> dict[str, str]:
    """Return the labels a node registers with: such as NodeRestriction lets it set."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        "evalstop.dev/local-node": "true",
        **config.labels,
    }


def capacity_of(config: NodeConfig) -> dict[str, str]:
    """Return what the node offers. CPU and memory are nominal: pods are counted against them, not held to
    them."""
    return {
        "cpu": config.cpu,
        "memory": config.memory,
        "pods": str(config.pods),
        GPU_RESOURCE: str(config.gpus),
    }


def allocatable_of(config: NodeConfig) -> Amounts:
    return amounts(capacity_of(config))


class Presence:
    """Registers one node and keeps it Ready."""

    def __init__(self, config: NodeConfig, api: Api, port: int, lease_seconds: int) -> None:
        self._config = config
        self._api = api
        self._port = port
        self._lease_seconds = lease_seconds
        self._ready_since = now_text()
        self._uid = ""

    async def register(self) -> None:
        """Create the Node, or bring an existing one up to date. Raises ApiError when refused."""
        config = self._config
        node: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": config.name, "labels": labels_of(config)},
            "spec": {},
        }
        try:
            answer = await self._api.create(NODES, node)
        except AlreadyExists:
            changes = {"metadata": {"labels": labels_of(config)}}
            answer = await self._api.merge_patch(NODES, config.name, changes)
        self._uid = answer["metadata"]["uid"]
        await self._renew()
        await self._report_ready(True)

    async def keep(self) -> None:
        """Renew the lease four times in its duration and tell the status now and then, until cancelled."""
        loop = asyncio.get_running_loop()
        reported_at = loop.time()
        while True:
            await asyncio.sleep(self._lease_seconds / 4)
            try:
                await self._renew()
                if loop.time() - reported_at >= _STATUS_EVERY:
                    await self._report_ready(True)
                    reported_at = loop.time()
            except ApiError as error:
                log.warning("node %s: heartbeat: %s", self._config.name, error)

    async def leave(self) -> None:
        """Say that the node is going, so that nothing new is bound to it; give up if nobody answers."""
        try:
            async with asyncio.timeout(1.0):
                await self._report_ready(False)
        except (ApiError, TimeoutError) as error:
            log.info("node %s: not signed off: %s", self._config.name, error)

    async def _renew(self) -> None:
        name = self._config.name
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": self._lease_seconds, "renewTime": now}
        try:
            await self._api.merge_patch(LEASES, name, {"spec": spec}, _LEASE_NAMESPACE)
        except NotFound:
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self._uid}
            lease = {
                "metadata": {"name": name, "namespace": _LEASE_NAMESPACE, "ownerReferences": [owner]},
                "spec": spec,
            }
            await self._api.create(LEASES, lease)

    async def _report_ready(self, ready: bool) -> None:
        config = self._config
        capacity = capacity_of(config)
        healthy = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
            ("Ready", "True" if ready else "False", "KubeletReady" if ready else "KubeletNotReady"),
        ]
        message = "development node agent (deploy/local/agent)" if ready else "node is shutting down"
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [
                {
                    "type": kind,
                    "status": value,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now_text(),
                    "lastTransitionTime": self._ready_since if ready else now_text(),
                }
                for kind, value, reason in healthy
            ],
            "addresses": [
                {"type": "InternalIP", "address": config.ip},
                {"type": "Hostname", "address": config.name},
            ],
            "declaredFeatures": [terminal.FEATURE],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": {
                "machineID": config.name,
                "systemUUID": config.name,
                "bootID": config.name,
                "kernelVersion": platform.release(),
                "osImage": "local processes",
                "containerRuntimeVersion": f"local://{os.getpid()}",
                "kubeletVersion": f"v{KUBERNETES.removeprefix('v')}",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": labels_of(config)["kubernetes.io/arch"],
            },
        }
        await self._api.merge_patch(
            NODES, config.name, {"status": status}, subresource="status", by_keys=True
        )
