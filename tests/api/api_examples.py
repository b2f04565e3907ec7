"""Objects the API's tests share: a valid RLHFJob and GPUPool, and records as full as they get."""

from __future__ import annotations

import copy
from typing import Any

from controller.api.gpupool import GPUPool
from controller.policy.job import conditions
from controller.policy.job.record import (
    AdmissionRecord,
    Best,
    Condition,
    Decision,
    InFlight,
    JobRecord,
    Operation,
    PodTrouble,
    ProtectedCheckpoint,
    RuleRecord,
    RunFile,
)
from controller.policy.job.types import Desired
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Proposal, Verb, Verdict

Json = dict[str, Any]

CONTAINER: Json = {"name": "trainer", "image": "evalstop/example-trainer:0.1.0"}
TEMPLATE: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}},
    },
}
JOB: Json = {
    "apiVersion": "evalstop.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "run", "namespace": "team"},
    "spec": {
        "pool": "a100",
        "gang": {"replicas": 1, "gpusPerReplica": 2},
        "workload": {"template": TEMPLATE},
        "metrics": [{"name": "gold_reward"}],
        "stopRule": {"kDeclines": {"k": 3, "minDelta": "0.01"}},
        "modifiers": [{"warmUp": {"minEvals": 4}}],
        "checkpoints": {
            "location": {"volumeClaim": {"claimName": "work", "path": "/checkpoints"}},
            "layout": "Plain",
            "retention": {"volumeClaim": {"claimName": "kept"}},
        },
    },
}
POOL: Json = {
    "apiVersion": "evalstop.dev/v1alpha1",
    "kind": "GPUPool",
    "metadata": {"name": "a100"},
    "spec": {
        "nodeSelector": [{"key": "gpu", "value": "a100"}],
        "allowedNamespaces": [{"name": "team", "maxPriority": 10}],
    },
}

DELETE = object()


def changed(obj: Json, path: str, value: Any) -> Json:
    """A copy of an object in which the field at a dotted path (whole numbers index lists) is another."""
    found = copy.deepcopy(obj)
    node: Any = found
    *parents, last = path.split(".")
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    key: Any = int(last) if isinstance(node, list) else last
    if value is DELETE:
        del node[key]
    else:
        node[key] = value
    return found


def pool(**spec: Any) -> GPUPool:
    return GPUPool.model_validate({**POOL, "spec": {**POOL["spec"], **spec}})


NOW = 1795269600.123457
LONG = -0.12345678901234568  # as long as a score gets without an exponent
CONDITIONS = [value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)]
DESIRED = Desired("team/run", "uid", 12, "gold_reward", 4, 8, PolicySpec("kDeclines"))


def kept(step: int) -> ProtectedCheckpoint:
    path = f"/retained/research-team/over-optimising-run-3b3f2a/1-9f2c41d0-{step}"
    return ProtectedCheckpoint(step, step, path, "sha256:" + "a" * 64, NOW, 123456789012, LONG)


def full_record(*, condition_count: int, retained: int, message: str) -> JobRecord:
    """A job that was stopped and handed over, with 32 evals of long numbers over four attempts."""
    return JobRecord(
        attempt=12,
        evals=tuple(
            EvalPoint(120000 + 100 * i, LONG, Attempt(12, f"9f2c41d{i // 8}"), -LONG / 10, 1024)
            for i in range(32)
        ),
        evals_seen=1234,
        earlier_sum=LONG * 1202,
        evals_missed=3,
        abandoned_step=70,
        evals_in_attempt=1200,
        rule=RuleRecord(
            "kDeclines",
            1,
            "a" * 12,
            (100, (LONG, 2)),
            (132, (LONG, 3)),
            Verdict(Verb.STOP, "ConsecutiveDeclines", 3, 3),
        ),
        best=Best(120000, LONG),
        awaiting=Best(123100, LONG),
        access=InFlight(Operation.RETAIN, 120000, 12, 3, NOW),
        access_serial=12,
        secured=kept(120000),
        retained=tuple(kept(120001 + i) for i in range(retained)),
        decision=Decision(
            "kDeclines",
            Mode.ENFORCE,
            Proposal(123000, 120000, "ConsecutiveDeclines", 3, 3),
            message,
            NOW,
            NOW + 1,
            NOW + 2,
            NOW + 3,
            "research-team/the-one-that-waited",
            NOW + 4,
        ),
        admission=AdmissionRecord(
            12, tuple(f"gpu-node-{i}" for i in range(4)), NOW, "team/before", NOW, NOW + 5
        ),
        run=RunFile(12, "/checkpoints/resume/120000", 120000, 3, False, True, False, 119900),
        resume_id="again-3",
        attained=123456.123456,
        pod_trouble=PodTrouble("over-optimising-run-0-x7k2p", "", 137, "OOMKilled", 2, NOW, "c" * 76),
        crashes_over=NOW,
        blind_since=NOW,
        first_eval=600.0,
        conditions=tuple(
            Condition(type_, True, "ConsecutiveDeclines", message, NOW, 12)
            for type_ in CONDITIONS[:condition_count]
        ),
    )
