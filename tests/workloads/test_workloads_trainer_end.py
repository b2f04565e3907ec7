"""A trainer's container that has ended in a pod that another container keeps going."""

from __future__ import annotations

from typing import Any

import pytest

from controller import names
from controller.cli.doctor.pods import trainer_ended
from controller.kube.resources import PODS
from controller.kube.trim import trim
from controller.policy.job import TrainerEnd
from controller.workloads.pods import pod_view

GPU = {"resources": {"limits": {names.GPU_RESOURCE: "1"}}}
PORT = {"ports": [{"name": names.METRICS_PORT_NAME, "containerPort": 9400}]}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}
CRASHED = {"terminated": {"exitCode": 3, "reason": "Error"}}
RUNS: dict[str, Any] = {"running": {}}


def pod(
    states: dict[str, dict[str, Any]], *, spec: dict[str, dict[str, Any]] | None = None, **more: str
) -> dict[str, Any]:
    metadata = {"name": "run-0", "uid": "u", "resourceVersion": "1", "namespace": "ns"}
    containers = [{"name": name} | (spec or {}).get(name, {}) for name in states]
    status = {
        "phase": more.get("phase", "Running"),
        "containerStatuses": [{"name": name, "state": state} for name, state in states.items()],
    }
    policy = more.get("policy", "Never")
    return {
        "metadata": metadata,
        "spec": {"containers": containers, "restartPolicy": policy},
        "status": status,
    }


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        (pod({"trainer": DONE, "proxy": RUNS}), ("trainer", 0, ("proxy",))),
        (pod({"trainer": CRASHED, "proxy": RUNS}), ("trainer", 3, ("proxy",))),
        (pod({"trainer": DONE, "proxy": RUNS}, policy="OnFailure"), ("trainer", 0, ("proxy",))),
        (pod({"trainer": CRASHED, "proxy": RUNS}, policy="OnFailure"), None),  # it is started again
        (pod({"trainer": RUNS, "proxy": DONE}), None),
        (pod({"trainer": DONE, "proxy": DONE}), None),  # the pod ends
        (pod({"trainer": DONE, "proxy": RUNS}, phase="Failed"), None),  # evicted
        (pod({"trainer": DONE}), None),
        (pod({"fetch": DONE, "trainer": RUNS}, spec={"trainer": GPU}), None),
        (pod({"fetch": DONE, "trainer": RUNS}, spec={"trainer": PORT, "fetch": GPU}), None),
        (pod({"proxy": RUNS, "trainer": DONE}, spec={"trainer": GPU}), ("trainer", 0, ("proxy",))),
    ],
)
def test_what_keeps_a_pod_from_completing(obj: dict[str, Any], told: tuple | None) -> None:
    assert pod_view(trim(PODS, obj)).trainer_end == (None if told is None else TrainerEnd(*told))
    said = "run-0: its container trainer has ended, exit code {}; still running: proxy"
    assert trainer_ended(obj) == ("" if told is None else said.format(told[1]))


def test_a_sidecar_keeps_no_pod_from_completing() -> None:
    obj = pod({"trainer": DONE})
    obj["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    obj["status"]["initContainerStatuses"] = [{"name": "proxy", "state": RUNS}]
    assert pod_view(trim(PODS, obj)).trainer_end is None
