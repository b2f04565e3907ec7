"""Which nodes carry a pool's taint, and which nodes others' taints close to it. Without an API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller import names
from controller.api import convert
from controller.kube import nodes as kube_nodes
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, NODES
from controller.operator.state import nodes
from controller.operator.state.taints import Taints
from controller.workloads import tolerations


class Nodes:
    """Takes patches of nodes as the API server does, without its checks."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    async def merge_patch(
        self, resource: Any, name: str, patch: dict[str, Any], *_: Any, version: str, uid: str, **__: Any
    ) -> Any:
        old = self.cache.get(resource, name)
        assert old is not None
        spec = {k: v for k, v in (old["spec"] | patch["spec"]).items() if v is not None}
        return old | {"spec": spec, "metadata": old["metadata"] | {"resourceVersion": str(int(version) + 1)}}


def put_pool(cache: Cache, version: int, **spec: Any) -> None:
    selector = [{"key": "gpu", "value": "h100"}]
    metadata = {"name": "research", "uid": "p", "generation": version, "resourceVersion": str(version)}
    pool = {"metadata": metadata, "spec": {"nodeSelector": selector, **spec}}
    cache.put(GPUPOOLS, {"apiVersion": names.API_VERSION, "kind": "GPUPool", **pool})


def taints_of(cache: Cache) -> Any:
    return (cache.get(NODES, "n1") or {})["spec"].get("taints")


@pytest.mark.parametrize(
    "spec",
    [
        {"queuePolicy": {"las": {"firstThreshold": "7200", "secondThreshold": "3600"}}},
        {"delegate": "Kueue"},
    ],
)
def test_a_pool_whose_spec_becomes_unusable_keeps_its_nodes_closed(spec: dict[str, Any]) -> None:
    """Its gangs run on there, and pods of others must not come between them."""
    cache = Cache()
    metadata = {"name": "n1", "uid": "n", "resourceVersion": "1", "labels": {"gpu": "h100"}}
    cache.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
    taints = Taints(Nodes(cache), cache)  # type: ignore[arg-type]
    ours = [{"key": names.POOL_TAINT, "value": "research", "effect": "NoSchedule"}]
    put_pool(cache, 1)
    asyncio.run(taints.ensure())
    assert taints_of(cache) == ours
    put_pool(cache, 2, **spec)
    assert isinstance(convert.parse_pool(cache.get(GPUPOOLS, "research") or {}), tuple), "it is unusable"
    asyncio.run(taints.ensure())
    assert taints_of(cache) == ours
    assert taints.owners() == {"n1": "research"}
    cache.drop(GPUPOOLS, {"metadata": {"name": "research", "resourceVersion": "3"}})
    asyncio.run(taints.ensure())
    assert not taints_of(cache)


def test_the_rack_of_a_node() -> None:
    labels = {"topology.kubernetes.io/rack": "r7"}
    assert nodes.rack({"metadata": {"name": "n1", "labels": labels}}) == "r7"
    assert nodes.rack({"metadata": {"name": "n1"}}) == ""


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


@pytest.mark.parametrize(
    ("taints", "tolerated", "usable"),
    [
        ([taint(names.POOL_TAINT, "research")], [], True),
        ([taint(names.GPU_RESOURCE, "present")], [], True),  # ExtendedResourceToleration
        ([taint("maintenance")], [], False),
        ([taint("maintenance", effect="NoExecute")], [], False),
        ([taint("maintenance", effect="PreferNoSchedule")], [], True),
        ([taint("team", "a")], [{"key": "team", "operator": "Equal", "value": "a"}], True),
        ([taint("team", "a")], [{"key": "team", "value": "a", "effect": "NoSchedule"}], True),
        ([taint("team", "a")], [{"key": "team", "operator": "Equal", "value": "b"}], False),
        ([taint("team", "a")], [{"key": "team", "operator": "Exists"}], True),
        ([taint("team", "a")], [{"operator": "Exists"}], True),
        ([taint("team", "a")], [{"key": "team", "operator": "Exists", "effect": "NoExecute"}], False),
        (
            [taint("team", "a", "NoExecute")],
            [{"key": "team", "operator": "Exists", "tolerationSeconds": 60}],
            False,
        ),
        ([taint("team", "a"), taint("maintenance")], [{"key": "team", "operator": "Exists"}], False),
    ],
)
def test_a_node_that_others_have_tainted(
    taints: list[dict[str, str]], tolerated: list[dict[str, Any]], usable: bool
) -> None:
    node = {
        "metadata": {"name": "n1"},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}}}}
    if tolerated:
        job = job | {"spec": {"template": {"spec": {"tolerations": tolerated}}}}
    assert kube_nodes.usable(node, tolerations(job)) is usable
