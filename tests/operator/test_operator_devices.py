"""GPUs that dynamic resource allocation gives out: counted on their node, for whoever has them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from test_operator_watched import KEY, child, pod, pool, rlhfjob

from controller.api import convert
from controller.extender import views
from controller.kube.cache import Cache
from controller.kube.devices import Inventory
from controller.kube.resources import (
    GPUPOOLS,
    JOBS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RLHFJOBS,
)
from controller.kube.trim import trim
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.pool_loader import PoolLoader
from controller.operator.state.cluster import ClusterState
from controller.operator.state.devices import Devices
from controller.operator.state.groups import Groups
from controller.policy.pool.gpu_accounting import free_gpus

DRIVER = "gpu.nvidia.com"


def device(name: str, **attributes: str) -> dict[str, Any]:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def slice_(
    node: str, *devices: dict[str, Any], driver: str = DRIVER, generation: int = 1, version: int = 100
) -> Any:
    return {
        "metadata": {"name": f"{node}-{driver}-{generation}", "uid": "s", "resourceVersion": str(version)},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def claim(
    name: str,
    node: str,
    *devices: str,
    pods: tuple[tuple[str, str], ...] = (),
    version: int = 200,
    **more: Any,
) -> Any:
    results = [{"driver": DRIVER, "pool": node, "device": d, "request": "gpus"} for d in devices]
    allocation = {"devices": {"results": results}} if devices else {}
    users = [{"resource": "pods", "name": n, "uid": uid} for n, uid in pods]
    metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": str(version)}
    return {
        "metadata": metadata | more.get("metadata", {}),
        "status": {"allocation": allocation, "reservedFor": users},
    }


EIGHT = [device(f"gpu-{i}", uuid=f"GPU-{i}", type="gpu") for i in range(8)]


def inventory(*slices: Any) -> Inventory:
    return Inventory(trim(RESOURCE_SLICES, s) for s in slices)


def held(found: Inventory, obj: Any) -> dict[str, int]:
    return {
        h.node: len(h.gpus)
        for h in found.holdings(trim(RESOURCE_CLAIMS, obj) | {"metadata": obj["metadata"]})
    }


def test_what_a_claim_holds() -> None:
    found = inventory(slice_("n1", *EIGHT), slice_("n1", device("nic-0"), driver="nic.example.com"))
    assert (found.gpus("n1"), found.gpus("n2")) == (8, 0)
    assert held(found, claim("c", "n1")) == {}
    assert held(found, claim("c", "n1", "gpu-0", "gpu-1")) == {"n1": 2}
    assert held(found, claim("c", "n1", "gpu-0", "gpu-0")) == {"n1": 1}, "shared by consumable capacity"
    special = {"metadata": {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}}
    assert held(found, claim("c", "n1", "gpu-0", **special)) == {}, "the pod asks for it by name"


def test_parts_of_a_gpu_count_as_that_gpu() -> None:
    parts = [device(f"mig-{i}", uuid=f"MIG-{i}", parentUUID="GPU-0", type="mig") for i in range(7)]
    found = inventory(slice_("n1", *EIGHT, *parts))
    assert found.gpus("n1") == 8
    assert held(found, claim("c", "n1", "mig-0", "mig-3", "gpu-5")) == {"n1": 2}


def test_of_a_pool_its_newest_generation_counts() -> None:
    old, new = slice_("n1", *EIGHT), slice_("n1", *EIGHT[:4], generation=2)
    assert inventory(old, new).gpus("n1") == inventory(new, old).gpus("n1") == 4


def test_a_device_that_is_published_no_more_is_held_all_the_same() -> None:
    given = claim("c", "n1", "gpu-0")
    assert held(inventory(), given) == {"n1": 1}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]
    given["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    given["status"]["allocation"]["devices"]["results"][0]["pool"] = "some-pool"
    assert held(inventory(), given) == {"n7": 1}


def test_little_is_kept_of_a_slice() -> None:
    long = device("gpu-0", uuid="GPU-0", brand="x" * 5000)
    kept = str(trim(RESOURCE_SLICES, slice_("n1", long)))
    assert "xxx" not in kept
    other = str(trim(RESOURCE_SLICES, slice_("n1", *EIGHT, driver="nic.example.com")))
    assert "gpu-0" not in other


class Cluster:
    """A pool of two nodes that have GPUs by ResourceSlices alone, and a job that runs on the first."""

    def __init__(self, *, by_claim: bool = True) -> None:
        cache = self.cache = Cache()
        self.world = ClusterState(cache, time.monotonic)
        self.moved: list[str] = []
        self.devices = Devices(None, self.world, self.moved.append)  # type: ignore[arg-type]
        self.world.claimed = self.devices.gpus_of
        for i, node in enumerate(("n1", "n2")):
            cache.put(NODES, self._node(node, 5 + i, by_name=not by_claim))
            if by_claim:
                self.devices._event(RESOURCE_SLICES, slice_(node, *EIGHT), False)
        cache.put(GPUPOOLS, pool())
        cache.put(JOBS, child())
        ours = pod()
        if by_claim:
            ours["spec"]["containers"][0]["resources"] = {}
        cache.put(PODS, ours)
        cache.put(RLHFJOBS, rlhfjob())

    @staticmethod
    def _node(name: str, version: int, *, by_name: bool) -> Any:
        allocatable = {"nvidia.com/gpu": "8"} if by_name else {}
        ready = [{"type": "Ready", "status": "True"}]
        return {
            "metadata": {"name": name, "uid": name, "resourceVersion": str(version), "labels": {"pool": "x"}},
            "spec": {},
            "status": {"allocatable": allocatable, "conditions": ready},
        }

    def claim(self, *args: Any, **more: Any) -> None:
        self.devices._event(RESOURCE_CLAIMS, claim(*args, **more), False)

    def snapshot(self) -> tuple[Any, Any]:
        brain = PlanCache(self.world, Metrics(), lambda: 1.9e9)
        taints: Any = SimpleNamespace(claims=lambda: dict.fromkeys(("n1", "n2"), ("gpus",)))
        foreign: Any = SimpleNamespace(pods=list)
        groups = Groups(self.cache, lambda name: None, lambda key: None, lambda name: None)
        around_it = taints, foreign, self.devices, groups
        loader = PoolLoader(self.cache, self.world, brain, *around_it, lambda: 1.9e9)
        obj = self.cache.get(GPUPOOLS, "gpus")
        assert obj is not None
        parsed: Any = convert.parse_pool(obj)
        loaded = loader.load(parsed, obj)
        around = loader.surroundings(loaded)
        return loader.snapshot(loaded, around), around


def test_nodes_that_have_gpus_by_slices_alone_have_that_capacity() -> None:
    # row 19
    cluster = Cluster()
    snapshot, _ = cluster.snapshot()
    assert {node.name: node.gpus for node in snapshot.nodes} == {"n1": 8, "n2": 8}
    assert {node.name: node.gpus for node in Cluster(by_claim=False).snapshot()[0].nodes} == {
        "n1": 8,
        "n2": 8,
    }


def test_a_claim_of_a_jobs_pod_counts_for_that_job_and_of_others_for_guests() -> None:
    # row 19
    cluster = Cluster()
    before = cluster.world.state(KEY)
    cluster.claim("mine", "n1", "gpu-0", pods=(("train-0", "pod"),))
    assert cluster.world.state(KEY) != before
    cluster.claim("theirs", "n1", *[f"gpu-{i}" for i in range(1, 6)], pods=(("web-1", "w"),), version=201)
    cluster.claim("kept", "n2", "gpu-7", version=202)
    snapshot, around = cluster.snapshot()
    (job,) = snapshot.jobs
    assert job.bound == (("n1", 1),)
    assert {node.name: node.foreign for node in snapshot.nodes} == {"n1": 5, "n2": 1}
    assert free_gpus(snapshot) == {"n1": 2, "n2": 7}
    assert sorted(guest["metadata"]["name"] for guest in around.unmanaged) == [
        "ResourceClaim kept",
        "web-1, by ResourceClaim theirs",
    ]
    assert {"n1", "n2"} <= set(cluster.moved)


def test_what_is_given_back_is_free() -> None:
    # row 19
    cluster = Cluster()
    cluster.claim("mine", "n1", "gpu-0", "gpu-1", pods=(("train-0", "pod"),))
    assert cluster.devices.gpus_of("pod") == 2
    cluster.claim("mine", "n1", "gpu-1", pods=(("train-0", "pod"),), version=300)
    assert cluster.devices.gpus_of("pod") == 1
    cluster.devices._event(RESOURCE_CLAIMS, claim("mine", "n1", version=301), True)
    assert cluster.devices.gpus_of("pod") == 0
    assert cluster.devices.held_on({"n1"}, ()) == []


def test_slices_that_come_after_claims_place_them() -> None:
    cluster = Cluster()
    elsewhere = claim("c", "pool-a", "gpu-0")
    cluster.devices._event(RESOURCE_CLAIMS, elsewhere, False)
    assert cluster.devices.held_on({"n2"}, ()) == []
    found = slice_("n2", *EIGHT)
    found["metadata"]["name"], found["metadata"]["resourceVersion"] = "late", "900"
    found["spec"]["pool"]["name"] = "pool-a"
    cluster.devices._event(RESOURCE_SLICES, found, False)
    assert len(cluster.devices.held_on({"n2"}, ())) == 1


def test_the_extender_takes_a_pod_with_claims_for_one_that_wants_gpus() -> None:
    # row 19
    asked = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [{"name": "c"}]}}
    assert views.pod_request(asked).gpus == 0
    asked["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "one"}]
    assert views.pod_request(asked).gpus == 1
