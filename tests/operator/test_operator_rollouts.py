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
from controller.kube.resources import CONFIGMAPS, EVENTS, GPUPOOLS, JOBS, PODS
from controller.operator import step_api
from controller.operator.engine import Engine
from controller.operator.process.settings import Settings
from controller.policy.job import RolloutView, StepPlan, starvation
from controller.policy.rollout import Forecast
from controller.steps.sessions import Session
from controller.steps.wire import Announcement, Ended, Registered
from controller.web.certificates import issue_server, make_authority
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import SETTINGS, CountingApi, Object, Response, Rig, eventually

ENGINE = {"name": "engine", "image": "engine:1", "resources": {"limits": {names.GPU_RESOURCE: "1"}}}
ROLLOUT = {
    "template": {"spec": {"containers": [ENGINE]}},
    "gpusPerActor": 1,
    "actors": {"min": 1, "max": 3, "static": 1},
}
WANTS_THREE = RolloutView((), StepPlan(1, 3, "LongestFirst", "Planned", "three", 20.0, 60.0), generating=True)
NEXT = RolloutView((), StepPlan(2, 3, "LongestFirst", "Planned", "three", 20.0, 60.0), generating=True)


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
        self.wants = RolloutView()
        self._engine: Engine | None = None

    def speak(self, engine: Engine) -> Engine:
        """Answer this operator from now on."""
        own = engine.cluster.wants
        engine.cluster.wants = lambda uid: replace(self.wants, going=own(uid).going, bound=own(uid).bound)
        self._engine = engine
        return engine

    def want(self, key: str, wants: RolloutView) -> None:
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


