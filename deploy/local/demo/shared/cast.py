"""The pool and the jobs of the story: the example trainer, paced so that it mostly waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller import names
from deploy.local.demo import jobs_manifests
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
    sharing = {"families": [family(device)], "placement": PLACEMENT[arm]}
    return jobs_manifests.pool(POOL, NAMESPACE, sharing=sharing)


def family(device: Path) -> Json:
    """Return the family of one worker on one GPU, which trains the example's model."""
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
    return {
        "name": FAMILY,
        "replicas": 1,
        "gpusPerReplica": GPUS,
        "deviceBytes": 4 * MB,
        "hostBytes": 32 * MB,
        "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
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
    command = ["sh", "-c", " ".join(run)]
    sharing = {"family": FAMILY, "stateBytes": 2 * MB, "maxSlowdownPercent": MOST_SLOWER}
    own = jobs_manifests.JOB_NAME
    return jobs_manifests.job(name, NAMESPACE, POOL, command, gpus=0, env=own, sharing=sharing)


def successor(name: str) -> Json:
    """Return an RLHFJob that wants the GPU for itself: it has it as soon as nobody shares it."""
    return jobs_manifests.job(name, NAMESPACE, POOL, ["sleep", "3600"], gpus=GPUS)
