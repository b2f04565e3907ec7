"""What `evalstop check` says of the room that a job's pool has for it, by the pool's own plan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.cli import room_checks
from controller.cli.room_checks import Nodes
from controller.kube.errors import ApiError
from controller.policy.types import NodeView
from tests.support.dashboard_world import job_object, pool_object

GIB = 1 << 30
FOUR = Nodes(tuple(NodeView(f"n{n}", 4) for n in range(2)))
NONE = Nodes(())
ACTORS = {
    "gpusPerActor": 1,
    "actors": {"min": 6, "max": 6, "static": 6},
    "template": {"spec": {"containers": [{"name": "engine", "image": "e"}]}},
}


def family(name: str, replicas: int, gpus: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "template": {"spec": {"containers": [{"name": "worker", "image": "family:1"}]}},
        "replicas": replicas,
        "gpusPerReplica": gpus,
        "deviceBytes": 80 * GIB,
        "hostBytes": 100 * GIB,
        **more,
    }


SHARES = {"families": [family("large", 2, 8), family("small", 1, 4), family("whole", 2, 4)]}


def sharing(name: str, gib: int = 40, **more: Any) -> dict[str, Any]:
    return {"sharing": {"family": name, "stateBytes": gib * GIB}, "gpus": 0, "replicas": 1, **more}


def found(nodes: Nodes, pool: dict[str, Any], **job: Any) -> list[tuple[str, str, str, str]]:
    obj = pool_object(**pool)
    parsed = convert.parse_pool(obj)
    assert isinstance(parsed, GPUPool), parsed
    asked = convert.desired(job_object("ns", "a", **job), parsed)
    if asked.problem is not None:
        return [("WRONG", "spec", asked.problem.message, "")]
    return [(f.level.value, f.about, f.text, f.cure.line) for f in room_checks.fits(parsed, asked, nodes, 8)]


@pytest.mark.parametrize(
    ("nodes", "pool", "job", "level", "about", "said", "cure"),
    [
        (FOUR, {}, {"gpus": 4}, "ok", "gang", "2 x 4 GPUs fit into the pool when it is free (2 x 4 GPUs)",
         ""),
        (FOUR, {}, {"gpus": 8}, "WRONG", "gang", "spec.gang.gpusPerReplica: 8 is more than the 4 GPUs of the "
         "largest node of pool 'research'; at most 4 is right", "lower gang.replicas"),
        (FOUR, {}, {"gpus": 4, "replicas": 3}, "WRONG", "gang", "at most 2 is right", "take another pool"),
        (FOUR, {"quotas": [{"namespaces": ["ns"], "guaranteed": 2, "limit": 4}]}, {"gpus": 4}, "WRONG",
         "gang", "the limit of 4 that the pool's quota sets for namespace ns", "lower gang.replicas"),
        # Worker groups.
        (FOUR, {"sharing": SHARES}, sharing("small"), "ok", "sharing", "room for a group of 'small'", ""),
        (FOUR, {"sharing": SHARES}, sharing("small", gpus=4), "ok", "sharing",
         "room for a group of 'small' and 1 x 4 GPUs is in the pool", ""),
        (FOUR, {"sharing": SHARES}, sharing("large"), "WRONG", "sharing", "spec.sharing.family: a group of "
         "'large' (2 x 8 GPUs)", "of its families there would be room for small, whole"),
        (FOUR, {"sharing": SHARES}, sharing("whole", gpus=1), "WRONG", "sharing",
         "'whole' (2 x 4 GPUs) and 1 x 1 GPU are more than pool 'research' can hold (8 GPUs on 2 nodes)",
         "of its families there would be room for small,"),
        (FOUR, {"sharing": {"families": [family("large", 2, 8)]}}, sharing("large"), "WRONG", "sharing",
         "'large' (2 x 8 GPUs) is more than pool 'research'",
         "have its owner give the family a size that its nodes hold"),
        (FOUR, {"sharing": SHARES}, sharing("nowhere"), "WRONG", "spec",
         "spec.sharing.family: GPUPool 'research' has no family 'nowhere'; it has: large, small, whole", ""),
        (FOUR, {"sharing": SHARES}, sharing("small", 90), "WRONG", "spec", f"at most {50 * GIB} is", ""),
        (FOUR, {}, sharing("small"), "WRONG", "spec", "offers no worker groups", ""),
        # A pool without nodes.
        (NONE, {}, {}, "WRONG", "pool", "spec.pool: GPUPool 'research' has no ready and schedulable node",
         "have nodes labelled evalstop.dev/gpu-pool=research, as its spec.nodeSelector says"),
        (NONE, {"sharing": SHARES}, sharing("small"), "WRONG", "pool", "spec.pool: GPUPool 'research' has no",
         "or name another pool"),
        (NONE, {"delegate": "None"}, {}, "WRONG", "pool", "spec.pool: GPUPool 'research' has no", "labelled"),
        (Nodes((), FOUR.usable), {}, {}, "note", "pool", "(not ready, cordoned or tainted: n0, n1)", ""),
        (Nodes((), FOUR.usable), {}, {"gpus": 8}, "WRONG", "gang", "at most 4 is right", "lower"),
        (Nodes(FOUR.usable[:1], FOUR.usable[1:]), {}, {"gpus": 4}, "note", "gang", "node n1 of pool", "open"),
    ],
)  # fmt: skip
def test_whether_a_job_could_ever_run_in_its_pool(
    nodes: Nodes, pool: dict[str, Any], job: dict[str, Any], level: str, about: str, said: str, cure: str
) -> None:
    (one,) = found(nodes, pool, **job)
    assert one[:2] == (level, about), one
    assert said in one[2], one
    assert cure in one[3], one
    assert bool(cure) == bool(one[3]), one


def test_actors_are_told_beside_the_gang() -> None:
    both = found(FOUR, {}, gpus=2, rollout={**ACTORS, "actors": {"min": 4, "max": 4, "static": 4}})
    assert [one[:2] for one in both] == [("ok", "gang"), ("ok", "actors")]
    both = found(FOUR, {}, gpus=2, rollout=ACTORS)
    assert [one[:2] for one in both] == [("ok", "gang"), ("WRONG", "actors")]
    assert "spec.rollout.actors.min: 2 x 2 GPUs with 6 actors of 1 never fit" in both[1][2]
    assert [one[:2] for one in found(NONE, {}, gpus=2, rollout=ACTORS)] == [("WRONG", "pool")]


class Api:
    """An API server of these nodes; None: the caller may not list them."""

    def __init__(self, nodes: list[dict[str, Any]] | None) -> None:
        self.found = nodes

    async def list(self, resource: Any) -> tuple[list[dict[str, Any]], str]:
        if self.found is None:
            raise ApiError(403, "Forbidden", "no")
        return self.found, "1"


def node(name: str, gpus: int = 4, pool: str = "research", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"evalstop.dev/gpu-pool": pool}},
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


SIZED = {"nodeSizes": [{"gpus": 8, "nodes": 1}, {"gpus": 4, "nodes": 2}]}
EMPTY = {"conditions": [{"type": "Ready", "status": "False", "reason": "NoUsableNodes"}]}
CORDONED = node("n2", unschedulable=True)


@pytest.mark.parametrize(
    ("status", "there", "usable", "closed"),
    [
        (SIZED, None, [8, 4, 4], []),
        (SIZED, [], [8, 4, 4], []),  # what the operator says
        (EMPTY, None, [], []),
        (EMPTY, [node("n1"), CORDONED], [], [4]),  # n1 is an older pool's
        (None, [node("n1"), CORDONED, node("n3", pool="other")], [4], [4]),
        (None, [], [], []),
        (None, None, None, None),
        (None, [node("n1", 0)], None, None),  # a node that boots
    ],
)
def test_nodes_are_those_of_the_status_else_those_that_are_there(
    status: dict[str, Any] | None,
    there: list[dict[str, Any]] | None,
    usable: list[int] | None,
    closed: list[int] | None,
) -> None:
    nodes = asyncio.run(room_checks.nodes_of(Api(there), pool_object(status=status)))  # type: ignore[arg-type]
    if nodes is None:
        assert usable is closed is None
    else:
        assert [n.gpus for n in nodes.usable] == usable
        assert [n.gpus for n in nodes.closed] == closed
