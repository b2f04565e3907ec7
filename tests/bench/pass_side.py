"""One tree's operator over objects in memory: what an eval costs from its scrape to its decision.

Run by path with `python -P`, with a tree as working directory and on `PYTHONPATH` (`bench_pass` does so): the
tree need not know this file, so it imports nothing of its own folder. It answers each line of its standard
input with one JSON line: `{"jobs": 100}` starts that many runs in one pool, each `{"round": n}` brings one
eval of each run and returns the CPU seconds per eval of the job pass, with the scrape taken in, and of a pool
pass, and the step of each run's newest eval by its status. What the objects' own server costs is not counted.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

TIME = "2026-11-01T00:00:00Z"
START = 1_795_000_000.0  # s
INTERVAL = 15.0  # s between two evals of a run
KEPT = 32  # evals that a page has
LABELS = {"pool": "gpus"}

Object = dict[str, Any]


def first_of(*names: str) -> Any:
    """Return the first of these modules that this tree has."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
    raise LookupError(f"none of these modules is here: {', '.join(names)}")


names = importlib.import_module("controller.names")
resources = importlib.import_module("controller.kube.resources")
errors = importlib.import_module("controller.kube.errors")
types = importlib.import_module("controller.policy.types")
job_types = first_of("controller.policy.job.types", "controller.policy.jobs")
settings = first_of("controller.operator.process.settings", "controller.operator.settings")


