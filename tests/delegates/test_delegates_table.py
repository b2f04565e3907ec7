"""One table for all delegates: what each writes when it is asked, and that it does not write it twice."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from delegates_world import NAMESPACE, QUEUE, DelegateWorld, child, pool, workload

from controller import delegates, names, workloads
from controller.delegates import ADAPTERS, EXTERNAL_QUEUES, NotYet, of_pool, of_workload
from controller.kube.resources import ADMISSION_CHECKS, CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES, WORKLOADS
from controller.policy.job.types import Answer
from controller.policy.pool.delegates import DELEGATIONS
from controller.policy.types import Delegate

BUILTIN, NONE, KUEUE = Delegate.BUILTIN, Delegate.NONE, Delegate.KUEUE


class Row(NamedTuple):
    """Where each thing that is asked goes (kind, or kind/subresource of the writes)."""

    label: str | None  # the queue label of a child
    start: list[str]
    stop: list[str]
    again: list[str]
    resume: list[str]
    refuse: list[str]


TABLE = {
    BUILTIN: Row(None, ["Job"], ["Job"], ["Job"], [], []),
    NONE: Row(None, ["Job"], ["Job"], ["Job"], [], []),
    KUEUE: Row(
        QUEUE,
        ["Workload/status"],
        ["Workload"],
        ["Workload/status"],
        ["Workload"],
        ["Workload/status"],
    ),
}
every = pytest.mark.parametrize("delegate", list(Delegate))


def test_every_delegate_has_its_adapter_its_line_in_the_plan_and_its_row_here() -> None:
    assert set(ADAPTERS) == set(DELEGATIONS) == set(TABLE) == set(Delegate)
    assert all(adapter.delegate is delegate for delegate, adapter in ADAPTERS.items())
    assert list(EXTERNAL_QUEUES) == [KUEUE]


def test_an_adapter_is_found_by_its_delegates_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth is one file; no file here has an adapter that nobody can choose."""
    assert list(ADAPTERS) == [BUILTIN, NONE, KUEUE]
    found = {m.name for m in pkgutil.iter_modules(delegates.__path__, f"{delegates.__name__}.")}
    with_adapter = {m for m in found if hasattr(importlib.import_module(m), "ADAPTER")}
    assert with_adapter == {f"{delegates.__name__}.{delegate.lower()}" for delegate in Delegate}

    lines = (
        "from controller.delegates.none import Nobody",
        "class Fourth(Nobody): ...",
        "ADAPTER = Fourth()",
    )
    (tmp_path / "fourth.py").write_text("\n".join(lines))
    monkeypatch.setattr(delegates, "__path__", [*delegates.__path__, str(tmp_path)])
    try:
        assert type(delegates.named("Fourth")).__name__ == "Fourth"
    finally:
        sys.modules.pop(f"{delegates.__name__}.fourth", None)


@every
def test_a_child_is_queued_and_known_again_by_that(delegate: Delegate) -> None:
    adapter = of_pool(pool(delegate))
    found = child(adapter)
    assert found["metadata"]["labels"].get(names.QUEUE_LABEL) == TABLE[delegate].label
    assert workloads.view(found).queue == (TABLE[delegate].label or "")
    # Of two that do the same with it, either may say it is its own.
    assert of_workload(found).delegate is (BUILTIN if delegate is NONE else delegate)
    assert names.ANNOTATION_ADMISSION not in str(found)


@every
def test_started_once_with_all_that_the_pods_are_to_get(delegate: Delegate) -> None:
    world = DelegateWorld(ADAPTERS[delegate])
    assert world.start() == TABLE[delegate].start
    if delegate is KUEUE:
        (got,) = world.state()["podSetUpdates"]
        assert got.pop("name") == "main"
        assert world.job["spec"]["suspend"] is True  # that is Kueue's to change
        assert world.state()["state"] == "Ready"
        assert world.state()["retryCount"] == 1  # Kueue's own
        assert world.workload["status"]["admissionChecks"][0]["name"] == "somebodys"
    else:
        template = world.job["spec"]["template"]
        got = {
            "labels": {names.LABEL_POOL: template["metadata"]["labels"][names.LABEL_POOL]},
            "annotations": template["metadata"]["annotations"],
            "nodeSelector": template["spec"]["nodeSelector"],
            "tolerations": template["spec"]["tolerations"],
        }
        assert world.job["spec"]["suspend"] is False
    assert got == {
        "annotations": {names.ANNOTATION_ADMISSION: "3"},
        "labels": {names.LABEL_POOL: "gpus"},
        "nodeSelector": {"pool": "gpus"},
        "tolerations": [workloads.pool_toleration("gpus")],
    }
    assert world.start() == []


