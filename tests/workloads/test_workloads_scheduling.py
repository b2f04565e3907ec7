"""Scheduler and priority class of a child's pods: given where the template has none, asked of a ref."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import names, workloads
from controller.workloads import Scheduling

CONTAINER: dict[str, Any] = {
    "name": "trainer",
    "image": "t",
    "ports": [{"name": "metrics", "containerPort": 9400}],
    "resources": {"limits": {"nvidia.com/gpu": "4"}},
}
POOL = Scheduling(names.SCHEDULER_NAME, names.PRIORITY_CLASS)
OWN_CLASS = Scheduling("", "gold")


def rlhfjob(**pod: Any) -> dict[str, Any]:
    spec = {"restartPolicy": "Never", "containers": [copy.deepcopy(CONTAINER)], **pod}
    template = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "completionMode": "Indexed",
            "template": {"spec": spec},
        },
    }
    return {
        "metadata": {"name": "run", "namespace": "team", "uid": "u1"},
        "spec": {
            "gang": {"replicas": 1, "gpusPerReplica": 4},
            "workload": {"template": template},
            "scrape": {},
        },
    }


def pod_of(child: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = child["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ({}, POOL, (names.SCHEDULER_NAME, names.PRIORITY_CLASS)),
        ({"priorityClassName": "mine"}, POOL, (names.SCHEDULER_NAME, "mine")),
        ({"schedulerName": names.SCHEDULER_NAME}, POOL, (names.SCHEDULER_NAME, names.PRIORITY_CLASS)),
        ({"schedulerName": "volcano"}, OWN_CLASS, ("volcano", "gold")),
        ({}, Scheduling(), (None, None)),
        ({"priorityClassName": "mine"}, POOL._replace(allowed=("mine",)), (names.SCHEDULER_NAME, "mine")),
        ({}, POOL._replace(allowed=()), (names.SCHEDULER_NAME, names.PRIORITY_CLASS)),
        ({"preemptionPolicy": "Never"}, POOL, (names.SCHEDULER_NAME, names.PRIORITY_CLASS)),
        (
            {"priorityClassName": "mine", "preemptionPolicy": "PreemptLowerPriority"},
            POOL,
            (names.SCHEDULER_NAME, "mine"),
        ),
    ],
)
def test_what_a_child_gets(given: Any, wanted: Scheduling, expected: tuple[str | None, str | None]) -> None:
    wish = rlhfjob(**given)
    before = copy.deepcopy(wish)
    child = workloads.build_child(wish, wanted)
    pod = pod_of(child)
    assert (pod.get("schedulerName"), pod.get("priorityClassName")) == expected
    assert workloads.priority_class_of(child) == (expected[1] or "")
    assert pod.get("preemptionPolicy") == given.get("preemptionPolicy"), "the class has it, not the pod"
    assert wish == before


@pytest.mark.parametrize(
    ("given", "wanted", "reason", "words"),
    [
        (
            {"schedulerName": "default-scheduler"},
            POOL,
            "SchedulerMismatch",
            "spec.schedulerName: 'default-scheduler', expected 'evalstop-scheduler'",
        ),
        (
            {"preemptionPolicy": "PreemptLowerPriority"},
            POOL,
            "PriorityMismatch",
            "spec.preemptionPolicy: 'PreemptLowerPriority', leave it out",
        ),
        ({"preemptionPolicy": "Never"}, OWN_CLASS, "PriorityMismatch", "that of PriorityClass 'gold' goes"),
        ({"priority": 7}, POOL, "PriorityMismatch", "spec.priority: 7, leave it out"),
        (
            {"priorityClassName": "system-node-critical"},
            POOL._replace(allowed=("mine",)),
            "PriorityClassNotAllowed",
            "spec.workload.template.spec.template.spec.priorityClassName: 'system-node-critical' is not "
            "allowed by the GPUPool, only: evalstop-rlhf, mine",
        ),
    ],
)
def test_what_stands_in_its_way_is_told_by_name(
    given: Any, wanted: Scheduling, reason: str, words: str
) -> None:
    problem = workloads.template_problem(rlhfjob(**given), wanted)
    assert problem is not None
    assert problem.reason == reason
    assert words in problem.message
    with pytest.raises(workloads.ProblemError):
        workloads.build_child(rlhfjob(**given), wanted)


def referred() -> tuple[dict[str, Any], dict[str, Any]]:
    job = rlhfjob()
    child = workloads.build_child(job, POOL)
    child["metadata"]["name"] = "mine"
    job["spec"]["workload"] = {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "mine"}}
    return job, child


@pytest.mark.parametrize(
    ("spoil", "reason", "words"),
    [
        (
            lambda p: p.pop("schedulerName"),
            "SchedulerMissing",
            "spec.template.spec.schedulerName is 'default-scheduler', expected 'evalstop-scheduler'",
        ),
        (
            lambda p: p.pop("priorityClassName"),
            "PriorityClassMissing",
            "spec.template.spec.priorityClassName is not set, expected 'evalstop-rlhf'",
        ),
        (lambda p: p["volumes"].clear(), "RunVolumeMissing", "ConfigMap 'run-run'"),
    ],
)
def test_a_ref_that_lacks_what_can_never_be_added_is_refused_by_name(
    spoil: Callable[[Any], Any], reason: str, words: str
) -> None:
    job, child = referred()
    assert workloads.ref_problem(job, child, POOL) is None
    spoil(pod_of(child))
    problem = workloads.ref_problem(job, child, POOL)
    assert problem is not None
    assert problem.reason == reason
    assert words in problem.message


def test_a_ref_keeps_a_class_of_its_own_and_a_pool_may_ask_for_none() -> None:
    job, child = referred()
    pod_of(child)["priorityClassName"] = "mine"
    assert workloads.ref_problem(job, child, POOL) is None
    for field in ("schedulerName", "priorityClassName"):
        del pod_of(child)[field]
    assert workloads.ref_problem(job, child, Scheduling()) is None


def test_the_shipped_class_evicts_nobody_and_carries_the_name_the_operator_uses() -> None:
    path = Path(__file__).parents[2] / "deploy" / "manifests" / "priorityclass.yaml"
    shipped = yaml.safe_load(path.read_text())
    assert shipped["metadata"]["name"] == names.PRIORITY_CLASS
    assert shipped["preemptionPolicy"] == "Never"
    assert shipped["globalDefault"] is False


def test_each_admission_labels_the_pods_with_the_pool_and_its_number() -> None:
    child = workloads.build_child(rlhfjob(), POOL)
    child["metadata"]["uid"] = "u9"
    patch = workloads.start_patch(child, 7, {"gpu": "a"}, labels={names.LABEL_POOL: "a100"})
    metadata = patch["spec"]["template"]["metadata"]
    assert metadata == {
        "labels": {"evalstop.dev/pool": "a100"},
        "annotations": {"evalstop.dev/admission": "7"},
    }


@pytest.mark.parametrize("started", [None, "2026-07-01T12:00:00Z"])
def test_a_start_time_is_taken_away_only_where_there_is_one(started: str | None) -> None:
    child = workloads.build_child(rlhfjob())
    child["metadata"]["uid"] = "u9"
    child["status"] = {"startTime": started} if started else {}
    patch = workloads.restart_patch(child)
    if started is None:
        assert patch is None
    else:
        assert json.loads(json.dumps(patch)) == {"metadata": {"uid": "u9"}, "status": {"startTime": None}}


def test_a_ref_may_not_have_a_class_that_its_pool_does_not_allow() -> None:
    job, child = referred()
    pod_of(child)["priorityClassName"] = "system-cluster-critical"
    problem = workloads.ref_problem(job, child, POOL._replace(allowed=()))
    assert problem is not None
    assert problem.reason == "PriorityClassNotAllowed"
    assert "'system-cluster-critical' is not allowed by the GPUPool, only: evalstop-rlhf" in problem.message
