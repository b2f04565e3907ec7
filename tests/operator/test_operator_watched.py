"""What befalls a pool while its jobs run: they are read and planned on, as far as their pool last allowed.
And what is granted is what the job's newest plan says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.api.gpupool import GPUPool
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, JOBS, PODS, RLHFJOBS
from controller.metrics import GangScraper, Target
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import Locks
from controller.operator.reconcile.passes import Partly
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.pool import FullPoolPlan, PoolReconciler
from controller.operator.reconcile.pool_loader import PoolLoader
from controller.operator.reconcile.scrape_targets import ScrapeTargets
from controller.operator.state.cluster import ClusterState
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import EvalPoint, Grant, Mode, PoolPlan, Proposal, Waiting

KEY = "ns/run"
EVALS = (0.1, 0.3, 0.5, 0.45, 0.4, 0.35)


def pool(version: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {
            "name": "gpus",
            "uid": "gpus",
            "resourceVersion": str(version),
            "generation": version,
        },
        "spec": {
            "nodeSelector": [{"key": "pool", "value": "x"}],
            "allowedNamespaces": [{"name": "*"}],
            "modeCap": "Enforce",
        }
        | spec,
    }


def rlhfjob(version: int = 10) -> dict[str, Any]:
    metadata = {"name": "run", "namespace": "ns", "uid": "uid", "generation": 1}
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": metadata | {"resourceVersion": str(version), "creationTimestamp": "2026-10-01T00:00:00Z"},
        "spec": {
            "pool": "gpus",
            "priority": 5,
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
        "status": {
            "attempt": 1,
            "run": {"attempt": 1},
            "admission": {
                "number": 1,
                "nodes": ["n1"],
                "time": "2026-10-01T00:00:00Z",
                "runningSince": "2026-10-01T00:00:00Z",
            },
        },
    }


def child(version: int = 11) -> dict[str, Any]:
    labels = {"evalstop.dev/job": "run"}
    metadata = {"name": "train", "namespace": "ns", "uid": "child", "resourceVersion": str(version)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata | {"labels": labels},
        "spec": {"suspend": False, "template": {}},
        "status": {"active": 1},
    }


def pod(version: int = 12) -> dict[str, Any]:
    metadata = {"name": "train-0", "namespace": "ns", "uid": "pod", "resourceVersion": str(version)}
    owner = {"kind": "Job", "name": "train", "uid": "child", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata
        | {
            "labels": {"evalstop.dev/job": "run"},
            "annotations": {"evalstop.dev/admission": "1"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {
                    "name": "t",
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    "ports": [{"name": "metrics", "containerPort": 9400}],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class Loop:
    """The scrape loop: which targets it follows."""

    def __init__(self) -> None:
        self.targets: dict[str, Target] = {}

    def put(self, key: str, target: Target) -> None:
        self.targets[key] = target

    def discard(self, key: str) -> None:
        self.targets.pop(key, None)


@pytest.fixture
def world() -> ClusterState:
    cache = Cache()
    world = ClusterState(cache, time.monotonic)
    cache.put(GPUPOOLS, pool())
    cache.put(JOBS, child())
    cache.put(PODS, pod())
    cache.put(RLHFJOBS, rlhfjob())
    return world


def scraped(world: ClusterState, scores: tuple[float, ...], attempt: Any = None) -> None:
    points = tuple(EvalPoint(10 * (i + 1), score, attempt or life()) for i, score in enumerate(scores))
    view = ScrapeView(ScrapeOutcome.OK, at=1.9e9, metrics_seen=("gold_reward",), points=points)
    world.scraped(KEY, view)


def life() -> Any:
    from controller.policy.types import Attempt

    try:
        return Attempt(1, "aa01")  # type: ignore[arg-type, unused-ignore]
    except TypeError:
        return Attempt(1)  # type: ignore[call-arg, unused-ignore]


def test_a_page_that_no_pass_has_taken_in_outlasts_the_scrapes_after_it(world: ClusterState) -> None:
    """The last page of a run that ends has its best eval; its trainer is gone a moment later."""
    gone = ScrapeView(ScrapeOutcome.UNREACHABLE, "connection refused", at=1.9e9 + 1)
    scraped(world, EVALS)
    before = world.load(KEY)
    assert not world.scraped(KEY, gone)
    scraped(world, (*EVALS, 0.9))
    world.took_in(before)  # that pass did not see the newest page
    assert not world.scraped(KEY, gone)
    loaded = world.load(KEY)
    assert [p.score for p in loaded.observed.scrape.points] == [*EVALS, 0.9]
    world.took_in(loaded)
    assert world.scraped(KEY, gone)
    assert world.load(KEY).observed.scrape.outcome is ScrapeOutcome.UNREACHABLE
    scraped(world, EVALS)
    world.forget(KEY)
    assert world.scraped(KEY, gone)


BROKEN = [
    {"queuePolicy": {"noSuchPolicy": {}}},
    {"allowedNamespaces": [{"name": "*", "maxPriority": 1}]},
    {"allowedNamespaces": [{"name": "others"}]},
    {"queuePolicy": {"srtf": {}}},
    {"noSuchField": 1},
    None,
]


@pytest.mark.parametrize("edit", BROKEN)
def test_a_job_whose_pool_is_edited_or_deleted_is_followed_and_its_evals_are_taken(
    world: ClusterState, edit: dict[str, Any] | None
) -> None:
    # row 9
    plans, loop, targets = PlanCache(world, Metrics(), lambda: 1.9e9), Loop(), ScrapeTargets(world, Metrics())
    targets.connect(loop, GangScraper(asyncio.sleep, targets.members))  # type: ignore[arg-type]
    if edit is None:
        world.cache.drop(GPUPOOLS, pool(20))
    else:
        world.cache.put(GPUPOOLS, pool(20, **edit))
    scraped(world, EVALS)
    loaded = world.load(KEY)
    assert loaded is not None
    assert loaded.desired.problem is not None
    targets.follow(loaded)
    assert loop.targets[KEY].ip == "10.0.0.1"
    full = plans.newest_plan(KEY)
    assert full is not None
    assert [e.score for e in full.plan.record.evals] == list(EVALS)
    assert full.plan.proposal is None
    metrics = full.plan.record.condition("MetricsAvailable")
    assert metrics is not None
    assert metrics.status
    assert any(type(action).__name__ == "StartAccess" for action in full.plan.actions)


@pytest.mark.parametrize("edit", [{"noSuchField": 1}, None])
def test_how_far_a_pool_let_the_operator_go_holds_while_it_is_not_usable(
    world: ClusterState, edit: dict[str, Any] | None
) -> None:
    # row 9
    world.cache.put(GPUPOOLS, pool(19, modeCap="Shadow"))
    assert world.load(KEY).desired.mode is Mode.SHADOW  # type: ignore[union-attr]
    if edit is None:
        world.cache.drop(GPUPOOLS, pool(20))
    else:
        world.cache.put(GPUPOOLS, pool(20, modeCap="Shadow", **edit))
    loaded = world.load(KEY)
    assert loaded is not None
    assert loaded.desired.problem is not None
    assert loaded.desired.mode is Mode.SHADOW


def test_a_pod_that_names_the_workload_is_none_of_its_job_and_holds_its_gpus(world: ClusterState) -> None:
    """Label, annotation and owner's name are the job's; the owner's uid is not."""
    # row 1 of part 8
    stranger = pod()
    stranger["metadata"] |= {"name": "train-1", "uid": "stranger"}
    stranger["metadata"]["ownerReferences"] = [
        {"kind": "Job", "name": "train", "uid": "made-up", "controller": True}
    ]
    world.cache.put(PODS, stranger)
    loaded = world.load(KEY)
    assert loaded is not None
    assert [one.uid for one in loaded.observed.pods] == ["pod"]
    plans = PlanCache(world, Metrics(), lambda: 1.9e9)
    parts: Any = SimpleNamespace(
        claims=lambda: {"n1": ("gpus",)}, pods=lambda *of: [], of_pool=lambda name: []
    )
    loader = PoolLoader(world.cache, world, plans, parts, parts, None, parts, lambda: 1.9e9)
    known = world.pool("gpus")
    assert isinstance(known, GPUPool)
    around = loader.surroundings(loader.load(known, pool()))
    assert [one["metadata"]["name"] for one in around.unmanaged] == ["train-1"]


