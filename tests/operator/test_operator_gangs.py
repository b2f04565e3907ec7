"""Gang admission and holds on the real control plane: eight nodes of one GPU, and kube-scheduler itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api import values
from controller.kube.resources import GPUPOOLS, NODES
from controller.policy.job import pod_troubles
from controller.policy.job.marks import Mark, health
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet, pool_of_its_own
from tests.support.operator_rig import Recorder, Rig, eventually

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]
NODES_OF_POOL = 8


@pytest.fixture
def eight(plane: Plane) -> Iterator[FakeKubelet]:
    with pool_of_its_own(plane.client(), NODES_OF_POOL, gpus=1) as running:
        yield running


@pytest.fixture
def big(plane: Plane, installed: Path, namespace: str, eight: FakeKubelet) -> Rig:
    return Rig(plane.kubeconfig, installed, namespace, eight.pool)


async def bound(rig: Rig, name: str) -> set[str]:
    return {p["spec"]["nodeName"] for p in await rig.pods(name) if p["spec"].get("nodeName")}


def test_two_gangs_that_each_need_every_node_run_one_after_the_other(big: Rig, eight: FakeKubelet) -> None:
    async def story() -> None:
        async with big:
            await big.make_pool()
            await big.make_job("first", replicas=8, gpus=1)
            await big.make_job("second", replicas=8, gpus=1)
            async with big.operator():
                await eventually(lambda: big.is_true("first", "Running"), 40, "the first gang to run")
                await eventually(lambda: big.has_reason("second", "Admitted", "WaitingForGPUs"))
                assert len(await bound(big, "first")) == NODES_OF_POOL
                assert await big.pods("second") == [], "no member of the second may take up room"
                eight.finish(big.namespace, "first")
                await eventually(lambda: big.is_true("second", "Running"), 40, "the second gang to run")
                assert len(await bound(big, "second")) == NODES_OF_POOL
                for name in ("first", "second"):
                    assert (await big.record(name)).attempt == 1

    asyncio.run(story())


def test_many_gangs_at_once_all_run(big: Rig, eight: FakeKubelet) -> None:
    """Gangs of 3, 5 and 8: what fits together runs together, whole."""
    sizes = {"a": 5, "b": 3, "c": 8, "d": 3, "e": 3, "f": 5}

    async def all_done() -> bool:
        for name, size in sizes.items():
            record = await big.record(name)
            if record.finished is None:
                if await big.is_true(name, "Running"):
                    assert len(await bound(big, name)) == size, f"{name} runs, but not whole"
                    eight.finish(big.namespace, name)
                return False
        return True

    async def story() -> None:
        async with big:
            await big.make_pool()
            for name, size in sizes.items():
                await big.make_job(name, replicas=size, gpus=1)
            async with big.operator():
                await eventually(all_done, 90, "all gangs to have run")
            for name in sizes:
                assert (await big.record(name)).attempt == 1

    asyncio.run(story())


def test_a_gang_that_is_not_bound_whole_in_time_makes_room_for_the_next(big: Rig, eight: FakeKubelet) -> None:
    """Its own node selector rules one node out, of which the pool knows nothing: seven get a node."""

    async def label(count: int) -> None:
        for node in eight.nodes[:count]:
            await big.api.merge_patch(NODES, node, {"metadata": {"labels": {"good": "yes"}}})

    async def limit(seconds: int | None) -> None:
        await big.api.merge_patch(GPUPOOLS, eight.pool, {"spec": {"gangTimeoutSeconds": seconds}})

    async def all_but_one() -> bool:
        """Seven have nodes, as the operator sees it."""
        status = (await big.api.get(GPUPOOLS, eight.pool)).get("status") or {}
        return status.get("held") == 1

    async def timed_out() -> str:
        found = await big.condition("picky", "Admitted")
        return found[2] if found is not None and found[1] == "GangTimedOut" else ""

    async def backed_off() -> bool:
        return (await big.record("picky")).gang_backoff is not None

    async def story() -> None:
        async with big:
            await big.make_pool()
            await label(NODES_OF_POOL - 1)
            big.names(["picky"])
            template = big.template("picky", 8, 1)
            template["spec"]["template"]["spec"]["nodeSelector"] = {"good": "yes"}
            await big.make_job("picky", replicas=8, gpus=1, workload={"template": template})
            async with big.operator() as engine:
                await eventually(lambda: _count(bound(big, "picky"), 7), 40, "seven pods to have nodes")
                await eventually(all_but_one, 40, "the operator to know of seven")
                await big.make_job("next", replicas=8, gpus=1)
                eight.holding.set()  # the reason stands until its pods are gone
                await limit(3)  # not before: however long the seven took, they count
                told = await eventually(timed_out, 60, "its time-out")
                assert "1 of 8 pods had no node 3 s after the gang was admitted" in told
                await limit(None)  # the others have all the time they need
                eight.release()
                await eventually(backed_off, 60, "its pods to be gone")
                await eventually(lambda: big.is_true("next", "Running"), 40, "the next gang to run")
                assert await big.pods("picky") == [], "no partial placement is left"
                assert (await big.workload("picky"))["spec"]["suspend"] is True
                assert engine.metrics.gang_timeouts._value.get() == 1
                await label(NODES_OF_POOL)
                eight.finish(big.namespace, "next")
                await eventually(lambda: big.is_true("picky", "Running"), 40, "it to run after its back-off")
                record = await big.record("picky")
            assert record.gang_backoff is None
            assert record.attempt == 2
            pods = await big.pods("picky")
            assert {p["metadata"]["annotations"]["evalstop.dev/admission"] for p in pods} == {"2"}
            assert {p["metadata"]["labels"]["evalstop.dev/pool"] for p in pods} == {eight.pool}
            assert {p["spec"]["priorityClassName"] for p in pods} == {"evalstop-rlhf"}
            assert {p["spec"]["preemptionPolicy"] for p in pods} == {"Never"}

    asyncio.run(story())


async def _count(found: Awaitable[set[str]], number: int) -> bool:
    return len(await found) == number


def test_holds_are_written_before_the_suspend_and_end_when_the_next_is_bound(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(reservationSeconds=120)
            await rig.make_job("over", replicas=2)
            rig.scores["over"] = RISE_AND_FALL[:4]
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("over", "BestCheckpointSecured"))
                await rig.make_job("next", replicas=2)
                await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))
                seen = Recorder(engine)
                rig.scores["over"] = RISE_AND_FALL
                await eventually(lambda: rig.is_true("next", "Running"), 40, "the next job to run")
                await eventually(lambda: _handed_back(rig), 60, "the handover to be told whole")
                metrics = engine.metrics.text().decode()
                over = await rig.record("over")
                status = (await rig.api.get(GPUPOOLS, rig.pool_name))["status"]
            pool = f"/gpupools/{rig.pool_name}/status"
            held = seen.first(pool, lambda o: o["status"].get("reservations"))
            granted = seen.first("/rlhfjobs/over/status", lambda o: o["status"].get("decision"))
            suspended = seen.first("/jobs/over", lambda o: o["spec"].get("suspend"))
            admitted = seen.first("/rlhfjobs/next/status", lambda o: o["status"].get("admission"))
            assert held < granted < suspended < admitted
            (hold,) = next(o["status"]["reservations"] for v, _, o in seen.writes if v == held)
            assert hold["source"] == f"{rig.namespace}/over"
            assert hold["target"] == f"{rig.namespace}/next"
            assert sorted(hold["nodes"]) == sorted(f"{kubelet.pool}-{n}" for n in "ab")
            assert hold["admission"] == 1
            assert over.decision is not None
            assert 100 < values.seconds(hold["expires"]) - over.decision.at <= 120
            assert "reservations" not in status
            check_handover(status["lastHandovers"][-1], rig)
            for stage in ("secured", "retained", "suspended", "pods_gone", "handed", "running"):
                assert f'evalstop_handover_seconds_count{{stage="{stage}"}} 1.0' in metrics, stage

    asyncio.run(story())


def test_a_users_stop_announces_whose_the_gpus_will_be_before_it_suspends(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """Nothing is to be retained here, so the suspend would come at once."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("runs", replicas=2)
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("runs", "Running"))
                await rig.make_job("next", replicas=2)
                await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))
                seen = Recorder(engine)
                await rig.patch("runs", {"spec": {"runState": "Stopped"}})
                await eventually(lambda: rig.is_true("next", "Running"), 40, "the next job to run")
            decided = seen.first("/rlhfjobs/runs/status", lambda o: o["status"].get("decision"))
            held = seen.first(f"/gpupools/{rig.pool_name}/status", lambda o: o["status"].get("reservations"))
            suspended = seen.first("/jobs/runs", lambda o: o["spec"].get("suspend"))
            # The pool may plan with the decision a moment before it is written.
            assert max(decided, held) < suspended

    asyncio.run(story())


