"""The main story on the real control plane: queue, run, over-optimise, secure, retain, suspend, hand over."""

from __future__ import annotations

import asyncio

from fake_kubelet import FakeKubelet
from operator_rig import Rig, eventually

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]


def test_an_over_optimising_run_is_stopped_and_its_gpus_go_to_the_one_that_waits(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("over", replicas=2)
            rig.scores["over"] = RISE_AND_FALL[:4]
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("over", "Running"), what="the first job to run")
                await rig.make_job("next", replicas=2)
                await eventually(
                    lambda: rig.is_true("over", "BestCheckpointSecured"), what="the best secured"
                )
                assert await rig.reason("next", "Admitted") == "WaitingForGPUs"
                rig.scores["over"] = RISE_AND_FALL
                await eventually(lambda: rig.is_true("over", "GPUsReleased"), 40, what="the stop")
                await eventually(lambda: rig.is_true("next", "Running"), what="the next job to run")
                over, following = await rig.record("over"), await rig.record("next")
            decision = over.decision
            assert decision is not None
            assert (decision.proposal.best_step, decision.proposal.step) == (40, 70)
            assert decision.handed_to == f"{rig.namespace}/next"
            assert following.admission is not None
            assert following.admission.source == f"{rig.namespace}/over"
            assert over.retained[-1].step == 40
            stages = [decision.at, decision.retained_at, decision.suspended_at, decision.pods_gone_at]
            assert stages == sorted(stages)
            assert decision.handed_at >= decision.pods_gone_at
            assert kubelet.store.done("secure") == [40]
            assert kubelet.store.done("retain") == [40]
            assert not await rig.pods("over")
            del engine

    asyncio.run(story())