@every
def test_put_out_for_good_once_and_resumed_once(delegate: Delegate) -> None:
    world = DelegateWorld(ADAPTERS[delegate], suspended=False)
    assert world.stop() == TABLE[delegate].stop
    if delegate is KUEUE:
        assert world.workload["spec"]["active"] is False
        assert world.job["spec"]["suspend"] is False
        view = EXTERNAL_QUEUES[delegate].view(world.job, world)
        assert view is not None
        assert (view.active, view.ours, view.offer) == (False, True, "")
    else:
        assert world.job["spec"]["suspend"] is True
    assert world.stop() == []
    assert world.resume() == TABLE[delegate].resume
    if delegate is KUEUE:
        assert world.workload["spec"]["active"] is True
        assert names.ANNOTATION_SWITCHED_OFF not in world.workload["metadata"]["annotations"]
    assert world.resume() == []


@every
def test_put_out_to_line_up_again(delegate: Delegate) -> None:
    world = DelegateWorld(ADAPTERS[delegate], suspended=False)
    assert world.stop(again=True) == TABLE[delegate].again
    assert world.stop(again=True) == []
    if delegate is KUEUE:
        assert world.state()["state"] == "Retry"
        assert "requeueAfterSeconds" not in world.state()  # it would keep its quota for so long
        assert "podSetUpdates" not in world.state()


@every
def test_quota_given_back(delegate: Delegate) -> None:
    world = DelegateWorld(ADAPTERS[delegate])
    assert world.refuse() == TABLE[delegate].refuse
    assert world.refuse() == []
    assert world.start() == ([] if delegate is KUEUE else TABLE[delegate].start)


def _put_out(world: DelegateWorld, state: str) -> None:
    """Kueue's one write: the Workload is out and its checks are ``state``; its quota and its Job go later."""
    evicted = {"type": "Evicted", "status": "True", "reason": "AdmissionCheck", "message": ""}
    world.workload["status"]["conditions"].append({**evicted, "lastTransitionTime": ""})
    world.state()["state"] = state


def _without_quota(world: DelegateWorld, state: str) -> None:
    world.workload["status"]["conditions"][0]["status"] = "False"
    world.state()["state"] = state


@pytest.mark.parametrize("left", [_put_out, _without_quota])
def test_a_workload_without_an_offer_is_not_answered(left: Any) -> None:
    """Nothing would reset the answer: a Retry keeps a Workload out for ever, a Ready starts its next offer
    where this one was to run."""
    world = DelegateWorld(ADAPTERS[KUEUE], suspended=False)
    assert world.stop(again=True) == ["Workload/status"]
    left(world, "Pending")  # reset as Kueue does when it puts the Workload out
    assert world.stop(again=True) == []
    assert world.refuse() == []
    assert world.start() == []
    assert world.stop() == ["Workload"]  # off is off, whatever becomes of the offer


def test_a_retry_that_was_left_without_quota_is_taken_back() -> None:
    adapter, world = EXTERNAL_QUEUES[KUEUE], DelegateWorld(ADAPTERS[KUEUE])

    def mend() -> list[str]:
        writes = adapter.sync([pool(KUEUE)], [world.workload], world, 1.0)
        return [w for w in world.send(writes) if w.startswith("Workload")]

    world.state()["state"] = "Retry"
    assert mend() == []  # it has quota: Kueue acts on it
    _put_out(world, "Retry")
    assert mend() == []  # the quota goes when its pods have
    _without_quota(world, "Retry")
    assert mend() == ["Workload/status"]
    assert (world.state()["state"], world.state()["retryCount"]) == ("Pending", 1)
    assert mend() == []


