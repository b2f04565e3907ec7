"""`retain: AfterSuspend` on the real control plane: the pin is checked, GPUs go, the copy follows."""

from __future__ import annotations

import asyncio

from test_operator_crash import RISE_AND_FALL, gone, retaining, rising, until_the_next_waits

from controller import names
from controller.kube.resources import RLHFJOBS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually


def test_the_next_job_runs_while_the_copy_is_made(rig: Rig, kubelet: FakeKubelet) -> None:
    async def owed() -> bool:
        return names.FINALIZER in ((await rig.job("over"))["metadata"].get("finalizers") or ())

    async def story() -> None:
        async with rig:
            await rising(rig)
            await rig.patch("over", {"spec": {"checkpoints": {"retain": "AfterSuspend"}}})
            async with rig.operator():
                await until_the_next_waits(rig)
                rig.scores["over"] = RISE_AND_FALL

                async def checked() -> bool:
                    decision = (await rig.record("over")).decision
                    return decision is not None and decision.deferred_at is not None

                await eventually(checked, what="the pin to be found unchanged")
                kubelet.slow_store.set()  # the copy, made after the suspend, does not end
                await eventually(lambda: retaining(rig), what="the copy to begin")
                await eventually(lambda: rig.is_true("next", "Running"), what="the next job to run")
                over = await rig.record("over")
                assert over.decision is not None
                assert over.decision.suspended_at is not None
                assert over.decision.retained_at is None
                assert not await rig.is_true("over", "BestCheckpointRetained")
                assert kubelet.store.done("check")
                assert not kubelet.store.done("retain")
                assert await owed()

                found = await rig.job("over")
                await rig.api.delete(RLHFJOBS, "over", rig.namespace, found["metadata"]["uid"])
                await asyncio.sleep(1.0)
                assert await owed(), "a deletion waits for the copy that is under way"
                kubelet.answer_late()
                await eventually(lambda: gone(rig, RLHFJOBS, "over"), what="the finalizer to go")
            assert kubelet.store.done("retain")

    asyncio.run(story())
