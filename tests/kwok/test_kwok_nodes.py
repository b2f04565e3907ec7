"""Simulated nodes: ready, with GPUs; what is bound to them runs, has an address, and stays until deleted."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.acquire import Found
from deploy.local.kwok.nodes import POD_RANGE, SimulatedNodes, quiet_options
from deploy.local.plane import Plane
from tests.support.cluster_report import built
from tests.support.waiting import wait_until

COUNT, GPUS = 4, 8


@pytest.fixture(scope="module")
def kwok_tools(request: pytest.FixtureRequest, tools: dict[str, Found]) -> dict[str, Found]:
    return built(request, "kwok_tools")


@pytest.fixture(scope="module")
def simulated(kwok_tools: dict[str, Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with (
        Plane(tmp_path_factory.mktemp("kwok"), quiet_options()) as plane,
        SimulatedNodes(plane, COUNT, GPUS, labels={"room": "one"}, tools=kwok_tools),
    ):
        yield plane


def job(name: str, members: int) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec = {"completions": members, "parallelism": members, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pods(plane: Plane) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = plane.client().get("/api/v1/namespaces/default/pods")["items"]
    return items


def test_nodes_have_gpus_and_pods_of_jobs_run_until_the_job_is_suspended(simulated: Plane) -> None:
    nodes = simulated.client().get("/api/v1/nodes?labelSelector=room%3Done")["items"]
    assert [n["status"]["allocatable"]["nvidia.com/gpu"] for n in nodes] == [str(GPUS)] * COUNT
    simulated.kubectl("create", "-f", "-", stdin=json.dumps(job("run", COUNT)))
    wait_until(
        lambda: [p["status"].get("phase") for p in pods(simulated)] == ["Running"] * COUNT, "all to run"
    )
    running = pods(simulated)
    # Not that each has another one: on a busy machine KWOK was seen to give an address twice.
    addresses = [p["status"]["podIP"] for p in running]
    assert all(ipaddress.ip_address(a) in ipaddress.ip_network(POD_RANGE) for a in addresses)
    assert len({p["spec"]["nodeName"] for p in running}) == COUNT  # the real kube-scheduler counted GPUs
    wait_until(
        lambda: (
            simulated.client().get("/apis/batch/v1/namespaces/default/jobs/run")["status"].get("ready")
            == COUNT
        ),
        "the Job to say that all are ready",
    )
    assert {p["metadata"]["uid"] for p in pods(simulated)} == {p["metadata"]["uid"] for p in running}
    simulated.kubectl("patch", "job", "run", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    wait_until(lambda: not pods(simulated), "the pods to go")


@pytest.mark.parametrize("count", [0, 10_001])
def test_a_number_of_nodes_out_of_bounds_is_refused(
    count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(ValueError, match=f"count: {count} nodes, expected 1 to 10000"):
        SimulatedNodes(Plane(tmp_path_factory.mktemp("none")), count, GPUS)