@every
def test_no_queue_outside_is_believed_before_it_was_read(delegate: Delegate) -> None:
    world = DelegateWorld(ADAPTERS[delegate], known=False)
    if delegate is not KUEUE:
        assert world.start() == TABLE[delegate].start
        return
    world.objects[WORKLOADS].clear()
    for ask in (world.start, world.stop, world.resume, world.refuse):
        with pytest.raises(NotYet):
            ask()


@every
def test_a_workload_that_no_queue_has_is_suspended_itself(delegate: Delegate) -> None:
    """Kueue was taken away, or does not manage it: nobody else would."""
    world = DelegateWorld(ADAPTERS[delegate], suspended=False)
    world.gone.update(world.objects)
    assert world.stop() == ["Job"]
    assert world.stop() == []


@every
def test_a_builtin_start_waits_for_the_former_pods(delegate: Delegate) -> None:
    world = DelegateWorld(ADAPTERS[delegate])
    world.job["status"]["active"] = 1
    if delegate is KUEUE:
        assert world.start() == TABLE[delegate].start  # Kueue sees to that
        return
    with pytest.raises(NotYet, match="1 pod is still active"):
        world.start()


def test_a_queue_label_where_the_pool_queues_itself_is_a_problem() -> None:
    labelled = child(ADAPTERS[KUEUE])
    for delegate in (BUILTIN, NONE):
        problem = ADAPTERS[delegate].problem(labelled, pool(delegate), "", "spec.workload.template")
        assert problem is not None
        assert problem.reason == "QueueLabelNotExpected"
        assert "start and suspend it against each other" in problem.message
    assert ADAPTERS[KUEUE].problem(labelled, pool(KUEUE), QUEUE, "t") is None
    found = ADAPTERS[KUEUE].problem(child(ADAPTERS[BUILTIN]), pool(KUEUE), QUEUE, "Job run")
    assert found is not None
    assert (found.reason, f"set it to {QUEUE!r}" in found.message) == ("QueueLabelMissing", True)


