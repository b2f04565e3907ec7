"""The place: a control plane, nodes that run pods, slots with small volumes of their own, a pool."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controller import names
from deploy.local.agent.images import python_environment
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane

REPOSITORY = Path(__file__).resolve().parents[3]
OPERATOR = "system:serviceaccount:evalstop-system:evalstop-operator"
POOL = "faults"
IMAGE = "evalstop/recording-trainer"
LABEL = "evalstop.dev/gpu-pool"
DISK = 24  # MiB of each volume of a slot, where the machine lets us mount one
_RESERVE = 64 * 1024  # bytes left free on a full disk

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A namespace that has one run at a time, with a checkpoint and a retention volume. ``small``: both are
    file systems of their own, that can be filled."""

    namespace: str
    folder: Path
    small: bool

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def retained(self) -> Path:
        return self.folder / "retained"

    def fill(self, volume: str) -> None:
        """Leave hardly any room on ``checkpoints`` or ``retained``."""
        folder = self.folder / volume
        usage = shutil.disk_usage(folder)
        ballast = max(0, usage.free - _RESERVE)
        with (folder / "ballast").open("wb") as file:
            for _ in range(ballast // 65536):
                file.write(b"\0" * 65536)

    def empty(self, volume: str) -> None:
        (self.folder / volume / "ballast").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Stage:
    plane: Plane
    nodes: Nodes
    slots: tuple[Slot, ...]
    truth: Path  # a folder for each run below it; and `gpus`
    gpus: dict[str, int]  # of each node


@contextlib.contextmanager
def stage(work: Path, slots: int, gpus: tuple[int, ...]) -> Iterator[Stage]:
    """Everything up and installed, without an operator; all of it ended and unmounted on the way out."""
    mounted: list[Path] = []
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(Plane(work / "plane"))
        stack.callback(_unmount, mounted)
        truth = work / "truth"
        (truth / "gpus").mkdir(parents=True)
        images = {IMAGE: python_environment(cmd=("python", "-m", "tests.bench.faults.trainer"))}
        nodes = Nodes(
            plane,
            len(gpus),
            gpus,
            labels={LABEL: POOL},
            images=images,
            restart_backoff_s=0.5,
            prefix="faults-",
        )
        stack.enter_context(nodes)
        found = tuple(_slot(work, i, mounted) for i in range(slots))
        _install(plane, found)
        # The volumes go before the plane does; the containers that have them end with the nodes.
        yield Stage(plane, nodes, found, truth, dict(zip(nodes.names, gpus, strict=True)))


def _slot(work: Path, number: int, mounted: list[Path]) -> Slot:
    folder = work / "slots" / str(number)
    small = True
    for name in ("checkpoints", "retained"):
        (folder / name).mkdir(parents=True)
        size = f"size={DISK}m,mode=777"
        command = ["mount", "-t", "tmpfs", "-o", size, "evalstop-faults", str(folder / name)]
        done = subprocess.run(command, capture_output=True)
        if done.returncode == 0:
            mounted.append(folder / name)
        else:
            small = False
    return Slot(f"faults-{number}", folder, small)


def _unmount(mounted: list[Path]) -> None:
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def _install(plane: Plane, slots: tuple[Slot, ...]) -> None:
    plane.kubectl("apply", "-f", str(REPOSITORY / "crds"))
    for name in ("namespace.yaml", "rbac.yaml", "priorityclass.yaml"):
        plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "manifests" / name))
    crds = ("rlhfjobs.evalstop.dev", "gpupools.evalstop.dev")
    plane.established(*crds)
    documents: list[Object] = []
    for slot in slots:
        documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": slot.namespace}})
        for name in ("checkpoints", "retained"):
            documents += _volume(slot.namespace, name, slot.folder / name)
    documents.append(_pool())
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    for slot in slots:
        plane.kubectl(
            "wait",
            "-n",
            slot.namespace,
            "--for=jsonpath={.status.phase}=Bound",
            "--timeout=60s",
            "pvc/checkpoints",
            "pvc/retained",
        )


def _volume(namespace: str, name: str, folder: Path) -> list[Object]:
    shared = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            **shared,
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": namespace, "name": name},
            "hostPath": {"path": str(folder)},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            **shared,
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": f"{namespace}-{name}",
        },
    }
    return [volume, claim]


def _pool() -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": POOL},
        "spec": {
            "nodeSelector": [{"key": LABEL, "value": POOL}],
            "allowedNamespaces": [{"name": "*"}],
            # Runs of one bench have nothing in common: what they tell each other would only blur the oracle.
            "stopLimits": {"sharedFallPercent": 0},
        },
    }


def job(name: str, slot: Slot, truth: Path, gpus: Path, plan: Any) -> Object:
    """The RLHFJob of a plan."""
    mounts = [
        {"name": "checkpoints", "mountPath": "/ckpt"},
        {"name": "truth", "mountPath": str(truth)},
        {"name": "gpus", "mountPath": str(gpus)},
    ]
    volumes = [
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        {"name": "truth", "hostPath": {"path": str(truth), "type": "Directory"}},
        {"name": "gpus", "hostPath": {"path": str(gpus), "type": "Directory"}},
    ]
    env = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TRUTH", "value": str(truth)},
        {"name": "TRUTH_GPUS", "value": str(gpus)},
    ]
    container = {
        "name": "trainer",
        "image": IMAGE,
        "command": ["python", "-m", "tests.bench.faults.trainer"],
        "args": [*plan.trainer, f"--checkpoints=/ckpt/{name}"],
        "env": env,
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {names.GPU_RESOURCE: str(plan.gpus)}},
        "volumeMounts": mounts,
    }
    pod = {
        "restartPolicy": plan.restart,
        "terminationGracePeriodSeconds": 3,
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": slot.namespace},
        "spec": {
            "pool": POOL,
            "gang": {"replicas": plan.replicas, "gpusPerReplica": plan.gpus},
            "metrics": [{"name": "gold_reward"}],
            **plan.rule,
            "scrape": {"intervalSeconds": 5},
            "checkpoints": {
                "location": {"volumeClaim": {"claimName": "checkpoints", "path": f"/{name}"}},
                "layout": "Plain",
                "retention": {"volumeClaim": {"claimName": "retained"}},
            },
            "workload": {
                "template": {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "spec": {
                        "completions": plan.replicas,
                        "parallelism": plan.replicas,
                        "completionMode": "Indexed",
                        "backoffLimit": 6,
                        "template": {"spec": pod},
                    },
                }
            },
        },
    }
