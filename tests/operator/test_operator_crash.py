"""Killed at any moment, deleted in the middle, answered wrongly: the operator comes to the same end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controller import names
from controller.kube.errors import NotFound
from controller.kube.resources import EVENTS, JOBS, RLHFJOBS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import CountingApi, Fault, Response, Rig, eventually, failure

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]


async def up_to_the_decision(rig: Rig) -> None:
    """`over` runs on all GPUs with its best in safety, `next` waits; the operator has ended."""
    await rising(rig)
    async with rig.operator():
        await until_the_next_waits(rig)
    rig.scores["over"] = RISE_AND_FALL


async def rising(rig: Rig) -> None:
    """`over` is there, and its evals up to its best; no operator yet."""
    await rig.make_pool()
    await rig.make_job("over", replicas=2)
    rig.scores["over"] = RISE_AND_FALL[:4]


async def until_the_next_waits(rig: Rig) -> None:
    await eventually(lambda: rig.is_true("over", "Running"))
    await rig.make_job("next", replicas=2)
    await eventually(lambda: rig.is_true("over", "BestCheckpointSecured"))
    await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))


async def handed_over(rig: Rig) -> bool:
    over = await rig.record("over")
    if over.decision is None or over.decision.handed_at is None or not await rig.is_true("next", "Running"):
        return False
    access, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_COMPONENT}=access")
    return not access and names.FINALIZER not in ((await rig.job("over"))["metadata"].get("finalizers") or ())


async def check_the_end(rig: Rig, kubelet: FakeKubelet) -> None:
    """What a run without any crash comes to."""
    over, following = await rig.record("over"), await rig.record("next")
    decision = over.decision
    assert decision is not None
    assert (decision.proposal.best_step, decision.proposal.step, decision.by) == (40, 70, "kDeclines")
    assert decision.handed_to == f"{rig.namespace}/next"
    assert [k.step for k in over.retained] == [40]
    assert over.retained[0].at >= decision.at
    assert over.admission is None
    assert over.attempt == 1
    assert following.attempt == 1
    assert following.admission is not None
    assert following.admission.source == f"{rig.namespace}/over"
    assert (await rig.workload("over"))["spec"]["suspend"] is True
    assert await rig.pods("over") == []
    assert len(await rig.pods("next")) == 2
    assert set(kubelet.store.done("retain")) == {40}


@pytest.mark.timeout(900)  # some forty lives, each with a deadline of its own: 15 s in all on an idle machine
def test_killed_before_and_after_every_write(rig: Rig, kubelet: FakeKubelet) -> None:
    """Each life of the operator does one write and dies right before it or right after it took effect."""

    async def story() -> None:
        async with rig:
            await up_to_the_decision(rig)
            died: list[tuple[str, bool]] = []

            def after(write: str) -> bool:
                """Each write is tried twice: which one a life comes to first is not known before."""
                return sum(1 if late else -1 for one, late in died if one == write) < 0

            while True:
                write = await rig.live_until_crash(1, after, lambda: handed_over(rig))
                if write is None:
                    break
                died.append((write, after(write)))
                print(f"{time.strftime('%X')} died {'after' if died[-1][1] else 'before'} {write}")
                assert len(died) < 80, died
            await check_the_end(rig, kubelet)
            assert len(kubelet.store.done("retain")) == 1
            kinds = Counter((w.split(" ")[0], _what(w), after) for w, after in died)
        for verb, what in (
            ("PATCH", "rlhfjobs/status"),
            ("PATCH", "rlhfjobs"),
            ("POST", "jobs"),
            ("PATCH", "jobs"),
            ("DELETE", "jobs"),
            ("POST", "configmaps"),
            ("PATCH", "gpupools/status"),
        ):
            assert kinds[verb, what, False], f"never died before {verb} {what}: {died}"
            assert kinds[verb, what, True], f"never died after {verb} {what}: {died}"

    asyncio.run(story())


@pytest.mark.parametrize("at", [2, 5, 8])
def test_killed_at_a_later_write_of_one_life(rig: Rig, kubelet: FakeKubelet, at: int) -> None:
    async def story() -> None:
        async with rig:
            await up_to_the_decision(rig)
            assert await rig.live_until_crash(at, True, lambda: handed_over(rig)) is not None
            async with rig.operator():
                await eventually(lambda: handed_over(rig), 60)
            await check_the_end(rig, kubelet)

    asyncio.run(story())


def test_killed_between_hold_and_suspend_and_between_suspend_and_admission(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """Four lives: one writes the hold, one the stop up to the suspend, one the admission, one ends it."""

    def reservations(method: str, path: str, answer: dict[str, Any]) -> bool:
        return path.endswith(f"/gpupools/{rig.pool_name}/status") and bool(
            answer["status"].get("reservations")
        )

    def suspends(method: str, path: str, answer: dict[str, Any]) -> bool:
        return (
            path.endswith(f"/namespaces/{rig.namespace}/jobs/over") and answer["spec"].get("suspend") is True
        )

    def admits(method: str, path: str, answer: dict[str, Any]) -> bool:
        return path.endswith("/rlhfjobs/next/status") and "admission" in answer["status"]

    async def story() -> None:
        async with rig:
            await up_to_the_decision(rig)
            assert (
                await rig.live_until_crash(None, True, lambda: handed_over(rig), on=reservations) is not None
            )
            assert (await rig.record("over")).decision is None, "the hold is written before the grant"
            assert not (await rig.workload("over"))["spec"]["suspend"]
            assert await rig.live_until_crash(None, True, lambda: handed_over(rig), on=suspends) is not None
            over = await rig.record("over")
            assert over.decision is not None
            assert over.decision.suspended_at is None, "it died before it could note the suspend"
            assert (await rig.record("next")).admission is None
            assert await rig.live_until_crash(None, True, lambda: handed_over(rig), on=admits) is not None
            assert (await rig.workload("next"))["spec"]["suspend"] is True, "admitted, not yet started"
            async with rig.operator():
                await eventually(lambda: handed_over(rig), 60)
            await check_the_end(rig, kubelet)

    asyncio.run(story())


def _what(write: str) -> str:
    """``PATCH /apis/…/rlhfjobs/over/status`` -> ``rlhfjobs/status``."""
    parts = write.split(" ")[1].split("/")
    plural = next(p for p in ("rlhfjobs", "gpupools", "jobs", "configmaps", "nodes") if p in parts)
    return f"{plural}/status" if parts[-1] == "status" else plural


def test_deleted_in_the_middle_of_a_stop(rig: Rig, kubelet: FakeKubelet) -> None:
    """The retention that has begun is finished first; then all goes but what was retained."""

    async def story() -> None:
        async with rig:
            await up_to_the_decision(rig)
            kubelet.slow_store.set()
            async with rig.operator():
                await eventually(lambda: retaining(rig), what="the retention to begin")
                obj = await rig.job("over")
                assert names.FINALIZER in obj["metadata"]["finalizers"]
                await rig.api.delete(RLHFJOBS, "over", rig.namespace, obj["metadata"]["uid"])
                await asyncio.sleep(0.7)
                assert (await rig.job("over"))["metadata"]["deletionTimestamp"]
                kubelet.answer_late()
                await eventually(lambda: gone(rig, RLHFJOBS, "over"), what="the RLHFJob to go")
                await eventually(lambda: gone(rig, JOBS, "over"), 60, what="its workload to go")
                await eventually(lambda: rig.is_true("next", "Running"), what="the next job to run")
            assert kubelet.store.done("retain") == [40]
            left, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_COMPONENT}=access")
            assert left == [], "an access Job outlived its answer"

    asyncio.run(story())


def test_deleted_while_running(rig: Rig, kubelet: FakeKubelet) -> None:
    """No finalizer holds a job that is not being stopped; its GPUs go on when its pods are gone."""

    async def story() -> None:
        async with rig:
            await up_to_the_decision(rig)
            rig.scores["over"] = RISE_AND_FALL[:4]
            async with rig.operator():
                obj = await rig.job("over")
                assert not obj["metadata"].get("finalizers")
                await rig.api.delete(RLHFJOBS, "over", rig.namespace, obj["metadata"]["uid"])
                await eventually(lambda: gone(rig, RLHFJOBS, "over"))
                # The garbage collector learns of a new kind within half a minute or so.
                await eventually(lambda: gone(rig, JOBS, "over"), 60, what="its workload to go")
                await eventually(lambda: rig.is_true("next", "Running"), what="the next job to run")

    asyncio.run(story())


async def retaining(rig: Rig) -> bool:
    jobs, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_OPERATION}=retain")
    return bool(jobs)


async def gone(rig: Rig, resource: Any, name: str) -> bool:
    try:
        await rig.api.get(resource, name, rig.namespace)
    except NotFound:
        return True
    return False


def every(n: int, fault: Callable[[Callable[[], Awaitable[Response]]], Awaitable[Response]]) -> Fault:
    """A fault for every n-th write."""
    count = 0

    async def apply(method: str, path: str, send: Callable[[], Awaitable[Response]]) -> Response:
        nonlocal count
        count += 1
        return await (fault(send) if count % n == 0 else send())

    return apply


async def conflict(send: Callable[[], Awaitable[Response]]) -> Response:
    return failure(409, "Conflict")


async def broken(send: Callable[[], Awaitable[Response]]) -> Response:
    return failure(500, "InternalError")


async def answer_lost(send: Callable[[], Awaitable[Response]]) -> Response:
    await send()
    raise TimeoutError


@pytest.mark.parametrize("fault", [conflict, broken, answer_lost])
def test_every_other_write_fails(rig: Rig, kubelet: FakeKubelet, fault: Any) -> None:
    """Refused as stale, failed inside the server, or done but the answer lost."""

    async def story() -> None:
        async with rig:
            await up_to_the_decision(rig)
            async with rig.operator() as engine:
                assert isinstance(engine.api, CountingApi)
                engine.api.fault = every(2, fault)
                await eventually(lambda: handed_over(rig), 60)
            await check_the_end(rig, kubelet)

    asyncio.run(story())


def test_an_action_that_fails_does_not_cost_the_events_of_its_pass(rig: Rig, kubelet: FakeKubelet) -> None:
    """The status is written by then, so that no later pass has them to tell."""
    failed: list[str] = []

    async def first_workload(method: str, path: str, send: Callable[[], Awaitable[Response]]) -> Response:
        if method == "POST" and path.endswith(f"/namespaces/{rig.namespace}/jobs") and not failed:
            failed.append(path)
            return failure(500, "InternalError")
        return await send()

    async def told() -> bool:
        events, _ = await rig.api.list(EVENTS, rig.namespace)
        return ("Valid", "run") in {(e["reason"], e["involvedObject"]["name"]) for e in events}

    async def story() -> None:
        async with rig, rig.operator() as engine:
            assert isinstance(engine.api, CountingApi)
            engine.api.fault = first_workload
            await rig.make_pool()
            await rig.make_job("run")
            await eventually(lambda: rig.is_true("run", "Running"), what="it to run after the fault")
            assert failed
            await eventually(told, what="the Event of the pass whose action failed")

    asyncio.run(story())
