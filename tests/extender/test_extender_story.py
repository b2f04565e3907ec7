"""The whole way, every part real: an operator stops a run, and its nodes go to the gang the policy chose."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from extender_rig import Cluster

from deploy.local.plane import Plane
from deploy.local.scheduler import Scheduler
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually, install

pytestmark = pytest.mark.cluster
RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]


def test_a_stopped_runs_nodes_go_to_the_next_gang_though_smaller_pods_wait_for_them(
    plane: Plane, namespace: str, schedulers: dict[str, Scheduler]
) -> None:
    """A freed node would do for a small pod at once, and with one there the gang could not start."""
    pool = f"s-{secrets.token_hex(3)}"
    nodes = [f"{pool}-a", f"{pool}-b"]
    scheduler = schedulers["closed"].process
    waiting = [f"small-{i}" for i in range(6)]  # some of them are not backing off just then
    small = Cluster(plane.client(), namespace, pool, scheduler)

    async def story() -> None:
        rig = Rig(plane.kubeconfig, install(plane), namespace, pool)
        async with rig:
            await rig.make_pool(schedulerName=scheduler)
            await rig.make_job("over", replicas=2)
            rig.scores["over"] = RISE_AND_FALL[:4]
            async with rig.operator():
                await eventually(lambda: rig.is_true("over", "BestCheckpointSecured"), 40)
                for name in waiting:
                    await asyncio.to_thread(small.make_pod, name, gpus=1)
                for name in waiting:
                    await asyncio.to_thread(small.parked, name, "Insufficient nvidia.com/gpu")
                await rig.make_job("next", replicas=2)
                await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))
                rig.scores["over"] = RISE_AND_FALL
                await eventually(lambda: rig.is_true("next", "Running"), 40, "the next gang to run")
                pods = await rig.pods("next")
                assert sorted(pod["spec"]["nodeName"] for pod in pods) == nodes
                assert {pod["spec"]["schedulerName"] for pod in pods} == {scheduler}
                assert [n for n in waiting if await asyncio.to_thread(small.node_of, n)] == []

    try:
        with FakeKubelet(plane.client(), nodes, {"pool": pool}):
            asyncio.run(story())
    finally:
        small.clear()
