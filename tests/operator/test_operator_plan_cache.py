"""Of most plans only the pool's extract is kept: what is asked for besides is planned again, and logged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.api import convert
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import Locks
from controller.operator.reconcile.job import JobReconciler
from controller.operator.reconcile.passes import Result
from controller.operator.reconcile.plan_cache import KEPT_WHOLE, PlanCache
from controller.operator.reconcile.planned_job import AT_REST, FullPlan
from controller.operator.state.cluster import ClusterState
from controller.policy import decision_log
from controller.policy.actor_types import Actor
from controller.policy.job.record import AdmissionRecord, Condition, InFlight, JobRecord, Operation
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import Problem

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


def planned(plans: PlanCache, key: str) -> FullPlan:
    loaded = plans.load(key)
    assert loaded is not None
    return plans.plan(loaded)


def test_a_plan_that_is_no_longer_kept_whole_is_made_anew_and_is_the_same(plans: PlanCache, log: Any) -> None:
    first = planned(plans, KEYS[0])
    assert plans.newest_plan(KEYS[0]) is first
    assert len(log) == 1
    for key in KEYS[1:]:
        planned(plans, key)
    assert len(log) == len(KEYS)
    assert plans.cached_plan(KEYS[0]) is first.planned_job
    assert len(log) == len(KEYS), "the pool's extract is at hand"
    again = plans.newest_plan(KEYS[0])
    assert again is not None
    assert again is not first
    assert again == first
    assert len(log) == len(KEYS) + 1, "it was planned again once, and that is logged"
    assert plans.newest_plan(KEYS[0]) is again
    assert plans.cached_plan(KEYS[0]) is again.planned_job
    assert all(entry.same for entry in decision_log.replay(log))


@pytest.mark.parametrize("kept", [True, False])
def test_of_one_that_has_changed_since_there_is_a_new_plan_with_a_new_verdict(
    plans: PlanCache, kept: bool
) -> None:
    first = planned(plans, KEYS[0])
    for key in KEYS[1:3] if kept else KEYS[1:]:
        planned(plans, key)
    plans._cluster.cache.put(RLHFJOBS, rlhfjob(KEYS[0], 1000))
    again = plans.newest_plan(KEYS[0])
    assert again is not None
    assert again is not first
    assert again.planned_job.version == "1000"
    assert plans.cached_plan(KEYS[0]) is again.planned_job


def test_of_one_that_is_gone_there_is_no_plan(plans: PlanCache) -> None:
    planned(plans, KEYS[0])
    plans._cluster.cache.drop(RLHFJOBS, rlhfjob(KEYS[0], 1000))
    assert plans.newest_plan(KEYS[0]) is None
    assert plans.cached_plan(KEYS[0]) is None


class Parts:
    """Whatever else a pass calls: only the checks and the status take their time."""

    def __init__(self, posted: list[str], check: Callable[[], None], write: Callable[[], None]) -> None:
        self.posted, self.check, self.write = posted, check, write

    async def ensure(self, *_: Any) -> None:
        self.check()

    async def discard_unreleased(self, *_: Any) -> None: ...

    async def do(self, *_: Any) -> None: ...

    def again_in(self, *_: Any) -> None: ...

    def follow(self, *_: Any) -> None: ...

    def put(self, *_: Any) -> None: ...

    def forget(self, *_: Any) -> None: ...

    def job_planned(self, *_: Any) -> None: ...

    async def record(self, *_: Any) -> bool:
        self.write()
        return True

    async def post(self, obj: Any, reason: str, message: str, **_: Any) -> None:
        self.posted.append(reason)


def reconcile(plans: PlanCache, parts: Any) -> Result:
    world = plans._cluster
    made = JobReconciler(world, plans, parts, parts, parts, parts, parts, parts, Locks(), parts, parts)
    return asyncio.run(made.reconcile(KEYS[0]))


def test_a_job_pass_ends_as_it_began_though_its_plan_is_let_go_meanwhile(plans: PlanCache) -> None:
    """A pool pass may look at thousands while a job's status is being written: its Events still come."""
    posted = list[str]()

    def write() -> None:
        plans._cluster.cache.put(RLHFJOBS, rlhfjob(KEYS[0], 1000) | {"status": {"attempt": 0}})
        for key in KEYS[1:]:
            planned(plans, key)

    assert reconcile(plans, Parts(posted, lambda: None, write)).outcome == "wrote"
    assert posted == ["Valid", "WorkloadNotFound"]


