"""Manifests of the stories of jobs: a pool for one namespace, and a job of one pod that nobody watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller import names

Json = dict[str, Any]

# Environment by which jobs of one template know themselves apart: JOB is the job's name.
JOB_NAME: list[Json] = [
    {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.LABEL_JOB}']"}}}
]


def pool(name: str, namespace: str, **spec: Any) -> Json:
    """Return a GPUPool of the nodes whose label ``pool`` is its name. ``spec``: what else is in its spec."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": [{"key": "pool", "value": name}],
            "allowedNamespaces": [{"name": namespace, "maxPriority": 10}],
            **spec,
        },
    }


def job(
    name: str,
    namespace: str,
    pool: str,
    command: list[str],
    *,
    gpus: int = 1,
    env: Sequence[Json] = (),
    **spec: Any,
) -> Json:
    """Return an RLHFJob whose one pod runs a command in the example trainer's image.

    Args:
        name: its name.
        namespace: in which it is.
        pool: of whose nodes it runs.
        command: of its container.
        gpus: that its pod has; 0: none, as it trains in a group.
        env: of its container.
        spec: what else is in its spec, or instead.
    """
    container: Json = {
        "name": "trainer",
        "image": names.TRAINER_IMAGE,
        "command": command,
        "ports": [{"name": "metrics", "containerPort": names.DEFAULT_METRICS_PORT}],
    }
    if gpus:
        container["resources"] = {"limits": {names.GPU_RESOURCE: str(gpus)}}
    if env:
        container["env"] = list(env)
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    child = {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "pool": pool,
            "gang": {"replicas": 1, "gpusPerReplica": gpus},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": child}},
            "metrics": [{"name": "gold_reward"}],
            "mode": "Off",
            "checkpoints": {
                "location": {"objectStore": {"uri": f"s3://work/{name}"}},
                "layout": "Plain",
                "retention": {"objectStore": {"uri": "s3://kept"}},
            },
            **spec,
        },
    }


def mount(pod: Json, volumes: Mapping[str, Json]) -> None:
    """Give a pod's containers volumes, which are sources by the path at which they lie there."""
    for number, (path, source) in enumerate(volumes.items(), 1):
        pod.setdefault("volumes", []).append({"name": f"volume-{number}", **source})
        for container in pod["containers"]:
            container.setdefault("volumeMounts", []).append({"name": f"volume-{number}", "mountPath": path})
