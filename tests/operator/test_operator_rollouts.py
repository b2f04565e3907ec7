"""Rollout actors on a real control plane: entries before Jobs, few writes, one recall for a gang, released
means that actors are gone too; killed at any moment."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller import names
from controller.kube.resources import GPUPOOLS, JOBS, PODS
from controller.operator.engine import Engine
from controller.operator.process.settings import Settings
from controller.operator.state.cluster import StepWants
from controller.policy.job import StepPlan
from controller.web.certificates import issue_server, make_authority
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import SETTINGS, CountingApi, Object, Response, Rig, eventually

ENGINE = {"name": "engine", "image": "engine:1", "resources": {"limits": {names.GPU_RESOURCE: "1"}}}
ROLLOUT = {
    "template": {"spec": {"containers": [ENGINE]}},
    "gpusPerActor": 1,
    "actors": {"min": 1, "max": 3, "static": 1},
}
WANTS_THREE = StepWants(StepPlan(1, 3, "LongestFirst", "Planned", "three", 20.0, 60.0), generating=True)
NEXT = StepWants(StepPlan(2, 3, "LongestFirst", "Planned", "three", 20.0, 60.0), generating=True)


@pytest.fixture
def serving(tmp_path: Path) -> Settings:
    """Settings of an operator that serves steps."""
    authority = make_authority(datetime.now(UTC))
    pair = issue_server(authority, ["127.0.0.1"], datetime.now(UTC))
    (tmp_path / "tls.crt").write_text(pair.certificate)
    (tmp_path / "tls.key").write_text(pair.key)
    return replace(
        SETTINGS,
        steps_host="127.0.0.1",
        steps_port=0,
        steps_certificate=str(tmp_path / "tls.crt"),
        steps_key=str(tmp_path / "tls.key"),
        steps_urls="https://127.0.0.1:1",
    )


class Steps:
    """What a job's steps want, said by the test in the place of the step API."""

    def __init__(self) -> None:
        self.wants = StepWants()
        self._engine: Engine | None = None

    def speak(self, engine: Engine) -> Engine:
        """Answer this operator from now on."""
        own = engine.cluster.wants
        engine.cluster.wants = lambda uid: replace(self.wants, going=own(uid).going, bound=own(uid).bound)
        self._engine = engine
        return engine

    def want(self, key: str, wants: StepWants) -> None:
        self.wants = wants
        assert self._engine is not None
        self._engine.cluster.touch(key)


async def actor_pods(rig: Rig) -> list[Object]:
    found, _ = await rig.api.list(PODS, rig.namespace, labels=f"{names.LABEL_COMPONENT}=actor")
    return [pod for pod in found if pod["status"].get("phase") == "Running"]


async def entries(rig: Rig, name: str = "run") -> dict[int, str]:
    """Nodes of a job's entries, by number."""
    return {actor.number: actor.node for actor in (await rig.record(name)).actors}


async def no_pod_without_an_entry(rig: Rig) -> None:
    jobs, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_COMPONENT}=actor")
    known = await entries(rig)
    assert {int(job["metadata"]["labels"][names.LABEL_ACTOR]) for job in jobs} <= known.keys()
    used: Counter[str] = Counter()
    for pod in (await rig.api.list(PODS, rig.namespace))[0]:
        if pod["spec"].get("nodeName") and pod["status"].get("phase") in ("Pending", "Running"):
            limits = pod["spec"]["containers"][0]["resources"]["limits"]
            used[pod["spec"]["nodeName"]] += int(limits[names.GPU_RESOURCE])
    assert max(used.values(), default=0) <= 2


