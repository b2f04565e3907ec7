"""A kind cluster for EvalStop: workers with GPUs that are counted, and volumes that every node sees."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controller.kube.errors import ApiError
from deploy.helm.cluster import ChartCluster, until
from deploy.local.acquire import obtain
from deploy.local.api import LocalApi
from deploy.local.errors import PlaneError
from deploy.local.helm.client import Helm
from deploy.local.helm.recipe import HELM, PROGRAM
from deploy.local.report import Report
from deploy.local.versions import KUBECTL

WORKERS, GPUS = 2, 4
VOLUMES = 12  # free ones, each time the cluster is brought up
STORAGE_CLASS = "evalstop-kind"
_MOUNT = "/var/lib/evalstop-kind"  # in every node: the same folder of this machine
POOL_LABEL = "evalstop.dev/gpu-pool=research"
_SHARED = "evalstop.dev/shared"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": STORAGE_CLASS, "annotations": {_DEFAULT: "true"}},
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "Immediate",
}


@dataclass(frozen=True)
class Kind:
    """One kind cluster.

    Args:
        name: the cluster's.
        work: folder for kubeconfig and volumes.
        image: of its nodes; empty: kind's own choice.
        gpus: that each worker counts.

    Errors of all methods: PlaneError.
    """

    name: str
    work: Path
    image: str
    report: Report
    gpus: int = GPUS

    @property
    def kubeconfig(self) -> Path:
        return self.work / "kubeconfig"

    @property
    def volumes(self) -> Path:
        """Volumes of claims, as folders of this machine."""
        return self.work / "volumes"

    def up(self) -> ChartCluster:
        """Return the cluster, made if it is not there, with its workers' GPUs."""
        for program in ("kind", "docker"):
            if shutil.which(program) is None:
                raise PlaneError(f"no {program} on PATH: install it (kind 0.30 or newer, docker), or PATH=…")
        self.volumes.mkdir(parents=True, exist_ok=True)
        if self.name not in self._kind("get", "clusters").split():
            self._create()
        else:
            self._check_ours()
        self.kubeconfig.write_text(self._kind("get", "kubeconfig", "--name", self.name))
        self.kubeconfig.chmod(0o600)
        binary = obtain(self.report, names=[KUBECTL])[KUBECTL].path
        helm = Helm(obtain(self.report, recipe=HELM)[PROGRAM].path, self.kubeconfig, self.work / PROGRAM)
        cluster = ChartCluster(self.kubeconfig, binary, helm)
        cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=120s")
        for worker in self.workers():
            self._give_gpus(cluster, worker)
        self._share(cluster)
        return cluster

    def unready(self) -> str | None:
        """Return what the API server says against its being ready, without a program's start; None:
        nothing."""
        server = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        try:
            # Anybody may ask; on loopback, and nothing is told.
            LocalApi(server, None, None).get("/readyz", timeout_s=10.0)
        except ApiError as error:
            return str(error)
        return None

    def down(self) -> None:
        """Delete the cluster. Its volumes stay."""
        self._kind("delete", "cluster", "--name", self.name)

    def load(self, archive: Path) -> None:
        """Put all images of an archive onto every node."""
        began = time.monotonic()
        self._kind("load", "image-archive", str(archive), "--name", self.name, timeout_s=600)
        self.report(f"the images are on every node after {time.monotonic() - began:.0f} s")

    def workers(self) -> list[str]:
        return [f"{self.name}-worker{'' if i == 0 else i + 1}" for i in range(WORKERS)]

    def folder(self, cluster: ChartCluster, namespace: str, claim: str) -> Path:
        """Return where a bound claim's volume lies on this machine."""
        volume = cluster.get("pvc", claim, "-n", namespace)["spec"].get("volumeName")
        if not volume:
            raise PlaneError(f"claim {namespace}/{claim} has no volume yet")
        return self.volumes / str(volume)

    def _share(self, cluster: ChartCluster) -> None:
        """Volumes that pods of every node write to, as the cluster's default storage class. kind's own are of
        one node each, and a gang's pods are on several."""
        found = cluster.get("storageclasses")["items"]
        for other in (c["metadata"]["name"] for c in found if c["metadata"]["name"] != STORAGE_CLASS):
            cluster.kubectl("annotate", "storageclass", other, f"{_DEFAULT}=false", "--overwrite")
        volumes = cluster.get("pv", "-l", f"{_SHARED}=true")["items"]
        free = sum(v["status"].get("phase") == "Available" for v in volumes)
        taken = {v["metadata"]["name"] for v in volumes}
        unused = (name for i in itertools.count(1) if (name := f"shared-{i}") not in taken)
        cluster.apply([_CLASS, *(self._volume(next(unused)) for _ in range(VOLUMES - free))])

    def _volume(self, name: str) -> dict[str, Any]:
        folder = self.volumes / name
        if folder.exists():
            shutil.rmtree(folder)  # of a cluster that is gone
        folder.mkdir(parents=True)
        folder.chmod(
            0o777
        )  # kubelet changes no ownership on a host path, and trainers have users of their own
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": {_SHARED: "true"}},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"{_MOUNT}/{name}", "type": "Directory"},
            },
        }

    def _check_ours(self) -> None:
        """Raise PlaneError where a cluster of this name was made otherwise: its nodes lack the folder that
        volumes are in, so pods would wait for it until an installation gives up."""
        for node in self._kind("get", "nodes", "--name", self.name).split():
            found = subprocess.run(
                ["docker", "inspect", "--format", "{{range .Mounts}}{{println .Source}}{{end}}", node],
                capture_output=True,
                text=True,
                timeout=60.0,
                check=False,
            )
            if found.returncode == 0 and str(self.volumes.absolute()) not in found.stdout.splitlines():
                raise PlaneError(
                    f"there is a kind cluster {self.name} that was not made from this folder: node {node} "
                    f"lacks {self.volumes.absolute()}, where the volumes are. Take another name: "
                    f"KIND_CLUSTER=evalstop-2 make kind; or: kind delete cluster --name {self.name}"
                )

    def _create(self) -> None:
        mount = {"hostPath": str(self.volumes.absolute()), "containerPath": _MOUNT}
        nodes = [{"role": role, "extraMounts": [mount]} for role in ["control-plane"] + ["worker"] * WORKERS]
        config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
        self.report(f"making kind cluster {self.name}: a control plane and {WORKERS} workers …")
        began = time.monotonic()
        more = ["--image", self.image] if self.image else []
        self._kind(
            *("create", "cluster", "--name", self.name, "--config=-", "--wait=120s", *more),
            stdin=yaml.safe_dump(config),
            timeout_s=600,
        )
        self.report(f"kind cluster {self.name} is up after {time.monotonic() - began:.0f} s")

    def _give_gpus(self, cluster: ChartCluster, node: str) -> None:
        """Count GPUs on a node that has none: they are scheduled by, and nothing else."""
        cluster.kubectl("label", "node", node, POOL_LABEL, "--overwrite")
        add = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(self.gpus)}]
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(add))

        def counted() -> bool:
            status = cluster.get("node", node)["status"]
            return bool(status.get("allocatable", {}).get("nvidia.com/gpu") == str(self.gpus))

        until(f"node {node} to offer its GPUs", counted, 60)

    def _kind(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        try:
            done = subprocess.run(
                ["kind", *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            raise PlaneError(f"kind {' '.join(arguments)}: no answer within {timeout_s:g} s") from error
        if done.returncode != 0:
            output = done.stderr.strip() or done.stdout.strip()
            raise PlaneError(f"kind {' '.join(arguments)}: {output[-3000:]}")
        return done.stdout


def settings(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """(cluster name, node image) from ``KIND_CLUSTER`` and ``KIND_NODE_IMAGE``."""
    return environ.get("KIND_CLUSTER") or "evalstop", environ.get("KIND_NODE_IMAGE", "")
