"""Nodes of a job's pool that match what its template asks of them, before it is applied."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller import names
from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.cli import node_checks
from controller.cli.doctor.findings import Finding
from controller.kube.errors import ApiError
from controller.kube.node_selection import REQUIRED, requirements
from tests.support.dashboard_world import job_object, pool_object

Object = dict[str, Any]
PATH = "spec.workload.template.spec.template.spec"
DEDICATED = {"key": "dedicated", "value": "eval", "effect": "NoSchedule"}


def node(name: str, *taints: Object, gpus: int = 4, **labels: str) -> Object:
    return {
        "metadata": {"name": name, "labels": {"pool": "research", **labels}},
        "spec": {"taints": list(taints)},
        "status": {
            "allocatable": {names.GPU_RESOURCE: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


NODES = [node("n1", disk="ssd", cores="64"), node("n2", disk="hdd"), node("n3")]
ELSEWHERE = {"metadata": {"name": "x", "labels": {"pool": "other", "disk": "nvme"}}}


def term(key: str, how: str, *values: str, kind: str = "matchExpressions") -> Object:
    return {kind: [{"key": key, "operator": how, **({"values": list(values)} if values else {})}]}


def affinity(*terms: Object) -> Object:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


class Api:
    """An API server of these nodes; None: they may not be listed."""

    def __init__(self, nodes: list[Object] | None) -> None:
        self.nodes = nodes

    async def list(self, resource: Any) -> tuple[list[Object], str]:
        if self.nodes is None:
            raise ApiError(403, "Forbidden", "nodes is forbidden")
        return self.nodes, "1"


def found(pod: Object, nodes: list[Object] | None = None, **job: Any) -> list[Finding]:
    pool = pool_object(nodeSelector=[{"key": "pool", "value": "research"}])
    parsed = convert.parse_pool(pool)
    assert isinstance(parsed, GPUPool), parsed
    asked = convert.desired(job_object("ns", "a", **{"gpus": 4, "replicas": 1, **job}), parsed)
    assert asked.problem is None, asked.problem
    api: Any = Api([*(NODES if nodes is None else nodes), ELSEWHERE])

    async def look() -> list[Finding]:
        return [one async for one in node_checks.matching(api, parsed, asked, pod, PATH)]

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("pod", "match"),
    [
        ({}, {"n1", "n2", "n3"}),
        ({"nodeSelector": {"disk": "ssd"}}, {"n1"}),
        (affinity(term("disk", "In", "ssd", "hdd")), {"n1", "n2"}),
        (affinity(term("disk", "NotIn", "ssd")), {"n2", "n3"}),
        (affinity(term("disk", "Exists")), {"n1", "n2"}),
        (affinity(term("disk", "DoesNotExist")), {"n3"}),
        (affinity(term("cores", "Gt", "63")), {"n1"}),
        (affinity(term("cores", "Gt", "64")), set()),
        (affinity(term("cores", "Lt", "65")), {"n1"}),
        (affinity(term("cores", "Lt", "many")), set()),
        (affinity(term("cores", "Near", "64")), set()),
        (affinity(term("metadata.name", "In", "n2", kind="matchFields")), {"n2"}),
        (affinity(term("metadata.name", "NotIn", "n2", kind="matchFields")), {"n1", "n3"}),
        (affinity(term("disk", "In", "ssd"), term("disk", "In", "hdd")), {"n1", "n2"}),
        (
            affinity({**term("disk", "Exists"), **term("metadata.name", "In", "n2", kind="matchFields")}),
            {"n2"},
        ),
        (affinity({}), set()),
        (affinity({}, term("disk", "Exists")), {"n1", "n2"}),
        ({"nodeSelector": {"disk": "ssd"}, **affinity(term("disk", "In", "hdd"))}, set()),
        (
            {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
            {"n1", "n2", "n3"},
        ),
        ({"nodeSelector": None, "affinity": None}, {"n1", "n2", "n3"}),
    ],
)
def test_labels_are_compared_as_kube_scheduler_does(pod: Object, match: set[str]) -> None:
    needs = requirements(pod)
    assert {one["metadata"]["name"] for one in NODES if all(need.met(one) for need in needs)} == match


TAINTED = [node("n1", DEDICATED, disk="ssd"), node("n2", disk="hdd")]


@pytest.mark.parametrize(
    ("pod", "nodes", "level", "said"),
    [
        (
            {"nodeSelector": {"disk": "nvme"}},
            None,
            "WRONG",
            f"no node of pool 'research' has disk=nvme ({PATH}.nodeSelector): those there have disk=hdd, ssd",
        ),
        (
            {"nodeSelector": {"zone": "a"}},
            None,
            "WRONG",
            f"no node of pool 'research' has zone=a ({PATH}.nodeSelector): its 3 nodes lack that label",
        ),
        (
            affinity(term("kubernetes.io/arch", "In", "arm64")),
            [node("n1", **{"kubernetes.io/arch": "amd64"})],
            "WRONG",
            f"has kubernetes.io/arch In (arm64) ({PATH}.affinity.nodeAffinity.{REQUIRED}."
            "nodeSelectorTerms[0].matchExpressions): those there have kubernetes.io/arch=amd64",
        ),
        (
            affinity(term("metadata.name", "In", "n9", kind="matchFields")),
            None,
            "WRONG",
            "matchFields): its nodes: n1, n2, n3",
        ),
        (affinity(term("a", "Exists"), term("b", "Exists")), None, "WRONG", "has one of 2 terms ("),
        (
            {"nodeSelector": {"disk": "hdd", "cores": "64"}},
            None,
            "WRONG",
            f"no node of pool 'research' has all that {PATH}.nodeSelector asks for: disk=hdd, cores=64",
        ),
        (
            {"nodeSelector": {"disk": "ssd"}},
            None,
            "ok",
            f"1 of 3 nodes of pool 'research' matches (n1) {PATH}.nodeSelector",
        ),
        (
            {"nodeSelector": {"disk": "ssd"}},
            TAINTED,
            "WRONG",
            f"{PATH}.tolerations: the one node of pool 'research' with disk=ssd has a taint that it lacks: "
            "dedicated=eval:NoSchedule",
        ),
        ({}, TAINTED, "ok", f"1 of 2 nodes of pool 'research' matches (n2) {PATH}.tolerations"),
        ({"tolerations": [{"operator": "Exists"}]}, TAINTED, "", ""),
        ({}, None, "", ""),
        ({}, [], "", ""),
        ({}, [node("n1", {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})], "", ""),
        ({}, [node("n1", {"key": names.GPU_RESOURCE, "effect": "NoSchedule"})], "", ""),
    ],
)
def test_which_nodes_match_is_told(pod: Object, nodes: list[Object] | None, level: str, said: str) -> None:
    told = found(pod, nodes)
    if not level:
        assert told == []
        return
    (one,) = told
    assert (one.level.value, one.about) == (level, "nodes")
    assert said in one.text


def test_a_gang_that_the_nodes_that_match_cannot_hold_is_told() -> None:
    (one,) = found({"nodeSelector": {"disk": "ssd"}}, replicas=2)
    assert one.level.value == "WRONG"
    assert f"{PATH}.nodeSelector, and the gang does not fit there: " in one.text
    (one,) = found(affinity(term("disk", "Exists")), replicas=2)
    assert one.level.value == "ok"
    actors = {
        "gpusPerActor": 1,
        "actors": {"min": 8, "max": 8, "static": 8},
        "template": {"spec": {"containers": [{"name": "engine", "image": "e"}]}},
    }
    (one,) = found({"nodeSelector": {"disk": "ssd"}}, rollout=actors)
    assert one.level.value == "ok", "actors have a template of their own, which does not ask for it"


def test_who_may_not_list_nodes_is_told_that_none_was_looked_at() -> None:
    async def look(pod: Object) -> list[Finding]:
        parsed = convert.parse_pool(pool_object())
        assert isinstance(parsed, GPUPool)
        asked = convert.desired(job_object("ns", "a"), parsed)
        api: Any = Api(None)
        return [one async for one in node_checks.matching(api, parsed, asked, pod, PATH)]

    (one,) = asyncio.run(look({"nodeSelector": {"disk": "nvme"}}))
    assert (one.level.value, "disk=nvme" in one.text) == ("unknown", True)
    assert asyncio.run(look({})) == []
