"""Workloads that go, or were there before: never trained twice, made again when needed, adopted; no spin."""

from __future__ import annotations

import asyncio
import copy

from controller import names
from controller.kube.errors import NotFound
from controller.kube.resources import EVENTS, JOBS, PODS
from controller.workloads import build_child
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]


async def delete_child(rig: Rig, name: str) -> None:
    found = await rig.workload(name)
    await rig.api.delete(JOBS, name, rig.namespace, found["metadata"]["uid"])
    await eventually(lambda: gone(rig, name), what="the Job to be gone")


async def gone(rig: Rig, name: str) -> bool:
    try:
        await rig.workload(name)
    except NotFound:
        return True
    return False


def passes(engine) -> float:
    """Passes over jobs so far, whatever became of them."""
    return sum(
        sample.value
        for metric in engine.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "evalstop_passes_total" and sample.labels.get("kind") == "job"
    )


async def at_rest(engine) -> bool:
    """Whether two seconds go by with few passes: what was told just before may still be on its way."""
    before = passes(engine)
    await asyncio.sleep(2.0)
    return passes(engine) - before < 10


def test_a_stopped_run_whose_job_was_deleted_is_made_again_only_to_be_resumed(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.scores["run"] = RISE_AND_FALL
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), 40, what="the stop")
                await delete_child(rig, "run")
                await eventually(lambda: at_rest(engine), what="passes to become rare")
                assert await gone(rig, "run")
                rig.scores["run"] = RISE_AND_FALL[:4]
                await rig.patch("run", {"spec": {"resume": {"id": "1", "from": "Best"}}})
                await eventually(lambda: rig.is_true("run", "Running"), 40, what="the resumed run")
            assert kubelet.store.done("restore") == [40]

    asyncio.run(story())


def test_a_finished_run_whose_job_was_cleaned_up_is_not_trained_again(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
                await asyncio.to_thread(kubelet.finish, rig.namespace, "run")
                await eventually(lambda: rig.is_true("run", "Completed"), what="its end")
                await delete_child(rig, "run")
                await asyncio.sleep(2.0)
                assert await gone(rig, "run")
                assert await rig.is_true("run", "Completed")

    asyncio.run(story())


def test_shadow_adopts_a_job_that_runs_and_never_suspends_it(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            rig.names(["own"])
            model = {
                "metadata": {"name": "own", "namespace": rig.namespace, "uid": "none"},
                "spec": {
                    "workload": {"template": rig.template("own", 1, 2)},
                    "gang": {"replicas": 1, "gpusPerReplica": 2},
                },
            }
            child = copy.deepcopy(build_child(model))
            del child["metadata"]["ownerReferences"]
            child["spec"]["suspend"] = False
            child["spec"]["template"]["spec"]["nodeSelector"] = {"pool": rig.pool_name}
            child["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
            await rig.api.create(JOBS, child)
            await eventually(lambda: rig.pods("own"), what="its own pods")
            rig.scores["own"] = RISE_AND_FALL
            ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "own"}
            await rig.make_job("own", mode="Shadow", workload={"ref": ref})
            async with rig.operator():
                await eventually(lambda: rig.has_reason("own", "TerminationTarget", "Shadow"), 40)
                assert (await rig.workload("own"))["spec"]["suspend"] is False
                assert len(await rig.pods("own")) == 1

    asyncio.run(story())


def test_a_run_whose_job_went_while_nobody_looked_is_told_and_goes_on_when_its_user_says_so(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    # row 14
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
            await asyncio.to_thread(kubelet.finish, rig.namespace, "run")
            await delete_child(rig, "run")  # by a time to live, say
            async with rig.operator() as engine:
                await eventually(lambda: rig.has_reason("run", "Failed", "EndUnknown"), what="it to be told")
                await eventually(lambda: at_rest(engine), what="passes to become rare")
                assert await gone(rig, "run")
                await rig.patch("run", {"spec": {"resume": {"id": "1", "from": "Latest"}}})
                await eventually(lambda: rig.is_true("run", "Running"), 40, what="the resumed run")
                assert not await rig.is_true("run", "Failed")

    asyncio.run(story())


def test_a_stopped_run_that_somebody_starts_is_suspended_again(rig: Rig, kubelet: FakeKubelet) -> None:
    # row 15
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
                await rig.patch("run", {"spec": {"runState": "Stopped"}})
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), 40, what="the stop")
                found = await rig.workload("run")
                await rig.api.merge_patch(JOBS, "run", {"spec": {"suspend": False}}, rig.namespace)

                async def told() -> bool:  # the condition may be another one again by the time it is read
                    found = await rig.api.list(EVENTS, rig.namespace, fields="involvedObject.name=run")
                    return any(event["reason"] == "StartedAgain" for event in found[0])

                await eventually(told, what="it to be told")
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), 40, what="its GPUs to be free")
                assert (await rig.workload("run"))["spec"]["suspend"] is True
                assert (await rig.workload("run"))["metadata"]["uid"] == found["metadata"]["uid"]
                await eventually(lambda: at_rest(engine), what="passes to become rare")

    asyncio.run(story())


