"""A stop that is taken back between grant and suspend: in one piece, whenever the operator dies."""

from __future__ import annotations

import asyncio

import pytest
from test_operator_crash import RISE_AND_FALL, retaining, up_to_the_decision

from controller import names
from controller.api import convert
from controller.api import fleet as fleet_status
from controller.kube.resources import EVENTS, GPUPOOLS, JOBS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually


async def went_on(rig: Rig) -> bool:
    """Nothing is left of the stop: no decision, hold, entry in the pool's budget, access Job or finalizer."""
    over = await rig.record("over")
    status = (await rig.api.get(GPUPOOLS, rig.pool_name)).get("status")
    jobs, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_OPERATION}=retain")
    finalizers = (await rig.job("over"))["metadata"].get("finalizers") or ()
    left = (
        over.decision is not None and over.decision.mode == "Enforce",
        over.taken_back is None,
        convert.reservations(status),
        fleet_status.stops(status).granted,
        convert.handovers(status),
        jobs,
        names.FINALIZER in finalizers,
    )
    return not any(left)


async def granted(rig: Rig, kubelet: FakeKubelet) -> None:
    """The stop of `over` is granted, its copy is under way and does not end; the operator has ended."""
    await up_to_the_decision(rig)
    kubelet.slow_store.set()
    async with rig.operator():
        await eventually(lambda: retaining(rig), what="the copy to begin")
    over = await rig.record("over")
    assert over.decision is not None
    assert convert.reservations((await rig.api.get(GPUPOOLS, rig.pool_name)).get("status"))


async def check_that_it_runs(rig: Rig) -> None:
    assert not (await rig.workload("over"))["spec"]["suspend"]
    assert len(await rig.pods("over")) == 2
    assert (await rig.record("over")).attempt == 1
    assert (await rig.record("next")).admission is None


def test_a_run_that_rises_again_is_not_stopped(rig: Rig, kubelet: FakeKubelet) -> None:
    # row 5
    async def story() -> None:
        async with rig:
            await granted(rig, kubelet)
            rig.scores["over"] = [*RISE_AND_FALL, 9.0]
            async with rig.operator():
                await eventually(lambda: went_on(rig), what="the stop to be taken back")
                kubelet.answer_late()
                await eventually(lambda: rig.has_reason("over", "TerminationTarget", "NoLongerDeclining"))
                await check_that_it_runs(rig)

                async def pinned() -> bool:
                    secured = (await rig.record("over")).secured
                    return secured is not None and secured.best_step == 80

                await eventually(pinned, what="the new best to be pinned")
            events, _ = await rig.api.list(EVENTS, rig.namespace)
            assert "StopTakenBack" in {e["reason"] for e in events}

    asyncio.run(story())


@pytest.mark.timeout(900)
def test_killed_before_and_after_every_write_of_it(rig: Rig, kubelet: FakeKubelet) -> None:
    """Each life of the operator does one write and dies right before it or right after it took effect."""

    async def story() -> None:
        async with rig:
            await granted(rig, kubelet)
            await rig.patch("over", {"spec": {"mode": "Shadow"}})
            died: list[str] = []
            while True:
                write = await rig.live_until_crash(1, len(died) % 2 == 1, lambda: went_on(rig))
                if write is None:
                    break
                died.append(write)
                assert not (await rig.workload("over"))["spec"]["suspend"], died
                assert (await rig.record("next")).admission is None, "admitted by a hold"
                assert len(died) < 40, died
            await check_that_it_runs(rig)
            assert any(w.endswith("/rlhfjobs/over/status") for w in died)
            assert any("DELETE" in w for w in died), "the copy is given up"

    asyncio.run(story())