def test_actors_of_a_step(rig: Rig, kubelet: FakeKubelet, serving: Settings) -> None:
    made: list[bool] = []  # of each actor's Job: whether its entry was there
    kept: list[str] = []  # for whom the pool kept recalled GPUs, by each of its writes

    async def look(method: str, path: str, send: Callable[[], Awaitable[Response]]) -> Response:
        answer = await send()
        if method == "POST" and path.endswith("/jobs") and answer[0] < 300:
            labels = json.loads(answer[1])["metadata"]["labels"]
            if labels[names.LABEL_COMPONENT] == "actor":
                made.append(int(labels[names.LABEL_ACTOR]) in await entries(rig))
        if path.endswith(f"/gpupools/{rig.pool_name}/status") and answer[0] < 300:
            recalled = json.loads(answer[1])["status"].get("recalled", ())
            kept.extend(one["target"] for one in recalled)
        return answer

    def written(engine: Engine, since: int) -> Counter[str]:
        """Writes about the job and its actors, but for the pool's own status."""
        found = rig.writes(engine)[since:]
        return Counter(
            "status" if line.endswith("/rlhfjobs/run/status") else line.split()[0]
            for line in found
            if "gpupools" not in line and "/next" not in line
        )

    async def story() -> None:
        steps = Steps()
        async with rig:
            await rig.make_pool(lending={"recallSeconds": 1})
            await rig.make_job("run", gpus=1, mode="Off", rollout=ROLLOUT)
            async with rig.operator(serving) as engine:
                assert isinstance(engine.api, CountingApi)
                engine.api.fault = look
                steps.speak(engine)
                await eventually(lambda: rig.is_true("run", "Running"), what="the gang to run")
                await eventually(lambda: _count(rig, 1), what="its base actor")
                assert list(await entries(rig)) == [0]
                await asyncio.sleep(0.5)
                before = len(rig.writes(engine))
                # A step that wants three: its plan, entries, Jobs.
                steps.want(f"{rig.namespace}/run", WANTS_THREE)
                await eventually(lambda: _count(rig, 3), what="spare actors")
                await asyncio.sleep(0.5)
                found = written(engine, before)
                assert found["POST"] == 2
                assert found["status"] <= 1 + 2, found
                # Two of them have nothing more to do: each is deleted, and its entry ends.
                before = len(rig.writes(engine))
                steps.want(f"{rig.namespace}/run", replace(WANTS_THREE, released=(0, 2)))
                await eventually(lambda: _has(rig, {1}), what="two to be let go")
                found = written(engine, before)
                assert found["DELETE"] == 2
                assert found["status"] <= 2, found
                await eventually(
                    lambda: _pool_says(rig, 1), what="the pool to say that one is left, none lent"
                )
                # The next step wants three again, and then a gang comes that needs a GPU.
                steps.want(f"{rig.namespace}/run", NEXT)
                await eventually(lambda: _count(rig, 3), what="three again")
                assert set(await entries(rig)) == {1, 3, 4}
                await rig.make_job("next", gpus=1, mode="Off")
                await eventually(lambda: rig.is_true("next", "Running"), what="the gang after one recall")
                record = await rig.record("run")
                assert record.preemptions == 0
                assert len(record.actors) == 2
                assert record.rollout is not None
                assert record.rollout.failed == 0
                await no_pod_without_an_entry(rig)
                # A stop ends gang and actors; released means all gone.
                kubelet.holding.set()
                await rig.patch("run", {"spec": {"runState": "Stopped"}})
                await eventually(lambda: _deleted(rig, 2), what="its actors to be deleted")
                await asyncio.sleep(0.5)
                assert not await rig.is_true("run", "GPUsReleased")
                kubelet.release()
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), what="all of it to be gone")
                assert await entries(rig) == {}
                assert await actor_pods(rig) == []
            assert len(made) == 1 + 2 + 2
            assert all(made), "an entry is written before its Job is made"
            assert {*kept} == {f"{rig.namespace}/next"}, "recalled GPUs are kept for whom they were recalled"

    asyncio.run(story())


async def _pool_says(rig: Rig, actors: int) -> bool:
    """Whether the pool's status, which its own pass writes, tells of so many actors, none of them lent."""
    status = (await rig.api.get(GPUPOOLS, rig.pool_name))["status"]
    return bool(status.get("actors") == actors and not status.get("lent"))


async def _count(rig: Rig, count: int) -> bool:
    return len(await actor_pods(rig)) == count and len(await entries(rig)) == count


async def _has(rig: Rig, numbers: set[int]) -> bool:
    return set(await entries(rig)) == numbers


async def _deleted(rig: Rig, count: int) -> bool:
    return sum(1 for pod in await actor_pods(rig) if pod["metadata"].get("deletionTimestamp")) == count


def test_without_a_step_api_it_is_refused_and_says_so(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run", gpus=1, mode="Off", rollout=ROLLOUT)
            async with rig.operator():
                await eventually(lambda: rig.has_reason("run", "Accepted", "StepsNotServed"))
            assert await entries(rig) == {}

    asyncio.run(story())


def test_an_actor_that_no_node_holds_is_refused(rig: Rig, kubelet: FakeKubelet, serving: Settings) -> None:
    large = {**ENGINE, "resources": {"limits": {names.GPU_RESOURCE: "4"}}}
    asked = {**ROLLOUT, "template": {"spec": {"containers": [large]}}, "gpusPerActor": 4}

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run", gpus=1, mode="Off", rollout=asked)
            await rig.make_job("none", gpus=1, mode="Off", rollout={**ROLLOUT, "gpusPerActor": 2})
            async with rig.operator(serving):
                await eventually(lambda: rig.has_reason("run", "Accepted", "ActorTooLarge"))
                await eventually(lambda: rig.has_reason("none", "Accepted", "ActorGPUsMismatch"))
                found = await rig.condition("run", "Accepted")
            assert found is not None
            assert "spec.rollout.gpusPerActor: 4 is more than the 2 GPUs of the largest node" in found[2]

    asyncio.run(story())


@pytest.mark.timeout(600)  # some twenty lives
def test_killed_at_every_write(
    rig: Rig, kubelet: FakeKubelet, serving: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each life dies before or after its second write took effect; never is there a pod without an
    entry, nor a GPU given twice."""
    steps, engine_of = Steps(), rig.engine
    monkeypatch.setattr(rig, "engine", lambda: steps.speak(engine_of(serving)))

    async def story() -> None:
        stopped = False

        async def done() -> bool:
            nonlocal stopped
            if steps.wants.planned is None and await rig.is_true("run", "Running"):
                steps.want(f"{rig.namespace}/run", WANTS_THREE)
            if not stopped:
                if not await _count(rig, 3):
                    return False
                await rig.patch("run", {"spec": {"runState": "Stopped"}})
                stopped = True
            return await rig.is_true("run", "GPUsReleased") and await entries(rig) == {}

        async with rig:
            await rig.make_pool(lending={"recallSeconds": 1})
            await rig.make_job("run", gpus=1, mode="Off", rollout=ROLLOUT)
            lives, died = 0, list[str]()
            while (write := await rig.live_until_crash(2, lives % 2 == 1, done)) is not None:
                lives += 1
                died.append(write)
                await no_pod_without_an_entry(rig)
                assert lives < 60, died
            assert lives > 10, died
            assert await actor_pods(rig) == []
            record = await rig.record("run")
            assert record.actor_starts == 3, "each entry had one Job, however often it was begun"

    asyncio.run(story())
