"""The pool and the jobs of the story: the example trainer, and how its actors are to behave in each arm."""

from __future__ import annotations

from typing import Any

from controller import names
from deploy.local.demo import jobs_manifests
from deploy.local.demo.jobs_stage import NAMESPACE

POOL = "rollouts"
NODES, GPUS = 4, 2  # nodes of the local plane, and GPUs of each
ALL = NODES * GPUS  # GPUs that the acts are about, on however many nodes
GANG = 2  # GPUs of a job that has no actors
RECALL_SECONDS = 10
SLOTS, ITERATION = 4, 0.05  # of an engine: responses at a time, s of an iteration
Json = dict[str, Any]

# How actors are held in each arm: three all the time, or as each step needs them.
ARMS: dict[str, Json] = {
    "Even": {"actors": {"min": 3, "max": 3, "static": 3}, "dispatch": "Even", "whenIdle": "Keep"},
    "LongestFirst": {
        "actors": {"min": 3, "max": 3, "static": 3},
        "dispatch": "LongestFirst",
        "whenIdle": "Keep",
    },
    "elastic": {"actors": {"min": 1, "max": 4, "static": 3}},
}


def pool() -> Json:
    """Return the GPUPool."""
    return jobs_manifests.pool(
        POOL, NAMESPACE, lending={"recallSeconds": RECALL_SECONDS}, schedulerName=names.SCHEDULER_NAME
    )


def trainer(steps: int, seconds: float) -> list[str]:
    """Return the command of a run of so many steps, in which it trains for so many seconds after its
    responses are there."""
    return [
        *("python", "-m", "examples.trainer", "--rollouts", "pods", "--seed", "11", "--port", "0"),
        *("--steps", str(steps), "--train-seconds", f"{seconds:g}", "--eval-every", "1000"),
    ]


def job(name: str, command: list[str], rollout: Json | None, *, gpus: int = 1) -> Json:
    """Return an RLHFJob of one pod; it is not watched. ``rollout``: one of `ARMS`; None: it has no actors."""
    spec: Json = {}
    if rollout is not None:
        engine = {
            "name": "engine",
            "image": names.TRAINER_IMAGE,
            "command": [
                *("python", "-m", "examples.engine", "--socket", "/run/engine/engine.sock"),
                *("--slots", str(SLOTS), "--iteration", str(ITERATION)),
            ],
            "resources": {"limits": {names.GPU_RESOURCE: "1"}},
        }
        spec["rollout"] = {
            "template": {"spec": {"containers": [engine]}},
            "gpusPerActor": 1,
            "slots": SLOTS,
            **rollout,
        }
    return jobs_manifests.job(name, NAMESPACE, POOL, command, gpus=gpus, **spec)
