"""A plane with simulated nodes, the API and the operator under its own roles: for tests of scale."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.agent.images import REPOSITORY
from deploy.local.errors import PlaneError
from deploy.local.kwok.nodes import PROCESS as KWOK
from deploy.local.kwok.nodes import SimulatedNodes, quiet_options
from deploy.local.plane import Plane
from deploy.local.scheduler import start_pair
from deploy.local.versions import CONTROLLERS, SCHEDULER
from tests.bench.scale_stub import METRIC
from tests.support.api_writes import api_writes
from tests.support.process_cpu import cpu_seconds

POOL, NAMESPACE, LABEL = "scale", "scale", "evalstop.dev/gpu-pool"
OPERATOR = "operator"
_SERVICE_ACCOUNT = "system:serviceaccount:evalstop-system:evalstop-operator"
_GROUPS = ("system:serviceaccounts", "system:serviceaccounts:evalstop-system", "system:authenticated")

Json = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """What a process has used: CPU seconds since its start, resident memory in bytes, now and at most."""

    cpu: float
    memory: int
    peak: int


class Scale:
    """The plane, its nodes, the trainer stub and the operator."""

    def __init__(self, plane: Plane, stub: int) -> None:
        self.plane, self.stub = plane, stub

    def create(self, objects: Sequence[Json], say: Callable[[str], None], batch: int = 500) -> None:
        for start in range(0, len(objects), batch):
            items = {"apiVersion": "v1", "kind": "List", "items": list(objects[start : start + batch])}
            self.plane.kubectl("create", "-f", "-", stdin=json.dumps(items), timeout_s=600.0)
            if len(objects) > batch:
                say(f"{min(start + batch, len(objects))} of {len(objects)} objects created")

    def start_operator(self, **settings: str) -> None:
        """As a process, under its service account's name and so under its own roles.

        ``settings``: what is set besides, by name in capitals.
        """
        kubeconfig = self.plane.kubeconfig_for(_SERVICE_ACCOUNT, _GROUPS)
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(REPOSITORY),
            "EVALSTOP_HOST": "127.0.0.1",
            "EVALSTOP_PORT": "0",
            "EVALSTOP_METRICS_PORT": "0",
            "EVALSTOP_QUEUE_PORT": "0",
            "EVALSTOP_LEADER_ELECT": "false",  # nobody else is there, and a busy machine is not to depose it
            "EVALSTOP_SCRAPE_ADDRESSES": "Loopback",
            "EVALSTOP_LOG_LEVEL": "WARNING",
            **{f"EVALSTOP_{name}": value for name, value in settings.items()},
        }
        argv = [sys.executable, "-m", "controller.operator"]
        self.plane.start_process(OPERATOR, argv, environment, cwd=REPOSITORY)

    def stop_all_but_the_api(self) -> None:
        """From here on objects stay as they are made: scheduler, controllers, KWOK and the operator end.

        The operator's `restart` brings it back.
        """
        self.plane.stop(OPERATOR)
        self.stop_others()

    def stop_others(self) -> None:
        """Scheduler, controllers and KWOK end: whatever is written from here on, the operator writes."""
        for name in (KWOK, SCHEDULER, CONTROLLERS):
            self.plane.stop(name)

    def start_extender(self) -> None:
        """The scheduler extender under its own roles, and the second scheduler that asks it."""
        start_pair(self.plane)

    def usage(self, name: str) -> Usage:
        part = next(p for p in self.plane.status().processes if p.name == name)
        if part.pid is None:
            raise PlaneError(
                f"{name} does not run; {self.plane.log(name)} ends:\n{self.plane.folder.tail(name)}"
            )
        told = dict(line.split(":", 1) for line in Path(f"/proc/{part.pid}/status").read_text().splitlines())
        memory, peak = (1024 * int(told[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        return Usage(cpu_seconds(part.pid), memory, peak)

    def writes(self) -> dict[str, float]:
        """Write requests that the API server has answered, by resource; leases left out."""
        return api_writes(self.plane)

    def jobs(self) -> list[Json]:
        path = f"/apis/evalstop.dev/v1alpha1/namespaces/{NAMESPACE}/rlhfjobs"
        items: list[Json] = self.plane.client().get(path, timeout_s=120.0)["items"]
        return items

    def wait(
        self, what: str, count: Callable[[], int], target: int, say: Callable[[str], None], seconds: float
    ) -> float:
        """Until ``count()`` reaches the target; how long that took (s). Errors: PlaneError with the count."""
        began = time.monotonic()
        while (now := count()) < target:
            if time.monotonic() - began > seconds:
                raise PlaneError(f"{now} of {target} {what} after {seconds:g} s")
            say(f"{now} of {target} {what}, {time.monotonic() - began:.0f} s")
            time.sleep(2.0)
        return time.monotonic() - began


@contextlib.contextmanager
def scale(
    nodes: int, gpus: int, say: Callable[[str], None], scheduler_name: str = "", **pool: Any
) -> Iterator[Scale]:
    """A running plane with so many simulated nodes, one pool over all of them, and the trainer stub.

    ``scheduler_name``: whom the pool's pods ask for a node; empty: the default scheduler. ``pool``: what else
    is in its spec.
    """
    with (
        tempfile.TemporaryDirectory(prefix="evalstop-scale-", dir="/var/tmp") as folder,
        Plane(Path(folder), quiet_options(), report=lambda line, progress=False: say(line)) as plane,
        _stub() as port,
    ):
        plane.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        for name in ("namespace.yaml", "rbac.yaml", "priorityclass.yaml"):
            plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "manifests" / name))
        with SimulatedNodes(plane, nodes, gpus, labels={LABEL: POOL}):
            say(f"{nodes} simulated nodes are ready")
            built = Scale(plane, port)
            claims = ("checkpoints", "retained")
            volumes = [_volume(name) for name in claims]
            built.create(
                [_namespace(), _pool(scheduler_name, pool), *volumes, *(_claim(name) for name in claims)], say
            )
            yield built


@contextlib.contextmanager
def _stub() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.scale_stub"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=10)


def rlhfjob(
    name: str, stub: int, *, members: int, gpus: int, mode: str, interval: int = 15, **more: Any
) -> Json:
    """A job whose pods do nothing, with the stub's port to scrape. ``more``: what else is in its spec."""
    container: Json = {"name": "trainer", "image": "none"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    child = {
        "completionMode": "Indexed",
        "completions": members,
        "parallelism": members,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "pool": POOL,
            "mode": mode,
            "gang": {"replicas": members, "gpusPerReplica": gpus},
            "metrics": [{"name": METRIC}],
            "scrape": {"port": stub, "intervalSeconds": interval},
            "checkpoints": {
                "location": {"objectStore": {"uri": f"s3://work/{name}"}},
                "layout": "Plain",
                "retention": {"objectStore": {"uri": "s3://kept"}},
            },
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": child}},
            **more,
        },
    }


def _namespace() -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _pool(scheduler_name: str, more: Json) -> Json:
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": POOL},
        "spec": {
            "nodeSelector": [{"key": LABEL, "value": POOL}],
            "allowedNamespaces": [{"name": "*"}],
            "schedulerName": scheduler_name,
            **more,
        },
    }


def _volume(name: str) -> Json:
    """What the claim of this name is bound to: of one that is not, its controller posts Events for ever."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": NAMESPACE, "name": name},
            "hostPath": {"path": "/nowhere"},
            "storageClassName": "",
        },
    }


def _claim(name: str) -> Json:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": name,
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }
