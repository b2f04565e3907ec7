"""Objects of a tenant that nobody can read, on the real API server: told on themselves, and nobody else's
matter."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import time
from typing import Any

import pytest

from controller import names
from controller.kube.errors import ApiError, NotFound
from controller.kube.resources import CONFIGMAPS, EVENTS, JOBS, PODS, RLHFJOBS
from controller.operator.engine import Engine
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually
from tests.support.tenant_users import Tenant, nested

Object = dict[str, Any]

EVERYBODY = [{"name": "*", "maxPriority": 10}]


def rlhfjob(pool: str, name: str, template: Any, gpus: int = 2) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name},
        "spec": {
            "pool": pool,
            "gang": {"replicas": 1, "gpusPerReplica": gpus},
            "workload": {"template": template},
            "metrics": [{"name": "gold"}],
            "stopRule": {"kDeclines": {"k": 3}},
            "modifiers": [],
            "checkpoints": {
                "location": {"objectStore": {"uri": f"s3://alice/{name}"}},
                "layout": "Plain",
                "retention": {"objectStore": {"uri": "s3://alice-kept"}},
            },
        },
    }


def deep(pool: str, name: str, levels: int = 5000) -> bytes:
    text = json.dumps(rlhfjob(pool, name, {"spec": {"x": "DEEP"}}))
    return text.replace('"DEEP"', nested(levels).decode()).encode()


async def events(rig: Rig, namespace: str, name: str, reason: str) -> list[str]:
    found, _ = await rig.api.list(EVENTS, namespace, fields=f"involvedObject.name={name},reason={reason}")
    return [event["message"] for event in found]


async def accepted(rig: Rig, namespace: str, name: str) -> tuple[str, str] | None:
    obj = await rig.api.get(RLHFJOBS, name, namespace)
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == "Accepted"), None)


def failed(engine: Engine, kind: str) -> float:
    counted = engine.metrics.passes.labels(kind, "failed")
    return float(counted._value.get())


async def goes_on(rig: Rig, engine: Engine, name: str, seconds: float = 40.0) -> None:
    """A new job of the honest neighbour's is admitted and runs, and the operator says that all is well."""
    begun = time.monotonic()
    await rig.make_job(name, gpus=1)
    await eventually(lambda: rig.is_true(name, "Running"), seconds, f"{name} to run beside the pills")
    assert time.monotonic() - begun < seconds
    assert engine.pool_passes.failing() == []
    assert engine.health.unready() == []


def test_an_rlhfjob_nested_5000_deep_spoils_no_watch_and_no_list(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            async with rig.operator() as engine:
                alice.create(deep(rig.pool_name, "deep"), "RLHFJob")
                told = await eventually(lambda: events(rig, alice.namespace, "deep", "Unreadable"))
                assert told[0].startswith("spec.workload.template.spec.x.a.a.a")
                assert "nested deeper than 200 levels" in told[0]
                await goes_on(rig, engine, "seen-by-the-watch")
            async with rig.operator() as engine:
                await goes_on(rig, engine, "seen-by-the-list")
                # It can be mended, and is then a job as any.
                good = rlhfjob(rig.pool_name, "deep", rig.template("seen-by-the-list", 1, 1), 1)
                patch = {"spec": good["spec"] | {"workload": {"template": {"spec": {"x": None}}}}}
                alice.patch("RLHFJob", "deep", patch)
                await eventually(lambda: accepted(rig, alice.namespace, "deep"), 20, "it to be looked at")
                assert failed(engine, "job") == failed(engine, "pool") == 0

    asyncio.run(story())


def test_bob_alone_with_rights_on_rlhfjobs_cannot_either(rig: Rig, kubelet: FakeKubelet, bob: Tenant) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            async with rig.operator() as engine:
                for i in range(5):
                    with pytest.raises(ApiError, match=r"you may not create jobs\.batch"):
                        bob.create(deep(rig.pool_name, f"deep-{i}", 300 * (i + 1)), "RLHFJob")
                await goes_on(rig, engine, "honest")
                assert failed(engine, "pool") == 0

    asyncio.run(story())


def test_text_that_no_reader_survives_is_its_jobs_business_alone(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant
) -> None:
    """A run.json of 100,000 brackets, a pod with 5,000 digits and a made-up owner, access pods that say 4,000
    brackets."""

    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            await rig.make_job("honest", gpus=1)
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("honest", "Running"))
                job = rlhfjob(rig.pool_name, "run", rig.template("honest", 1, 1), 1)
                made = alice.create(job)
                await eventually(lambda: accepted(rig, alice.namespace, "run"))
                alice.create(pod("run", "9" * 5000))
                pill = {"data": {names.RUN_KEY: "[" * 100_000}}
                await eventually(lambda: written(alice, "run-run"), what="its run.json")
                alice.patch("ConfigMap", "run-run", pill)
                alice.create(deep_configmap("other-run", made))
                kubelet.store.pills[f"{rig.namespace}/brackets"] = "[" * 4000
                await rig.make_job("brackets", gpus=1)
                rig.scores |= {name: [1.0, 2.0] for name in ("brackets", "honest")}
                await eventually(
                    lambda: rig.has_reason("brackets", "BestCheckpointSecured", "AccessFailed"),
                    what="the brackets to be told on their own job",
                )
                told = await rig.condition("brackets", "BestCheckpointSecured")
                assert told is not None
                assert len(told[2]) < 1024
                await eventually(lambda: rig.is_true("honest", "BestCheckpointSecured"))
                await goes_on(rig, engine, "next")
                assert failed(engine, "job") == failed(engine, "pool") == 0

    async def written(tenant: Tenant, name: str) -> bool:
        found, _ = await rig.api.list(CONFIGMAPS, tenant.namespace, fields=f"metadata.name={name}")
        return bool(found)

    asyncio.run(story())


