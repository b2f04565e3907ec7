"""What a template says against the rest of its spec: a port, an address, a folder."""

from __future__ import annotations

from typing import Any

import pytest

from controller.workloads import address_hint, folder_hint

POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def job(scrape: dict[str, Any] | None = None, path: str = "/run", **container: Any) -> dict[str, Any]:
    box = {"volumeMounts": [{"name": "v", "mountPath": "/checkpoints"}], **container}
    pod = {
        "containers": [box],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    }
    return {
        "spec": {
            "scrape": scrape or {},
            "checkpoints": {"location": {"volumeClaim": {"claimName": "c", "path": path}}},
            "workload": {
                "template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
            },
        }
    }


PORTS = [{"name": "metrics", "containerPort": 9400}]


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (job({"port": 9401}, ports=PORTS), "did you mean '9400'?"),
        (job({"port": 9400}, ports=PORTS), ""),
        (job(ports=PORTS), ""),
        (job(ports=PORTS, args=["--host=127.0.0.1"]), "did you mean '--host=0.0.0.0'?"),
        (job(args=["--host", "localhost"], env=[POD_IP]), "did you mean '$(POD_IP)'?"),
        (job(env=[{"name": "BIND_ADDR", "value": "127.0.0.1:9400"}]), "did you mean '0.0.0.0:9400'?"),
        (job(args=["--master=127.0.0.1:29500"]), ""),  # where the ranks of one pod meet
        (job(args=["--host=10.127.0.0.1"]), ""),
        ({"spec": {"workload": {"ref": {"name": "x"}}}}, ""),
        ({"spec": {"workload": {"template": {"spec": {"template": {"spec": {"containers": "x"}}}}}}}, ""),
    ],
)
def test_ports_and_addresses(given: dict[str, Any], ends: str) -> None:
    told = address_hint(given)
    assert told.endswith(ends)
    assert bool(told) == bool(ends)


def test_the_place_of_a_word_is_named() -> None:
    told = address_hint(job(command=["python", "--bind=127.0.0.1"]))
    assert told.startswith(
        "containers[0].command[1] is '--bind=127.0.0.1', which only the pod itself reaches"
    )


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        (job(path="/other", args=["--checkpoints=/checkpoints/run"]), "/run"),
        (job(path="/run", args=["--checkpoints=/checkpoints/run"]), ""),
        (job(path="/run", args=["--checkpoints=/checkpoints/run", "--save=/checkpoints/logs"]), ""),
        (job(path="/x", args=["--output_dir", "/checkpoints/a/b/"]), "/a/b"),
        (job(path="/x", env=[{"name": "CKPT_DIR", "value": "/checkpoints/e"}]), "/e"),
        (job(path="/run", args=["--save=/checkpoints/run/step-latest"]), ""),  # a cure that cures nothing
        (job(path="/x", args=["--save=/checkpoints/run/step-latest"]), "/run"),
        (job(path="/x", args=["--save=/checkpoints/run/global_step_{}"]), "/run"),
        (job(path="/x", args=["--save=/checkpoints/step-1"]), "/"),
        (job(path="/x", args=["--save=/checkpoints/steps"]), "/steps"),
        (job(path="/x", args=["--data=/checkpoints/data"]), ""),
        (job(path="/x", args=["--checkpoints=/elsewhere/run"]), ""),
        (job(path="/x", args=["--checkpoints=/checkpoints"]), ""),
        (job(path="/x", args=["--save=/checkpoints/a", "--output=/checkpoints/b"]), ""),
    ],
)
def test_folders(given: dict[str, Any], folder: str) -> None:
    assert folder_hint(given) == folder
