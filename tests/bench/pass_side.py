"""One tree's operator over objects in memory: what an eval costs from its scrape to its decision.

Run by path with `python -P`, with a tree as working directory and on `PYTHONPATH` (`bench_pass` does so): the
tree need not know this file, so it imports nothing of its own folder. It answers each line of its standard
input with one JSON line: `{"jobs": 100}` starts that many runs in one pool, each `{"round": n}` brings one
eval of each run and returns the CPU seconds per eval of the job pass, with the scrape taken in, and of a pool
pass, and the step of each run's newest eval by its status. What the objects' own server costs is not counted.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

START = 1_795_000_000.0  # s
INTERVAL = 15.0  # s between two evals of a run
KEPT = 32  # evals that a page has

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


def support(name: str) -> Any:
    """Return a module of `tests/support` of the tree that this file is of."""
    path = Path(__file__).resolve().parents[1] / "support" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


names = importlib.import_module("controller.names")
resources = importlib.import_module("controller.kube.resources")
server, merge = support("object_server"), support("merge_patch")
types = importlib.import_module("controller.policy.types")
job_types = first_of("controller.policy.job.types", "controller.policy.jobs")
settings = first_of("controller.operator.process.settings", "controller.operator.settings")


class Side:
    """The engine of this tree, and its runs."""

    def __init__(self, count: int) -> None:
        self.keys = [f"team-{n % 4}/run-{n}" for n in range(count)]
        self.time, self.server = START, server.ObjectServer(merge.merge_apply)
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
            self.server.seed(resources.NODES, server.node(f"node-{n}"))
        self.server.seed(resources.GPUPOOLS, server.gpupool("gpus", queuePolicy={"fifo": {}}))
        for key in self.keys:
            self.server.seed(resources.RLHFJOBS, server.rlhfjob(key))

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
