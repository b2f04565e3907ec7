"""Nodes that keep others off, and images that need a secret: what a trial's pods and its pool make of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller import names
from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.cli import parity as command
from controller.kube.errors import NotFound
from controller.kube.nodes import usable
from controller.kube.resources import GPUPOOLS, NODES, Resource
from controller.parity import calibration, cluster_run, manifests
from controller.parity.manifests import ClusterTarget
from controller.parity.nodes import Taint, hidden_gpus, taints
from controller.policy.types import PolicySpec
from controller.workloads import tolerations
from sim.cluster import Cluster

PLACE = ClusterTarget("here", ("gpus", "many"))
OWN = {"key": "team", "value": "a", "effect": "NoSchedule"}
USUAL = {"key": names.GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
POOL = {"key": names.POOL_TAINT, "value": "here", "effect": "NoSchedule"}
SICK = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
NEW = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}


def node(*tainted: dict[str, str], ready: str = "True", name: str = "n", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"taints": list(tainted), **spec},
        "status": {
            "allocatable": {names.GPU_RESOURCE: "4"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def template(place: ClusterTarget) -> dict[str, Any]:
    own = calibration.run(Cluster.of_nodes([4]), 1)
    found: dict[str, Any] = manifests.rlhfjob(own, 0, place)["spec"]["workload"]["template"]
    return found


@pytest.mark.parametrize(
    ("tainted", "keys"),
    [
        ([OWN], ["team"]),
        ([{**OWN, "effect": "NoExecute"}, OWN], ["team", "team"]),
        ([{"key": "bare", "effect": "NoSchedule"}], ["bare"]),
        ([USUAL, OWN], [names.GPU_RESOURCE, "team"]),
        ([{**OWN, "effect": "PreferNoSchedule"}], []),  # keeps nobody off
        ([SICK, NEW], []),  # nothing runs well there
        ([POOL], []),  # the operator sees to it
        ([], []),
    ],
)
def test_pods_tolerate_what_their_nodes_keep_others_off_by(
    tainted: list[dict[str, str]], keys: list[str]
) -> None:
    found = taints([node(*tainted), node(*tainted)])
    assert [taint.key for taint in found] == keys
    job = template(replace(PLACE, taints=found))
    tolerated = tolerations(job)
    # As the operator reads it: with these tolerations the node is open to the pool, unless it has a problem.
    kept = [t for t in tainted if t["key"] in keys]
    assert usable(node(*kept), tolerated)
    assert usable(node(*tainted), tolerated) is not any(t in (SICK, NEW) for t in tainted)


def test_without_taints_and_secret_the_pods_have_neither() -> None:
    spec = template(PLACE)["spec"]["template"]["spec"]
    assert not {"tolerations", "imagePullSecrets"} & set(spec)


@pytest.mark.parametrize(
    ("found", "gpus"),
    [
        (node(OWN), 4),
        (node(OWN, POOL), 4),
        (node(OWN, USUAL), 4),
        (node(USUAL), 0),  # the pool counts it
        (node(), 0),
        (node({**OWN, "value": "b"}), 0),  # came after the start: nobody tolerates it
        (node(OWN, SICK), 0),
        (node(OWN, ready="False"), 0),
        (node(OWN, unschedulable=True), 0),
    ],
)
def test_gpus_that_the_pool_does_not_count_yet(found: dict[str, Any], gpus: int) -> None:
    assert hidden_gpus([found], taints([node(OWN, USUAL)])) == gpus
    # The operator's own view: not usable to a pool without jobs, and usable with one of the trial's.
    job = tolerations(template(replace(PLACE, taints=taints([node(OWN, USUAL)]))))
    assert (usable(found, job) and not usable(found)) is bool(gpus)


def test_the_api_takes_the_pods_and_the_copy_is_what_they_name() -> None:
    place = replace(PLACE, pull_secret=("infra", "pulls"), taints=(Taint("team", "a", "NoSchedule"),))
    pool = convert.parse_pool(manifests.pool(place, PolicySpec("fifo"), 0))
    assert isinstance(pool, GPUPool)
    own = calibration.run(Cluster.of_nodes([4]), 1)
    assert convert.desired(manifests.rlhfjob(own, 0, place), pool).problem is None
    assert template(place)["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "pulls"}]
    copy = manifests.pull_secret(secret(), place)
    assert copy["metadata"] == {"name": "pulls", "namespace": "here"}
    assert (copy["type"], copy["data"]) == (cluster_run.PULL_SECRET_TYPE, {".dockerconfigjson": "e30="})


def secret(type_: str = cluster_run.PULL_SECRET_TYPE) -> dict[str, Any]:
    metadata = {"name": "pulls", "namespace": "infra", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "type": type_, "data": {".dockerconfigjson": "e30="}}


class TrialServer:
    """What a trial asks of an API server before its first job: nodes, a secret, its pool."""

    def __init__(self, nodes: list[dict[str, Any]], status: dict[str, Any], held: Any = None) -> None:
        self.nodes, self.status, self.held = nodes, status, held
        self.made: list[str] = []

    async def list(self, resource: Resource, *, labels: str = "") -> tuple[list[dict[str, Any]], str]:
        assert (resource, labels) == (NODES, "gpus=many")
        return self.nodes, "1"

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        if resource is GPUPOOLS:
            return {"status": self.status}
        assert (resource.kind, namespace) == ("Secret", "infra")
        if self.held is None:
            raise NotFound(404, "NotFound", "no such secret")
        return dict(self.held)

    async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        self.made.append(resource.kind)
        return body


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (None, "--image-pull-secret: there is no Secret pulls in namespace infra"),
        (secret("Opaque"), "infra/pulls is of type 'Opaque', expected kubernetes.io/dockerconfigjson"),
    ],
)
def test_a_secret_that_cannot_pull_is_told_before_anything_is_made(held: Any, words: str) -> None:
    server = TrialServer([node()], {}, held)
    place = replace(PLACE, pull_secret=("infra", "pulls"))
    own = calibration.run(Cluster.of_nodes([4]), 1)
    with pytest.raises(cluster_run.Failed, match=words) as caught:
        asyncio.run(cluster_run.play(server, own, PolicySpec("fifo"), place, print, 1.0))  # type: ignore[arg-type]
    assert caught.value.next_step.startswith("kubectl get secrets -n infra --field-selector type=")
    assert server.made == []


def told(ready: bool, capacity: int, nobody: bool = True) -> dict[str, Any]:
    words = {"Ready": ready, "NodesExclusive": True, "GPUsExclusive": nobody}
    conditions = [
        {"type": t, "status": str(ok), "reason": f"{t}Reason", "message": "m"} for t, ok in words.items()
    ]
    return {"conditions": conditions, "capacity": capacity, "free": capacity}


@pytest.mark.parametrize(
    ("nodes", "status", "problem"),
    [
        ([node(), node()], told(True, 8), ""),
        ([node(USUAL), node(USUAL)], told(True, 8), ""),
        ([node(OWN), node(OWN)], told(False, 0), ""),
        ([node(), node(OWN)], told(True, 4), ""),
        ([node(), node()], told(False, 0), "ReadyReason: m"),
        ([node(OWN)], told(False, 0), "0 of 0 GPUs are free, and 4 are behind taints that the jobs tolerate"),
        ([node(OWN), node(OWN, SICK)], told(False, 0), "and 4 are behind taints"),
        ([node(OWN), node(OWN)], told(False, 0, nobody=False), "GPUsExclusiveReason: m"),
        ([node(OWN), node(OWN)], {}, "its status says nothing"),
        (
            [node(OWN), node(OWN)],
            {**told(False, 0), "capacity": None},
            "of an unknown number of GPUs",
        ),  # nothing planned
    ],
)
def test_a_pool_has_its_gpus_even_where_it_counts_them_with_the_first_job(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, Any]], status: dict[str, Any], problem: str
) -> None:
    monkeypatch.setattr(cluster_run, "_READY_S", 0.2)
    monkeypatch.setattr(cluster_run, "_LOOK_S", 0.1)
    place = replace(PLACE, taints=taints(nodes))
    ready = cluster_run._pool_ready(TrialServer(nodes, status), place, 8)  # type: ignore[arg-type]
    if not problem:
        asyncio.run(ready)
        return
    with pytest.raises(cluster_run.Failed, match=problem):
        asyncio.run(ready)


@pytest.mark.parametrize("text", ["pulls", "/pulls", "infra/", "infra/pulls/more"])
def test_a_secret_is_named_with_its_namespace(text: str) -> None:
    with pytest.raises(ValueError, match=f"--image-pull-secret: '{text}' is not allowed, expected NAMESPACE"):
        command._secret(text)
    assert command._secret("infra/pulls") == ("infra", "pulls")
