"""Preemptive policies on the real control plane: suspended at a checkpoint, resumed, charged, explained."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from controller.api.gpupool import GPUPool
from controller.kube.packed import Plain
from controller.kube.resources import CONFIGMAPS
from controller.operator.reconcile.planned_job import full_plan
from controller.operator.state.job_snapshot import JobSnapshot
from controller.policy.job.record import AdmissionRecord, JobRecord
from controller.policy.job.types import Desired, Observed, Plan
from controller.policy.types import JobState, Mode, PolicySpec
from controller.web.app import ROOT
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually, trainer

# A run leaves the first queue after half a second on its four GPUs.
LAS = {"firstThreshold": "2", "secondThreshold": "1e9"}


async def request(rig: Rig, name: str) -> dict[str, Any]:
    found = await rig.api.get(CONFIGMAPS, f"{name}-run", rig.namespace)
    return dict(json.loads(found["data"]["run.json"])["request"])


async def asked_for_checkpoint(rig: Rig) -> bool:
    return (await request(rig, "long"))["checkpoint"] is True


async def long_runs(rig: Rig, variant: str = "Plain") -> None:
    """`long` holds all GPUs and is in the second queue; `short`, all GPUs too, is about to come."""
    await rig.make_pool(queuePolicy={"las": {**LAS, "variant": variant}})
    rig.outcome["long"] = trainer(50, 40, served=0)
    await rig.make_job("long", replicas=2)
    async with rig.operator():
        await eventually(lambda: rig.is_true("long", "Running"), what="the first job to run")
        await eventually(lambda: has_progress(rig, 50), what="its progress to be noted")
    await rig.make_job("short", replicas=2)


async def has_progress(rig: Rig, step: int) -> bool:
    progress = (await rig.record("long")).progress
    return progress is not None and progress.step == step


async def short_runs(rig: Rig) -> bool:
    """The trainer serves the request, and `short` gets the GPUs."""
    record = await rig.record("long")
    if record.preempting is not None and await asked_for_checkpoint(rig):
        rig.outcome["long"] = trainer(55, 55, served=(await request(rig, "long"))["id"])
    return await rig.is_true("short", "Running")


async def over(rig: Rig, kubelet: FakeKubelet) -> bool:
    """`short` ends, and `long` runs again."""
    record = await rig.record("long")
    if await rig.is_true("short", "Running"):
        kubelet.finish(rig.namespace, "short")
    if record.attempt == 2:
        rig.outcome["long"] = trainer(56, 55, served=record.run.request_id, resumed=55)
    ended = (await rig.record("short")).finished is not None
    return ended and record.attempt == 2 and await rig.is_true("long", "Running")


async def check_the_end(rig: Rig) -> None:
    long_, short = await rig.record("long"), await rig.record("short")
    assert (long_.attempt, long_.preemptions, long_.preempting) == (2, 1, None)
    assert long_.lost == 0.0
    assert long_.queued_at is not None
    assert long_.attained > 2.0
    assert (short.attempt, short.finished) == (1, "Complete")
    wanted = await request(rig, "long")
    assert (wanted["checkpoint"], wanted["stop"]) == (False, False)
    assert len(await rig.pods("long")) == 2


@pytest.mark.parametrize("variant", ["Plain", "Tiresias"])
def test_las_suspends_at_the_next_checkpoint_and_the_run_goes_on_later(
    rig: Rig, kubelet: FakeKubelet, variant: str
) -> None:
    async def story() -> None:
        async with rig:
            await long_runs(rig, variant)
            async with rig.operator():
                await eventually(lambda: asked_for_checkpoint(rig), what="a checkpoint to be asked for")
                await eventually(lambda: rig.has_reason("long", "Admitted", "Preempting"))
                assert (await rig.workload("long"))["spec"]["suspend"] is False, (
                    "it goes on until it has saved"
                )
                rig.outcome["long"] = trainer(55, 55, served=1)
                await eventually(lambda: rig.is_true("short", "Running"), what="the short job to run")

                async def back_in_line() -> bool:
                    return await rig.reason("long", "Admitted") in ("Queued", "WaitingForGPUs")

                # Its pool sees by itself that its pods are gone; its own record may say so later.
                await eventually(back_in_line, what="the long one to be back in line")
                await eventually(lambda: over(rig, kubelet), 40, what="the long job to go on")
            await check_the_end(rig)
            # Only this variant's order is no function of what else is known of a job.
            assert bool((await rig.record("long")).queue_policy_state) == (variant == "Tiresias")

    asyncio.run(story())


def test_an_operator_that_dies_after_every_write_comes_to_the_same_end(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await long_runs(rig)
            died: list[str] = []
            while True:
                # Right after one write is right before the next: what is on record is the same.
                write = await rig.live_until_crash(1, True, lambda: short_runs(rig))
                if write is None:
                    break
                died.append(write)
                assert len(died) < 60, died
            async with rig.operator():
                await eventually(lambda: over(rig, kubelet), 40, what="the long job to go on")
            await check_the_end(rig)
            suspends = [w for w in died if w.startswith("PATCH") and w.endswith("/jobs/long")]
            assert suspends, f"never died around the suspension: {died}"

    asyncio.run(story())


async def ask(port: int, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.json()


def test_estimates_preempt_after_the_grace_and_the_queue_is_told(rig: Rig, kubelet: FakeKubelet) -> None:
    """srtfEst goes by what users state where there is no history; work that is not saved is lost."""

    async def story() -> None:
        async with rig:
            await rig.make_pool(queuePolicy={"srtfEst": {}}, preemption={"graceSeconds": 1})
            rig.outcome["long"] = replace(trainer(10, 4), total_steps=None)
            await rig.make_job("long", replicas=2, expectedDurationSeconds=90_000)
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("long", "Running"))
                await rig.make_job("short", replicas=2, expectedDurationSeconds=60)
                await eventually(lambda: rig.is_true("short", "Running"), what="the short job to run")

                async def back_in_line() -> bool:
                    return (await rig.record("long")).preemptions == 1

                # Its pool sees by itself that its pods are gone; its own record may say so later.
                await eventually(back_in_line, what="the long one to be back in line")
                long_ = await rig.record("long")
                assert (long_.preemptions, long_.attempt) == (1, 1)
                # Six of its ten steps were in no checkpoint; it ran on for its second of grace at least.
                assert 0.6 * 4 * 1.0 <= long_.lost <= 0.6 * long_.attained
                await rig.make_job("middle", replicas=2, expectedDurationSeconds=6000)
                path = f"{ROOT}/{rig.pool_name}/queue"

                async def in_order() -> bool:
                    _, queue = await ask(engine.web.port, path)
                    jobs = [item["job"].partition("/")[2] for item in queue.get("items", ())]
                    return jobs == ["middle", "long"]

                await eventually(in_order, what="both to be in the queue")
                status, found = await ask(engine.web.port, f"{path}/{rig.namespace}/long")
                assert (status, found["position"], found["state"]) == (200, 2, "Queued")
                assert 80_000 < found["key"]["remainingSeconds"] <= 90_000
                assert (await ask(engine.web.port, f"{ROOT}/none/queue"))[0] == 404
            assert "position" not in json.dumps((await rig.job("long"))["status"])

    asyncio.run(story())


def test_srtf_refuses_a_job_whose_duration_nobody_states(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(queuePolicy={"srtf": {}})
            await rig.make_job("job")
            async with rig.operator():
                await eventually(lambda: rig.has_reason("job", "Accepted", "DurationMissing"))
                found = await rig.condition("job", "Accepted")
                assert found is not None
                assert "spec.expectedDurationSeconds: not set" in found[2]
                await rig.patch("job", {"spec": {"expectedDurationSeconds": 60}})
                await eventually(lambda: rig.is_true("job", "Running"))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("cap", "mode", "ref", "may"),
    [
        (Mode.ENFORCE, Mode.ENFORCE, "", True),
        (Mode.ENFORCE, Mode.OFF, "", True),  # its stops are not judged, its place in the queue is
        (Mode.ENFORCE, Mode.ENFORCE, "batch/v1 Job x", True),
        (Mode.ENFORCE, Mode.SHADOW, "batch/v1 Job x", False),  # somebody else made and started it
        (Mode.SHADOW, Mode.SHADOW, "", False),
        (Mode.OFF, Mode.OFF, "", False),
    ],
)
def test_how_far_a_pool_may_go_is_heeded_by_preemption(cap: Mode, mode: Mode, ref: str, may: bool) -> None:
    desired = Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("kDeclines"), mode=mode, workload_ref=ref)
    record = JobRecord(admission=AdmissionRecord(1, ("n",), 1.0))
    spec = {
        "nodeSelector": [{"key": "a"}],
        "allowedNamespaces": [{"name": "*", "weight": 3}],
        "modeCap": str(cap),
    }
    pool = GPUPool.model_validate(
        {"apiVersion": "evalstop.dev/v1alpha1", "kind": "GPUPool", "metadata": {"name": "p"}, "spec": spec}
    )
    stored = Plain({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "1"}, "spec": {}})
    loaded = JobSnapshot("ns/a", stored, pool, desired, Observed(), record, None, ())
    view = full_plan(loaded, Plan(record, queue=JobState.ADMITTED), 5.0).planned_job.view
    assert view is not None
    assert (view.preemptible, view.weight) == (may, 3.0)


@pytest.mark.parametrize("moved", [False, True])
def test_a_job_that_stands_as_before_keeps_the_view_that_its_pool_has(moved: bool) -> None:
    """Of thousands that train, then, there is one view each; what they have worked is reckoned anew."""
    desired = Desired("ns/a", "u", 1, "gold", 1, 2, PolicySpec("kDeclines"))
    record = JobRecord(admission=AdmissionRecord(1, ("n",), 1.0, running_since=1.0))
    stored = Plain({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "1"}, "spec": {}})
    loaded = JobSnapshot("ns/a", stored, None, desired, Observed(), record, None, ())
    before = full_plan(loaded, Plan(record, queue=JobState.ADMITTED), 5.0).planned_job
    shown = before.view_at(7.0)
    after = full_plan(
        loaded, Plan(record, queue=JobState.STOPPING if moved else JobState.ADMITTED), 9.0
    ).planned_job
    made = after.view
    after.share_view(before)
    assert after.view is (made if moved else shown)
    assert shown is not None
    assert shown.attained == 2 * 6.0
    asked = after.view_at(11.0)
    assert asked is not None
    assert asked.attained == 2 * 10.0
    assert asked is after.view, "and the one before is let go of"
    assert asked.state is (JobState.STOPPING if moved else JobState.ADMITTED)
