"""From the decision to the next job's running pods, stage by stage, on a real control plane with local nodes.

Baseline: what Kubernetes itself needs on the same plane for the same pods when somebody patches `suspend` by
hand and keeps no checkpoint: suspend -> pods gone, and unsuspend -> pods running.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.local.demo import cast
from deploy.local.demo.facts import Chronicle, Role
from deploy.local.demo.stage import Stage, stage
from deploy.local.demo.watch import Watcher
from deploy.local.errors import PlaneError
from tests.bench.rows import Row, median_row

ROUNDS = 5
_PATIENCE_S = 120.0
_STAGES = ("best retained, verified", "suspended", "pods gone", "next admitted", "next pods running")

Job = dict[str, Any]


def run(say: Callable[[str], None]) -> Iterator[Row]:
    scenes = cast.load()
    by_role = {role: job for job, role in scenes.jobs}
    with (
        tempfile.TemporaryDirectory(prefix="evalstop-bench-", dir="/var/tmp") as folder,
        stage(Path(folder), scenes.node_labels, lambda line, progress=False: say(line)) as built,
    ):
        built.apply(scenes.supplies)
        rounds = []
        for number in range(1, ROUNDS + 1):
            rounds.append(_round(built, by_role, number))
            say(f"round {number} of {ROUNDS}: next pods running {rounds[-1][-1]:.2f} s after the decision")
        by_hand = [_by_hand(built, by_role[Role.WAITING], number) for number in range(1, ROUNDS + 1)]
    gone, running = ([b[i] for b in by_hand] for i in (0, 1))
    for i, name in enumerate(_STAGES):
        floor = [g + r for g, r in by_hand] if name == _STAGES[-1] else gone if name == "pods gone" else []
        yield median_row(f"handover: decision -> {name}", [r[i] for r in rounds], "s", floor)
    steps = [[r[i] - (r[i - 1] if i else 0.0) for r in rounds] for i in range(len(_STAGES))]
    for i, name in enumerate(_STAGES):
        floor = {"pods gone": gone, "next pods running": running}.get(name, [])
        before = _STAGES[i - 1] if i else "decision"
        yield median_row(f"handover stage: {before} -> {name}", steps[i], "s", floor)


def _variant(job: Mapping[str, Any], name: str, replicas: int, **flags: str) -> Job:
    """The sample job under another name, with its whole pool as gang and other flags for its trainer."""
    changed: Job = copy.deepcopy(dict(job))
    changed["metadata"]["name"] = name
    changed["spec"]["gang"] = {"replicas": replicas, "gpusPerReplica": 2}
    child = changed["spec"]["workload"]["template"]["spec"]
    child["completions"] = child["parallelism"] = replicas
    container = child["template"]["spec"]["containers"][0]
    flags = {"checkpoints": f"/checkpoints/{name}", "record": f"/checkpoints/{name}/evals.jsonl", **flags}
    kept = [
        w for w in container["args"] if w.removeprefix("--").partition("=")[0].replace("-", "_") not in flags
    ]
    container["args"] = kept + [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
    container["resources"]["limits"]["nvidia.com/gpu"] = "2"
    changed["spec"]["checkpoints"]["location"]["volumeClaim"]["path"] = f"/{name}"
    return changed


def _round(built: Stage, by_role: Mapping[Role, Mapping[str, Any]], number: int) -> list[float]:
    """One hand-over of all eight GPUs; s from the decision to each stage."""
    giver = _variant(
        by_role[Role.OVER_OPTIMISING], f"giver-{number}", 4, steps="4000", step_seconds="0.1", eval_every="10"
    )
    taker = _variant(
        by_role[Role.WAITING], f"taker-{number}", 4, steps="20", step_seconds="0.2", linger_seconds="6"
    )
    chronicles = {
        f"{cast.NAMESPACE}/{job['metadata']['name']}": Chronicle(
            f"{cast.NAMESPACE}/{job['metadata']['name']}", role
        )
        for job, role in ((giver, Role.OVER_OPTIMISING), (taker, Role.WAITING))
    }
    gives, takes = chronicles.values()
    watcher = Watcher(built.plane.kubeconfig, cast.NAMESPACE)
    try:
        built.apply([giver])
        _follow(watcher, chronicles, lambda: gives.admission is not None)
        built.apply([taker])
        _follow(watcher, chronicles, lambda: gives.stopped and takes.record.finished is not None)
    finally:
        watcher.close()
    decision, admission = gives.record.decision, takes.admission
    assert decision is not None
    assert admission is not None
    assert admission.running_since is not None
    times = (
        decision.retained_at,
        decision.suspended_at,
        decision.pods_gone_at,
        admission.at,
        admission.running_since,
    )
    assert None not in times
    return [t - decision.at for t in times if t is not None]


def _follow(watcher: Watcher, chronicles: Mapping[str, Chronicle], over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not over():
        change = watcher.changes.get(timeout=max(deadline - time.monotonic(), 0.01))
        if change.kind == "jobs" and change.verb in ("ADDED", "MODIFIED"):
            metadata = change.obj["metadata"]
            if chronicle := chronicles.get(f"{metadata['namespace']}/{metadata['name']}"):
                chronicle.see(change.obj)


def _by_hand(built: Stage, sample: Mapping[str, Any], number: int) -> tuple[float, float]:
    """(suspend -> pods gone, unsuspend -> pods running) of plain Jobs with the same pods, s."""
    jobs = []
    for name, suspend in ((f"hand-a-{number}", False), (f"hand-b-{number}", True)):
        spec = _variant(sample, name, 4, steps="4000", step_seconds="0.1")["spec"]["workload"]["template"][
            "spec"
        ]
        spec["template"]["spec"]["tolerations"] = [{"key": "evalstop.dev/pool", "operator": "Exists"}]
        metadata = {"name": name, "namespace": cast.NAMESPACE}
        jobs.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": {**spec, "suspend": suspend},
            }
        )
    built.apply(jobs)
    first, second = (job["metadata"]["name"] for job in jobs)  # type: ignore[index]
    _until(built, first, lambda pods: len(pods) == 4 and all(map(_ready, pods)))
    gone = _patched(built, first, True, lambda pods: not pods)
    running = _patched(built, second, False, lambda pods: len(pods) == 4 and all(map(_ready, pods)))
    built.plane.kubectl("-n", cast.NAMESPACE, "delete", "job", first, second, "--wait=true")
    _until(built, second, lambda pods: not pods)
    return gone, running


def _patched(built: Stage, job: str, suspend: bool, over: Callable[[list[Any]], bool]) -> float:
    began = time.monotonic()
    patch = json.dumps({"spec": {"suspend": suspend}})
    built.plane.kubectl("-n", cast.NAMESPACE, "patch", "job", job, "--type=merge", "-p", patch)
    _until(built, job, over)
    return time.monotonic() - began


def _until(built: Stage, job: str, over: Callable[[list[Any]], bool]) -> None:
    client = built.plane.client()
    path = f"/api/v1/namespaces/{cast.NAMESPACE}/pods?labelSelector=batch.kubernetes.io/job-name%3D{job}"
    deadline = time.monotonic() + _PATIENCE_S
    while not over(client.get(path)["items"]):
        if time.monotonic() > deadline:
            raise PlaneError(f"pods of job {job} are not as expected after {_PATIENCE_S:g} s")
        time.sleep(0.02)


def _ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
