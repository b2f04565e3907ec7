"""What a pod mounts: the run file is made again if somebody deletes it; what else is missing is told."""

from __future__ import annotations

import asyncio

import pytest

from controller.kube.errors import NotFound
from controller.kube.resources import CONFIGMAPS, EVENTS
from controller.operator.state import event_looks
from controller.policy.job import ScrapeOutcome, ScrapeView, health
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

MOUNT = 'MountVolume.SetUp failed for volume "data" : configmap "prompts" not found'


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


def test_a_pod_that_cannot_mount_is_told_in_the_kubelets_words_and_never_as_a_wrong_port(
    rig: Rig, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody mounts anything here: status and Event are written as a kubelet writes them."""
    monkeypatch.setattr(event_looks, "FIRST", 0.5)
    monkeypatch.setattr(event_looks, "GRAIN", 0.2)
    creating = {"name": "trainer", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    creating["state"] = {"waiting": {"reason": "ContainerCreating"}}
    status = {"phase": "Pending", "podIP": kubelet.pod_ip, "containerStatuses": [creating]}
    run = kubelet._run
    monkeypatch.setattr(kubelet, "_run", lambda pod: kubelet._patch(pod, status))

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.outcome["run"] = ScrapeView(ScrapeOutcome.UNREACHABLE, "refused")
            async with rig.operator():
                await eventually(lambda: rig.has_reason("run", "MetricsAvailable", "NoPods"), what="no pod")
                (pod,) = await rig.pods("run")
                event = {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": "mount", "namespace": rig.namespace},
                    "type": "Warning",
                    "reason": "FailedMount",
                    "message": MOUNT,
                    "lastTimestamp": "2026-11-27T00:00:00Z",
                    "involvedObject": {
                        "kind": "Pod",
                        "name": pod["metadata"]["name"],
                        "namespace": rig.namespace,
                        "uid": pod["metadata"]["uid"],
                    },
                }
                await rig.api.create(EVENTS, event)

                async def told() -> bool:
                    marks = health(await rig.record("run"), 0.0)
                    assert "Unreachable" not in {one.reason for one in marks}
                    (waits,) = [one for one in marks if str(one.mark) == "NotStarting"] or [None]
                    return waits is not None and waits.code == "ObjectMissing" and MOUNT in waits.message

                await eventually(told, what="the kubelet's words")
                run(pod)
                await eventually(lambda: rig.is_true("run", "Running"), what="it to run")

                async def forgotten() -> bool:
                    return (await rig.record("run")).pod_trouble is None

                await eventually(forgotten, what="the trouble to be over")

    asyncio.run(story())
