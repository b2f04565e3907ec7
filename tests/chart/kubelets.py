"""What the tests on kubelets share: a namespace with claims, an RLHFJob awaited, a look in a pod."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controller import names
from controller.checkpoints.access_jobs import AccessSettings
from deploy.helm.cluster import ChartCluster, until
from deploy.helm.local import POOL, POOL_LABEL
from deploy.local.errors import PlaneError

Json = dict[str, Any]
STORY_S = 420.0  # a run of forty seconds, on a busy machine
ACCESS = AccessSettings().image
RESTRICTED_POD = {"runAsUser": 4321, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@contextmanager
def home(cluster: ChartCluster, space: str, level: str) -> Iterator[None]:
    """A namespace that enforces this Pod Security level, with a claim for checkpoints and one for what is
    retained. It goes with its jobs when the block ends."""
    cluster.kubectl("delete", "namespace", space, "--ignore-not-found", "--wait", timeout_s=180)
    enforced = {"pod-security.kubernetes.io/enforce": level}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": enforced}}
    cluster.apply([made, *(_claim(space, name) for name in ("work", "kept"))])
    yield
    cluster.kubectl("delete", "rlhfjobs", "--all", "-n", space, "--wait", timeout_s=180)
    cluster.kubectl("delete", "namespace", space, "--wait=false")


def _claim(space: str, name: str) -> Json:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": space},
        "spec": spec,
    }


def on_claims(name: str) -> Json:
    """The ``checkpoints`` of a job whose pods have the claim ``work`` at /checkpoints."""
    return {
        "location": {"volumeClaim": {"claimName": "work", "path": f"/{name}"}},
        "layout": "Plain",
        "retention": {"volumeClaim": {"claimName": "kept"}},
    }


def gpus_of_a_node(cluster: ChartCluster) -> int:
    nodes = cluster.get("nodes", "-l", f"{POOL_LABEL}={POOL['name']}")["items"]
    return int(nodes[0]["status"]["allocatable"][names.GPU_RESOURCE])


def status(cluster: ChartCluster, space: str, name: str) -> Json:
    return cluster.get("rlhfjob", name, "-n", space).get("status") or {}


def holds(found: Json, kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in found.get("conditions") or ())


def wait(cluster: ChartCluster, space: str, name: str, what: str, ready: Callable[[Json], Any]) -> Json:
    """The status of an RLHFJob once that holds; else the test fails with it."""
    found: Json = {}

    def done() -> bool:
        nonlocal found
        found = status(cluster, space, name)
        return bool(ready(found))

    try:
        until(f"{name} to be {what}", done, STORY_S)
    except PlaneError as error:
        events = cluster.kubectl("get", "events", "-n", space)
        pytest.fail(f"{error}: {json.dumps(found, indent=1)}\n{events}")
    return found


def looked(cluster: ChartCluster, space: str, script: str, *claims: str, user: int = 65532) -> str:
    """What a Python script prints in a pod of the access image, with each claim mounted by its name."""
    pod = peer("look", space, ["-c", script], *claims, user=user)
    cluster.kubectl("delete", "pod", "look", "-n", space, "--ignore-not-found", "--wait")
    cluster.apply([pod])
    until("the look", lambda: phase(cluster, space, "look") in ("Succeeded", "Failed"), 120)
    said = cluster.kubectl("logs", "look", "-n", space)
    assert phase(cluster, space, "look") == "Succeeded", said
    return said


def peer(name: str, space: str, python: list[str], *claims: str, user: int = 65532) -> Json:
    """A pod of nobody's with these arguments for Python."""
    container = {
        "name": "look",
        "image": ACCESS,
        "imagePullPolicy": "Never",
        "command": ["python", *python],
        "volumeMounts": [{"name": claim, "mountPath": f"/{claim}"} for claim in claims],
        "securityContext": RESTRICTED_CONTAINER,
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {**RESTRICTED_POD, "runAsUser": user, "runAsNonRoot": user != 0},
        "containers": [container],
        "volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
        "tolerations": [{"operator": "Exists"}],
    }
    metadata = {"name": name, "namespace": space, "labels": {"peer": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def phase(cluster: ChartCluster, space: str, pod: str) -> str:
    return str(cluster.get("pod", pod, "-n", space)["status"].get("phase"))
