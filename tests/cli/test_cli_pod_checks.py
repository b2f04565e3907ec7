"""A pod of a template, tried before there is one; and pools that would select the same nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.cli import pod_checks, pool_checks
from controller.cli.doctor.findings import Finding, Level
from controller.kube.errors import Refused
from controller.kube.resources import GPUPOOLS, NODES, PODS
from tests.support import cli_world as w

Object = dict[str, Any]


class Api:
    """An API server of some pools and nodes (None: they may not be listed) that refuses pods so."""

    def __init__(self, says: str = "", pools: tuple[Object, ...] = (), nodes: Any = ()) -> None:
        self.says, self.lists, self.made = says, {GPUPOOLS: pools, NODES: nodes}, list[Object]()

    async def create(self, resource: Any, body: Object, *, dry_run: bool) -> Object:
        assert (resource, dry_run) == (PODS, True)
        self.made.append(body)
        if self.says:
            raise Refused(403, "Forbidden", self.says)
        return body

    async def list(self, resource: Any) -> tuple[list[Object], str]:
        if self.lists[resource] is None:
            raise Refused(403, "Forbidden", "nodes is forbidden")
        return list(self.lists[resource]), "1"


def tried(says: str) -> tuple[Finding, Object]:
    job = w.job("run", "team", "a100")
    child = {**job["spec"]["workload"]["template"], "metadata": {"name": "run", "namespace": "team"}}
    api = Api(says)

    async def look() -> list[Finding]:
        return [one async for one in pod_checks.pod(api, child)]  # type: ignore[arg-type]

    (found,) = asyncio.run(look())
    (made,) = api.made
    return found, made


@pytest.mark.parametrize(
    ("says", "level", "told"),
    [
        ("", Level.OK, "a pod of its template would be let in (dry run)"),
        (
            'pods "run-x" is forbidden: maximum memory usage per Container is 64Mi, but limit is 1Gi',
            Level.WRONG,
            'a pod of spec.workload.template would be refused: pods "run-x" is forbidden: maximum memory',
        ),
        (
            'pods "run-x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            Level.WRONG,
            "violates PodSecurity",
        ),
        (
            'pods "run-x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1',
            Level.NOTE,
            "has no room for a pod of the template now",
        ),
        (
            'pods is forbidden: User "jo" cannot create resource "pods" in API group ""',
            Level.NOTE,
            "a pod of the template was not tried, for you may not create pods: LimitRange",
        ),
    ],
)
def test_a_pod_of_the_template_is_tried(says: str, level: Level, told: str) -> None:
    """The Job would be taken, and its namespace's LimitRange forbade each pod of it: "nothing wrong"."""
    found, made = tried(says)
    assert (found.level, told in found.text) == (level, True), found.text
    assert made["spec"]["containers"][0]["name"] == "trainer"
    assert made["metadata"]["namespace"] == "team"


def pool(name: str, **labels: str) -> Object:
    selector = [{"key": key, "value": value} for key, value in labels.items()]
    return {"metadata": {"name": name}, "spec": {"nodeSelector": selector}}


def nodes(*labels: dict[str, str]) -> list[Object]:
    return [{"metadata": {"name": f"n{i}", "labels": one}} for i, one in enumerate(labels)]


A, AX, B = {"gpu": "a"}, {"gpu": "a", "rack": "x"}, {"gpu": "b"}


@pytest.mark.parametrize(
    ("there", "all_nodes", "level", "told"),
    [
        (
            [pool("old", gpu="a")],
            nodes(A, A, B),
            Level.WRONG,
            "selects all of its 2 nodes too, so none is left",
        ),
        ([pool("old", rack="x")], nodes(A, AX, B), Level.NOTE, "'old' selects 1 of its 2 nodes too"),
        (
            [pool("old", gpu="a"), pool("new", gpu="a")],
            nodes(A),
            Level.NOTE,
            "'old' selects 1 of its 1 node too",
        ),
        ([pool("old", gpu="a")], nodes(B), Level.NOTE, "selects each node that this one would select"),
        ([pool("old", gpu="a")], None, Level.NOTE, "'old' may select nodes of it, too"),
        ([pool("old", gpu="b")], nodes(A, B), None, ""),
        ([pool("old", gpu="b")], None, None, ""),
        ([pool("old", rack="x")], nodes(A, {"rack": "x"}), None, ""),
        ([pool("new", gpu="a")], nodes(A), None, ""),
        ([], nodes(A), None, ""),
    ],
)
def test_another_pool_of_the_same_nodes_is_told(
    there: list[Object], all_nodes: list[Object] | None, level: Level | None, told: str
) -> None:
    async def look() -> list[Finding]:
        api: Any = Api(pools=tuple(there), nodes=all_nodes)
        new = pool("new", gpu="a")
        return [one async for one in pool_checks.overlaps(api, new, {"new": new})]

    found = asyncio.run(look())
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all(told in one.text for one in found), found
