"""`evalstop check` of a job whose pool delegates to Kueue: the queue that it is to wait in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller import names
from controller.api import convert
from controller.cli.doctor.findings import Finding, gather
from controller.cli.queue_checks import queue
from controller.kube.errors import ApiError
from controller.kube.resources import ADMISSION_CHECKS, CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES, Resource
from tests.support import cli_world as w

Object = dict[str, Any]


def named(name: str, namespace: str = "", **spec: Any) -> Object:
    return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, "spec": spec}


GPUS = {"name": names.GPU_RESOURCE, "nominalQuota": "8"}
KUEUES: dict[Resource, list[Object]] = {
    LOCAL_QUEUES: [named("research", "team", clusterQueue="cq")],
    CLUSTER_QUEUES: [
        named(
            "cq",
            resourceGroups=[{"flavors": [{"name": "f", "resources": [GPUS]}]}],
            admissionChecksStrategy={"admissionChecks": [{"name": "evalstop"}]},
        )
    ],
    FLAVORS: [named("f")],
    ADMISSION_CHECKS: [named("evalstop", controllerName=names.CHECK_CONTROLLER)],
}


class Api:
    """An API server of these kinds; one that lacks here is not served, one that is None may not be listed."""

    def __init__(self, kinds: dict[Resource, Any]) -> None:
        self.kinds = kinds

    async def list(self, resource: Resource, namespace: str | None) -> tuple[list[Object], str]:
        assert (namespace is not None) is resource.namespaced
        if resource not in self.kinds:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if self.kinds[resource] is None:
            raise ApiError(403, "Forbidden", f"{resource.plural} is forbidden")
        found = [o for o in self.kinds[resource] if namespace in (None, o["metadata"].get("namespace"))]
        return found, "1"


def told(kinds: dict[Resource, Any], delegate: str = "Kueue", gpus: int = 2, own: str = "") -> list[Finding]:
    obj = w.pool("a100")
    obj["spec"]["delegate"] = delegate
    if delegate == "Kueue":
        obj["spec"]["kueue"] = {"localQueue": "research"}
    pool = convert.parse_pool(obj)
    job = w.job("run", "team", "a100", gang={"replicas": 1, "gpusPerReplica": gpus})
    asked = convert.desired(job, pool)
    return asyncio.run(gather("queue", queue(Api(kinds), pool, asked, own)))  # type: ignore[arg-type]


HELD = {**KUEUES, LOCAL_QUEUES: [named("research", "team", clusterQueue="cq", stopPolicy="Hold")]}


@pytest.mark.parametrize(
    ("kinds", "level", "said"),
    [
        (KUEUES, "ok", "queue 'research' of namespace team can give it its turn"),
        ({**KUEUES, LOCAL_QUEUES: []}, "WRONG", "there is no LocalQueue 'research' in namespace 'team'"),
        (
            {**KUEUES, LOCAL_QUEUES: [named("research", "other", clusterQueue="cq")]},
            "WRONG",
            "there is no LocalQueue 'research' in namespace 'team'",
        ),
        ({**KUEUES, CLUSTER_QUEUES: []}, "WRONG", "there is no ClusterQueue 'cq'"),
        ({**KUEUES, ADMISSION_CHECKS: []}, "WRONG", "there is no AdmissionCheck"),
        (HELD, "note", "spec.stopPolicy is 'Hold'"),
        ({}, "WRONG", "the cluster does not serve kueue.x-k8s.io/v1beta2"),
        # Who may read his own namespace only learns at least that there is no such queue.
        (
            {**dict.fromkeys(KUEUES), LOCAL_QUEUES: []},
            "WRONG",
            "there is no LocalQueue 'research' in namespace 'team'",
        ),
        (
            {**dict.fromkeys(KUEUES), LOCAL_QUEUES: KUEUES[LOCAL_QUEUES]},
            "unknown",
            "you may not list AdmissionChecks, ResourceFlavors, ClusterQueues",
        ),
    ],
)
def test_the_queue_that_a_job_is_to_wait_in_is_asked(
    kinds: dict[Resource, Any], level: str, said: str
) -> None:
    """A job of a namespace without LocalQueue was found to have nothing wrong, and waited for good."""
    (found,) = told(kinds)
    assert (str(found.level), said in found.text) == (level, True), found
    assert found.cure is None or "<" not in found.cure.line


def test_a_gang_beyond_the_quota_and_a_job_with_a_queue_of_its_own() -> None:
    (large,) = told(KUEUES, gpus=16)
    assert "spec.gang needs 16; raise it to 16" in large.text
    (own,) = told(KUEUES, own="mine")
    assert "there is no LocalQueue 'mine'" in own.text


def test_a_pool_that_delegates_to_nobody_asks_none() -> None:
    assert told({}, delegate="Builtin") == []
