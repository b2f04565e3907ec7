"""Pools that are wrong, change, vanish or overlap, and guests on their nodes, on the real control plane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controller import names
from controller.cli.main import app
from controller.kube.resources import EVENTS, GPUPOOLS, JOBS, NODES, PODS, RESOURCE_CLAIMS
from controller.operator.reconcile import validation
from controller.policy.job import cure_of, key_of
from controller.workloads import Scheduling, build_child
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually, run_line


async def condition(rig: Rig, pool: str, type_: str, reason: str) -> str:
    """The condition's message once it has that reason; "" while it has not."""
    status = (await rig.api.get(GPUPOOLS, pool)).get("status") or {}
    found = [c for c in status.get("conditions") or () if (c["type"], c["reason"]) == (type_, reason)]
    return str(found[0]["message"]) if found else ""


async def patch_pool(rig: Rig, pool: str, spec: dict[str, Any]) -> None:
    await rig.api.merge_patch(GPUPOOLS, pool, {"spec": spec})


async def told_of(rig: Rig) -> set[tuple[str, str]]:
    """Type and reason of each Event about the pool."""
    found, _ = await rig.api.list(EVENTS, "default", fields=f"involvedObject.name={rig.pool_name}")
    return {(event["type"], event["reason"]) for event in found}


def ready_column(plane: Plane, pool: str) -> str:
    """What `kubectl get` shows of the pool under READY."""
    head, line = plane.kubectl("get", "gpupool", pool).splitlines()
    return dict(zip(head.split(), line.split(), strict=True))["READY"]


