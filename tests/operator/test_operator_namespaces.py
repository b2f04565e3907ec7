"""An operator that serves some namespaces: a Role and a watch in each of twenty, and no right elsewhere."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.cache import Cache
from controller.kube.namespaced_watch import Spread
from controller.kube.resources import JOBS, NODES, RLHFJOBS
from controller.policy.group_types import GROUPS_NAMESPACE
from deploy.local.helm.client import Helm
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import SETTINGS, Rig, eventually

RELEASE_SPACE = "few-system"
OPERATOR = f"system:serviceaccount:{RELEASE_SPACE}:evalstop-operator"
Object = dict[str, Any]


@pytest.fixture
def spaces(plane: Plane, namespace: str) -> Iterator[list[str]]:
    """Twenty namespaces that are served, and last one that is not."""
    found = [f"{namespace[:40]}-{i}" for i in range(21)]
    body = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in found]
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(body))
    yield found
    plane.kubectl("delete", "namespace", *found, "--wait=false")


@pytest.fixture
def few(plane: Plane, helm: Helm, chart: Path, installed: Path, spaces: list[str]) -> Iterator[Path]:
    """The chart's rights for these namespaces, under an account of its own: its kubeconfig."""
    given = {"operator": {"watchNamespaces": spaces[:20]}, "networkPolicy": {"enabled": False}}
    text = helm(
        *("template", "few", str(chart), "-n", RELEASE_SPACE, "-f", "-"),
        *("--show-only", "templates/operator-rbac.yaml", "--show-only", "templates/groups.yaml"),
        stdin=json.dumps(given),
    )
    rights = [o for o in yaml.safe_load_all(text) if o and o["kind"].endswith(("Role", "RoleBinding"))]
    rights = [o for o in rights if o["metadata"].get("namespace") != RELEASE_SPACE]
    for made in rights:
        own = made["metadata"].get("namespace") == GROUPS_NAMESPACE
        if own or made["kind"].startswith("Cluster"):  # the whole installation's is there, too
            made["metadata"]["name"] = "evalstop-few"
            made.get("roleRef", {})["name"] = "evalstop-few"
    assert sum(made["kind"] == "Role" for made in rights) == 22, (
        "of twenty, of groups, and for Events about pools"
    )
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    yield plane.kubeconfig_for(OPERATOR, ["system:serviceaccounts", "system:authenticated"])
    plane.kubectl("delete", "clusterrole,clusterrolebinding", "evalstop-few")


@pytest.mark.cluster
def test_twenty_namespaces_are_served_and_another_is_not(
    plane: Plane, few: Path, spaces: list[str], kubelet: FakeKubelet
) -> None:
    asyncio.run(_served(Rig(plane.kubeconfig, few, spaces[0], kubelet.pool), spaces))


async def _served(rig: Rig, spaces: list[str]) -> None:
    async with rig:
        await rig.make_pool(allowedNamespaces=[{"name": "*", "maxPriority": 10}])
        for space in (spaces[20], spaces[19], spaces[0]):
            rig.namespace = space
            await rig.make_job("run", replicas=1, gpus=1)
        settings = dataclasses.replace(SETTINGS, watch_namespaces=",".join(spaces[:20]))
        async with rig.operator(settings) as engine:
            for space in (spaces[0], spaces[19]):

                async def made(space: str = space) -> bool:
                    children, _ = await rig.api.list(JOBS, space)
                    return [child["metadata"]["name"] for child in children] == ["run"]

                await eventually(made, what=f"the workload in {space}")
            other = await rig.api.get(RLHFJOBS, "run", spaces[20])
            assert "status" not in other
            assert (await rig.api.list(JOBS, spaces[20]))[0] == []
            spread = [watch for watch in engine.sources.watches if isinstance(watch, Spread)]
            assert sorted(len(watch.parts) for watch in spread) == [1, 21, 21, 21]
            # Pods, Jobs and ConfigMaps there and among worker groups, and these themselves.
            assert len(engine.sources.informers) == 21, "RLHFJobs in each, GPUPools once"
            assert [
                str(watch) for watch in (*engine.sources.watches, *engine.sources.informers) if watch.problem
            ] == []
            assert engine.unmanaged_pods.looked


def stored(name: str, version: int) -> Object:
    space, _, short = name.partition("/")
    return {"metadata": {"name": short, "namespace": space, "uid": name, "resourceVersion": str(version)}}


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    cache = Cache((JOBS, NODES))
    cache.stores[JOBS].spread(("a", "b"))
    cache.replace(JOBS, [stored("a/x", 5)], "10", "a")
    assert not cache.stores[JOBS].listed
    cache.replace(JOBS, [stored("b/y", 6), stored("b/z", 7)], "20", "b")
    assert cache.stores[JOBS].listed
    assert cache.put(JOBS, stored("a/late", 15)), "b's LIST is no word about a"
    assert not cache.put(JOBS, stored("b/gone", 15)), "it was not there at 20"
    cache.replace(JOBS, [stored("b/y", 6)], "30", "b")
    assert {found["metadata"]["uid"] for found in cache.values(JOBS)} == {"a/x", "a/late", "b/y"}
