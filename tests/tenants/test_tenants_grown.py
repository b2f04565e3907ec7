"""A tenant changes the suspended workload that its RLHFJob waits with: it gets no more than was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from test_tenants_pills import EVERYBODY, accepted, events, rlhfjob, runs

from controller import names
from controller.kube.resources import JOBS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import CountingApi, Response, Rig, eventually
from tests.support.tenant_users import Tenant

Object = dict[str, Any]
Send = Callable[[], Awaitable[Response]]

MORE_PODS: Object = {"spec": {"parallelism": 4, "completions": 4}}


def more_gpus(job: Object) -> Object:
    """Kubernetes lets the resources of a suspended Job's pods change (1.36)."""
    containers = job["spec"]["template"]["spec"]["containers"]
    containers[0]["resources"] = {"limits": {names.GPU_RESOURCE: "2"}, "requests": {names.GPU_RESOURCE: "2"}}
    return {"spec": {"template": {"spec": {"containers": containers}}}}


@pytest.mark.parametrize(
    ("grow", "told"),
    [
        (lambda job: MORE_PODS, "Job run.spec.completions: 4, expected 1 as in spec.gang.replicas"),
        (more_gpus, "limits[nvidia.com/gpu]: 2 in all, expected 1 as in spec.gang.gpusPerReplica"),
    ],
    ids=["pods", "gpus"],
)
def test_a_workload_that_was_grown_while_it_waited_is_not_admitted(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant, grow: Callable[[Object], Object], told: str
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            await rig.make_job("honest", replicas=2)
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("honest", "Running"))
                alice.create(rlhfjob(rig.pool_name, "run", rig.template("honest", 1, 1), 1))
                job = await eventually(lambda: waiting(rig, alice), what="its workload")
                alice.patch("Job", "run", grow(job))
                await eventually(lambda: refused(rig, alice, told), what="it to be told")
                kubelet.finish(rig.namespace, "honest")
                await rig.make_job("next", replicas=2)
                await eventually(lambda: rig.is_true("next", "Running"), what="the next to have the GPUs")
                assert (await rig.api.get(JOBS, "run", alice.namespace))["spec"]["suspend"] is True
                kubelet.finish(rig.namespace, "next")
                # As it was made, it is a job like any other.
                small = rig.template("honest", 1, 1)["spec"]["template"]["spec"]["containers"]
                mended = {"parallelism": 1, "completions": 1}
                if grow is more_gpus:
                    containers = job["spec"]["template"]["spec"]["containers"]
                    containers[0]["resources"] = small[0]["resources"] | {
                        "requests": small[0]["resources"]["limits"]
                    }
                    mended |= {"template": {"spec": {"containers": containers}}}
                alice.patch("Job", "run", {"spec": mended})
                await eventually(lambda: runs(rig, alice), what="it to run")
                assert engine.pool_passes.failing() == []

    asyncio.run(story())


def test_a_workload_that_is_grown_after_its_admission_is_not_started(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant
) -> None:
    """In the moment between the operator's two writes: it starts what it has looked at, and nothing else."""

    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            rig.names(["x"])
            async with rig.operator() as engine:
                grown = asyncio.Event()

                async def between(
                    method: str, path: str, send: Callable[[], Awaitable[Response]]
                ) -> Response:
                    starts = method == "PATCH" and path.endswith(f"namespaces/{alice.namespace}/jobs/run")
                    if starts and not grown.is_set():
                        grown.set()
                        await asyncio.to_thread(alice.patch, "Job", "run", MORE_PODS)
                    return await send()

                api = engine.api
                assert isinstance(api, CountingApi)
                api.about, api.fault = ("",), between
                alice.create(rlhfjob(rig.pool_name, "run", rig.template("x", 1, 1), 1))
                await eventually(grown.wait, what="its start")
                said = await eventually(
                    lambda: events(rig, alice.namespace, "run", "ActionRefused"), what="the refusal"
                )
                assert "spec.completions: 4, expected 1" in said[0]
                assert (await rig.api.get(JOBS, "run", alice.namespace))["spec"]["suspend"] is True

    asyncio.run(story())


async def waiting(rig: Rig, tenant: Tenant) -> Object | None:
    """Its suspended workload, once it is queued."""
    found = await accepted(rig, tenant.namespace, "run")
    if found is None or found[0] != "Valid":
        return None
    jobs, _ = await rig.api.list(JOBS, tenant.namespace)
    return next((job for job in jobs if job["metadata"]["name"] == "run"), None)


async def refused(rig: Rig, tenant: Tenant, told: str) -> bool:
    found = await accepted(rig, tenant.namespace, "run")
    return found is not None and found[0] in ("GangMismatch", "GangGPUsMismatch") and told in found[1]
