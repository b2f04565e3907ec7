"""Simulated nodes on a running plane: thousands of them in one process, for tests of scale.

    with Plane(work, quiet_options()) as plane, SimulatedNodes(plane, count=1000, gpus=8, labels=labels):
        ...

Nothing runs in their pods. Every pod gets an address of `POD_RANGE`, all of it loopback, so that one stub
server that listens on all of loopback answers for every trainer. The agent's nodes (`deploy.local.nodes`)
use other addresses, and run what is in their pods.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from types import TracebackType

import yaml

from deploy.local.acquire import Found, obtain
from deploy.local.components import Options
from deploy.local.errors import PlaneError
from deploy.local.kwok.recipe import KWOK, PROGRAM
from deploy.local.kwok.stages import stages
from deploy.local.plane import Plane
from deploy.local.versions import CONTROLLERS, SCHEDULER

PROCESS = "kwok"  # what the plane calls it: plane.log(PROCESS)
POD_RANGE = "127.4.0.0/14"  # 127.16 to 127.254 belong to the agent's nodes and to Kueue
USER, GROUPS = "kwok", ("system:masters",)
_FAKE = "kwok.x-k8s.io/node"
_READY_S = 120.0
_GRACE_S = 3.0


def quiet_options(**flags: tuple[str, ...]) -> Options:
    """Options of a plane for thousands of nodes and pods: nobody renews leases, so nobody misses them, and
    the controllers' own API limits do not hold up what is to be measured. ``flags``: more, per component."""
    quick = ("--kube-api-qps=2000", "--kube-api-burst=4000", "--concurrent-job-syncs=20")
    return Options(
        node_grace_s=86_400,
        flags={
            CONTROLLERS: (*quick, "--node-monitor-period=3600s", *flags.get("controllers", ())),
            SCHEDULER: flags.get("scheduler", ()),
        },
    )


class SimulatedNodes:
    """``count`` nodes named ``sim-0000`` …, each with ``gpus`` GPUs and ``labels``, ready when entered.

    Errors: PlaneError, with what is wrong.
    """

    def __init__(
        self,
        plane: Plane,
        count: int,
        gpus: int,
        labels: Mapping[str, str] | None = None,
        tools: Mapping[str, Found] | None = None,
    ) -> None:
        if not 1 <= count <= 10_000:
            raise ValueError(f"count: {count} nodes, expected 1 to 10000")
        self.plane, self.count, self.gpus = plane, count, gpus
        self._labels, self._tools = dict(labels or {}), tools

    @property
    def names(self) -> list[str]:
        return [f"sim-{i:04d}" for i in range(self.count)]

    def start(self) -> SimulatedNodes:
        """Start KWOK, make the nodes, wait until all are ready."""
        tools = self._tools or obtain(self.plane.report, recipe=KWOK)
        folder = self.plane.folder.config / PROCESS
        folder.mkdir(exist_ok=True, mode=0o700)
        config = folder / "kwok.yaml"
        config.write_text(yaml.safe_dump_all([self._configuration(), *stages(self.gpus)], sort_keys=False))
        kubeconfig = self.plane.kubeconfig_for(USER, GROUPS)
        argv = [str(tools[PROGRAM].path), f"--config={config}", f"--kubeconfig={kubeconfig}"]
        # It would write its defaults into the user's home.
        self.plane.start_process(
            PROCESS, argv, {"HOME": str(folder), "KWOK_WORKDIR": str(folder)}, grace_s=_GRACE_S
        )
        objects = {"apiVersion": "v1", "kind": "List", "items": [self._node(name) for name in self.names]}
        self.plane.kubectl("create", "-f", "-", stdin=json.dumps(objects), timeout_s=300.0)
        self._wait()
        return self

    def stop(self) -> None:
        """End KWOK; the nodes stay as they are."""
        self.plane.stop(PROCESS)

    def __enter__(self) -> SimulatedNodes:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "options": {
                "cidr": POD_RANGE,
                "nodeIP": "127.0.0.1",
                "manageAllNodes": False,
                "manageNodesWithAnnotationSelector": f"{_FAKE}=fake",
                "nodeLeaseDurationSeconds": 0,  # see `quiet_options`
                "podPlayStageParallelism": 16,
                "nodePlayStageParallelism": 16,
                "enableCRDs": [],  # the stages come from this file
            },
        }

    def _node(self, name: str) -> dict[str, object]:
        metadata = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **self._labels},
            "annotations": {_FAKE: "fake"},
        }
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}

    def _wait(self) -> None:
        client, deadline = self.plane.client(), time.monotonic() + _READY_S
        mine = set(self.names)
        while True:
            items = client.get("/api/v1/nodes", timeout_s=60.0)["items"]
            ready = [n for n in items if n["metadata"]["name"] in mine and _ready(n)]
            if len(ready) == self.count:
                return
            if time.monotonic() > deadline:
                tail = self.plane.folder.tail(PROCESS)
                raise PlaneError(
                    f"{len(ready)} of {self.count} simulated nodes are ready after {_READY_S:g} s; "
                    f"{self.plane.log(PROCESS)} ends:\n{tail}"
                )
            time.sleep(0.5)


def _ready(node: Mapping[str, object]) -> bool:
    status = node.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions or ())
