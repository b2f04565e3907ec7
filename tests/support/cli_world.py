"""RLHFJobs in every state, with statuses as the operator writes them, and a GPUPool; on a real API server."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.api import record as stored
from controller.api.values import timestamp
from controller.policy.job import conditions as c
from controller.policy.job.record import (
    AdmissionRecord,
    Best,
    Condition,
    Decision,
    JobRecord,
    ProtectedCheckpoint,
    RuleRecord,
    RunProgress,
)
from controller.policy.job.types import Desired
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Proposal, Verb, Verdict
from deploy.local.plane import Plane

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
GROUP = "/apis/evalstop.dev/v1alpha1"

COPY = "/retained/team/over-abcde/1-9f2c41d0-160"
START = 1_763_000_000.0
SCORES = (0.41, 0.48, 0.55, 0.61, 0.66, 0.70, 0.73, 0.75, 0.745, 0.71, 0.67, 0.63)
RISING = (0.41, 0.48, 0.55, 0.61, 0.66, 0.70)
DIGEST = "sha256:" + "ab" * 32
RULE = {"kDeclines": {"k": 3, "minDelta": "0.01"}}

TEMPLATE: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "trainer", "image": "evalstop/example-trainer:0.1.0"}],
            }
        },
    },
}


def job(name: str, namespace: str, pool: str, **spec: Any) -> Json:
    """A valid RLHFJob; ``spec`` replaces fields."""
    whole: Json = {
        "pool": pool,
        "gang": {"replicas": 1, "gpusPerReplica": 2},
        "workload": {"template": copy.deepcopy(TEMPLATE)},
        "metrics": [{"name": "gold_reward"}],
        "stopRule": RULE,
        "modifiers": [{"warmUp": {"minEvals": 4}}],
        "checkpoints": {
            "location": {"volumeClaim": {"claimName": "work", "path": "/checkpoints"}},
            "layout": "Plain",
            "retention": {"volumeClaim": {"claimName": "kept"}},
        },
    }
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": "a"}},
        "spec": whole | spec,
    }


def evals(scores: tuple[float, ...], proxy: bool = False) -> tuple[EvalPoint, ...]:
    life = Attempt(1, "9f2c41d0")
    return tuple(
        EvalPoint(20 * (i + 1), score, life, 0.012, 200, 1.0 + 0.2 * i if proxy else None)
        for i, score in enumerate(scores)
    )


def kept(step: int, path: str) -> ProtectedCheckpoint:
    return ProtectedCheckpoint(step, step, path, DIGEST, START + 181, 12_300_000, 0.75, evidence="SaveRecord")


def condition(type_: str, status: bool, reason: str, message: str) -> Condition:
    return Condition(type_, status, reason, message, START, 1)


ACCEPTED = condition(c.ACCEPTED, True, "Valid", "the spec can be carried out")


def running(scores: tuple[float, ...] = RISING, proxy: bool = False) -> JobRecord:
    points = evals(scores, proxy)
    best = max(points, key=lambda p: p.score)
    return JobRecord(
        attempt=1,
        evals=points,
        eval_times=tuple(int(START) + 20 * (i + 1) for i in range(len(points)))[-16:],
        evals_seen=len(points),
        rule=RuleRecord("kDeclines", 1, "a" * 12, (), (), Verdict(Verb.CONTINUE, "NewBest", 0.0, 3.0)),
        best=Best(best.step, best.score),
        secured=kept(best.step, f"/checkpoints/.evalstop/uid/1-9f2c41d0-{best.step}"),
        admission=AdmissionRecord(1, ("node-9",), START, None, START + 2.0, bound_nodes=("node-1",)),
        progress=RunProgress(points[-1].step, 400, 3600.0),
        conditions=(
            ACCEPTED,
            condition(c.ADMITTED, True, "Admitted", "GPUs granted, on node-1"),
            condition(c.RUNNING, True, "Running", "attempt 1: all members are ready"),
            condition(c.METRICS, True, "Scraped", "evals of 'gold_reward' are being read"),
        ),
    )


def stopped() -> JobRecord:
    proposal = Proposal(240, 160, "ConsecutiveDeclines", 3.0, 3.0)
    message = "kDeclines: ConsecutiveDeclines, 3 against 3 at step 240; best eval at step 160"
    at = START + 300.0
    decision = Decision(
        "kDeclines", Mode.ENFORCE, proposal, message, at, at + 0.4, at + 1.2, at + 2.0, "team/next", at + 2.1
    )
    base = running(SCORES)
    assert base.rule is not None
    return replace(
        base,
        admission=None,
        attained=1800.0,
        rule=replace(base.rule, verdict=Verdict(Verb.STOP, "ConsecutiveDeclines", 3.0, 3.0)),
        retained=(kept(160, COPY),),
        decision=decision,
        conditions=(
            ACCEPTED,
            condition(c.ADMITTED, False, "Stopped", message),
            condition(c.RELEASED, True, "PodsGone", "all pods are gone or terminal; the GPUs are free"),
            condition(c.RETAINED, True, "Retained", f"checkpoint of step 160 is at {COPY}"),
            condition(c.RUNNING, False, "Stopped", message),
            condition(c.TERMINATION, True, "ConsecutiveDeclines", message),
        ),
    )  # fmt: skip


def shadow() -> JobRecord:
    proposal = Proposal(240, 160, "ConsecutiveDeclines", 3.0, 3.0)
    text = "kDeclines: 3 of 3 at step 240, best at step 160"
    decision = Decision("kDeclines", Mode.SHADOW, proposal, text, START + 300.0)
    base = running(SCORES, proxy=True)
    told = condition(c.ATTENTION, True, "WouldStop", f"ConsecutiveDeclines: {text}")
    return replace(base, decision=decision, conditions=(*base.conditions, told))


def queued() -> JobRecord:
    why = "needs 1 x 2 GPUs at once, 0 are free"
    return JobRecord(conditions=(ACCEPTED, condition(c.ADMITTED, False, "WaitingForGPUs", why)))


def refused() -> JobRecord:
    return JobRecord(
        conditions=(condition(c.ACCEPTED, False, "PoolNotFound", "spec.pool: there is no GPUPool 'b100'"),)
    )


def completed() -> JobRecord:
    done = condition(c.COMPLETED, True, "Complete", "the workload ended")
    whole = RunProgress(400, 400, 3600.0)
    return replace(
        running(), admission=None, finished="Complete", conditions=(ACCEPTED, done), progress=whole
    )


def records() -> Mapping[str, JobRecord | None]:
    return {
        "done": completed(),
        "fresh": None,
        "healthy": running(proxy=True),
        "over": stopped(),
        "refused": refused(),
        "shadow": shadow(),
        "waits": queued(),
    }


def status(record: JobRecord, name: str = "run") -> Json:
    """The status that the operator would write for a record."""
    return stored.status(record, Desired(name, "uid", 1, "gold_reward", 1, 2, PolicySpec("kDeclines")), 0.0)


def whole(name: str, record: JobRecord | None, namespace: str = "team", pool: str = "a100") -> Json:
    """An RLHFJob as the API server would give it, for tests without one."""
    obj = job(name, namespace, pool, mode="Shadow" if name == "shadow" else "Enforce")
    obj["metadata"] |= {
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": timestamp(START - 60.0),
    }
    if record is not None:
        obj["status"] = status(record, f"{namespace}/{name}")
    return obj


def pool(name: str) -> Json:
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": [{"key": "gpu", "value": name}],
            "queuePolicy": {"fifo": {}},
            "allowedNamespaces": [{"name": "*"}],
            "stopLimits": {"perHour": 5},
        },
    }


def pool_status() -> Json:
    return {
        "capacity": 8, "free": 2, "held": 0, "foreign": 0, "running": 2, "queued": 1,
        "conditions": [
            {
                "type": "Ready", "status": "True", "reason": "Ready", "message": "2 nodes",
                "lastTransitionTime": timestamp(START),
            }
        ],
        "lastHandovers": [
            {
                "source": "team/over", "by": "kDeclines", "gpus": 2, "decidedTime": timestamp(START + 300),
                "suspendedTime": timestamp(START + 301.2), "podsGoneTime": timestamp(START + 302),
                "target": "team/next", "runningTime": timestamp(START + 304.5),
            }
        ],
        "nodeSizes": [{"gpus": 4, "nodes": 2}],
        "stops": {"lastHour": 1, "today": 1},
    }  # fmt: skip


def install(plane: Plane) -> None:
    """CRDs and the roles of users, without the operator."""
    plane.kubectl("apply", "-f", str(ROOT / "crds"))
    for name in ("namespace", "rbac", "users"):
        plane.kubectl("apply", "-f", str(ROOT / "deploy" / "manifests" / f"{name}.yaml"))
    plane.established()


def fill(plane: Plane, namespace: str, pool_name: str) -> None:
    """The pool and a job in every state in a namespace that is there."""
    admin = plane.client()
    admin.post(f"{GROUP}/gpupools", pool(pool_name))
    admin.patch(f"{GROUP}/gpupools/{pool_name}/status", {"status": pool_status()})
    for name, record in records().items():
        put(plane, namespace, pool_name, name, record)


def put(plane: Plane, namespace: str, pool_name: str, name: str, record: JobRecord | None) -> None:
    admin = plane.client()
    path = f"{GROUP}/namespaces/{namespace}/rlhfjobs"
    admin.post(path, job(name, namespace, pool_name, mode="Shadow" if name == "shadow" else "Enforce"))
    if record is not None:
        write(plane, namespace, name, record)


def write(plane: Plane, namespace: str, name: str, record: JobRecord) -> None:
    """Puts a status in place of the one that is there, as the operator would."""
    admin, path = plane.client(), f"{GROUP}/namespaces/{namespace}/rlhfjobs/{name}"
    gone = dict.fromkeys(admin.get(path).get("status") or {})
    admin.patch(f"{path}/status", {"status": gone | status(record, f"{namespace}/{name}")})