def pools(
    world: ClusterState, parts: Any, writer: Any, monotonic: Callable[[], float] = time.monotonic
) -> PoolReconciler:
    """Return what carries out pools' plans, with ``parts`` for all that it is not to use here."""
    return PoolReconciler(
        world.cache,
        world,
        parts,
        parts,
        writer,
        parts,
        parts,
        Metrics(),
        Locks(),
        lambda: 1.9e9,
        monotonic,
    )


def test_a_stop_is_granted_only_while_the_newest_plan_asks_for_it(world: ClusterState) -> None:
    """Between the pool's plan and the grant another scrape comes in: of a run that has recovered."""
    # row 19
    wrote = list[Any]()
    scraped(world, EVALS)
    full = PlanCache(world, Metrics(), lambda: 1.9e9).newest_plan(KEY)
    assert full is not None
    asked = Proposal(60, 30, "Declined", 3.0, 3.0)

    class Writer:
        async def record(self, loaded: Any, record: Any, now: float) -> bool:
            wrote.append(record)
            return True

    def carry_out(proposal: Proposal | None) -> None:
        newest = replace(full, plan=replace(full.plan, proposal=proposal))
        parts: Any = SimpleNamespace(newest_plan=lambda key: newest)
        made = pools(world, parts, Writer())
        loaded: Any = SimpleNamespace(jobs={KEY: full.planned_job}, now=1.9e9)
        plan = PoolPlan(grants=(Grant(KEY, asked),))
        asyncio.run(made._carry_out(FullPoolPlan(loaded, parts, parts, plan)))

    for other in (None, replace(asked, step=70), replace(asked, best_step=70)):
        with pytest.raises(Partly) as refused:
            carry_out(other)
        assert "judged anew" in str(refused.value.failures[KEY])
        assert wrote == []
    carry_out(asked)
    assert [record.decision.proposal for record in wrote] == [asked]