def test_a_pass_loads_its_job_once_and_again_only_if_its_check_has_changed_it(
    plans: PlanCache, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, loads = plans._cluster, list[str]()
    load = world.load
    monkeypatch.setattr(world, "load", lambda key: [loads.append(key), load(key)][1])
    reconcile(plans, Parts([], lambda: None, lambda: None))
    assert (loads, len(log)) == ([KEYS[0]], 1)
    posted = list[str]()

    def refuse() -> None:
        loaded = load(KEYS[0])
        assert loaded is not None
        world.refuse(loaded, Problem("QuotaExceeded", "no room"), 60.0)

    reconcile(plans, Parts(posted, refuse, lambda: None))
    assert (loads, len(log)) == ([KEYS[0]] * 3, 2)
    assert "QuotaExceeded" in posted, "planned with the verdict of its check"


# -- a job of which nothing has changed that its plan reads


def at_rest(plans: PlanCache) -> FullPlan:
    """Return the plan of a job whose plan before was written: it finds nothing to do."""
    put_written(plans, first := planned(plans, KEYS[0]), first.plan.record)
    rests = planned(plans, KEYS[0])
    assert (rests.plan.record, rests.plan.actions) == (rests.loaded.record, ())
    # A job that is refused is told of at each pass (`kube.events.Recorder` posts it once).
    plans._full[KEYS[0]] = made = replace(rests, plan=replace(rests.plan, events=()))
    return made


def test_a_plan_that_found_nothing_to_do_stands_while_what_it_reads_does(plans: PlanCache, log: Any) -> None:
    rests = at_rest(plans)
    assert len(log) == 2
    clock = [1.9e9]
    plans._clock = lambda: clock[0]
    for seconds, version in ((1.0, 1001), (AT_REST - 0.1, 1002)):
        put_written(plans, rests, rests.plan.record, version)  # the same under another version
        clock[0] = 1.9e9 + seconds
        again = planned(plans, KEYS[0])
        assert again.plan == rests.plan
        assert (again.planned_job.version, again.planned_job.now) == (str(version), 1.9e9 + seconds)
        assert plans.cached_plan(KEYS[0]) is again.planned_job
    assert len(log) == 2, "nothing was decided"
    clock[0] = 1.9e9 + AT_REST
    planned(plans, KEYS[0])
    assert len(log) == 3, "its texts have grown old"


@pytest.mark.parametrize("what", ["its page", "its record", "its spec", "clock set back", "it was due"])
def test_it_does_not_stand_once(plans: PlanCache, log: Any, what: str) -> None:
    rests, later = at_rest(plans), 1.9e9 + 1
    if what == "its page":
        plans._cluster.scraped(KEYS[0], PAGE)
    elif what == "its record":
        put_written(plans, rests, replace(rests.plan.record, attempt=7), 1001)
    elif what == "its spec":
        obj = rests.loaded.obj
        changed = {"metadata": obj["metadata"] | {"resourceVersion": "1001", "generation": 2}}
        plans._cluster.cache.put(RLHFJOBS, obj | changed | {"spec": obj["spec"] | {"runState": "Stopped"}})
    elif what == "it was due":
        plans._full[KEYS[0]] = replace(rests, plan=replace(rests.plan, requeue_after=1.0))
    else:
        later = 1.9e9 - 1
    plans._clock = lambda: later
    planned(plans, KEYS[0])
    assert len(log) == 3


def test_when_it_is_due_is_told_as_of_now(plans: PlanCache) -> None:
    rests = at_rest(plans)
    plans._full[KEYS[0]] = replace(rests, plan=replace(rests.plan, requeue_after=3.0))
    plans._clock = lambda: 1.9e9 + 1
    assert planned(plans, KEYS[0]).plan.requeue_after == 2.0
    plans._clock = lambda: 1.9e9 + 2
    assert planned(plans, KEYS[0]).plan.requeue_after == 1.0


# -- a job whose own pass has written it


PAGE = ScrapeView(ScrapeOutcome.OK, at=1.9e9, metrics_seen=("gold",))


def put_written(plans: PlanCache, full: FullPlan, record: JobRecord, version: int = 1000) -> FullPlan:
    """Put the job into the cache as the server gives it once this record is written."""
    cluster, loaded = plans._cluster, full.loaded
    status = convert.status(cluster.names.hidden(record, loaded.key), loaded.desired, 1.9e9)
    written = {**loaded.obj, "metadata": {**loaded.obj["metadata"], "resourceVersion": str(version)}}
    cluster.cache.put(RLHFJOBS, {**written, "status": status})
    return replace(full, plan=replace(full.plan, record=record))


def test_a_job_that_its_pass_has_written_is_planned_without_being_read_back(plans: PlanCache) -> None:
    cluster = plans._cluster
    cluster.scraped(KEYS[0], PAGE)
    first = planned(plans, KEYS[0])
    assert first.plan.record != first.loaded.record
    full = put_written(plans, first, first.plan.record)
    plans.written(full)
    assert cluster.as_written(full.loaded, full.plan.record) == cluster.load(KEYS[0])
    cluster.load = pytest.fail  # type: ignore[method-assign, assignment]
    again = plans.newest_plan(KEYS[0])
    assert again is not None
    assert again.loaded.record == full.plan.record
    assert again.planned_job.version == "1000"


@pytest.mark.parametrize(
    "changed",
    [
        {"actors": (Actor(0, "n1", 1),)},
        {"evaluator": "judge-2"},
        {"admission": AdmissionRecord(1, ("n1",), 1.9e9, source="other/job")},
        {"access": InFlight(Operation.CLAIM, 1)},
        {"conditions": (Condition("Accepted", True, "Valid", "x" * 9500, 1.9e9, 1),)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_seen_of_it_otherwise_is_looked_at_anew(plans: PlanCache, changed: dict[str, Any]) -> None:
    cluster, first = plans._cluster, planned(plans, KEYS[0])
    full = put_written(plans, first, replace(first.plan.record, **changed))
    assert cluster.as_written(full.loaded, full.plan.record) is None


@pytest.mark.parametrize("what", ["its page", "its page again", "its status"])
def test_what_changes_after_it_was_written_counts(plans: PlanCache, what: str) -> None:
    cluster = plans._cluster
    cluster.scraped(KEYS[0], PAGE)
    full = put_written(plans, first := planned(plans, KEYS[0]), first.plan.record)
    plans.written(full)
    if what == "its status":
        put_written(plans, full, replace(full.plan.record, attempt=7), 1001)
    else:
        cluster.scraped(KEYS[0], replace(PAGE, at=1.9e9 + 15, message="" if "again" in what else "news"))
    again = plans.newest_plan(KEYS[0])
    assert again is not None
    assert again.loaded == cluster.load(KEYS[0])
