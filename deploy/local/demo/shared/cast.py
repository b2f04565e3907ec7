"""The pool and the jobs of the story: the example trainer, paced so that it mostly waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller import names
from deploy.local.demo.jobs_stage import NAMESPACE

POOL, FAMILY = "sharing", "softmax"
GPUS = 1  # of the one node, and of a group
ALONE, SHARED = ARMS = ("alone", "shared")
PLACEMENT = {ALONE: "Isolated", SHARED: "Pack"}
TRAIN_SECONDS = 0.5  # that a turn holds the group
MOST_SLOWER = 30  # percent; our guess: this machine may be busy, and nobody is to be sent away for it
MB = 1 << 20
Json = dict[str, Any]


def pool(arm: str, device: Path) -> Json:
    """Return the GPUPool as it is in an arm. ``device``: folder in memory for the groups' local devices."""
    container = {
        "name": "workers",
        "image": names.TRAINER_IMAGE,
        "command": ["python", "-m", "controller.group"],
        "env": [
            {"name": "EVALSTOP_GROUP_FAMILY", "value": "examples.softmax_family:SoftmaxFamily"},
            {"name": "EVALSTOP_GROUP_DEVICE", "value": f"{device}/$(POD_UID)"},
            {"name": "EVALSTOP_GROUP_LISTEN", "value": "$(POD_IP)"},  # the pods here share one network
            {"name": "EVALSTOP_GROUP_REGISTER_SECONDS", "value": "1"},
        ],
        "resources": {"limits": {names.GPU_RESOURCE: str(GPUS), "memory": "1Gi"}},
    }
    family = {
        "name": FAMILY,
        "replicas": 1,
        "gpusPerReplica": GPUS,
        "deviceBytes": 4 * MB,
        "hostBytes": 32 * MB,
        "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": POOL},
        "spec": {
            "nodeSelector": [{"key": "pool", "value": POOL}],
            "allowedNamespaces": [{"name": NAMESPACE, "maxPriority": 10}],
            "sharing": {"families": [family], "placement": PLACEMENT[arm]},
        },
    }


def job_name(arm: str, number: int) -> str:
    return f"{arm}-{number}"


def job(name: str, folder: Path, steps: int, rollout_seconds: float) -> Json:
    """Return an RLHFJob that trains in a group. All have one template, so they are of one kind, and what was
    measured of the first is known of all; a job's number is its seed."""
    run = [
        *("exec", "python", "-m", "examples.trainer", "--group", "--steps", str(steps), "--batch", "32"),
        *("--rollout-seconds", f"{rollout_seconds:g}", "--train-seconds", f"{TRAIN_SECONDS:g}"),
        *("--eval-every", str(steps), "--eval-samples", "64", "--preferences", "100", "--port", "0"),
        *("--seed", "${JOB##*-}", "--checkpoints", f"'{folder}'/$JOB"),
    ]
    label = f"metadata.labels['{names.LABEL_JOB}']"
    container = {
        "name": "trainer",
        "image": names.TRAINER_IMAGE,
        "command": ["sh", "-c", " ".join(run)],
        "ports": [{"name": "metrics", "containerPort": names.DEFAULT_METRICS_PORT}],
        "env": [{"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": label}}}],
    }
    sharing = {"family": FAMILY, "stateBytes": 2 * MB, "maxSlowdownPercent": MOST_SLOWER}
    return _job(name, container, {"gang": {"replicas": 1, "gpusPerReplica": 0}, "sharing": sharing})


def successor(name: str) -> Json:
    """Return an RLHFJob that wants the GPU for itself: it has it as soon as nobody shares it."""
    limits = {"limits": {names.GPU_RESOURCE: str(GPUS)}}
    container = {
        "name": "trainer", "image": names.TRAINER_IMAGE, "command": ["sleep", "3600"], "resources": limits,
        "ports": [{"name": "metrics", "containerPort": names.DEFAULT_METRICS_PORT}],
    }  # fmt: skip
    return _job(name, container, {"gang": {"replicas": 1, "gpusPerReplica": GPUS}})


def _job(name: str, container: Json, spec: Json) -> Json:
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
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "pool": POOL,
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
