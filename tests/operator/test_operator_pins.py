"""Pins on the real control plane: a user names steps, access Jobs secure them, the status says where."""

from __future__ import annotations

import asyncio

from controller.kube.resources import JOBS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually


def test_steps_that_a_user_names_are_secured_beside_the_best_and_let_go_with_the_next(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.scores["run"] = [1.0, 2.0, 3.0]
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "BestCheckpointSecured"), what="the best secured")
                await rig.patch("run", {"spec": {"checkpoints": {"pins": [10]}}})
                await eventually(lambda: rig.is_true("run", "CheckpointsPinned"), what="the pin")
                record = await rig.record("run")
                assert [kept.step for kept in record.pinned] == [10]
                assert record.secured is not None
                assert record.secured.step == 30
                await rig.patch("run", {"spec": {"checkpoints": {"pins": None}}})

                async def unwanted() -> bool:
                    return await rig.condition("run", "CheckpointsPinned") is None

                # A new best that is read before the new spec would be secured without letting go of the pin.
                await eventually(unwanted, what="the pin to be unwanted")
                rig.scores["run"] = [1.0, 2.0, 3.0, 4.0]

                async def let_go() -> bool:
                    found = await rig.record("run")
                    secured = found.secured is not None and found.secured.step == 40
                    return secured and not found.pinned and len(found.to_release) == 1  # that of step 30

                await eventually(let_go, what="the pin to go with the next best")

                async def deleted() -> bool:
                    jobs, _ = await rig.api.list(JOBS, rig.namespace, labels="evalstop.dev/component=access")
                    return not jobs

                # Its answer is written down before the Job goes.
                await eventually(deleted, what="access Jobs that were read to be deleted")
            released = [r["release"] for r in kubelet.store.asked if r["step"] == 40]
            assert released
            assert [path.rpartition("/")[2].rpartition("-")[2] for path in released[-1]] == ["10"]

    asyncio.run(story())