def test_a_starving_trainer_goes_back_into_the_queue(
    rig: Rig, kubelet: FakeKubelet, serving: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Job allows no failure; it ends with no GPU held, and starts again after its pause."""
    monkeypatch.setattr(starvation, "FIRST", 3.0)

    async def waits() -> bool:
        return await rig.has_reason("run", "Running", "RolloutStarved")

    async def story() -> None:
        async with rig:
            await rig.make_pool(lending={"recallSeconds": 1})
            rig.names(["run"])
            template = rig.template("run", 1, 1)
            template["spec"]["backoffLimit"] = 0
            await rig.make_job("run", gpus=1, mode="Off", rollout=ROLLOUT, workload={"template": template})
            async with rig.operator(serving):
                await eventually(lambda: _count(rig, 1), what="its base actor")
                await eventually(lambda: rig.is_true("run", "Running"), what="the gang to run")
                kubelet.finish(rig.namespace, "run", "Failed", code=names.EXIT_STARVED)
                await eventually(waits, what="it to wait again")
                record = await rig.record("run")
                assert record.admission is None
                assert record.gang_backoff is not None
                assert (record.actors, record.preemptions, record.finished) == ((), 0, None)
                assert record.rollout is not None
                assert record.rollout.starved == 1
                assert not await rig.is_true("run", "Failed")
                await eventually(lambda: rig.is_true("run", "Running"), what="it to run again")
                record = await rig.record("run")
                assert record.admission is not None
                assert record.admission.number == 2
                assert await _count(rig, 1)
            events, _ = await rig.api.list(EVENTS, rig.namespace)
            told = [e["message"] for e in events if e["reason"] == "RolloutStarved"]
            assert len(told) == 1
            assert "is tried again after 3 s" in told[0]

    asyncio.run(story())


def test_shadow_keeps_static_actors_and_counts_what_it_would_have_saved(
    rig: Rig, kubelet: FakeKubelet, serving: Settings
) -> None:
    """Its steps go through the step API's own sessions and planner. Its actors' Jobs are seen later than
    their pods: that is no reason to start others."""
    asked = {**ROLLOUT, "mode": "Shadow", "actors": {"min": 1, "max": 3, "static": 2}}
    short = Forecast(((2.0, 1),), 1, 0.2, 64)  # one actor is enough, and for a moment

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run", gpus=1, mode="Off", rollout=asked)
            async with rig.operator(serving) as engine:
                assert engine.steps is not None
                jobs, engine.cluster.actor_jobs = engine.cluster.actor_jobs, lambda *_: []
                await eventually(lambda: rig.is_true("run", "Running"), what="the gang to run")
                await eventually(lambda: _pods_seen(engine, rig, 2), what="its static actors' pods")
                await eventually(lambda: _pool_says(rig, 2), what="a pass of the pool after that")
                engine.cluster.actor_jobs = jobs
                engine.cluster.touch(f"{rig.namespace}/run")
                await eventually(lambda: _count(rig, 2), what="its static actors, admitted with the gang")
                before = {pod["metadata"]["uid"] for pod in await actor_pods(rig)}
                uid = (await rig.job("run"))["metadata"]["uid"]
                await eventually(lambda: _knows(engine, uid, 2), what="the step API to know them")
                job = engine.rollouts.job(uid)
                assert job is not None
                session = engine.steps.sessions.of(job)
                for number, actor in engine.rollouts.actors(uid).items():
                    session.register(job, number, actor.pod, Registered("127.0.0.1:1", "a" * 64, 4, None))
                for step in (1, 2, 3):
                    session.announce(job, Announcement(step, 0.0, short))
                    await eventually(lambda step=step: _both(session, step), what="both plans")
                    session.begin(job, step)
                    session.end(job, Ended(step, 0.5, 2, 0.9, short, {}, {}))
                await eventually(lambda: _saved(rig), what="the account to be in the status")
                account = (await rig.record("run")).rollout
                assert account is not None
                assert account.plan is not None
                assert account.plan.actors == 2, "the static count, whatever would be cheaper"
                assert account.measured is not None
                assert account.measured.would_take is not None
                assert account.saved > 0.0
                assert {pod["metadata"]["uid"] for pod in await actor_pods(rig)} == before
                assert set(await entries(rig)) == {0, 1}
                assert not [line for line in rig.writes(engine) if line.startswith("DELETE")]
            status = (await rig.job("run"))["status"]["rollout"]
            assert float(status["savedGPUSeconds"]) == pytest.approx(account.saved)
            assert "wouldTakeGPUSeconds" in status["measured"]

    asyncio.run(story())


async def _pods_seen(engine: Engine, rig: Rig, count: int) -> bool:
    loaded = engine.cluster.load(f"{rig.namespace}/run")
    return loaded is not None and len(loaded.stored_actor_pods) == count


async def _both(session: Session, step: int) -> bool:
    known = session._planned.get(step)
    return known is not None and known.other is not None


async def _knows(engine: Engine, uid: str, count: int) -> bool:
    return len(engine.rollouts.actors(uid)) == count


async def _saved(rig: Rig) -> bool:
    account = (await rig.record("run")).rollout
    return account is not None and account.measured is not None and account.measured.step >= 2


def test_a_renewed_authority_is_told_to_runs_under_way(
    rig: Rig, kubelet: FakeKubelet, serving: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_api, "LOOK", 0.1)
    file = tmp_path / "ca.crt"
    first, second = (make_authority(datetime.now(UTC)).certificate for _ in range(2))
    file.write_text(first)

    async def told(text: str) -> bool:
        found = await rig.api.get(CONFIGMAPS, "run-run", rig.namespace)
        document = json.loads(found["data"][names.RUN_KEY])
        return bool(document["steps"]["ca"] == text == found["data"][names.STEPS_CA_KEY])

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run", gpus=1, mode="Off", rollout=ROLLOUT)
            async with rig.operator(replace(serving, steps_ca=str(file))):
                await eventually(lambda: rig.is_true("run", "Running"), what="the gang to run")
                assert await told(first)
                file.write_text("half a certif")  # being written: the one before stays
                file.write_text(second)
                await eventually(lambda: told(second), what="trainer and actors to be told")
                assert await rig.is_true("run", "Running")

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
