"""Arbitrary objects of one tenant, of every kind that is read: good ones with parts of them replaced by
anything.

Each is the text that an API server would send: who the object is (name, namespace, uid, resourceVersion) is
the server's to say, all else is the tenant's.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from controller import names
from controller.kube import resources as r

Object = dict[str, Any]

NAMESPACE = "alice"
JOBS = (
    12  # names that pills share: a later one takes an earlier one's place, or is the ConfigMap to its RLHFJob
)
TIME = "2026-11-01T00:00:00Z"

_RAW = "\x00raw:"  # begins a text that stands for JSON which no Python object could be dumped to
HOSTILE: tuple[Any, ...] = (
    *(_RAW + "[" * n + "]" * n for n in (190, 250, 5000)),
    *(_RAW + '{"a":' * n + "1" + "}" * n for n in (190, 250, 5000)),
    _RAW + "9" * 5000,
    _RAW + "1e400",
    *("[" * 4000, "[" * 100_000, '{"a":' * 3000, "9" * 5000, "9" * 19, "1" * 70_000, "x" * 300_000),
    *(
        "",
        "\x00",
        "\x1b[2J",
        "é" * 99,
        "-1",
        "1e9",
        "NaN",
        "null",
        "0",
        "a/b",
        "../..",
        "9223372036854775808",
    ),
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 1.5, 1e300),
    *(
        [],
        {},
        [None],
        [[]],
        [{}],
        [1],
        ["a"],
        {"": ""},
        {"name": None},
        {"name": {}},
        {"limits": []},
        [{"name": 5}],
    ),
)


def _metadata(name: str, job: str, **more: Any) -> Object:
    labels = {names.LABEL_JOB: job, names.LABEL_COMPONENT: "workload", names.QUEUE_LABEL: "team"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-{job}", "controller": True}
    found = {"name": name, "labels": labels, "annotations": {names.ANNOTATION_ADMISSION: "1"}}
    return found | {"ownerReferences": [owner], "creationTimestamp": TIME, "generation": 1} | more


def _pod_spec() -> Object:
    return {
        "nodeName": "node-1",
        "restartPolicy": "Never",
        "tolerations": [{"key": names.POOL_TAINT, "operator": "Exists"}],
        "containers": [
            {
                "name": "trainer",
                "image": "x",
                "ports": [{"name": "metrics", "containerPort": 9400}],
                "resources": {"limits": {names.GPU_RESOURCE: "1"}},
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "w", "mountPath": "/w"}],
            }
        ],
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {}}}],
        "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "work"}}],
    }


def _job_spec() -> Object:
    template = {"metadata": {"labels": {}, "annotations": {}}, "spec": _pod_spec()}
    sizes = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "suspend": True}
    return sizes | {"template": template}


def _rlhfjob(job: str) -> Object:
    del job
    return {
        "spec": {
            "pool": "gpus",
            "priority": 1,
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": _job_spec()}},
            "metrics": [{"name": "gold"}],
            "stopRule": {"kDeclines": {"k": 3}},
            "modifiers": [],
            "checkpoints": {
                "location": {"volumeClaim": {"claimName": "work", "path": "/"}},
                "layout": "Plain",
                "retention": {"volumeClaim": {"claimName": "kept", "path": "/"}},
            },
        },
        "status": {
            "attempt": 1,
            "admission": {"number": 1, "nodes": ["node-1"], "time": TIME},
            "conditions": [{"type": "Admitted", "status": "True", "reason": "A", "message": ""}],
        },
    }


def _pod(job: str) -> Object:
    del job
    message = json.dumps({"ok": True, "step": 1})
    ended = {"name": "access", "state": {"terminated": {"exitCode": 0, "message": message}}}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
    status = {"phase": "Running", "podIP": "10.0.0.9", "startTime": TIME, "conditions": conditions}
    return {"spec": _pod_spec(), "status": status | {"containerStatuses": [ended]}}


def _job(job: str) -> Object:
    del job
    status = {"active": 1, "completedIndexes": "0,2-3", "startTime": TIME, "conditions": []}
    return {"spec": _job_spec(), "status": status}


def _configmap(job: str) -> Object:
    request = {"id": 1, "evaluate": 0, "checkpoint": 0, "stop": False}
    run = {"uid": f"rlhfjobs-{job}", "attempt": 1, "resume": None, "request": request, "reference": None}
    return {"data": {names.RUN_KEY: json.dumps(run)}}


def _workload(job: str) -> Object:
    template = {"metadata": {"labels": {names.LABEL_JOB: job}}, "spec": _pod_spec()}
    conditions = [{"type": "QuotaReserved", "status": "True", "reason": "A", "lastTransitionTime": TIME}]
    checks = [{"name": "evalstop", "state": "Pending", "message": "", "lastTransitionTime": TIME}]
    evictions = [{"reason": "Preempted", "count": 1}]
    return {
        "spec": {
            "queueName": "team",
            "active": True,
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
        "status": {
            "conditions": conditions,
            "admissionChecks": checks,
            "schedulingStats": {"evictions": evictions},
        },
    }


def _local_queue(job: str) -> Object:
    del job
    return {"spec": {"clusterQueue": "gpus", "stopPolicy": "None"}, "status": {"conditions": []}}


def _claim(job: str) -> Object:
    result = {"driver": names.GPU_DRIVER, "pool": "node-1", "device": "gpu-0"}
    users = [{"resource": "pods", "name": job, "uid": f"pods-{job}"}]
    return {"spec": {}, "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}}


KINDS = {
    r.RLHFJOBS: _rlhfjob,
    r.PODS: _pod,
    r.JOBS: _job,
    r.CONFIGMAPS: _configmap,
    r.WORKLOADS: _workload,
    r.LOCAL_QUEUES: _local_queue,
    r.RESOURCE_CLAIMS: _claim,
}
_WEIGHTS = (4, 4, 3, 2, 2, 1, 1)


def pills(count: int, seed: int) -> Iterator[tuple[r.Resource, str, bytes]]:
    """(kind, key, text) of so many objects; the same for the same seed."""
    chance = random.Random(seed)
    kinds = list(KINDS)
    for number in range(count):
        kind = chance.choices(kinds, _WEIGHTS)[0]
        job = f"job-{chance.randrange(JOBS)}"
        name = f"{job}-run" if kind == r.CONFIGMAPS else job
        obj: Object = {"metadata": _metadata(name, job), **KINDS[kind](job)}
        if kind in (r.JOBS, r.CONFIGMAPS) and chance.random() < 0.8:  # really its RLHFJob's
            obj["metadata"]["ownerReferences"][0] |= {"kind": "RLHFJob", "uid": f"rlhfjobs-{job}"}
        if kind == r.PODS and chance.random() < 0.5:  # made up
            obj["metadata"]["ownerReferences"][0]["uid"] = "made-up"
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
            _spoil(obj, chance)
        if not isinstance(obj.get("metadata"), dict):
            obj["metadata"] = {}
        # What the API server says, whatever was asked for.
        obj["metadata"] |= {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"{kind.plural}-{name}" + ("-anew" if chance.random() < 0.1 else ""),
            "resourceVersion": str(1000 + number),
        }
        obj |= {"apiVersion": kind.api_version, "kind": kind.kind}
        yield kind, f"{NAMESPACE}/{name}", _text(obj)


def _spoil(obj: Object, chance: random.Random) -> None:
    """Put anything in some place; deep ones as often as shallow ones."""
    if not obj:
        return
    at: Any = obj
    path = []
    for _ in range(chance.randrange(1, 10)):
        path.append((at, chance.choice(list(at) if isinstance(at, dict) else range(len(at)))))
        at = at[path[-1][1]]
        if not isinstance(at, dict | list) or not at:
            break
    holder, name = path[-1]
    if chance.random() < 0.2 and isinstance(holder, dict):
        del holder[name]
    else:
        holder[name] = copy.deepcopy(chance.choice(HOSTILE))


def _text(obj: Object) -> bytes:
    """The JSON, with the raw pieces in their places."""
    head, *rest = json.dumps(obj).split('"' + json.dumps(_RAW)[1:-1])
    text = head
    for piece in rest:
        end = 0
        while piece[end] != '"':
            end += 2 if piece[end] == "\\" else 1
        text += json.loads(f'"{piece[:end]}"') + piece[end + 1 :]
    return text.encode()
