"""The main story on the real control plane: queue, run, over-optimise, secure, retain, suspend, hand over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controller.kube.resources import CONFIGMAPS
from controller.policy.types import Mode
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import SETTINGS, CountingApi, Object, Response, Rig, eventually

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]


def test_an_over_optimising_run_is_stopped_and_its_gpus_go_to_the_one_that_waits(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("over", replicas=2)
            rig.scores["over"] = RISE_AND_FALL[:4]
            async with rig.operator():
                await eventually(lambda: rig.is_true("over", "Running"), what="the first job to run")
                await rig.make_job("next", replicas=2)
                await eventually(
                    lambda: rig.is_true("over", "BestCheckpointSecured"), what="the best secured"
                )
                await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))
                rig.scores["over"] = RISE_AND_FALL
                await eventually(lambda: rig.is_true("over", "GPUsReleased"), 40, what="the stop")
                await eventually(lambda: rig.is_true("next", "Running"), what="the next job to run")
                await eventually(lambda: rig.handed_to("over"), what="the hand-over to be noted")
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

    asyncio.run(story())


def test_nothing_is_written_while_nothing_changes(rig: Rig, kubelet: FakeKubelet) -> None:
    """A running, a waiting and a finished job; thirty scrapes and a full LIST later not one write more."""

    async def story() -> None:
        settings = replace(SETTINGS, relist_seconds=1.0, foreign_seconds=0.2)
        async with rig:
            await rig.make_pool()
            await rig.make_job("done")
            rig.scores["done"] = [1.0]
            async with rig.operator(settings) as engine:
                await eventually(lambda: rig.is_true("done", "Running"))
                kubelet.finish(rig.namespace, "done")
                await eventually(lambda: rig.is_true("done", "GPUsReleased"))
                await rig.make_job("runs", replicas=2)
                rig.scores["runs"] = [1.0, 2.0]
                await eventually(lambda: rig.is_true("runs", "BestCheckpointSecured"))
                await rig.make_job("waits", replicas=2)
                await eventually(lambda: rig.has_reason("waits", "Admitted", "WaitingForGPUs"))

                async def at_rest() -> bool:
                    known = len(rig.writes(engine))
                    await asyncio.sleep(1.5)
                    return len(rig.writes(engine)) == known

                await eventually(at_rest, what="all that was begun to be done")
                before, passes = rig.writes(engine), engine.metrics.passes.labels("job", "quiet")._value.get()
                scrapes = engine.metrics.scrapes.labels("Ok")._value.get()

                async def looked() -> bool:
                    quiet = engine.metrics.passes.labels("job", "quiet")._value.get()
                    return quiet > passes and engine.metrics.scrapes.labels("Ok")._value.get() > scrapes + 5

                engine.jobs.add(f"{rig.namespace}/waits")
                engine.jobs.add(f"{rig.namespace}/runs")
                engine.pools.add(rig.pool_name)
                await asyncio.sleep(3.0)
                await eventually(looked, what="passes and scrapes")
                assert rig.writes(engine)[len(before) :] == []

    asyncio.run(story())


def test_shadow_judges_and_touches_nothing(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("shadow", mode="Shadow")
            rig.scores["shadow"] = RISE_AND_FALL[:2]
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("shadow", "Running"))
                await eventually(lambda: rig.is_true("shadow", "MetricsAvailable"))
                await asyncio.sleep(0.3)
                before = len(rig.writes(engine))
                rig.scores["shadow"] = RISE_AND_FALL
                await eventually(lambda: rig.is_true("shadow", "QualityDeclining"))
                await asyncio.sleep(1.0)
                record = await rig.record("shadow")
                written = rig.writes(engine)[before:]
            assert written
            assert [w for w in written if not w.endswith("/status")] == []
            assert record.decision is not None
            assert record.decision.mode is Mode.SHADOW
            assert record.decision.proposal.best_step == 40
            assert not (await rig.workload("shadow"))["spec"]["suspend"]
            assert kubelet.store.asked == []

    asyncio.run(story())


def test_a_mode_cap_of_the_pool_keeps_an_enforcing_job_in_shadow(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(modeCap="Shadow")
            await rig.make_job("capped")
            rig.scores["capped"] = RISE_AND_FALL
            async with rig.operator():
                await eventually(lambda: rig.is_true("capped", "QualityDeclining"))
                record = await rig.record("capped")
            assert record.decision is not None
            assert record.decision.mode is Mode.SHADOW
            assert kubelet.store.asked == []

    asyncio.run(story())


def test_released_means_gone(rig: Rig, kubelet: FakeKubelet) -> None:
    """While a stopped job's pods are still terminating, nobody gets its GPUs."""
    left: list[list[Object]] = []  # of its pods, at each write of the other one's admission

    async def look(method: str, path: str, send: Callable[[], Awaitable[Response]]) -> Response:
        # Not by the times in both statuses: the pool may see pods gone a moment before their job's pass does.
        if not path.endswith("/rlhfjobs/next/status"):
            return await send()
        pods = await rig.pods("over")
        answer = await send()
        if answer[0] < 300 and "admission" in json.loads(answer[1])["status"]:
            left.append(pods)
        return answer

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("over", replicas=2)
            rig.scores["over"] = RISE_AND_FALL
            kubelet.holding.set()  # before the stop can begin
            async with rig.operator() as engine:
                assert isinstance(engine.api, CountingApi)
                engine.api.fault = look
                await eventually(lambda: rig.is_true("over", "BestCheckpointSecured"))
                await rig.make_job("next", replicas=2)
                await eventually(lambda: rig.has_reason("over", "GPUsReleased", "PodsTerminating"), 60)
                await asyncio.sleep(1.5)
                assert (await rig.record("next")).admission is None
                assert [p for p in await rig.pods("over") if p["metadata"].get("deletionTimestamp")]
                kubelet.release()
                await eventually(lambda: rig.is_true("next", "Running"))
            assert left[0] == [], "its pods were there when its GPUs were given away"

    asyncio.run(story())