class Server:
    """What passes ask of an API server: objects by their addresses, patches applied, everything allowed.

    Attributes:
        cpu: s of CPU that it has used.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[Any, str | None, str], Object] = {}
        self.version, self.cpu = 10**6, 0.0
        self.on_headers: Any = None
        self.watched: Callable[[Any, Object], None] = lambda resource, obj: None  # as a watch tells it

    def seed(self, resource: Any, obj: Object) -> Object:
        metadata = obj["metadata"]
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        metadata.setdefault("uid", f"{resource.plural}-{metadata['name']}")
        metadata.setdefault("creationTimestamp", TIME)
        self.objects[resource, metadata.get("namespace"), metadata["name"]] = obj
        self.watched(resource, copy.deepcopy(obj))
        return copy.deepcopy(obj)

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Object:
        found = self.objects.get((resource, namespace, name))
        if found is None:
            raise errors.NotFound(404, "NotFound", f"{resource} {namespace}/{name}")
        return copy.deepcopy(found)

    async def list(self, resource: Any, *_: Any, **__: Any) -> tuple[list[Object], str]:
        return [], str(self.version)

    async def create(self, resource: Any, body: Object, *, dry_run: bool = False, **_: Any) -> Object:
        began = time.process_time()
        made = copy.deepcopy(body) if dry_run else self.seed(resource, copy.deepcopy(body))
        self.cpu += time.process_time() - began
        return made

    async def merge_patch(
        self, resource: Any, name: str, patch: Object, namespace: str | None = None, **_: Any
    ) -> Object:
        began = time.process_time()
        found = await self.get(resource, name, namespace)
        merged = self.seed(resource, _merged(found, patch))
        self.cpu += time.process_time() - began
        return merged

    async def delete(self, *_: Any, **__: Any) -> None:
        return None


def _merged(target: Any, patch: Any) -> Any:
    """Return a JSON merge patch applied (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


class Side:
    """The engine of this tree, and its runs."""

    def __init__(self, count: int) -> None:
        self.keys = [f"team-{n % 4}/run-{n}" for n in range(count)]
        self.time, self.server = START, Server()
        engine_module = importlib.import_module("controller.operator.engine")
        self.engine = engine_module.Engine(
            settings.Settings(instance="t"), _connection(), self.server, clock=lambda: self.time
        )
        engine = self.engine
        self.job_pass = (engine.job_passes if hasattr(engine, "job_passes") else engine.job_pass).run
        self.pool_pass = (engine.pool_passes if hasattr(engine, "pool_passes") else engine.pool_pass).run
        for watching in (getattr(engine, "external_queues", None) or engine.outside, engine.devices):
            for watch in watching.watches.values():
                watch.listed = True
        self.server.watched = self._watched
        self.server.seed(resources.PRIORITY_CLASSES, {"metadata": {"name": names.PRIORITY_CLASS}})
        for n in range(count // 8 + 1):
            self.server.seed(resources.NODES, _node(f"node-{n}"))
        self.server.seed(resources.GPUPOOLS, _pool())
        for key in self.keys:
            self.server.seed(resources.RLHFJOBS, _job(key))

    def _watched(self, resource: Any, obj: Object) -> None:
        if resource in self.engine.cache.stores:
            self.engine.cache.put(resource, obj)

    async def start(self) -> None:
        """Plan until all runs have their pods."""
        for _ in range(8):
            self.time += 1.0
            for key in self.keys:
                await self.job_pass(key)
                self._run_pod(key)
            await self.pool_pass("gpus")
        states = {self._status(key).get("summary") for key in self.keys}
        if states != {"Running"}:
            raise RuntimeError(f"not all runs have started: {states}; {self._status(self.keys[0])}")

    def _run_pod(self, key: str) -> None:
        """Do what the Job controller and a kubelet would do."""
        namespace, _, name = key.partition("/")
        job = self.server.objects.get((resources.JOBS, namespace, name))
        if job is None:
            return
        if job["spec"].get("suspend"):
            if "status" not in job:
                condition = {"type": "Suspended", "status": "True"}
                self.server.seed(resources.JOBS, {**job, "status": {"conditions": [condition]}})
            return
        template = job["spec"]["template"]
        address = (resources.PODS, namespace, f"{name}-0")
        if address in self.server.objects:
            return
        number = self.keys.index(key)
        metadata = {
            "name": f"{name}-0",
            "namespace": namespace,
            "labels": {**(template.get("metadata") or {}).get("labels", {}), "job-name": name},
            "annotations": {
                **(template.get("metadata") or {}).get("annotations", {}),
                "batch.kubernetes.io/job-completion-index": "0",
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": name,
                    "uid": job["metadata"]["uid"],
                    "controller": True,
                }
            ],
        }
        status = {
            "phase": "Running",
            "podIP": f"10.0.{number // 250}.{number % 250 + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        spec = {**template["spec"], "nodeName": f"node-{number // 8}"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        self.server.seed(resources.PODS, pod)

    async def round(self, number: int) -> Object:
        """Bring eval ``number`` of each run, and plan run and pool after each."""
        job = pool = 0.0
        self.time += INTERVAL
        for index, key in enumerate(self.keys):
            view = self._view(key, index, number)
            began, served = time.process_time(), self.server.cpu
            self.engine.targets.deliver(key, view)
            await self.job_pass(key)
            between, served_between = time.process_time(), self.server.cpu
            await self.pool_pass("gpus")
            ended = time.process_time()
            job += between - began - (served_between - served)
            pool += ended - between - (self.server.cpu - served_between)
        count = len(self.keys)
        steps = [(self._status(key).get("printed") or {}).get("step") for key in self.keys]
        return {"job": job / count, "pool": pool / count, "steps": steps}

    def _view(self, key: str, index: int, number: int) -> Any:
        namespace, _, name = key.partition("/")
        pod = self.server.objects[resources.PODS, namespace, f"{name}-0"]
        attempt = types.Attempt(1, f"a{index}")
        points = tuple(
            types.EvalPoint(10 * n, _score(index, n), attempt, 0.02)
            for n in range(max(1, number - KEPT + 1), number + 1)
        )
        return job_types.ScrapeView(
            job_types.ScrapeOutcome.OK,
            at=self.time,
            metrics_seen=("gold",),
            points=points,
            evals_total=number,
            step=10 * number,
            total_steps=10_000,
            checkpoint_step=10 * number,
            page=job_types.Page(str(self._object(key)["metadata"]["uid"]), attempt),
            pod=str(pod["metadata"]["uid"]),
        )

    def _object(self, key: str) -> Object:
        namespace, _, name = key.partition("/")
        return self.server.objects[resources.RLHFJOBS, namespace, name]

    def _status(self, key: str) -> Object:
        return self._object(key).get("status") or {}


def _score(index: int, number: int) -> float:
    """Return a score that rises, with noise that is the same in both trees."""
    noise = math.sin(12.9898 * (index + 1) + 78.233 * number) * 43758.5453
    return 1.0 - 0.97**number + 0.04 * (noise - math.floor(noise) - 0.5)


def _connection() -> Any:
    module = first_of("controller.kube.connection", "controller.kube.connect")
    try:
        return module.Connection("http://nowhere", "nowhere")
    except TypeError:  # before it had a way of its own to the server
        from kubernetes.aio.client import Configuration

        return module.Connection(Configuration(), "nowhere", lambda: None)


def _node(name: str) -> Object:
    return {
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"taints": [{"key": names.POOL_TAINT, "value": "gpus", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {names.GPU_RESOURCE: "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _pool() -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": "gpus", "generation": 1},
        "spec": {
            "nodeSelector": [{"key": "pool", "value": "gpus"}],
            "allowedNamespaces": [{"name": "*"}],
            "queuePolicy": {"fifo": {}},
        },
    }


def _job(key: str) -> Object:
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
            "pool": "gpus",
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


async def _serve() -> None:
    importlib.import_module("controller.log").configure("CRITICAL", "json", sys.stderr)
    answers, sys.stdout = sys.stdout, sys.stderr
    side: Side | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if side is None:
            side = Side(asked["jobs"])
            await side.start()
            answer: Object = {"states": len(side.keys)}
        else:
            answer = await side.round(asked["round"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
