"""A job with which its pool's plan fails is put aside and told; all others of the pool are planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from test_tenants_ten_thousand import HONEST, Operator

from controller.kube.resources import RLHFJOBS
from controller.operator.reconcile import failing_jobs, plan_cache
from controller.policy.pool.plan import plan_pool
from controller.policy.types import PoolPlan, PoolSnapshot


class Faulty:
    """`plan_pool`, but for snapshots in which ``wrong`` jobs are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[set[str]], bool]) -> None:
        self.wrong, self.plan, self.calls = wrong, plan_pool, 0
        for caller in (plan_cache, failing_jobs):
            monkeypatch.setattr(caller, "plan_pool", self)

    def __call__(self, snapshot: PoolSnapshot, now: float) -> PoolPlan:
        self.calls += 1
        if self.wrong({job.key for job in snapshot.jobs}):
            raise ZeroDivisionError("of a view that nobody thought of")
        return self.plan(snapshot, now)


def told(operator: Operator) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    async def post(obj: Any, reason: str, message: str, **_: Any) -> None:
        found.append((obj["metadata"]["name"], reason))

    operator.engine.pool_reconciler._recorder.post = post  # type: ignore[method-assign]
    return found


async def passes(operator: Operator, count: int = 3) -> None:
    for _ in range(count):
        for key in HONEST:
            await operator.engine.job_passes.run(key)
        await operator.engine.pool_passes.run("gpus")


def admitted(operator: Operator) -> set[str]:
    found = (operator.engine.cache.get(RLHFJOBS, key) for key in HONEST)
    return {o["metadata"]["name"] for o in found if o and (o.get("status") or {}).get("admission")}


def test_the_others_are_admitted_and_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        operator = Operator()
        said = told(operator)
        faulty = Faulty(monkeypatch, lambda keys: bool(keys & {"honest/run-3", "honest/run-7"}))
        await passes(operator)
        assert admitted(operator) == {f"run-{i}" for i in range(10)} - {"run-3", "run-7"}
        assert operator.engine.pool_passes.failing() == []
        aside = [entry for entry in said if entry[1] == "PutAside"]
        assert sorted(aside) == [("run-3", "PutAside"), ("run-7", "PutAside")]
        before = faulty.calls
        await operator.engine.pool_passes.run("gpus")
        assert faulty.calls == before + 1, "what was put aside is not looked for again"
        # It is tried again once it has changed.
        faulty.wrong = lambda keys: False
        for key in ("honest/run-3", "honest/run-7"):
            obj = await operator.server.get(RLHFJOBS, key.partition("/")[2], "honest")
            operator.tell(RLHFJOBS, operator.server.seed(RLHFJOBS, obj))
        await passes(operator)
        assert len(admitted(operator)) == 10

    asyncio.run(story())


def test_a_job_that_fails_only_beside_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        operator = Operator()
        said = told(operator)
        Faulty(monkeypatch, lambda keys: {"honest/run-2", "honest/run-5"} <= keys)
        await passes(operator)
        assert [name for name, reason in said if reason == "PutAside"] == ["run-5"]
        assert len(admitted(operator)) == 9

    asyncio.run(story())


def test_a_plan_that_fails_without_any_job_is_the_pools_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        operator = Operator()
        said = told(operator)
        Faulty(monkeypatch, lambda keys: True)
        await passes(operator, 1)
        assert [name for name, *_ in operator.engine.pool_passes.failing()] == ["gpus"]
        assert not [reason for _, reason in said if reason == "PutAside"]

    asyncio.run(story())


def test_of_many_the_fault_is_the_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        operator = Operator()
        monkeypatch.setattr(failing_jobs, "MOST", 4)
        Faulty(monkeypatch, lambda keys: bool(keys))
        await passes(operator, 1)
        assert [name for name, *_ in operator.engine.pool_passes.failing()] == ["gpus"]

    asyncio.run(story())
