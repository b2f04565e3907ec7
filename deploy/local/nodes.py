"""Nodes for a local control plane: one agent process that runs pods as local processes.

    with Plane(work) as plane, Nodes(plane, count=4, gpus=2):
        ...

What they are and are not: docs/understand/local-nodes.md.
"""

import dataclasses
import json
import random
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from controller.kube.errors import ApiError
from deploy.local import nodelabels
from deploy.local.agent import provisioner
from deploy.local.agent.images import REPOSITORY, Environment
from deploy.local.credentials import KUBELET_CLIENT
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane

PROCESS = "nodes"  # what the plane calls the agent process: plane.log(PROCESS), plane.restart(PROCESS)
PORT = 10250
_GRACE_S = 15.0  # for the agent to stop its pods
_READY_TIMEOUT_S = 60.0
_BLOCK_TRIES = 50


class Nodes:
    """GPU nodes of a running plane, from `start` until `stop` or the plane's end.

    Args:
        plane: a plane that is up.
        count: how many nodes; they are called `node-1`, `node-2`, …
        gpus: `nvidia.com/gpu` of each node, or a list with one number per node.
        cpu, memory, pods: the rest of each node's nominal capacity.
        labels: extra labels of all nodes, such as a node may set on itself.
        images: image name -> environment, besides the table of deploy/local/agent/images.py.
        restart_backoff_s: pause before a container's second restart; it doubles to five minutes.
        provision: run the provisioner of dynamic claims in the agent process (one per plane is enough).
        prefix, process: of the nodes' names and of the agent process, for a second set of nodes.
        mounting: how mount paths are honoured: auto, root, user or none (docs/understand/local-nodes.md).

    Attributes: `names`; `folder` (pods and their logs); `volumes` (folders of dynamic claims).

    Errors: PlaneError, with what is wrong.
    """

    def __init__(
        self,
        plane: Plane,
        count: int = 1,
        gpus: int | Sequence[int] = 0,
        *,
        cpu: str = "16",
        memory: str = "64Gi",
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        images: Mapping[str, Environment] | None = None,
        restart_backoff_s: float = 10.0,
        mounting: str = "auto",
        provision: bool = True,
        prefix: str = "node-",
        process: str = PROCESS,
    ) -> None:
        per_node = [gpus] * count if isinstance(gpus, int) else list(gpus)
        if count < 1 or len(per_node) != count or min(per_node) < 0:
            raise PlaneError(
                f"{count} nodes with GPUs {gpus}: at least one node, and 0 or more GPUs for each"
            )
        try:
            nodelabels.check(labels or {})
        except ValueError as error:
            raise PlaneError(str(error)) from error
        self.plane = plane
        self.names = [f"{prefix}{number}" for number in range(1, count + 1)]
        self.folder = plane.folder.data / "nodes"
        self.volumes = plane.work / "volumes"
        self.settings = plane.folder.config / f"{process}.json"
        self._process = process
        self._provision = provision
        self._gpus = dict(zip(self.names, per_node, strict=True))
        self._capacity = {"cpu": cpu, "memory": memory, "pods": pods, "labels": dict(labels or {})}
        self._rest = {
            "images": {name: dataclasses.asdict(image) for name, image in (images or {}).items()},
            "restart_backoff": restart_backoff_s,
            "mounting": mounting,
        }

    def start(self) -> "Nodes":
        """Start the agent and wait until every node is Ready; nothing to do if these very nodes run."""
        wanted = {"gpus": self._gpus, "capacity": self._capacity, **self._rest}
        described = json.dumps(wanted, sort_keys=True)
        if self._running():
            if self.settings.with_suffix(".wanted").read_text() != described:
                raise PlaneError(f"other nodes run in {self.plane.work}: take the plane down first")
            return self
        if self._provision:
            self._install_provisioner()
        blocks = _free_blocks(len(self.names))
        settings = self._settings(dict(zip(self.names, blocks, strict=True)))
        self.settings.write_text(json.dumps(settings, indent=1) + "\n")
        self.settings.with_suffix(".wanted").write_text(described)
        argv = [sys.executable, "-m", "deploy.local.agent", str(self.settings)]
        python_path = {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
        self.plane.start_process(self._process, argv, python_path, grace_s=_GRACE_S)
        self._wait_ready()
        return self

    def stop(self) -> None:
        """Stop all pods' processes and the agent; the Node objects stay, and become NotReady."""
        if self._running():
            self.plane.stop(self._process)

    def __enter__(self) -> "Nodes":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> bool:
        found = self.plane.status().processes
        return any(part.name == self._process and part.state == "running" for part in found)

    def _settings(self, blocks: Mapping[str, str]) -> dict[str, Any]:
        nodes = []
        for name, ip in blocks.items():
            user, groups = f"system:node:{name}", ["system:nodes"]
            serving = self.plane.server_cert(user, [ip, name], groups)
            nodes.append(
                {
                    "name": name,
                    "ip": ip,
                    "kubeconfig": str(self.plane.kubeconfig_for(user, groups)),
                    "certificate": str(serving.certificate),
                    "key": str(serving.key),
                    "gpus": self._gpus[name],
                    **self._capacity,
                }
            )
        settings = {
            "work": str(self.folder),
            "nodes": nodes,
            "client_ca": str(self.plane.ca),
            "client_names": [KUBELET_CLIENT],
            "port": PORT,
            **self._rest,
        }
        if self._provision:
            settings["provisioner"] = str(self.plane.kubeconfig_for(provisioner.USER))
            settings["volumes"] = str(self.volumes)
        return settings

    def _install_provisioner(self) -> None:
        """Its StorageClass, and the rights of its user: an administrator's act."""
        client = self.plane.client()
        for path, manifest in provisioner.MANIFESTS:
            try:
                client.post(path, manifest)
            except ApiError as error:
                if error.status != 409:
                    raise PlaneError(f"{manifest['kind']} {manifest['metadata']['name']}: {error}") from error

    def _wait_ready(self) -> None:
        client = self.plane.client()
        deadline = time.monotonic() + _READY_TIMEOUT_S
        waiting = list(self.names)
        while waiting:
            if not self._running():
                tail = self.plane.folder.tail(self._process)
                raise PlaneError(f"the node agent has exited; {self.plane.log(self._process)} ends:\n{tail}")
            if time.monotonic() > deadline:
                log = self.plane.log(self._process)
                raise PlaneError(
                    f"nodes {', '.join(waiting)} not ready after {_READY_TIMEOUT_S:g} s; see {log}"
                )
            time.sleep(0.1)
            waiting = [name for name in waiting if not _ready(client.get, name)]


def _ready(get: Any, name: str) -> bool:
    try:
        node = get(f"/api/v1/nodes/{name}")
    except ApiError:
        return False
    conditions = (node.get("status") or {}).get("conditions") or []
    tainted = any(
        taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints") or []
    )
    return not tainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _free_blocks(count: int) -> list[str]:
    """Node addresses 127.x.y.1 whose blocks no other agent of this machine uses.

    The kubelet port on the node's own address is the claim to its block: it can be bound only once.
    """
    found: list[str] = []
    for _ in range(_BLOCK_TRIES * count):
        ip = f"127.{random.randint(16, 250)}.{random.randint(1, 254)}.1"
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as claim:
            try:
                claim.bind((ip, PORT))
            except OSError:
                continue
        if ip not in found:
            found.append(ip)
        if len(found) == count:
            return found
    raise PlaneError(f"no {count} free blocks of loopback addresses (port {PORT} on 127.x.y.1)")


def folder_of_claim(nodes: Nodes, namespace: str, claim: str) -> Path:
    """Return the folder on this machine behind a dynamically provisioned claim. Errors: PlaneError."""
    found = sorted(nodes.volumes.glob(f"{namespace}-{claim}-*"))
    if len(found) != 1:
        raise PlaneError(f"claim {namespace}/{claim}: {len(found)} folders in {nodes.volumes}")
    return found[0]