def test_a_pool_that_selects_no_node_and_then_one_that_does(
    rig: Rig, kubelet: FakeKubelet, plane: Plane
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(nodeSelector=[{"key": "pool", "value": "no-such-node"}])
            await rig.make_job("waits", replicas=2)
            async with rig.operator():
                told = await eventually(lambda: condition(rig, rig.pool_name, "Ready", "NoUsableNodes"))
                assert "spec.nodeSelector: no ready and schedulable node matches" in told
                await eventually(lambda: rig.has_reason("waits", "Admitted", "NoUsableNodes"))
                await eventually(lambda: told_of(rig), what="an Event")
                assert await told_of(rig) == {("Warning", "NoUsableNodes")}
                assert ready_column(plane, rig.pool_name) == "False"
                selector = [{"key": "pool", "value": rig.pool_name}]
                await patch_pool(rig, rig.pool_name, {"nodeSelector": selector})
                await eventually(lambda: rig.is_true("waits", "Running"), 60, "the job to run")
                await eventually(lambda: condition(rig, rig.pool_name, "Ready", "Planned"))
                wanted = {("Warning", "NoUsableNodes"), ("Normal", "Planned")}
                await eventually(lambda: _equals(told_of(rig), wanted), what="an Event that it is well again")
                assert ready_column(plane, rig.pool_name) == "True"

    asyncio.run(story())


async def _equals(asked: Awaitable[object], wanted: object) -> bool:
    return await asked == wanted


def test_a_pool_deleted_while_jobs_wait_loses_nothing_and_takes_them_back(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("runs", replicas=2)
            rig.scores["runs"] = [1.0, 2.0]
            async with rig.operator():
                await eventually(lambda: rig.is_true("runs", "BestCheckpointSecured"))
                # The first of its pods is read before the second is there; only those that run can finish.
                await eventually(lambda: rig.is_true("runs", "Running"))
                await rig.make_job("waits", replicas=2)
                await eventually(lambda: rig.has_reason("waits", "Admitted", "WaitingForGPUs"))
                await rig.delete_pool(rig.pool_name)
                for name in ("runs", "waits"):
                    await eventually(lambda n=name: rig.has_reason(n, "Accepted", "PoolNotFound"))
                    told = await rig.condition(name, "Accepted")
                    assert told is not None
                    assert f"spec.pool: there is no GPUPool {rig.pool_name!r}" in told[2]
                assert len(await rig.pods("runs")) == 2, "what runs goes on"
                assert (await rig.workload("waits"))["spec"]["suspend"] is True
                await rig.make_pool()
                await eventually(lambda: rig.is_true("waits", "Accepted"))
                await eventually(lambda: rig.is_true("runs", "Accepted"))
                record = await rig.record("runs")
                assert [e.step for e in record.evals] == [10, 20]
                assert record.attempt == 1
                kubelet.finish(rig.namespace, "runs")
                await eventually(lambda: rig.is_true("waits", "Running"), 60, "the one that waited to run")
                assert (await rig.record("waits")).attempt == 1

    asyncio.run(story())


def test_two_pools_that_claim_the_same_nodes(rig: Rig, kubelet: FakeKubelet) -> None:
    """The older one has them, both say so, and a job of the younger one waits until they are given up."""
    younger = f"{kubelet.pool}-z"  # of two made in the same second, the first by name counts as the older

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            selector = [{"key": "pool", "value": rig.pool_name}]
            await rig.make_pool_named(younger, nodeSelector=selector)
            await rig.make_job("there", replicas=2, pool=younger)
            async with rig.operator():
                told = await eventually(
                    lambda: condition(rig, younger, "NodesExclusive", "YieldedToOlderPool"),
                    what="the younger",
                )
                assert f"{rig.pool_name}-a, {rig.pool_name}-b are selected by GPUPool {rig.pool_name}" in told
                told = await eventually(
                    lambda: condition(rig, rig.pool_name, "NodesExclusive", "SharedWithYoungerPool")
                )
                assert f"GPUPool {younger} too; this pool is older and has them" in told
                await eventually(lambda: condition(rig, younger, "Ready", "NoUsableNodes"))
                await eventually(lambda: rig.has_reason("there", "Admitted", "NoUsableNodes"))
                node = await rig.api.get(NODES, f"{rig.pool_name}-a")
                taints = {t["key"]: t["value"] for t in node["spec"]["taints"]}
                assert taints[names.POOL_TAINT] == rig.pool_name
                await rig.delete_pool(rig.pool_name)
                await eventually(lambda: rig.is_true("there", "Running"), 60, "the younger to have them")
                assert await condition(rig, younger, "NodesExclusive", "Exclusive")
            await rig.delete_pool(younger)

    asyncio.run(story())


def test_a_foreign_pod_on_a_pool_node_is_named_and_its_gpus_are_not_given_out(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def accounts(capacity: int, free: int, foreign: int) -> bool:
        status = (await rig.api.get(GPUPOOLS, rig.pool_name)).get("status") or {}
        return [status.get(k) for k in ("capacity", "free", "foreign")] == [capacity, free, foreign]

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            limits = {"limits": {names.GPU_RESOURCE: "1"}}
            spec = {
                "nodeName": f"{rig.pool_name}-a",  # past the scheduler, so past the taint as well
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i", "resources": limits}],
            }
            meta = {"name": "guest", "namespace": rig.namespace}
            async with rig.operator():
                await eventually(lambda: accounts(4, 4, 0))
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
                made = await rig.api.create(PODS, pod)
                await eventually(lambda: accounts(4, 3, 1), what="its GPU to be counted")
                told = await condition(rig, rig.pool_name, "GPUsExclusive", "ForeignPods")
                assert f"{rig.namespace}/guest on {rig.pool_name}-a (1)" in told
                await rig.make_job("waits", replicas=2)
                await eventually(lambda: rig.has_reason("waits", "Admitted", "GPUsUsedByOthers"))
                await rig.api.delete(PODS, "guest", rig.namespace, made["metadata"]["uid"])
                await eventually(lambda: rig.is_true("waits", "Running"), 60, "the job to have its GPUs")
                await eventually(lambda: condition(rig, rig.pool_name, "GPUsExclusive", "Exclusive"))
                await eventually(lambda: accounts(4, 0, 0))

    asyncio.run(story())


def test_without_kueue_a_pool_that_delegates_to_it_says_so_and_others_work(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """A job whose pool is taken from Kueue has its child made anew: it waits for Kueue no longer."""

    async def story() -> None:
        async with rig:
            other = f"{rig.pool_name}-other"
            await rig.make_pool(delegate="Kueue", kueue={"localQueue": "team"})
            await rig.make_pool_named(other, nodeSelector=[{"key": "pool", "value": rig.pool_name}])
            await rig.make_job("waits")
            async with rig.operator():
                told = await eventually(
                    lambda: condition(rig, rig.pool_name, "QueueReady", "KueueNotInstalled")
                )
                assert "does not serve kueue.x-k8s.io/v1beta2; install Kueue 0.15" in told
                await eventually(lambda: rig.has_reason("waits", "Admitted", "KueueNotInstalled"))
                lined_up = await rig.workload("waits")
                assert lined_up["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"

                await rig.delete_pool(rig.pool_name)  # its nodes are the other pool's from now on
                await rig.make_job("goes", pool=other)
                await eventually(lambda: rig.is_true("goes", "Running"), 60)
                await rig.patch("goes", {"spec": {"runState": "Stopped"}})

                await eventually(lambda: rig.has_reason("goes", "Admitted", "Stopped"))
                await rig.delete_pool(other)
                await rig.make_pool()
                await eventually(lambda: rig.is_true("waits", "Running"), 60)
                remade = await rig.workload("waits")
                assert remade["metadata"]["uid"] != lined_up["metadata"]["uid"]
                assert "kueue.x-k8s.io/queue-name" not in remade["metadata"]["labels"]

    asyncio.run(story())


def test_without_a_delegate_kube_scheduler_sorts_it_out_and_gangs_still_come_whole(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """Both gangs of two start at once and may get one node each; in the end each has run with both."""
    done: set[str] = set()

    async def both_ran() -> bool:
        for name in ("one", "two"):
            if name not in done and await rig.is_true(name, "Running"):
                assert len([p for p in await rig.pods(name) if p["spec"].get("nodeName")]) == 2
                kubelet.finish(rig.namespace, name)
                done.add(name)
        return len(done) == 2

    async def story() -> None:
        async with rig:
            await rig.make_pool(delegate="None", gangTimeoutSeconds=2)
            await rig.make_job("one", replicas=2)
            await rig.make_job("two", replicas=2)
            async with rig.operator():
                await eventually(both_ran, 90, "both gangs to have run")

    asyncio.run(story())


def test_pods_get_the_pools_scheduler_and_a_class_that_is_not_there_is_told(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """No scheduler of that name runs: the pods wait, which shows that no other takes them."""

    async def pods_made() -> list[Any]:
        return await rig.pods("extended")

    async def story() -> None:
        async with rig:
            await rig.make_pool(schedulerName=names.SCHEDULER_NAME)
            await rig.make_pool_named(f"{rig.pool_name}-x", priorityClassName="no-such-class")
            big = rig.pool_name + "-x"
            await rig.make_job("extended", replicas=1)
            await rig.make_job("classless", pool=big)
            async with rig.operator():
                pods = await eventually(pods_made, 60, "its pods")
                assert {p["spec"]["schedulerName"] for p in pods} == {names.SCHEDULER_NAME}
                await eventually(lambda: rig.has_reason("classless", "Accepted", "PriorityClassNotFound"))
                told = await rig.condition("classless", "Accepted")
                assert told is not None
                assert "there is no PriorityClass 'no-such-class'" in told[2]
                assert not any(p["spec"].get("nodeName") for p in await rig.pods("extended"))
            await rig.delete_pool(big)

    asyncio.run(story())


def test_a_ref_that_lacks_what_can_never_be_added_is_refused_by_name_until_it_is_made_anew(
    rig: Rig, kubelet: FakeKubelet, plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "NO_LASTS", 1.0)

    async def refer(name: str, scheduling: Scheduling) -> None:
        rig.names([name])
        model = {
            "metadata": {"name": name, "namespace": rig.namespace, "uid": "none"},
            "spec": {
                "workload": {"template": rig.template(name, 1, 2)},
                "gang": {"replicas": 1, "gpusPerReplica": 2},
            },
        }
        child = build_child(model, scheduling)
        del child["metadata"]["ownerReferences"]
        await rig.api.create(JOBS, child)
        ref = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
        await rig.make_job(name, workload={"ref": ref})

    async def story() -> None:
        async with rig:
            await rig.make_pool(schedulerName="default-scheduler")
            await refer("bare", Scheduling())
            await refer("whole", Scheduling("default-scheduler", names.PRIORITY_CLASS))
            rig.names(["plain"])
            plain = rig.template("plain", 1, 2)
            plain["metadata"] = {"name": "plain", "namespace": rig.namespace}
            del plain["spec"]["completionMode"]
            manifest = tmp_path / "plain.json"
            manifest.write_text(json.dumps(plain))
            await rig.api.create(JOBS, plain)
            ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "plain"}
            await rig.make_job("plain", workload={"ref": ref})
            async with rig.operator():
                await eventually(
                    lambda: rig.is_true("whole", "Running"), 30, "the one that has it all to run"
                )
                await eventually(lambda: rig.has_reason("bare", "Accepted", "PriorityClassMissing"))
                told = await rig.condition("bare", "Accepted")
                assert told is not None
                assert "so make the Job anew: spec.template.spec.priorityClassName is not set" in told[2]
                assert (await rig.workload("bare"))["spec"]["suspend"] is True
                await eventually(lambda: rig.has_reason("plain", "Accepted", "WorkloadNotLabelled"))
                told = await rig.condition("plain", "Accepted")
                assert told is not None
                assert "Job plain lacks 6 fields" in told[2]
                assert (await rig.workload("plain"))["spec"]["suspend"] is False
                cure = cure_of(key_of(*told[1:])).filled("plain", rig.namespace, rig.pool_name, "", told[2])
                line = cure.apply.replace("<job_manifest>", str(manifest))
                await asyncio.to_thread(run_line, plane, line)
                await eventually(lambda: rig.is_true("plain", "Running"), 30, "the one that is made anew")

    asyncio.run(story())


def test_gpus_that_a_claim_holds_are_not_given_out_again(rig: Rig, kubelet: FakeKubelet) -> None:
    # row 19
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            node = f"{rig.pool_name}-a"
            asked = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
            body = {
                "apiVersion": RESOURCE_CLAIMS.api_version,
                "kind": RESOURCE_CLAIMS.kind,
                "metadata": {"name": "theirs", "namespace": rig.namespace},
                "spec": {"devices": {"requests": [asked]}},
            }
            made = await rig.api.create(RESOURCE_CLAIMS, body)
            results = [
                {"request": "gpus", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"},
            ]
            status = {"allocation": {"devices": {"results": results}}}
            await rig.api.merge_patch(
                RESOURCE_CLAIMS, "theirs", {"status": status}, rig.namespace, subresource="status"
            )
            async with rig.operator():
                await rig.make_job("waits", replicas=2)
                await eventually(lambda: rig.has_reason("waits", "Admitted", "GPUsUsedByOthers"))
                told = await condition(rig, rig.pool_name, "GPUsExclusive", "ForeignPods")
                assert f"{rig.namespace}/ResourceClaim theirs on {node} (1)" in told
                await rig.api.delete(RESOURCE_CLAIMS, "theirs", rig.namespace, made["metadata"]["uid"])
                await eventually(lambda: rig.is_true("waits", "Running"), 60, "the job to have its GPUs")

    asyncio.run(story())


def test_a_run_off_its_plan_is_told_where_it_is(
    plane: Plane, installed: Path, namespace: str, kubelet: FakeKubelet
) -> None:
    """Of a pool without schedulerName: its condition and `evalstop pools` named the planned node; the one
    that it really held stood nowhere."""
    rig, (first, second) = Rig(plane.kubeconfig, installed, namespace, kubelet.pool), kubelet.nodes
    fields = ("key", "operator", "values")
    only = dict(zip(fields, ("kubernetes.io/hostname", "In", [second]), strict=True))
    required = {"nodeSelectorTerms": [{"matchExpressions": [only]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    async def elsewhere() -> str:
        result = await asyncio.to_thread(
            CliRunner().invoke,
            app,
            ["pools", rig.pool_name],
            env={"KUBECONFIG": str(plane.kubeconfig), "COLUMNS": "300"},
        )
        assert result.exit_code == 0, result.output
        return " ".join(next((x for x in result.stdout.splitlines() if "elsewhere" in x), "").split())

    async def told() -> bool:
        condition = await rig.condition("run", "Admitted")
        return condition is not None and condition[2] == f"GPUs granted, on {second}"

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            rig.names(["run"])
            template = rig.template("run", 1, 2)
            template["spec"]["template"]["spec"]["affinity"] = affinity
            await rig.make_job("run", workload={"template": template})
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), 40, "the run to run")
                await eventually(told, 10, "the node it is on to be told")
                admission = (await rig.record("run")).admission
                assert admission is not None
                assert (admission.nodes, admission.bound_nodes) == ((first,), (second,))
                await rig.api.merge_patch(NODES, first, {"spec": {"unschedulable": True}})
                assert await elsewhere() == "", f"it is not on {first}"
                await rig.api.merge_patch(NODES, second, {"spec": {"unschedulable": True}})
                run = f"{namespace}/run on {second} (cordoned)"
                assert await elsewhere() == f"elsewhere 1 run on nodes that take none of its gangs: {run}"

    asyncio.run(story())
