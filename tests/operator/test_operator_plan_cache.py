"""Of most plans only the pool's extract is kept: what is asked for besides is planned again, and logged."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.kube.versioned import Stale
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import Locks, WorkQueue
from controller.operator.reconcile.job import JobReconciler
from controller.operator.reconcile.plan_cache import KEPT_WHOLE, PlanCache
from controller.operator.state.cluster import ClusterState
from controller.policy import decision_log

POOL = {
    "apiVersion": "evalstop.dev/v1alpha1",
    "kind": "GPUPool",
    "metadata": {"name": "gpus", "uid": "gpus", "resourceVersion": "1", "generation": 1},
    "spec": {"nodeSelector": [{"key": "pool"}], "allowedNamespaces": [{"name": "*"}]},
}
KEYS = [f"ns/job-{i:03d}" for i in range(KEPT_WHOLE + 6)]


def rlhfjob(key: str, version: int) -> dict[str, Any]:
    metadata = {"name": key.partition("/")[2], "namespace": "ns", "uid": key, "generation": 1}
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": metadata | {"resourceVersion": str(version), "creationTimestamp": "2026-10-01T00:00:00Z"},
        "spec": {
            "pool": "gpus",
            "workload": {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}},
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "metrics": [{"name": "gold_reward"}],
            "stopRule": {"kDeclines": {"k": 3, "minDelta": "0.01"}},
            "modifiers": [],
            "checkpoints": {
                "layout": "Plain",
                "location": {"volumeClaim": {"claimName": "work", "path": "/checkpoints"}},
                "retention": {"volumeClaim": {"claimName": "kept", "path": "/"}},
            },
        },
    }


@pytest.fixture
def log() -> Any:
    """A decision log: it appends."""
    return []


@pytest.fixture
def plans(log: Any) -> PlanCache:
    cache = Cache()
    cache.put(GPUPOOLS, POOL)
    for number, key in enumerate(KEYS):
        cache.put(RLHFJOBS, rlhfjob(key, 10 + number))
    return PlanCache(ClusterState(cache, time.monotonic), Metrics(), lambda: 1.9e9, log)


def test_a_plan_that_is_no_longer_kept_whole_is_made_again_and_is_the_same(
    plans: PlanCache, log: Any
) -> None:
    first = plans.plan(KEYS[0])
    assert first is not None
    loaded, plan, version = first.loaded, first.plan, first.version
    assert len(log) == 1
    for key in KEYS[1:]:
        assert plans.plan(key) is not None
    assert len(log) == len(KEYS)
    assert plans.cached_plan(KEYS[0]) is first
    assert first.view == plans.cached_plan(KEYS[0]).view  # type: ignore[union-attr]
    assert len(log) == len(KEYS), "the pool's extract is at hand"
    assert first.plan == plan
    assert (first.loaded.desired, first.loaded.observed) == (loaded.desired, loaded.observed)
    assert first.version == version
    assert len(log) == len(KEYS) + 1, "it was planned again once, and that is told"
    assert all(entry.same for entry in decision_log.replay(log))


def test_of_one_that_has_changed_since_nothing_is_made_up(plans: PlanCache) -> None:
    first = plans.plan(KEYS[0])
    assert first is not None
    for key in KEYS[1:]:
        plans.plan(key)
    plans._cluster.cache.put(RLHFJOBS, rlhfjob(KEYS[0], 1000))
    with pytest.raises(Stale, match=r"ns/job-000 changed since it was planned"):
        first.plan  # noqa: B018
    again = plans.cached_plan(KEYS[0])
    assert again is not None
    assert again is not first
    assert again.version == "1000"


def test_a_job_pass_ends_as_it_began_though_its_plan_is_let_go_meanwhile(plans: PlanCache) -> None:
    """A pool pass may look at thousands while a job's status is being written: its Events still come."""
    world, posted, metrics = plans._cluster, list[str](), Metrics()

    class Parts:
        """Whatever else a pass calls: only the status is written, and that takes its time."""

        async def ensure(self, *_: Any) -> None: ...

        async def discard_unreleased(self, *_: Any) -> None: ...

        async def do(self, *_: Any) -> None: ...

        def again_in(self, *_: Any) -> None: ...

        def follow(self, *_: Any) -> None: ...

        async def record(self, *_: Any) -> bool:
            world.cache.put(RLHFJOBS, rlhfjob(KEYS[0], 1000) | {"status": {"attempt": 0}})
            for key in KEYS[1:]:
                plans.plan(key)
            return True

        async def post(self, obj: Any, reason: str, message: str, **_: Any) -> None:
            posted.append(reason)

    async def story() -> None:
        parts: Any = Parts()
        queue = WorkQueue(time.monotonic)
        made = JobReconciler(
            world, plans, parts, parts, parts, parts, parts, metrics, queue, Locks(), lambda *_: None
        )
        await made.run(KEYS[0])

    asyncio.run(story())
    assert posted == ["Valid", "WorkloadNotFound"]
    assert metrics.passes.labels("job", "wrote")._value.get() == 1