def test_a_gang_whose_template_no_node_matches_is_told_in_the_schedulers_words(
    rig: Rig, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_troubles, "UNPLACED_AFTER", 1.0)

    async def story() -> None:
        async with rig:
            await rig.make_pool(gangTimeoutSeconds=4)
            rig.names(["run"])
            template = rig.template("run", 1, 2)
            template["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "nvme"}
            await rig.make_job("run", workload={"template": template})
            async with rig.operator():

                async def told() -> bool:
                    marks = health(await rig.record("run"), time.time())
                    return any(
                        (one.mark, one.code) == (Mark.NOT_STARTING, "NodesDontMatch")
                        and "didn't match Pod's node affinity/selector" in one.message
                        for one in marks
                    )

                async def timed_out() -> bool:
                    status, reason, message = await rig.condition("run", "Admitted") or (True, "", "")
                    return (status, reason) == (False, "GangTimedOut") and "affinity/selector" in message

                await eventually(told, 40, what="the job to say so")
                await eventually(timed_out, 40, what="the end of the try to say so")

    asyncio.run(story())


async def _handed_back(rig: Rig) -> bool:
    status = (await rig.api.get(GPUPOOLS, rig.pool_name))["status"]
    return "runningTime" in (status.get("lastHandovers") or [{}])[-1] and "reservations" not in status


def check_handover(told: dict[str, Any], rig: Rig) -> None:
    assert (told["source"], told["target"]) == (f"{rig.namespace}/over", f"{rig.namespace}/next")
    assert (told["by"], told["gpus"]) == ("kDeclines", 4)
    stages = [values.seconds(told[f"{s}Time"]) for s in ("decided", "suspended", "podsGone", "running")]
    assert stages == sorted(stages)
    assert values.seconds(told["decidedTime"]) <= values.seconds(told["retainedTime"]) <= stages[1]


def test_a_gang_that_no_scheduler_serves_says_so_on_the_job_and_on_the_pool(
    rig: Rig, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_troubles, "UNSEEN_AFTER", 1.0)

    async def story() -> None:
        async with rig:
            await rig.make_pool(schedulerName="evalstop-schedulr")
            await rig.make_job("run")
            async with rig.operator():

                async def on_the_job() -> bool:
                    trouble = (await rig.record("run")).pod_trouble
                    return trouble is not None and "evalstop-schedulr" in trouble.message

                async def on_the_pool() -> bool:
                    status = (await rig.api.get(GPUPOOLS, rig.pool_name, None)).get("status") or {}
                    reasons = [one["reason"] for one in status.get("conditions") or ()]
                    return "NoScheduler" in reasons

                await eventually(on_the_job, 40, what="the job to say so")
                await eventually(on_the_pool, 40, what="the pool to say so")

    asyncio.run(story())
