"""A Job of an earlier RLHFJob of the same name whose deletion hangs, on the real control plane."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from controller.kube.errors import NotFound
from controller.kube.resources import JOBS, RLHFJOBS
from controller.operator.state.ownership import controlled_by
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually


def test_a_finalizer_on_an_earlier_job_is_told_until_that_job_is_gone(rig: Rig, kubelet: FakeKubelet) -> None:
    """The new run stayed New, as if no operator looked at it."""

    async def gone() -> bool:
        try:
            await rig.job("again")
        except NotFound:
            return True
        return False

    async def told() -> Any:
        found = await rig.condition("again", "Accepted")
        return found if found is not None and found[1] == "EarlierJobRemains" else None

    async def made_anew() -> bool:
        with contextlib.suppress(NotFound):
            child = await rig.workload("again")
            return controlled_by(child, (await rig.job("again"))["metadata"]["uid"])
        return False

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            first = await rig.make_job("again")
            async with rig.operator():
                await eventually(lambda: rig.is_true("again", "Running"), what="the first run")
                hold = {"metadata": {"finalizers": ["acme.io/audit"]}}
                await rig.api.merge_patch(JOBS, "again", hold, rig.namespace)
                uid = (await rig.workload("again"))["metadata"]["uid"]
                await rig.api.delete(RLHFJOBS, "again", rig.namespace, first["metadata"]["uid"])
                await eventually(gone, what="the first RLHFJob to be gone")
                with contextlib.suppress(NotFound):  # as the garbage collector does
                    await rig.api.delete(JOBS, "again", rig.namespace, uid)
                await rig.make_job("again")
                await asyncio.sleep(3.0)
                assert await rig.condition("again", "Accepted") is None, "an ordinary removal is not told"
                status, _, message = await eventually(told, 90, what="it to be told")
                assert not status
                assert "acme.io/audit" in message
                assert "its pods may hold GPUs and write to the checkpoint folder" in message
                assert await rig.is_true("again", "NeedsAttention")
                await rig.api.merge_patch(JOBS, "again", {"metadata": {"finalizers": None}}, rig.namespace)
                await eventually(made_anew, what="the new run's own Job")
                await eventually(lambda: rig.is_true("again", "Accepted"), what="it to be accepted")
                assert not await rig.is_true("again", "NeedsAttention")

    asyncio.run(story())