def pod(job: str, digits: str) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "made-up", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "pill",
            "labels": {names.LABEL_JOB: job},
            "annotations": {names.ANNOTATION_ADMISSION: digits},
            "ownerReferences": [owner],
        },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "x", "image": "x"}],
        },
    }


def deep_configmap(name: str, owner: Object) -> Object:
    metadata = owner["metadata"]
    reference = {"apiVersion": names.API_VERSION, "kind": "RLHFJob", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "labels": {names.LABEL_JOB: metadata["name"]},
            "ownerReferences": [reference | {"name": metadata["name"], "uid": metadata["uid"]}],
        },
        "data": {names.RUN_KEY: '{"uid":' + "[" * 100_000},
    }


def test_a_pod_with_a_made_up_owner_holds_what_it_holds_and_is_nobodys(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant
) -> None:
    """Its GPUs are counted, and are not the job's: the job neither waits for it nor is told to run by it."""

    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            await rig.make_job("honest", gpus=2)
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("honest", "Running"))
                alice.create(rlhfjob(rig.pool_name, "run", rig.template("honest", 1, 2), 2))
                await eventually(lambda: runs(rig, alice), 40, "alice's job to run")
                fake = pod("run", "1")
                fake["metadata"].pop("ownerReferences")
                fake["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_RESOURCE: "2"}}
                placed = copy.deepcopy(fake)
                placed["spec"] |= {"nodeName": kubelet.nodes[0]}
                with pytest.raises(ApiError, match="leave nodeName out"):
                    alice.create(placed)
                alice.create(fake)
                await eventually(lambda: seen(engine, alice, "pill"))
                loaded = engine.cluster.load(f"{alice.namespace}/run")
                assert loaded is not None
                assert [p["metadata"]["name"] for p in loaded.pods] != []
                assert "pill" not in [p["metadata"]["name"] for p in loaded.pods]
                assert engine.pool_passes.failing() == []

    asyncio.run(story())


async def runs(rig: Rig, tenant: Tenant) -> bool:
    obj = await rig.api.get(RLHFJOBS, "run", tenant.namespace)
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any((c["type"], c["status"]) == ("Running", "True") for c in conditions)


async def seen(engine: Engine, tenant: Tenant, name: str) -> bool:
    return engine.cache.get(PODS, f"{tenant.namespace}/{name}") is not None


def test_a_template_that_cannot_be_read_is_refused_with_its_field(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant
) -> None:
    good = None

    def broken(name: str, change: Any) -> None:
        template = copy.deepcopy(good)
        change(template["spec"]["template"]["spec"])  # type: ignore[index]
        alice.create(rlhfjob(rig.pool_name, name, template))

    pod = "spec.workload.template.spec.template.spec"
    # The API server refuses these by their field, so no operator sees them.
    by_schema = {
        "text": (lambda p: p.update(containers="abc"), f"{pod}.containers"),
        "object": (lambda p: p.update(initContainers={}), f"{pod}.initContainers"),
        "digits": (
            lambda p: p["containers"][0]["resources"]["limits"].update({names.GPU_RESOURCE: "1" * 5000}),
            f"{pod}.containers[0].resources.limits.{names.GPU_RESOURCE}",
        ),
    }
    # A class that the server knows and takes: pods of it could evict those of all others.
    wrong = {
        "volumes": (
            lambda p: p.update(volumes=["x"]),
            "InvalidTemplate",
            "volumes[0]: 'x', expected an object",
        ),
        "class": (
            lambda p: p.update(priorityClassName="system-cluster-critical"),
            "PriorityClassNotAllowed",
            "priorityClassName: 'system-cluster-critical' is not allowed by the GPUPool, only: "
            f"{names.PRIORITY_CLASS} (its spec.priorityClassName and spec.allowedPriorityClasses); or leave "
            "it out",
        ),
    }

    async def story() -> None:
        nonlocal good
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            rig.names(["x"])
            good = rig.template("x", 1, 2)
            for name, (change, field) in by_schema.items():
                with pytest.raises(ApiError, match=rf"422.*{re.escape(field)}: (Invalid value|Too long)"):
                    broken(name, change)
            async with rig.operator() as engine:
                for name, (change, _, _) in wrong.items():
                    broken(name, change)
                for name, (_, reason, says) in wrong.items():
                    told = await eventually(lambda n=name: accepted(rig, alice.namespace, n), 20, name)
                    assert told == (reason, f"{pod}.{says}")
                    with pytest.raises(NotFound):
                        await rig.api.get(JOBS, name, alice.namespace)
                await goes_on(rig, engine, "next")
                assert failed(engine, "job") == failed(engine, "pool") == 0

    asyncio.run(story())


def test_objects_of_more_bytes_than_are_kept_are_put_aside(
    rig: Rig, kubelet: FakeKubelet, alice: Tenant
) -> None:
    """A hundred of 1.4 MB would be a page of 140 MB, and stay in memory."""

    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=EVERYBODY)
            rig.names(["x"])
            for i in range(20):
                body = rlhfjob(rig.pool_name, f"large-{i:02d}", rig.template("x", 1, 2))
                body["spec"]["workload"]["template"]["spec"]["filler"] = f"{i}" + "x" * 1_300_000
                alice.create(body)
            async with rig.operator() as engine:
                await goes_on(rig, engine, "honest")
                told = await eventually(lambda: events(rig, alice.namespace, "large-07", "Unreadable"))
                assert "bytes, at most 262144 are kept of an object" in told[0]

    asyncio.run(story())
