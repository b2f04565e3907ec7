"""Passes over a worker group: a plan is made when something that it goes by has changed, and by no report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from controller import names
from controller.api.convert import record
from controller.api.gpupool import GPUPool
from controller.api.workergroup import group_record
from controller.kube.cache import Cache, key_of
from controller.kube.resources import CONFIGMAPS, GPUPOOLS, JOBS, PODS, RLHFJOBS, WORKERGROUPS
from controller.objects import controller_reference
from controller.operator.reconcile import groups as module
from controller.operator.reconcile.groups import GroupReconciler
from controller.operator.state.groups import Groups
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.steps.groups import GroupDirectory
from controller.web.group_report import checked
from controller.workloads.group_jobs import template_digest
from tests.support import group_scene as scene
from tests.support.dashboard_world import pool_object

Json = dict[str, Any]


class World:
    """The recorded group with its Job and pods in a cache; writes go into the cache, and member 0 is where
    nobody knows, so that nobody is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.version, self.plans = Cache(), 10_000, 0
        plan = module.plan_group

        def counted(*given: Any) -> Any:
            self.plans += 1
            return plan(*given)

        monkeypatch.setattr(module, "plan_group", counted)
        self.reports = Groups(self.cache, *[lambda *_: None] * 3)
        group = scene.group(scene.A, scene.B)
        for kind, obj in ((GPUPOOLS, scene.POOL), (RLHFJOBS, scene.A), (RLHFJOBS, scene.B)):
            self.cache.put(kind, obj)
        self.put(WORKERGROUPS, group)
        job = self.made("wg-3-2", "uid-of-job", group)
        job["spec"] = {"completions": 2}
        self.put(JOBS, job)
        for index, uid in enumerate(("pod-a", "pod-b")):
            pod = self.made(f"wg-3-2-{index}", uid, job)
            pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
            pod |= {"spec": {"nodeName": f"gpu-{index}", "containers": []}, "status": {"phase": "Running"}}
            self.put(PODS, pod)
        self.cluster = SimpleNamespace(
            pool=lambda name: None, steps=SimpleNamespace(urls=["https://op:9444"], ca="one"),
            pool_changed=lambda name: None, group_changed=lambda name: None,
        )  # fmt: skip
        api: Any = SimpleNamespace(create=self.create, merge_patch=self.merge_patch, delete=self.delete)
        given: list[Any] = [api, self.cache, self.cluster, self, self.reports, GroupDirectory(), lambda: 9.0]
        self.reconciler = GroupReconciler(*given)

    def made(self, name: str, uid: str, owner: Json) -> Json:
        metadata = {"name": name, "namespace": GROUPS_NAMESPACE, "uid": uid}
        kind = "Pod" if uid.startswith("pod-") else "Job"
        labels = {names.LABEL_JOB: "wg-3"}
        references = [controller_reference(owner)]
        return {"apiVersion": "v1", "kind": kind, "metadata": {
            **metadata, "labels": labels, "ownerReferences": references,
        }}  # fmt: skip

    def put(self, kind: Any, obj: Json) -> Json:
        self.version += 1
        made = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self.cache.put(kind, made)
        return made

    def changed(self, kind: Any, name: str, **more: Any) -> None:
        """Have an object come in another version, as the watch brings it."""
        self.put(kind, self.the(kind, name) | more)

    def the(self, kind: Any, name: str) -> Json:
        (found,) = (one for one in self.cache.values(kind) if one["metadata"]["name"] == name)
        return dict(found)

    def gone(self, kind: Any, name: str) -> None:
        """Have an object be gone, as the watch brings it."""
        self.version += 1
        found = self.the(kind, name)
        self.cache.drop(
            kind, {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        )

    async def create(self, kind: Any, obj: Json) -> Json:
        obj["metadata"]["uid"] = "uid-of-it"
        return self.put(kind, obj)

    async def merge_patch(self, kind: Any, name: str, patch: Json, *_: Any, **__: Any) -> Json:
        found = self.cache.get(kind, f"{GROUPS_NAMESPACE}/{name}")
        assert found is not None
        return self.put(kind, found | patch)

    async def delete(self, *_: Any, **__: Any) -> None:
        """Nothing is gone before the watch says so."""

    async def group(self, obj: Json, wanted: Json) -> bool:
        """As the writer of statuses does."""
        if obj.get("status") == wanted:
            return False
        self.put(WORKERGROUPS, {**obj, "status": wanted})
        return True

    def passes(self, count: int = 1) -> int:
        """Make passes; return how many of them planned."""
        before = self.plans
        for _ in range(count):
            asyncio.run(self.reconciler.reconcile("wg-3"))
        return self.plans - before


def hears(**change: Any) -> Callable[[World], object]:
    return lambda w: w.reports.take("wg-3", 2, checked(scene.report(**change)), scene.START)


CHANGES: dict[str, Callable[[World], object]] = {
    "its status": lambda w: w.changed(WORKERGROUPS, "wg-3"),
    "its Job": lambda w: w.changed(JOBS, "wg-3-2"),
    "a pod": lambda w: w.changed(PODS, "wg-3-2-0"),
    "a pod that is gone": lambda w: w.cache.drop(
        PODS, dict(w.cache.get(PODS, f"{GROUPS_NAMESPACE}/wg-3-2-1") or {})
    ),
    "a resident's job": lambda w: w.changed(RLHFJOBS, "math-a"),
    "its pool": lambda w: w.put(
        GPUPOOLS, scene.POOL | {"metadata": scene.POOL["metadata"] | {"generation": 77}}
    ),
    "the authority": lambda w: w.changed(CONFIGMAPS, "wg-3-run", data={}),
    "another authority": lambda w: setattr(w.cluster, "steps", SimpleNamespace(urls=[], ca="two")),
    "a resident that is gone": hears(gone=[scene.NAMES[0]]),
    "a group that is not ready": hears(ready=False),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_plan_goes_by_makes_another_plan(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(monkeypatch)
    hears()(w)
    assert w.passes(4) > 0
    assert w.passes(3) == 0, "nothing has changed"
    CHANGES[change](w)
    assert w.passes() == 1


def test_turns_make_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(monkeypatch)
    hears()(w)
    w.passes(4)
    for turns in range(5):
        hears(calls=turns, switches=turns, vacant=turns)(w)
        assert w.passes() == 0


def test_the_next_start_waits_for_pods_whose_job_is_gone_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kubectl delete job` takes the Job away at once, and its pods end after it."""
    w = World(monkeypatch)
    hears()(w)
    w.passes(4)
    left = w.the(RLHFJOBS, "math-a")
    known = left["status"]["residency"]
    w.changed(RLHFJOBS, "math-a", status=left["status"] | {"residency": known | {"leaving": True}})
    w.passes(2)

    def record() -> tuple[int, int]:
        found = w.the(WORKERGROUPS, "wg-3")["status"]
        return found["number"], len(found["residents"])

    for kind, name in ((JOBS, "wg-3-2"), (PODS, "wg-3-2-0"), (PODS, "wg-3-2-1")):
        assert record() == (2 if kind is JOBS else 3, 2)
        w.gone(kind, name)
        w.passes(2)
    # Who leaves is gone with the last pod, not with the Job.
    assert record() == (3, 1)


def test_the_next_start_comes_when_its_pause_is_over_though_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that its kubelet rejects ends before its group is ready: 348 starts in 160 s."""
    w = World(monkeypatch)
    now = [scene.START]
    monkeypatch.setattr(w.reconciler, "_clock", lambda: now[0])
    made: list[int] = []

    async def make(obj: Json, record: Any, family: Any) -> None:
        made.append(record.number)

    monkeypatch.setattr(w.reconciler, "_make", make)
    monkeypatch.setattr(w.reconciler, "_family", lambda obj: object())
    status = w.the(WORKERGROUPS, "wg-3")["status"]
    w.changed(WORKERGROUPS, "wg-3", status={k: v for k, v in status.items() if k != "readyTime"})
    for kind, name in ((PODS, "wg-3-2-0"), (PODS, "wg-3-2-1"), (JOBS, "wg-3-2")):
        w.gone(kind, name)
    again = [asyncio.run(w.reconciler.reconcile("wg-3")).requeue_after for _ in range(3)]
    assert (made, again) == ([], [10.0] * 3)
    now[0] += 9.0
    assert asyncio.run(w.reconciler.reconcile("wg-3")).requeue_after == pytest.approx(1.0)
    now[0] += 1.0
    w.passes()
    assert made == [3]


def test_a_group_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(monkeypatch)
    w.passes(4)
    assert w.reconciler._settled
    found = w.cache.get(WORKERGROUPS, key_of(scene.group(scene.A, scene.B)))
    assert found is not None
    w.cache.drop(WORKERGROUPS, {**found, "metadata": {**found["metadata"], "resourceVersion": "99999"}})
    assert w.passes() == 0
    assert not w.reconciler._settled


def test_the_limit_of_a_resident_is_its_jobs_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(monkeypatch)
    name = scene.NAMES[0]
    assert w.reports._limit(name) == 10
    w.changed(
        RLHFJOBS, "math-a", spec=scene.A["spec"] | {"sharing": scene.SHARING | {"maxSlowdownPercent": 30}}
    )
    assert w.reports._limit(name) == 30
    w.changed(RLHFJOBS, "math-a", status={})
    assert w.reports._limits.keys() == {scene.B["metadata"]["uid"]}


def lost(count: int, **more: Any) -> Callable[[World], object]:
    """Have the group report that it lost so many turns of math-a in a row, the first of them 100 s ago."""
    found = scene.report()
    found["residents"][0] |= {
        "lostInRow": count, "failing": found["now"] - 100_000_000, "whyLost": "start: no\nclass", **more,
    }  # fmt: skip
    return lambda w: w.reports.take("wg-3", 2, checked(found), scene.START)


def test_a_group_that_loses_each_turn_is_told_to_its_resident_and_to_its_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World(monkeypatch)
    touched: list[str] = []

    async def nobody_is_asked(*_: Any) -> float:
        return 1.0

    monkeypatch.setattr(w.reconciler, "_talk", nobody_is_asked)
    monkeypatch.setattr(w.reports, "_touch", touched.append)
    assert not lost(0)(w)
    w.passes(4)
    touched.clear()

    def seen() -> Any:
        job = w.the(RLHFJOBS, "math-a")
        return w.reports.seen(job["metadata"]["uid"], record(job["status"])).loses

    assert (lost(2)(w), touched, w.passes(), seen()) == (False, [], 0, None)
    assert lost(3)(w), "news to the pool"
    assert touched == ["team-a/math-a", "team-a/math-b"]
    assert seen() == (scene.START - 100.0, "start: no class")
    assert w.passes() == 1
    (told,) = (
        one for one in w.the(WORKERGROUPS, "wg-3")["status"]["conditions"] if one["type"] == "TurnsCount"
    )
    assert told["message"] == "of team-a/math-a each turn is lost: start: no class"
    w.passes(2)
    assert not lost(4)(w)
    assert w.passes(2) == 0, "told once"
    assert lost(0)(w)
    assert seen() is None


def test_a_start_is_outdated_once_its_family_has_another_template(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(monkeypatch)
    sharing = {"families": [scene.FAMILY], "maxResidents": 3}
    pool = GPUPool.model_validate(pool_object(sharing=sharing))
    group = w.the(WORKERGROUPS, "wg-3")
    known = group_record(group)

    def outdated(**family: Any) -> bool:
        other = {"families": [scene.FAMILY | family], "maxResidents": 3}
        return w.reports.outdated(group, known, GPUPool.model_validate(pool_object(sharing=other)))

    changed = {"template": {"spec": {"containers": [{"name": "worker", "image": "family:2"}]}}}
    assert not outdated(**changed), "its Job does not tell what it was made from"
    made = template_digest(pool.spec.sharing.families[0].template.model_dump())
    job = w.the(JOBS, "wg-3-2")
    metadata = job["metadata"] | {"annotations": {names.ANNOTATION_TEMPLATE: made}}
    w.changed(JOBS, "wg-3-2", metadata=metadata)
    assert not outdated()
    assert not outdated(deviceBytes=scene.FAMILY["deviceBytes"] + 1)
    assert outdated(**changed)


def test_how_a_pod_of_a_group_ends_is_told_to_the_job_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(monkeypatch)
    group = w.the(WORKERGROUPS, "wg-3")
    w.changed(WORKERGROUPS, "wg-3", status={k: v for k, v in group["status"].items() if k != "readyAt"})
    w.passes(3)
    end = {"exitCode": 1, "reason": "Error", "message": "no driver", "finishedAt": "2027-01-15T08:00:00Z"}
    one = {"name": "worker", "restartCount": 1, "lastState": {"terminated": end | {"containerID": "x"}}}
    w.changed(PODS, "wg-3-2-0", status={"phase": "Running", "containerStatuses": [one]})
    assert w.passes() == 1
    job = w.the(RLHFJOBS, "math-a")
    told = w.reports.seen(job["metadata"]["uid"], record(job["status"])).trouble
    assert (told.pod, told.exit_code, told.message) == ("wg-3-2-0", 1, "no driver")
    w.passes(2)
    w.changed(PODS, "wg-3-2-0", status={"phase": "Running"}, metadata=w.the(PODS, "wg-3-2-0")["metadata"])
    w.passes(2)
    assert w.reports.seen(job["metadata"]["uid"], record(job["status"])).trouble == told


def test_that_a_node_of_a_group_is_not_heard_of_is_told_to_its_residents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World(monkeypatch)
    w.passes(3)
    away = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    w.changed(PODS, "wg-3-2-0", status={"phase": "Running", "conditions": away})
    w.passes(1)
    job = w.the(RLHFJOBS, "math-a")
    told = w.reports.seen(job["metadata"]["uid"], record(job["status"])).trouble
    assert (told.pod, told.waits) == ("wg-3-2-0", "NodeNotReady")


def test_a_group_that_cannot_start_again_is_told_to_its_residents_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World(monkeypatch)

    def pool(replicas: int) -> None:
        sharing = {"families": [scene.FAMILY | {"replicas": replicas}], "maxResidents": 3}
        found = GPUPool.model_validate(pool_object(sharing=sharing))
        monkeypatch.setattr(w.cluster, "pool", lambda name: found)

    def told() -> Any:
        job = w.the(RLHFJOBS, "math-a")
        return w.reports.seen(job["metadata"]["uid"], record(job["status"])).unready

    pool(scene.FAMILY["replicas"])
    hears()(w)
    w.passes(3)
    assert told() is None
    pool(scene.FAMILY["replicas"] + 1)
    w.passes(3)
    assert told() is None, "it goes on"
    for kind, name in ((JOBS, "wg-3-2"), (PODS, "wg-3-2-0"), (PODS, "wg-3-2-1")):
        w.gone(kind, name)
    w.passes(3)
    assert told().why.startswith("FamilyNotFound: GPUPool 'research' has no family ")
    pool(scene.FAMILY["replicas"])
    w.changed(GPUPOOLS, scene.POOL["metadata"]["name"], metadata=scene.POOL["metadata"] | {"generation": 78})
    w.passes(3)
    assert told().why.startswith("JobRefused: "), "its template asks for no GPUs: the family is there again"
