"""200 gangs arrive at once at a pool of 1,000 simulated nodes: until every member has its node.

Each gang takes five whole nodes, so that together they fill the pool and a single misplaced member would
keep a gang from ever being whole. Baseline: the same pods as 200 plain Jobs, which kube-scheduler places one
by one without an operator, and without anybody holding a gang together. `gangs` lets the default scheduler
place the members, without the extender; `gangs-extender` the second one, which asks the extender.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from controller import names
from deploy.local.errors import PlaneError
from tests.bench.rows import Row
from tests.bench.scale_stage import NAMESPACE, POOL, Json, Scale, rlhfjob, scale

NODES, GPUS = 1_000, 8
GANGS, MEMBERS = 200, 5
_PATIENCE_S = 1_200.0


def run(say: Callable[[str], None]) -> Iterator[Row]:
    """By the default scheduler."""
    yield from _run(say, "gangs")


def run_with_extender(say: Callable[[str], None]) -> Iterator[Row]:
    """By the scheduler that asks the extender; the plain Jobs by the default one still."""
    yield from _run(say, "gangs, with the extender", names.SCHEDULER_NAME)


def _run(say: Callable[[str], None], what: str, scheduler_name: str = "") -> Iterator[Row]:
    with scale(NODES, GPUS, say, scheduler_name) as built:
        plain = _timed(built, [_plain(f"plain-{i:03d}") for i in range(GANGS)], say)
        built.plane.kubectl("-n", NAMESPACE, "delete", "jobs", "--all", "--wait=false", timeout_s=300.0)
        built.wait("nodes are free again", lambda: NODES - len(_pods(built)), NODES, say, _PATIENCE_S)
        if scheduler_name:
            built.start_extender()
        built.start_operator()
        jobs = [
            rlhfjob(f"gang-{i:03d}", built.stub, members=MEMBERS, gpus=GPUS, mode="Shadow")
            for i in range(GANGS)
        ]
        ours = _timed(built, jobs, say)
        whole = Counter(pod["metadata"]["labels"].get("evalstop.dev/job", "") for pod in _bound(built))
        partial = [name for name, members in whole.items() if members != MEMBERS]
        say(f"{len(whole)} gangs have nodes, {len(partial)} of them not whole")
        again = sum(int((job.get("status") or {}).get("attempt") or 0) > 1 for job in built.jobs())
        yield Row(f"{what}: {GANGS} x {MEMBERS} pods at once, all on {NODES} nodes after", ours, "s", plain)
        yield Row(f"{what}: not whole in the end", len(partial), "gangs")
        yield Row(f"{what}: admitted more than once", again, "gangs")


def _timed(built: Scale, objects: list[Json], say: Callable[[str], None]) -> float:
    """From the first object's creation to the last pod's node (s)."""
    began = time.monotonic()
    built.create(objects, say)
    built.wait("pods have nodes", lambda: len(_bound(built)), GANGS * MEMBERS, say, _PATIENCE_S)
    return time.monotonic() - began


def _pods(built: Scale) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    items: list[dict[str, Any]] = built.plane.client().get(path, timeout_s=120.0)["items"]
    return items


def _bound(built: Scale) -> list[dict[str, Any]]:
    bound = [pod for pod in _pods(built) if pod["spec"].get("nodeName")]
    taken = Counter(pod["spec"]["nodeName"] for pod in bound)
    if twice := [node for node, pods in taken.items() if pods > 1]:
        raise PlaneError(f"{twice[0]} has {taken[twice[0]]} pods of {GPUS} GPUs each")
    return bound


def _plain(name: str) -> Json:
    spec = rlhfjob(name, 1, members=MEMBERS, gpus=GPUS, mode="Off")["spec"]["workload"]["template"]["spec"]
    pod = spec["template"]["spec"]
    pod["nodeSelector"] = {"evalstop.dev/gpu-pool": POOL}
    pod["tolerations"] = [{"key": "evalstop.dev/pool", "operator": "Exists"}]
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
