"""Why a pod does not run, by its status: exit code, last words, what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from controller.cli.doctor.pods import unseen
from controller.kube.resources import PODS
from controller.kube.trim import trim
from controller.policy.job.record import LAST_WORDS, PodTrouble
from controller.workloads.pod_trouble import clean
from controller.workloads.pods import pod_view

ENDED = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z", "containerID": "c://1"}


def trouble(*statuses: dict[str, Any], group: str = "containerStatuses") -> PodTrouble | None:
    metadata = {"name": "run-0", "uid": "u", "resourceVersion": "1", "namespace": "ns"}
    pod = {"metadata": metadata, "spec": {}, "status": {"phase": "Running", group: list(statuses)}}
    return pod_view(trim(PODS, pod)).trouble


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"state": {"running": {}}}, None),
        ({"state": {"terminated": {"exitCode": 0}}}, None),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, None),
        ({"state": {"waiting": {}}}, None),
        ({"state": {"terminated": ENDED | {"message": "KeyError: 'gold'\n"}}}, (1, "KeyError: 'gold'")),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": ENDED | {"message": "a\nb"}},
            },
            (1, "a b"),
        ),
        ({"state": {"terminated": ENDED | {"exitCode": 137, "reason": "OOMKilled"}}}, (137, "OOMKilled")),
        ({"state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}, ("ImagePullBackOff", "no")),
        ({"state": {"waiting": {"reason": "InvalidImageName"}}}, ("InvalidImageName", "")),
    ],
)
@pytest.mark.parametrize("group", ["containerStatuses", "initContainerStatuses"])
def test_how_a_container_stands(status: dict[str, Any], told: Any, group: str) -> None:
    found = trouble({"name": "t", **status}, group=group)
    if told is None:
        assert found is None
        return
    assert found is not None
    assert (found.exit_code if found.exit_code is not None else found.waits, found.message) == told
    assert found.pod == "run-0"


def test_the_newest_end_of_several_is_told_and_each_is_another() -> None:
    later = ENDED | {"exitCode": 3, "finishedAt": "2026-01-01T00:01:00Z", "containerID": "c://2"}
    found = trouble({"name": "t", "state": {"terminated": later}, "lastState": {"terminated": ENDED}})
    assert found is not None
    assert (found.exit_code, found.container) == (3, "c://2")


@pytest.mark.parametrize("text", ["\x1b[31mred\x1b[0m", "a\x00b\u202e c", "x\n\n\ty", "\ud800"])
def test_last_words_carry_no_escapes(text: str) -> None:
    assert clean(text).isprintable()
    assert "\x1b" not in clean(text)


def test_of_long_last_words_the_end_stays() -> None:
    found = clean("first " * 300 + "RuntimeError: the end")
    assert len(found) == LAST_WORDS
    assert found.startswith("…")
    assert found.endswith("RuntimeError: the end")
    assert clean(None) == clean({"a": 1}) == ""


def test_of_long_last_words_the_end_stays_behind_the_reason() -> None:
    """As containerd says it of a command that is not there: 260 characters, and the name of it at the end."""
    end = 'exec: "trian": executable file not found in $PATH'
    told = ENDED | {"exitCode": 128, "reason": "StartError", "message": "failed to create task: " * 9 + end}
    found = trouble({"name": "t", "state": {"terminated": told}})
    assert found is not None
    assert found.message.startswith("StartError: …")
    assert found.message.endswith(end)
    assert len(found.message) == LAST_WORDS


@pytest.mark.parametrize(
    ("spec", "status", "told"),
    [
        ({"schedulerName": "x"}, {"phase": "Pending"}, "x"),
        ({}, {"phase": "Pending"}, "default-scheduler"),
        ({"schedulerName": "x", "nodeName": "n"}, {"phase": "Pending"}, ""),
        (
            {"schedulerName": "x"},
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
            "",
        ),
    ],
)
def test_a_pod_of_which_its_scheduler_has_said_nothing(spec: Any, status: Any, told: str) -> None:
    metadata = {"name": "run-0", "uid": "u", "resourceVersion": "1", "namespace": "ns"}
    pod = {"metadata": metadata, "spec": spec, "status": status}
    assert pod_view(trim(PODS, pod)).unseen_by == told
    assert unseen(pod) == (f"run-0: scheduler {told} has said nothing of it yet" if told else "")


SELECTOR = "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 node(s) didn't match Pod's node"


@pytest.mark.parametrize(
    ("spec", "condition", "told"),
    [
        (
            {},
            {"message": f"{SELECTOR} affinity/selector. no new claims to deallocate, preemption: 0/4 nodes"},
            f"{SELECTOR} affinity/selector",
        ),
        ({}, {"message": "0/1 nodes are available: \x1b[31m1 Insufficient nvidia.com/gpu.\n"}, None),
        ({}, {"message": "0/9 nodes are available: " + "1 node(s) had a taint, " * 20}, None),
        (
            {},
            {
                "message": "0/9 nodes are available: "
                + "1 had a taint, " * 11
                + "2 Insufficient nvidia.com/gpu."
            },
            "0/9 nodes are available: 2 Insufficient nvidia.com/gpu" + ", 1 had a taint" * 9 + ", 1 had a …",
        ),
        ({}, {}, ""),
        ({}, {"reason": "SchedulingGated"}, "-"),
        ({}, {"status": "True"}, "-"),
        ({"nodeName": "n1"}, {"message": "m"}, "-"),
    ],
)
def test_a_pod_that_its_scheduler_finds_no_node_for(spec: Any, condition: Any, told: str | None) -> None:
    metadata = {"name": "run-0", "uid": "u", "resourceVersion": "1", "namespace": "ns"}
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", **condition}
    status = {"phase": "Pending", "conditions": [said]}
    found = pod_view(trim(PODS, {"metadata": metadata, "spec": spec, "status": status})).trouble
    if told == "-":
        assert found is None
        return
    assert found is not None
    assert (found.pod, found.waits, found.exit_code) == ("run-0", "Unschedulable", None)
    assert len(found.message) <= LAST_WORDS
    assert found.message.isprintable()
    assert told is None or found.message == told


@pytest.mark.parametrize(
    ("ready", "containers", "more", "lost"),
    [
        ("False", "True", {}, True),  # as the node controller leaves it
        ("False", "False", {}, False),  # as a kubelet says of a container that is not ready
        ("True", "True", {}, False),
        ("False", "True", {"readinessGates": [{"conditionType": "lb"}]}, False),
    ],
)
def test_a_pod_whose_kubelet_is_not_heard_of(ready: str, containers: str, more: Any, lost: bool) -> None:
    conditions = [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": containers}]
    pod = {
        "metadata": {"name": "run-0", "uid": "u", "resourceVersion": "1", "namespace": "ns"},
        "spec": {"nodeName": "n1", **more},
        "status": {"phase": "Running", "conditions": conditions},
    }
    assert pod_view(trim(PODS, pod)).unheard is lost
    pod["status"] = {**pod["status"], "phase": "Succeeded"}  # type: ignore[dict-item]
    assert pod_view(trim(PODS, pod)).unheard is False