def test_without_a_checkpoint_the_run_goes_on(rig: Rig, kubelet: FakeKubelet) -> None:
    """The best checkpoint was rotated away: no stop, a condition, and the operator keeps looking."""

    async def story() -> None:
        kubelet.store.steps = {10, 20}
        async with rig:
            await rig.make_pool()
            await rig.make_job("over")
            rig.scores["over"] = RISE_AND_FALL
            async with rig.operator():
                await eventually(
                    lambda: rig.has_reason("over", "TerminationTarget", "NoVerifiableCheckpoint")
                )
                await eventually(lambda: rig.has_reason("over", "BestCheckpointSecured", "CheckpointMissing"))
                assert not (await rig.workload("over"))["spec"]["suspend"]
                kubelet.store.steps = {10, 20, 30, 40}
                await eventually(lambda: rig.is_true("over", "GPUsReleased"), 40, what="the stop after all")
            assert kubelet.store.done("secure")[:2] == [40, 40]

    asyncio.run(story())


def test_a_user_stops_a_run_and_resumes_it_from_its_best(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.scores["run"] = RISE_AND_FALL[:5]
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "BestCheckpointSecured"))
                await rig.patch("run", {"spec": {"runState": "Stopped"}})
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), what="the stop")
                stopped = await rig.record("run")
                await rig.patch("run", {"spec": {"runState": "Run", "resume": {"id": "1", "from": "Best"}}})
                await eventually(lambda: rig.is_true("run", "Running"), what="the resumed run")
                resumed = await rig.record("run")
                child = await rig.workload("run")
                run = await rig.api.get(CONFIGMAPS, "run-run", rig.namespace)
            assert stopped.decision is not None
            assert stopped.decision.by == "User"
            assert stopped.retained[-1].step == 40
            assert kubelet.store.done("restore") == [40]
            assert resumed.attempt == 2
            written = json.loads(run["data"]["run.json"])
            assert written["attempt"] == 2
            assert written["resume"]["step"] == 40
            assert child["spec"]["template"]["metadata"]["annotations"]["evalstop.dev/admission"] == "2"

    asyncio.run(story())
