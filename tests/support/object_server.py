"""What passes ask of an API server: objects by their addresses, patches applied, everything allowed.

`tests/bench/pass_side.py` loads it by its path beside an earlier tree's `controller`: of that it takes no
more than names, resources and errors.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from controller import names
from controller.kube.errors import NotFound
from controller.kube.resources import Resource

Object = dict[str, Any]

TIME = "2026-11-01T00:00:00Z"


class ObjectServer:
    """Objects in memory, served as `controller.kube.client.Api` serves them.

    Args:
        merge: what the server makes of an object under a JSON merge patch.
        watched: called with each object that is new or changed, as a watch reports it.

    Attributes:
        cpu: s of CPU that its writes have used.
    """

    def __init__(
        self,
        merge: Callable[[Any, Any], Any],
        watched: Callable[[Resource, Object], None] = lambda resource, obj: None,
    ) -> None:
        self.objects: dict[tuple[Resource, str | None, str], Object] = {}
        self.version, self.cpu = 10**6, 0.0
        self.on_headers: Any = None
        self.watched, self._merge = watched, merge

    def seed(self, resource: Resource, obj: Object) -> Object:
        metadata = obj["metadata"]
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        metadata.setdefault("uid", f"{resource.plural}-{metadata['name']}-{self.version}")
        metadata.setdefault("creationTimestamp", TIME)
        self.objects[resource, metadata.get("namespace"), metadata["name"]] = obj
        self.watched(resource, copy.deepcopy(obj))
        return copy.deepcopy(obj)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        found = self.objects.get((resource, namespace, name))
        if found is None:
            raise NotFound(404, "NotFound", f"{resource} {namespace}/{name}")
        return copy.deepcopy(found)

    async def list(self, resource: Resource, *_: Any, **__: Any) -> tuple[list[Object], str]:
        return [], str(self.version)

    async def create(self, resource: Resource, body: Object, *, dry_run: bool = False, **_: Any) -> Object:
        began = time.process_time()
        made = copy.deepcopy(body) if dry_run else self.seed(resource, copy.deepcopy(body))
        self.cpu += time.process_time() - began
        return made

    async def merge_patch(
        self, resource: Resource, name: str, patch: Object, namespace: str | None = None, **_: Any
    ) -> Object:
        began = time.process_time()
        made = self.seed(resource, self._merge(await self.get(resource, name, namespace), patch))
        self.cpu += time.process_time() - began
        return made

    async def delete(self, *_: Any, **__: Any) -> None:
        return None


def node(name: str, pool: str = "gpus") -> Object:
    """Return a node of 8 GPUs in a pool."""
    return {
        "metadata": {"name": name, "labels": {"pool": pool}},
        "spec": {"taints": [{"key": names.POOL_TAINT, "value": pool, "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {names.GPU_RESOURCE: "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def gpupool(name: str, **spec: Any) -> Object:
    """Return a pool of the nodes with its label, for all namespaces."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": name, "generation": 1},
        "spec": {
            "nodeSelector": [{"key": "pool", "value": name}],
            "allowedNamespaces": [{"name": "*"}],
            **spec,
        },
    }


def rlhfjob(key: str, pool: str = "gpus") -> Object:
    """Return a job of one GPU in Shadow."""
    namespace, _, name = key.partition("/")
    container = {
        "name": "trainer",
        "image": "x",
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {names.GPU_RESOURCE: "1"}},
    }
    pods = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    template = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "template": pods}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": namespace, "generation": 1},
        "spec": {
            "pool": pool,
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": template}},
            "metrics": [{"name": "gold"}],
            "stopRule": {"kDeclines": {"k": 3}},
            "modifiers": [],
            "mode": "Shadow",
            "checkpoints": {
                "location": {"objectStore": {"uri": f"s3://{namespace}/{name}"}},
                "layout": "Plain",
                "retention": {"objectStore": {"uri": f"s3://{namespace}-kept"}},
            },
        },
    }