def test_reasons_to_wait_do_not_keep_the_next_plan_waiting(world: ClusterState) -> None:
    """A write takes .4 s, and there are five to make: a pass ends after a second, the next makes the rest."""
    full = PlanCache(world, Metrics(), lambda: 1.9e9).newest_plan(KEY)
    assert full is not None
    now, told = [0.0], list[str]()

    class Writer:
        async def record(self, loaded: Any, record: Any, at: float) -> bool:
            told.append(record.condition("Admitted").message)
            now[0] += 0.4
            return True

    keys = [f"ns/run-{n}" for n in range(5)]
    parts: Any = SimpleNamespace(newest_plan=lambda key: full)
    made = pools(world, parts, Writer(), lambda: now[0])
    loaded: Any = SimpleNamespace(jobs=dict.fromkeys(keys, full.planned_job), now=1.9e9)

    def carry_out(some: Sequence[str]) -> tuple[bool, bool]:
        waits = tuple(Waiting(key, 1, "NoRoom", key) for key in some)
        return asyncio.run(made._carry_out(FullPoolPlan(loaded, parts, parts, PoolPlan(waiting=waits))))

    assert carry_out(keys) == (False, True)
    assert told == keys[:3]
    assert carry_out(keys[3:]) == (False, False)
    assert told == keys
