"""Which pods may speak for a job."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.metrics import member, members, metrics_port
from controller.policy.job import Member

JOB_UID, WORKLOAD_UID = "rlhfjob-1", "job-1"


def owner(uid: str, controller: bool = True) -> dict[str, Any]:
    return {"uid": uid, "controller": controller, "kind": "Job", "name": "x"}


def workload(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": WORKLOAD_UID, "namespace": "ns", "ownerReferences": [owner(JOB_UID)]} | metadata
    }


def pod(
    name: str = "p", *, index: str | None = "0", phase: str = "Running", ip: str = "10.0.0.1", **metadata: Any
) -> dict[str, Any]:
    labels = {} if index is None else {"batch.kubernetes.io/job-completion-index": index}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": labels,
            "ownerReferences": [owner(WORKLOAD_UID)],
        }
        | metadata,
        "status": {"phase": phase, "podIP": ip},
    }


def test_each_index_has_one_in_order() -> None:
    pods = [pod("one", index="1"), pod("zero"), pod("ten", index="10")]
    assert members(pods, workload(), JOB_UID) == [pods[1], pods[0], pods[2]]


def test_a_pod_as_it_is_chosen_from() -> None:
    labels = {"batch.kubernetes.io/job-completion-index": "3", "role": "learner"}
    leaving = pod("run-3", uid="u-3", labels=labels, deletionTimestamp="2026-01-01T00:01:00Z")
    assert member(leaving) == Member("u-3", "run-3", 3, True, labels)
    assert member(pod("run", index=None)) == Member("", "run", 0, False, {})


REFUSED = [
    pytest.param(pod(ip=""), id="no IP yet"),
    pytest.param(pod(phase="Pending"), id="no container has started"),
    pytest.param(pod(phase="Succeeded"), id="succeeded"),
    pytest.param(pod(phase="Failed"), id="failed"),
    pytest.param(pod(ownerReferences=[]), id="nobody's pod with the right labels"),
    pytest.param(pod(ownerReferences=[owner("job-2")]), id="another job's pod"),
    pytest.param(pod(ownerReferences=[owner(WORKLOAD_UID, controller=False)]), id="owned but not controlled"),
    pytest.param(pod(ownerReferences=[owner(JOB_UID)]), id="claims the RLHFJob itself"),
    pytest.param(pod(namespace="other"), id="another namespace"),
    pytest.param(
        {"metadata": {"name": "p", "namespace": "ns", "ownerReferences": [owner(WORKLOAD_UID)]}},
        id="no status",
    ),
]


@pytest.mark.parametrize("candidate", REFUSED)
def test_other_pods_are_not_listened_to(candidate: dict[str, Any]) -> None:
    assert members([candidate], workload(), JOB_UID) == []


def test_a_workload_that_is_not_the_rlhfjobs_has_no_voice() -> None:
    assert members([pod()], None, JOB_UID) == []
    assert members([pod()], workload(ownerReferences=[owner("rlhfjob-2")]), JOB_UID) == []
    assert members([pod()], workload(ownerReferences=[]), JOB_UID) == []
    assert members([pod(ownerReferences=[{"controller": True}])], workload(uid=None), JOB_UID) == []


def test_a_referenced_workload_is_not_owned_by_the_rlhfjob() -> None:
    assert len(members([pod()], workload(ownerReferences=[]), None)) == 1


def test_the_annotation_and_a_job_without_indices_count_as_index_0() -> None:
    annotated = pod(index=None, annotations={"batch.kubernetes.io/job-completion-index": "1"})
    assert [member(p).index for p in members([annotated, pod(index=None)], workload(), JOB_UID)] == [0, 1]


@given(st.permutations(range(3)))
def test_of_one_index_the_replacement_is_picked_whatever_the_order(order: list[int]) -> None:
    pods = [
        pod("leaving", creationTimestamp="2026-01-01T00:00:09Z", deletionTimestamp="2026-01-01T00:01:00Z"),
        pod("old", creationTimestamp="2026-01-01T00:00:01Z"),
        pod("new", creationTimestamp="2026-01-01T00:00:05Z"),
    ]
    (picked,) = members([pods[i] for i in order], workload(), JOB_UID)
    assert picked["metadata"]["name"] == "new"


@pytest.mark.parametrize(
    ("containers", "wanted", "port"),
    [
        ([{"ports": [{"name": "metrics", "containerPort": 9400}]}], None, 9400),
        (
            [
                {"ports": [{"name": "http", "containerPort": 80}]},
                {"ports": [{"name": "metrics", "containerPort": 1}]},
            ],
            None,
            1,
        ),
        ([{"ports": [{"name": "metrics", "containerPort": 9400}]}], 1234, 1234),
        ([{"ports": [{"containerPort": 9400}]}, {}], None, None),
        ([], None, None),
    ],
)
def test_the_port_is_the_specs_or_the_one_named_metrics(
    containers: list[Any], wanted: int | None, port: int | None
) -> None:
    assert metrics_port({"spec": {"containers": containers}}, wanted) == port
