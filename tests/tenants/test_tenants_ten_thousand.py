"""Ten thousand arbitrary objects of a tenant: no pass but that of its own job fails, and none is late."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from controller import log, names
from controller.extender import views
from controller.extender.ledger_sync import WATCHED as EXTENDERS
from controller.extender.ledger_sync import LedgerSync
from controller.kube import wire
from controller.kube.cache import Cache
from controller.kube.connection import Connection
from controller.kube.resources import (
    ADMISSION_CHECKS,
    GPUPOOLS,
    JOBS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RLHFJOBS,
    WORKLOADS,
    Resource,
)
from controller.kube.trim import trim_or_bare
from controller.operator.engine import Engine
from controller.operator.process.settings import Settings
from controller.operator.state.unmanaged_pods import UnmanagedPods
from controller.policy.node.ledger import GpuLedger
from tests.support.merge_patch import merge_apply
from tests.support.object_server import Object, ObjectServer, gpupool, node, rlhfjob
from tests.support.pills import NAMESPACE, pills

PILLS = 10_000
BATCH = 100
INTERVAL = 5.0  # s, the shortest between two scrapes of a job
HONEST = [f"honest/run-{i}" for i in range(10)]


class Operator:
    """An engine whose passes the test makes, and an extender's ledger beside it."""

    def __init__(self) -> None:
        self.server = ObjectServer(merge_apply)
        connection = Connection("http://nowhere", "nowhere")
        clock = lambda: 1_795_000_000.0 + time.monotonic()  # noqa: E731
        self.engine = engine = Engine(Settings(instance="t"), connection, self.server, clock=clock)  # type: ignore[arg-type]
        self.extender = Cache(EXTENDERS)
        self.ledger = GpuLedger(str)
        LedgerSync(self.extender, self.ledger, "rack", lambda: None, lambda uid: None)
        self.server.seed(PRIORITY_CLASSES, {"metadata": {"name": names.PRIORITY_CLASS}})
        for name in ("node-1", "node-2"):
            self.tell(NODES, self.server.seed(NODES, node(name)))
        self.tell(GPUPOOLS, self.server.seed(GPUPOOLS, gpupool("gpus")))
        queued = {"delegate": "Kueue", "kueue": {"localQueue": "team"}}
        self.tell(GPUPOOLS, self.server.seed(GPUPOOLS, gpupool("queued", **queued)))
        for key in HONEST:
            self.tell(RLHFJOBS, self.server.seed(RLHFJOBS, rlhfjob(key)))
        for kind in (*engine.external_queues.watches, *engine.devices.watches):
            watch = (engine.external_queues.watches | engine.devices.watches)[kind]
            watch.listed = True
        check = {"spec": {"controllerName": names.CHECK_CONTROLLER}, "metadata": {"name": "evalstop"}}
        self.tell(ADMISSION_CHECKS, self.server.seed(ADMISSION_CHECKS, check))

    def caches(self, kind: Resource) -> Iterator[Cache]:
        for cache in (
            self.engine.cache,
            self.engine.external_queues.cache,
            self.engine.devices.cache,
            self.extender,
        ):
            if kind in cache.stores:
                yield cache

    def tell(self, kind: Resource, obj: Object) -> None:
        for cache in self.caches(kind):
            cache.put(kind, obj)

    def counted(self, kind: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for metric in self.engine.metrics.passes.collect():
            for sample in metric.samples:
                if sample.name == "evalstop_passes_total" and sample.labels["kind"] == kind:
                    found[sample.labels["result"]] += int(sample.value)
        return found


@pytest.fixture(autouse=True)
def quiet(logs_as_before: None) -> None:
    """Thousands of jobs fail, and each has a trace."""
    log.configure("CRITICAL", "json", sys.stderr)


@pytest.mark.parametrize("seed", [1])
def test_no_pass_but_its_own_jobs_fails_and_none_is_late(seed: int) -> None:
    async def story() -> None:
        operator = Operator()
        engine = operator.engine
        longest: Counter[str] = Counter()

        async def timed(what: str, call: Any) -> None:
            begun = time.perf_counter()
            await call
            longest[what] = max(longest[what], time.perf_counter() - begun)  # type: ignore[assignment]

        async def passes(keys: Any) -> None:
            for key in keys:
                await timed("job", engine.job_passes.run(key))
            for name in ("gpus", "queued"):
                await timed("pool", engine.pool_passes.run(name))
            pools, fresh = engine.cluster.pools(), engine.external_queues._fresh
            found = [obj for kind, key in fresh if (obj := engine.external_queues.get(kind, key)) is not None]
            engine.external_queues._fresh = {}
            await timed("upkeep", engine.external_queues._sync(pools, found))

        for _ in range(3):
            await passes(HONEST)
        admissions = {key: _admission(engine, key)["nodes"] for key in HONEST}
        assert engine.job_passes.unexpected() == []
        touched: set[str] = set()
        for number, (kind, key, text) in enumerate(pills(PILLS, seed), 1):
            begun = time.perf_counter()
            obj = wire.decode(text)
            operator.tell(kind, obj)
            if kind == PODS:
                engine.unmanaged_pods._pods[obj["metadata"]["uid"]] = trim_or_bare(PODS, obj)
            longest["told"] = max(longest["told"], time.perf_counter() - begun)  # type: ignore[assignment]
            if kind in (RLHFJOBS, JOBS):  # so that writes find them
                operator.server.objects[kind, NAMESPACE, key.partition("/")[2]] = obj
            touched.add(f"{NAMESPACE}/{key.partition('/')[2].removesuffix('-run')}")
            if number % BATCH == 0:
                failing = set(engine.job_passes.unexpected())
                await passes(sorted(touched) + HONEST)
                touched.clear()
                assert not (set(engine.job_passes.unexpected()) & set(HONEST)), number
                assert all(name.startswith(f"{NAMESPACE}/") for name in failing)
                assert engine.pool_passes.failing() == [], number
        pool = operator.counted("pool")
        assert pool["failed"] == pool["unavailable"] == pool["stale"] == 0, pool
        assert pool.total() >= 2 * PILLS / BATCH
        assert all(seconds < INTERVAL for seconds in longest.values()), longest
        # The honest jobs have been planned all the while, and nobody has taken what they hold.
        for key in HONEST:
            assert engine.plans.cached_plan(key) is not None
            assert key not in engine.plans.unreadable
        assert {key: _admission(engine, key)["nodes"] for key in HONEST} == admissions
        # And the extender answers by all of them.
        for key in HONEST:
            job = operator.extender.get(RLHFJOBS, key)
            assert job is not None
            assert operator.ledger.gang(key) == views.job(job, 300.0)[1]

    asyncio.run(story())


def _admission(engine: Engine, key: str) -> Object:
    obj = engine.cache.get(RLHFJOBS, key)
    assert obj is not None
    return (obj.get("status") or {}).get("admission") or {}


def test_pods_that_nobody_labelled_are_read_too() -> None:
    """What lies on the pool's nodes without our label is listed now and then, and is anybody's."""

    class Lists:
        async def list(self, resource: Resource, *_: Any, **__: Any) -> tuple[list[Object], str]:
            return [wire.decode(text) for kind, _, text in pills(3000, 7) if kind == PODS], "1"

    async def story() -> None:
        foreign = UnmanagedPods(Lists())  # type: ignore[arg-type]
        await foreign.look(["node-1"])
        assert foreign.looked
        assert all(isinstance(pod["metadata"]["uid"], str) for pod in foreign.pods())

    asyncio.run(story())


def test_every_kind_that_tenants_write_is_among_the_pills() -> None:
    seen = Counter(kind for kind, _, _ in pills(1000, 3))
    assert set(seen) >= {RLHFJOBS, PODS, JOBS, WORKLOADS, LOCAL_QUEUES, RESOURCE_CLAIMS}