def test_what_kueue_could_not_put_into_the_pods_is_a_problem() -> None:
    found = child(ADAPTERS[KUEUE])
    found["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "other"}
    problem = ADAPTERS[KUEUE].problem(found, pool(KUEUE), QUEUE, "t")
    assert problem is not None
    assert problem.reason == "NodeSelectorMismatch"
    found["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "gpus"}
    found["spec"]["template"]["metadata"]["annotations"] = {names.ANNOTATION_ADMISSION: "1"}
    problem = ADAPTERS[KUEUE].problem(found, pool(KUEUE), QUEUE, "t")
    assert problem is not None
    assert problem.reason == "ReservedName"


def test_a_selector_that_the_template_has_already_is_not_put_in_twice() -> None:
    """Kueue gives a Workload up for good over two values for one key, but takes none for two."""
    world = DelegateWorld(ADAPTERS[KUEUE])
    world.job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "gpus"}
    world.start()
    (update,) = world.state()["podSetUpdates"]
    assert update["nodeSelector"] == {}


def test_each_reservation_of_quota_is_another_offer() -> None:
    world = DelegateWorld(ADAPTERS[KUEUE])

    def offer() -> str:
        view = EXTERNAL_QUEUES[KUEUE].view(world.job, world)
        assert view is not None
        return view.offer

    seen = [offer()]
    world.workload["status"]["schedulingStats"] = {"evictions": [{"reason": "Preempted", "count": 1}]}
    seen.append(offer())
    world.workload["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-21T12:00:09Z"
    seen.append(offer())
    world.workload["metadata"]["uid"] = "another"
    seen.append(offer())
    assert len(set(seen)) == 4
    assert all(seen)
    world.workload["status"]["conditions"].append(
        {
            "type": "Evicted",
            "status": "True",
            "reason": "Preempted",
            "message": "by a",
            "lastTransitionTime": "",
        }
    )
    view = EXTERNAL_QUEUES[KUEUE].view(world.job, world)
    assert view is not None
    assert (view.offer, view.evicted, view.message) == ("", "Preempted", "by a")


def test_a_finished_workload_keeps_its_offer() -> None:
    """Told before its Job is seen to end, it would pass for put out."""
    world = DelegateWorld(ADAPTERS[KUEUE], suspended=False)
    before = EXTERNAL_QUEUES[KUEUE].view(world.job, world)
    finished = {"type": "Finished", "status": "True", "reason": "Succeeded", "lastTransitionTime": ""}
    world.workload["status"]["conditions"].append(finished)
    after = EXTERNAL_QUEUES[KUEUE].view(world.job, world)
    assert before is not None
    assert after is not None
    assert after.offer == before.offer != ""


def test_a_workload_of_another_job_of_that_label_is_not_looked_at() -> None:
    world = DelegateWorld(ADAPTERS[KUEUE])
    world.workload["metadata"]["ownerReferences"][0]["uid"] = "somebody's"
    assert EXTERNAL_QUEUES[KUEUE].view(world.job, world) is None


def test_what_kueue_says_of_one_that_waits() -> None:
    world = DelegateWorld(ADAPTERS[KUEUE])
    world.objects[WORKLOADS] = [workload(world.job, reserved=False)]
    view = EXTERNAL_QUEUES[KUEUE].view(world.job, world)
    assert view is not None
    assert (view.offer, view.offered_at, view.message) == ("", None, "insufficient quota")
    assert view.answer is Answer.PENDING


def _nothing(world: DelegateWorld) -> None:
    pass


def _set(resource: Any, name: str, **spec: Any) -> Any:
    def change(world: DelegateWorld) -> None:
        found = world.get(resource, name)
        assert found is not None
        found["spec"].update(spec)

    return change


def _drop(resource: Any, name: str) -> Any:
    def change(world: DelegateWorld) -> None:
        world.objects[resource] = [o for o in world.objects[resource] if o["metadata"]["name"] != name]

    return change


def _absent(world: DelegateWorld) -> None:
    world.gone.update(world.objects)


def _small(world: DelegateWorld) -> None:
    groups = world.objects[CLUSTER_QUEUES][0]["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = "3"


def _cohort(limit: int | None) -> Any:
    def change(world: DelegateWorld) -> None:
        _small(world)
        spec = world.objects[CLUSTER_QUEUES][0]["spec"]
        spec["cohortName"] = "all"
        if limit is not None:
            spec["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = limit

    return change


CASES = {
    "as it should be": (_nothing, None, ""),
    "Kueue is not there": (_absent, "KueueNotInstalled", "does not serve kueue.x-k8s.io/v1beta2"),
    "no check of ours": (_drop(ADMISSION_CHECKS, "evalstop"), "CheckNotFound", names.CHECK_CONTROLLER),
    "no LocalQueue": (_drop(LOCAL_QUEUES, QUEUE), "QueueNotFound", f"no LocalQueue {QUEUE!r}"),
    "LocalQueue held": (
        _set(LOCAL_QUEUES, QUEUE, stopPolicy="Hold"),
        "QueueStopped",
        f"LocalQueue {NAMESPACE}/{QUEUE}: spec.stopPolicy is 'Hold'",
    ),
    "LocalQueue not held": (_set(LOCAL_QUEUES, QUEUE, stopPolicy="None"), None, ""),
    "no ClusterQueue": (_drop(CLUSTER_QUEUES, "cq"), "ClusterQueueNotFound", "no ClusterQueue 'cq'"),
    "ClusterQueue drained": (
        _set(CLUSTER_QUEUES, "cq", stopPolicy="HoldAndDrain"),
        "ClusterQueueStopped",
        "spec.stopPolicy is 'HoldAndDrain'",
    ),
    "no check in the ClusterQueue": (
        _set(CLUSTER_QUEUES, "cq", admissionChecksStrategy={"admissionChecks": [{"name": "somebodys"}]}),
        "CheckMissing",
        "spec.admissionChecksStrategy.admissionChecks",
    ),
    "a check for some flavors": (
        _set(
            CLUSTER_QUEUES,
            "cq",
            admissionChecksStrategy={"admissionChecks": [{"name": "evalstop", "onFlavors": ["g"]}]},
        ),
        "CheckMissing",
        "for all flavors of its GPUs",
    ),
    "no GPUs in the ClusterQueue": (
        _set(CLUSTER_QUEUES, "cq", resourceGroups=[]),
        "QuotaMissing",
        f"covers no {names.GPU_RESOURCE}",
    ),
    "quota too small for ever": (
        _small,
        "QuotaTooSmall",
        "3 with all that may be borrowed, but spec.gang needs 4",
    ),
    "quota to be borrowed": (_cohort(None), None, ""),
    "quota to be borrowed up to a limit": (_cohort(1), None, ""),
    "too low a limit": (_cohort(0), "QuotaTooSmall", "raise it to 4"),
    "flavor of other nodes": (
        _set(FLAVORS, "f", nodeLabels={"pool": "other"}),
        "FlavorMismatch",
        "spec.nodeLabels[pool] is 'other', but GPUPool 'gpus' selects 'gpus'",
    ),
    "flavor of the same nodes": (_set(FLAVORS, "f", nodeLabels={"pool": "gpus", "zone": "a"}), None, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_a_queue_is_named_with_its_remedy(case: str) -> None:
    change, reason, said = CASES[case]
    world = DelegateWorld(ADAPTERS[KUEUE])
    change(world)
    problem = EXTERNAL_QUEUES[KUEUE].queue_problem(NAMESPACE, QUEUE, 4, pool(KUEUE), world)
    assert (problem and problem.reason) == reason
    assert said in (problem.message if problem is not None else "")


def test_nothing_is_wrong_with_queues_that_are_not_read_yet() -> None:
    world = DelegateWorld(ADAPTERS[KUEUE], known=False)
    world.objects = {kind: [] for kind in world.objects}
    assert EXTERNAL_QUEUES[KUEUE].queue_problem(NAMESPACE, QUEUE, 4, pool(KUEUE), world) is None
    assert EXTERNAL_QUEUES[KUEUE].pool_problem(pool(KUEUE), world) is None


def test_checks_say_whether_anybody_answers_them_and_strangers_are_let_through() -> None:
    adapter, world = EXTERNAL_QUEUES[KUEUE], DelegateWorld(ADAPTERS[KUEUE])
    stranger = workload(world.job)
    stranger["metadata"] |= {"name": "plain", "labels": {}}
    world.objects[WORKLOADS].append(stranger)
    bare = {"metadata": {"name": "bare"}}  # Kueue's CRD takes one without a spec: it is nobody's
    world.objects[ADMISSION_CHECKS].append(bare)
    served = [pool(KUEUE), pool(BUILTIN)]
    assert world.send(adapter.sync(served, world.objects[WORKLOADS], world, 1.0)) == [
        "AdmissionCheck/status",
        "Workload/status",
    ]
    told = {c["name"]: c["state"] for c in stranger["status"]["admissionChecks"]}
    assert told == {"somebodys": "Ready", "evalstop": "Ready"}
    assert world.state()["state"] == "Pending"  # an RLHFJob's: the pool's plan answers
    check = world.get(ADMISSION_CHECKS, "evalstop")
    assert check is not None

    def active() -> tuple[str, str]:
        (condition,) = check["status"]["conditions"]
        return condition["status"], condition["reason"]

    assert active() == ("True", "Answered")
    assert world.send(adapter.sync(served, world.objects[WORKLOADS], world, 2.0)) == []
    world.send(adapter.sync([pool(BUILTIN)], [], world, 3.0))
    assert active() == ("False", "NoPool")
    check["spec"]["parameters"] = {"kind": "ConfigMap"}
    world.send(adapter.sync(served, [], world, 4.0))
    assert active() == ("False", "ParametersNotSupported")
    other = world.get(ADMISSION_CHECKS, "somebodys")
    assert other is not None
    assert "status" not in other
    assert "status" not in bare
