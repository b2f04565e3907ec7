"""EvalStop on a kind cluster, ready for the story: chart, pool, volumes, the second kube-scheduler."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller import names
from deploy.helm.cluster import NAMESPACE, RELEASE, ChartCluster
from deploy.kind.nodes import Kind
from deploy.local.demo.cast import Cast
from deploy.local.errors import PlaneError

Manifest = Mapping[str, Any]

LOG_CLAIM = "evalstop-data"
_CHECKS = 6
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
# The workers are the pool's, and the pool's taint keeps everybody else away.
_PLACE = {
    "nodeSelector": {_CONTROL_PLANE: ""},
    "tolerations": [{"key": _CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}],
}


@dataclass(frozen=True)
class KindStage:
    """A `deploy.local.demo.stage.Scene`: the cluster, and where its volumes lie on this machine."""

    kind: Kind
    cluster: ChartCluster

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig

    @property
    def node_gpus(self) -> Mapping[str, int]:
        return dict.fromkeys(self.kind.workers(), self.kind.gpus)

    def apply(self, manifests: Sequence[Manifest]) -> None:
        self.cluster.apply(manifests)

    def problem(self) -> str | None:
        """Return why the API server has not been ready for half a minute: on a busy disk etcd misses a
        check."""
        problem = None
        for _ in range(_CHECKS):
            if (problem := self.kind.unready()) is None:
                return None
            time.sleep(5.0)
        return problem

    def claim_folder(self, namespace: str, claim: str) -> Path:
        return self.kind.folder(self.cluster, namespace, claim)

    def decision_log(self) -> Path:
        return self.claim_folder(NAMESPACE, LOG_CLAIM) / "decisions.jsonl"

    def operator_log(self, lines: int = 15) -> str:
        try:
            return self.cluster.kubectl(
                "-n",
                NAMESPACE,
                "logs",
                "-l",
                "app.kubernetes.io/name=evalstop-operator",
                "--prefix",
                f"--tail={lines}",
            )
        except PlaneError as error:
            return str(error)


def scheduler_image(cluster: ChartCluster) -> str:
    """Return the kube-scheduler that the cluster's control plane runs. Errors: PlaneError."""
    pods = cluster.get("pods", "-n", "kube-system", "-l", "component=kube-scheduler")["items"]
    if not pods:
        raise PlaneError("no kube-scheduler pod in kube-system: its image is the one of the second scheduler")
    return str(pods[0]["spec"]["containers"][0]["image"])


def values(
    cluster: ChartCluster, pools: Sequence[Manifest], identity: str, replicas: int = 2
) -> dict[str, Any]:
    """Values of the chart. ``identity``: of the operator's image; another one restarts the pods."""
    notes = {"podAnnotations": {f"{names.GROUP}/image": identity.removeprefix("sha256:")[:12]}}
    return {
        "operator": _PLACE | notes | {"replicas": replicas, "decisionLog": {"existingClaim": LOG_CLAIM}},
        "extender": _PLACE | notes | {"replicas": 2},
        "scheduler": _PLACE | {"enabled": True, "image": scheduler_image(cluster)},
        "pools": [
            {
                "name": pool["metadata"]["name"],
                "spec": {**pool["spec"], "schedulerName": names.SCHEDULER_NAME},
            }
            for pool in pools
        ],
    }


def install(
    stage: KindStage,
    pools: Sequence[Manifest],
    identity: str,
    more: Manifest = MappingProxyType({}),
    replicas: int = 2,
) -> float:
    """Install the chart, or upgrade it; return the seconds until all of it was ready.

    Args:
        stage: the cluster.
        pools: GPUPools that the chart makes.
        identity: id of the operator's image.
        more: values besides.
        replicas: of the operator.

    Raises:
        PlaneError: it is not ready within five minutes.
    """
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": restricted}}
    stage.apply([home, shared_claim(LOG_CLAIM, NAMESPACE)])
    helm = stage.cluster.helm
    if RELEASE in helm("list", "--namespace", NAMESPACE, "--pending", "--short").split():
        # An installation that was interrupted; Helm takes no other until it is gone.
        helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=120s")
    began = time.monotonic()
    stage.cluster.install({**values(stage.cluster, pools, identity, replicas), **more}, wait_s=300)
    return time.monotonic() - began


def shared_claim(name: str, namespace: str) -> dict[str, Any]:
    """Return a claim of a volume that pods of every node write to."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def remove_pools(cluster: ChartCluster) -> None:
    """No GPUPool, where there may be some: the oldest that selects a node has it. Errors: PlaneError."""
    if cluster.kubectl("get", "crd", "gpupools.evalstop.dev", "--ignore-not-found", "-o", "name"):
        cluster.kubectl("delete", "gpupools", "--all", "--wait")


def fitted(cast: Cast, image: str) -> Cast:
    """Return the cast for this cluster: the pool is left to the chart, trainers run ``image``."""
    supplies = tuple(document for document in cast.supplies if document["kind"] != "GPUPool")
    jobs = []
    for job, role in cast.jobs:
        changed: dict[str, Any] = copy.deepcopy(dict(job))
        pod = changed["spec"]["workload"]["template"]["spec"]["template"]["spec"]
        pod["containers"][0]["image"] = image
        jobs.append((changed, role))
    return Cast(supplies, tuple(jobs))
