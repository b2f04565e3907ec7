"""The run file of a run under way is the operator's: deleted by somebody, it is there again."""

from __future__ import annotations

import asyncio

from controller.kube.errors import NotFound
from controller.kube.resources import CONFIGMAPS, EVENTS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually


async def run_file(rig: Rig) -> dict:
    try:
        return await rig.api.get(CONFIGMAPS, "run-run", rig.namespace)
    except NotFound:
        return {}


def test_a_run_file_that_somebody_deleted_is_made_again_as_it_was(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), what="the run")
                before = await run_file(rig)
                uid = before["metadata"]["uid"]
                await rig.api.delete(CONFIGMAPS, "run-run", rig.namespace, uid)

                async def there_again() -> bool:
                    return (await run_file(rig)).get("metadata", {}).get("uid", uid) != uid

                await eventually(there_again, what="the run file to be made again")
                assert (await run_file(rig))["data"] == before["data"]

                async def told() -> bool:
                    events, _ = await rig.api.list(EVENTS, rig.namespace, fields="reason=RunFileGone")
                    return [event["type"] for event in events] == ["Warning"]

                await eventually(told, what="an Event")

    asyncio.run(story())
