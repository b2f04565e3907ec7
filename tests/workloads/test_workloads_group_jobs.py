"""A worker group's Job: what is put into the template, what is wrong with one, which pods are its members."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller import names
from controller.workloads.group_jobs import (
    DISK_DIR,
    MEMORY_DIR,
    GroupSettings,
    build_group,
    family_problem,
    group_pods,
    quantity,
)
from controller.workloads.problems import ProblemError
from controller.workloads.scheduling import Scheduling

GB = 10**9
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"mine": "yes"}},
    "spec": {
        "containers": [
            {
                "name": "worker",
                "image": "family:1",
                "env": [{"name": "EVALSTOP_GROUP_FAMILY", "value": "models:Dense"}],
                "resources": {"limits": {names.GPU_RESOURCE: "4", "memory": "300G"}},
            }
        ]
    },
}
OWNER = {
    "apiVersion": "evalstop.dev/v1alpha1",
    "kind": "WorkerGroup",
    "metadata": {"name": "wg-3", "uid": "g"},
}
SETTINGS = GroupSettings("https://op:9444", "evalstop-groups", 80 * GB, 2 * GB, 200 * GB, 4)


def made(template: dict[str, Any] = TEMPLATE) -> dict[str, Any]:
    return build_group(
        OWNER,
        template,
        2,
        ("n1", "n2"),
        SETTINGS,
        pool="main",
        selector={"pool": "main"},
        scheduling=Scheduling("evalstop-scheduler", "evalstop"),
    )


def test_job_is_an_indexed_gang_of_the_operators_namespace() -> None:
    before = copy.deepcopy(TEMPLATE)
    job = made()
    assert before == TEMPLATE
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("wg-3-2", "evalstop-workers")
    assert (job["spec"]["completionMode"], job["spec"]["completions"], job["spec"]["parallelism"]) == (
        "Indexed",
        2,
        2,
    )
    pod = job["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("OnFailure", False)
    assert (pod["schedulerName"], pod["priorityClassName"]) == ("evalstop-scheduler", "evalstop")
    assert job["spec"]["template"]["metadata"]["labels"]["mine"] == "yes"
    assert job["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_ADMISSION] == "2"


def test_container_has_volumes_and_environment_of_the_wire_contract() -> None:
    pod = made()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["EVALSTOP_GROUP_FAMILY"] == "models:Dense"
    assert env["EVALSTOP_GROUP_HOST_BYTES"] == str(200 * GB)
    assert [m["mountPath"] for m in container["volumeMounts"]] == [
        MEMORY_DIR,
        DISK_DIR,
        names.STEPS_TOKEN_DIR,
    ]
    memory = next(v for v in pod["volumes"] if v["name"] == "evalstop-memory")
    assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": str(200 * GB)}


@pytest.mark.parametrize(
    ("limits", "reason", "says"),
    [
        ({names.GPU_RESOURCE: "4", "memory": "100Gi"}, "FamilyMemory", "100Gi is less than the 200000000000"),
        ({names.GPU_RESOURCE: "4"}, "FamilyMemory", "expected more than the 200000000000 of hostBytes"),
        ({names.GPU_RESOURCE: "2", "memory": "300G"}, "FamilyGPUs", "2, expected 4 as in gpusPerReplica"),
    ],
)
def test_what_is_wrong_with_a_family_is_said_by_field(limits, reason, says) -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"]["limits"] = limits
    found = family_problem("dense", template, 4, 200 * GB)
    assert found is not None
    assert (found.reason, says in found.message) == (reason, True), found
    with pytest.raises(ProblemError):
        made(template)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1Gi", 2**30), ("300G", 300 * GB), ("512", 512), ("1.5k", 1500), ("2Xi", None), ("x", None)],
)
def test_quantities_of_memory(text: str, bytes_: int | None) -> None:
    assert quantity(text) == bytes_


def pod(uid: str, index: int, node: str | None, owner: str = "job") -> dict[str, Any]:
    spec = copy.deepcopy(TEMPLATE["spec"]) | ({"nodeName": node} if node else {})
    metadata = {
        "uid": uid,
        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        "ownerReferences": [{"uid": owner, "kind": "Job", "name": "wg-3-2", "controller": True}],
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def test_members_are_known_by_uid_and_a_pod_made_again_is_another_one() -> None:
    job = made() | {"metadata": {"uid": "job"}}
    pods = [pod("u1", 1, "n2"), pod("u0", 0, "n1"), pod("x", 0, "n1", owner="other")]
    found = group_pods(job, pods)
    assert (found.uids, found.bound, found.lost) == (("u0", "u1"), (("n1", 4), ("n2", 4)), False)
    assert group_pods(job, [pod("u9", 1, None), pods[1]], found.uids).lost
    assert group_pods(job, pods[1:2], found.uids).lost
