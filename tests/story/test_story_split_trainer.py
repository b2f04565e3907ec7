"""Evaluations in processes of their own, on a real control plane: docs/use/trainers.md shows how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller import names
from controller.api.record import record
from tests.support.stage_jobs import StageJobs, condition, holds

pytestmark = pytest.mark.timeout(400)
Json = dict[str, Any]


def manifest(name: str, namespace: str, *more: str) -> Json:
    trainer = {
        "name": "trainer",
        "image": "evalstop/example-trainer:0.1.0",
        "command": ["python", "-m", "tests.story.split_trainer"],
        "args": [f"--checkpoints=/checkpoints/{name}", "--falls-after=15", *more],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"requests": {"cpu": "50m"}, "limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [trainer],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    job = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": {"spec": pod}}
    template = {"apiVersion": "batch/v1", "kind": "Job", "spec": job}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "pool": "research",
            "mode": "Enforce",
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "metrics": [{"name": "gold_reward"}],
            "stopRule": {"kDeclines": {"k": 3, "minDelta": "0.01"}},
            "modifiers": [],
            "checkpoints": {
                "location": {"volumeClaim": {"claimName": "checkpoints", "path": f"/{name}"}},
                "layout": "Plain",
                "retention": {"volumeClaim": {"claimName": "retained", "path": "/"}},
            },
            "scrape": {"intervalSeconds": 5},
            "workload": {"template": template},
        },
    }


def test_the_trainer_saves_and_its_evaluators_report_as_it_does(story: StageJobs) -> None:
    """The best is secured and the run stopped; without the trainer's identity it says what lacks."""
    jobs = ("split", "split-apart")
    story = replace(story, patience=180.0)
    story.stage.apply(
        [manifest("split", story.namespace), manifest("split-apart", story.namespace, "--apart")]
    )
    try:
        apart = story.wait(
            "split-apart",
            "told what it lacks",
            lambda s: "client.environment()" in condition(s, "BestCheckpointSecured")[2],
        )
        assert condition(apart, "BestCheckpointSecured")[:2] == ("False", "CheckpointIncomplete")
        stopped = story.wait(
            "split", "stopped", lambda s: holds(s, "GPUsReleased") and holds(s, "TerminationTarget")
        )
        known = record(stopped)
        assert known.best is not None
        assert known.best.step == 150
        assert [one.step for one in known.retained] == [150]
        assert len(known.lives) == 1, "all of them have the trainer's life"
    finally:
        for name in jobs:
            story.delete(name)
