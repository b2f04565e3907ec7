"""The pool and the jobs of the story: the example trainer, paced so that it mostly waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
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
NONE: Mapping[str, Json] = MappingProxyType({})


@dataclass(frozen=True)
class Folders:
    """Folders of what pods write.

    Attributes:
        device: in groups' pods, in memory: their local devices.
        checkpoints: in trainers' pods.
        found: the latter, as this machine sees it.
    """

    device: Path
    checkpoints: Path
    found: Path


def pool(arm: str, device: Path, volumes: Mapping[str, Json] = NONE) -> Json:
    """Return the GPUPool as it is in an arm.

    Args:
        arm: one of `ARMS`.
        device: folder in memory for the groups' local devices.
        volumes: of groups' pods by the path at which they lie there.
    """
    sharing = {"families": [family(device, volumes)], "placement": PLACEMENT[arm]}
    return jobs_manifests.pool(POOL, NAMESPACE, sharing=sharing)


def family(device: Path, volumes: Mapping[str, Json] = NONE) -> Json:
    """Return the family of one worker on one GPU, which trains the example's model."""
    container = {
        "name": "workers",
        "image": names.WORKERS_IMAGE,
        "command": ["python", "-m", "controller.group"],
        "env": [
            {"name": "EVALSTOP_GROUP_FAMILY", "value": "examples.softmax_family:SoftmaxFamily"},
            {"name": "EVALSTOP_GROUP_DEVICE", "value": f"{device}/$(POD_UID)"},
            {"name": "EVALSTOP_GROUP_LISTEN", "value": "$(POD_IP)"},  # the pods here share one network
            {"name": "EVALSTOP_GROUP_REGISTER_SECONDS", "value": "1"},
        ],
        "resources": {"limits": {names.GPU_RESOURCE: str(GPUS), "memory": "1Gi"}},
    }
    pod: Json = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    jobs_manifests.mount(pod, volumes)
    return {
        "name": FAMILY,
        "replicas": 1,
        "gpusPerReplica": GPUS,
        "deviceBytes": 4 * MB,
        "hostBytes": 32 * MB,
        "template": {"spec": pod},
    }


def job_name(arm: str, number: int) -> str:
    return f"{arm}-{number}"


def job(
    name: str, folder: Path, steps: int, rollout_seconds: float, volumes: Mapping[str, Json] = NONE
) -> Json:
    """Return an RLHFJob that trains in a group. All have one template, so they are of one kind, and what was
    measured of the first is known of all; a job's number is its seed.

    Args:
        name: its name, which ends in its number.
        folder: in its pod, of checkpoints.
        steps: that it makes.
        rollout_seconds: that it waits in each.
        volumes: of its pod by the path at which they lie there.
    """
    run = [
        *("exec", "python", "-m", "examples.trainer", "--group", "--steps", str(steps), "--batch", "32"),
        *("--rollout-seconds", f"{rollout_seconds:g}", "--train-seconds", f"{TRAIN_SECONDS:g}"),
        *("--eval-every", str(steps), "--eval-samples", "64", "--preferences", "100", "--port", "0"),
        *("--seed", "${JOB##*-}", "--checkpoints", f"'{folder}'/$JOB"),
    ]
    command = ["sh", "-c", " ".join(run)]
    sharing = {"family": FAMILY, "stateBytes": 2 * MB, "maxSlowdownPercent": MOST_SLOWER}
    own = jobs_manifests.JOB_NAME
    made = jobs_manifests.job(name, NAMESPACE, POOL, command, gpus=0, env=own, sharing=sharing)
    jobs_manifests.mount(made["spec"]["workload"]["template"]["spec"]["template"]["spec"], volumes)
    return made


def successor(name: str) -> Json:
    """Return an RLHFJob that wants the GPU for itself: it has it as soon as nobody shares it."""
    return jobs_manifests.job(name, NAMESPACE, POOL, ["sleep", "3600"], gpus=GPUS)