def test_a_run_whose_pods_live_on_without_its_job_is_not_resumed_beside_them(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """`kubectl delete job --cascade=orphan`: the real garbage collector takes the owner off the pods."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
                (old,) = await rig.pods("run")
                path = JOBS.path(rig.namespace, "run")
                kubelet.request("DELETE", path, {"propagationPolicy": "Orphan"})
                await eventually(lambda: gone(rig, "run"), what="the Job to be gone")
                await rig.patch("run", {"spec": {"resume": {"id": "1", "from": "Latest"}}})
                await eventually(
                    lambda: rig.has_reason("run", "Accepted", "OrphanedPods"), what="it to be told"
                )
                await eventually(lambda: at_rest(engine), what="passes to become rare")
                assert [pod["metadata"]["name"] for pod in await rig.pods("run")] == [old["metadata"]["name"]]
                told = await rig.condition("run", "Accepted")
                assert told is not None
                assert old["metadata"]["name"] in told[2]
                await rig.api.delete(PODS, old["metadata"]["name"], rig.namespace, old["metadata"]["uid"])
                await eventually(lambda: rig.is_true("run", "Running"), 40, what="the resumed run")
                (new,) = await rig.pods("run")
                assert new["metadata"]["uid"] != old["metadata"]["uid"]

    asyncio.run(story())


def test_a_run_that_somebody_scales_to_nothing_is_told_until_it_is_set_back(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
                await rig.api.merge_patch(JOBS, "run", {"spec": {"parallelism": 0}}, rig.namespace)
                await eventually(lambda: rig.has_reason("run", "Running", "ScaledByOthers"), what="it told")
                told = await rig.condition("run", "Running")
                assert told is not None
                assert "spec.parallelism is 0, expected 1 as in spec.gang.replicas" in told[2]

                async def event() -> bool:
                    found = await rig.api.list(EVENTS, rig.namespace, fields="involvedObject.name=run")
                    return any(event["reason"] == "ScaledByOthers" for event in found[0])

                await eventually(event, what="its Event")
                sizes = {"spec": {"completions": 1, "parallelism": 1}}  # as its cure does
                await rig.api.merge_patch(JOBS, "run", sizes, rig.namespace)
                await eventually(lambda: rig.is_true("run", "Running"), 40, what="it whole again")

    asyncio.run(story())


def test_a_pod_whose_label_somebody_took_away_is_named_until_it_is_set_back(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
                (pod,) = await rig.pods("run")
                name, label = pod["metadata"]["name"], names.LABEL_JOB
                await rig.api.merge_patch(PODS, name, {"metadata": {"labels": {label: None}}}, rig.namespace)

                async def named() -> bool:
                    told = await rig.condition("run", "MetricsAvailable")
                    return told is not None and f"pod {name} of Job run lacks label {label}=run" in told[2]

                await eventually(named, 40, what="the pod that nobody sees")
                await rig.api.merge_patch(PODS, name, {"metadata": {"labels": {label: "run"}}}, rig.namespace)
                await eventually(lambda: rig.is_true("run", "Running"), 40, what="it seen again")

                async def unnamed() -> bool:
                    return not await named()

                await eventually(unnamed, 40, what="nothing said of it any more")

    asyncio.run(story())
