"""Start, suspend, and what a workload's and a pod's status say."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names, workloads
from controller.workloads.running import ANNOTATION_PLACEMENT

POOL = {"key": "evalstop.dev/pool", "operator": "Exists", "effect": "NoSchedule"}


def job(suspend: bool = True, status: Any = None, **pod: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "run", "namespace": "team", "uid": "u1"},
        "spec": {"suspend": suspend, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}},
        "status": status or {},
    }


def condition(kind: str, status: str = "True", **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, **more}


def merge(obj: Any, patch: Any) -> Any:
    """RFC 7386, as the API server applies it."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(obj) if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


SUSPENDED = {"conditions": [condition("Suspended")]}
STATUSES: list[tuple[bool, Any, tuple[bool, bool, str | None]]] = [
    (True, {}, (True, False, None)),  # its controller has not looked yet
    (True, SUSPENDED, (True, True, None)),
    (True, {**SUSPENDED, "active": 1}, (True, False, None)),
    (True, {**SUSPENDED, "terminating": 1}, (True, False, None)),
    (True, {**SUSPENDED, "active": 0, "terminating": 0}, (True, True, None)),
    (True, {"conditions": [condition("Suspended", "False")]}, (True, False, None)),
    (False, {**SUSPENDED}, (False, False, None)),
    (False, {"active": 2}, (False, False, None)),
    (False, {"conditions": [condition("SuccessCriteriaMet")]}, (False, False, None)),
    (False, {"conditions": [condition("Complete")]}, (False, False, "Complete")),
    (False, {"conditions": [condition("FailureTarget")], "active": 1}, (False, False, None)),
    (False, {"conditions": [condition("Failed", "False")]}, (False, False, None)),
    (False, {"conditions": [condition("Failed")]}, (False, False, "Failed")),
]


@pytest.mark.parametrize(("suspend", "status", "expected"), STATUSES)
def test_what_a_job_says_of_itself(
    suspend: bool, status: Any, expected: tuple[bool, bool, str | None]
) -> None:
    view = workloads.view(job(suspend, status))
    assert (view.suspended, view.settled, view.finished) == expected
    assert view.uid == "u1"


def test_failure_comes_with_its_words() -> None:
    failed = condition("Failed", reason="BackoffLimitExceeded", message="too many")
    assert workloads.view(job(False, {"conditions": [failed]})).message == "BackoffLimitExceeded: too many"


def test_unsupported_kinds_list_the_supported() -> None:
    with pytest.raises(ValueError, match=r"kind v1 Pod: expected one of batch/v1 Job"):
        workloads.view({"apiVersion": "v1", "kind": "Pod"})


def test_start_places_and_unsuspends_in_one_patch() -> None:
    user = {"key": "nvidia.com/gpu", "operator": "Exists"}
    found = job(nodeSelector={"mine": "1"}, tolerations=[user])
    patch = workloads.start_patch(found, 3, {"pool": "a"})
    assert patch["metadata"]["uid"] == "u1"
    started = merge(found, patch)
    assert started["spec"]["suspend"] is False
    template = started["spec"]["template"]
    assert template["metadata"]["labels"] == {"a": "b"}
    assert template["metadata"]["annotations"] == {names.ANNOTATION_ADMISSION: "3"}
    assert template["spec"]["nodeSelector"] == {"mine": "1", "pool": "a"}
    assert template["spec"]["tolerations"] == [user, POOL]


@pytest.mark.parametrize(
    ("owner", "dropped"),
    [
        ({"kind": "RLHFJob", "name": "run", "uid": "u", "controller": True}, True),
        ({"kind": "RLHFJob", "name": "run", "uid": "u"}, False),
        ({"kind": "JobSet", "name": "run", "uid": "u", "controller": True}, False),
        (None, False),
    ],
)
def test_who_wrote_which_field_is_dropped_of_workloads_that_the_operator_made(
    owner: dict[str, Any] | None, dropped: bool
) -> None:
    found = job()
    if owner is not None:
        found["metadata"]["ownerReferences"] = [owner]
    patch = workloads.start_patch(found, 1, {"pool": "a"})
    assert patch["metadata"].get("managedFields") == ([{}] if dropped else None)


SELECTORS = st.dictionaries(st.sampled_from(["pool", "zone", "gpu"]), st.sampled_from(["a", "b"]), max_size=3)
MINE = st.dictionaries(st.sampled_from(["mine", "disk"]), st.sampled_from(["1", "2"]), max_size=2)


@given(MINE, st.lists(SELECTORS, min_size=1, max_size=4))
def test_each_admission_replaces_the_placement_of_the_one_before(mine: Any, pools: list[Any]) -> None:
    found = job(nodeSelector=mine) if mine else job()
    for attempt, pool in enumerate(pools, 1):
        taint = workloads.pool_toleration(f"pool-{attempt}")
        found = merge(found, workloads.start_patch(found, attempt, pool, [taint]))
        spec = found["spec"]["template"]["spec"]
        assert spec.get("nodeSelector", {}) == {**mine, **pool}
        assert spec["tolerations"] == [taint]
        again = merge(found, workloads.start_patch(found, attempt, pool, [taint]))
        assert again == found
        found = merge(found, workloads.suspend_patch(found))
        assert found["spec"]["suspend"] is True


def test_an_unreadable_placement_is_taken_for_none() -> None:
    found = job()
    found["metadata"]["annotations"] = {ANNOTATION_PLACEMENT: "{"}
    assert merge(found, workloads.start_patch(found, 1, {"a": "b"}))["spec"]["suspend"] is False


@pytest.mark.parametrize(
    ("suspend", "status", "problem"),
    [
        (True, {}, None),
        (True, {"startTime": "2026-01-01T00:00:00Z", **SUSPENDED}, None),
        (True, {"startTime": "2026-01-01T00:00:00Z"}, "not reported it suspended"),
        (True, {**SUSPENDED, "active": 2}, "2 pods are still active"),
        (False, {}, "not suspended"),
    ],
)
def test_when_a_template_may_be_changed(suspend: bool, status: Any, problem: str | None) -> None:
    found = workloads.start_problem(job(suspend, status))
    assert found is None if problem is None else problem in str(found)


def test_a_queue_label_that_admission_put_there_is_noticed() -> None:
    found, template = job(), {"metadata": {"labels": {"team": "x"}}}
    assert workloads.strip_queue_patch(found, template) is None
    found["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "default"}
    patch = workloads.strip_queue_patch(found, template)
    assert patch == {"metadata": {"uid": "u1", "labels": {"kueue.x-k8s.io/queue-name": None}}}
    assert "'default'" in str(workloads.queue_problem(found, template))
    template["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "default"}  # the user's own wish
    assert workloads.queue_problem(found, template) is None


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "run-0", "ownerReferences": [{"kind": "Job", "uid": "u1", "controller": True}]},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}}}]},
        "status": status,
    }


def test_pods_as_the_brain_sees_them() -> None:
    view = workloads.pod_view(pod(phase="Running", conditions=[condition("Ready")]))
    assert (view.name, view.node, view.gpus, view.terminal, view.ready) == ("run-0", "n1", 2, False, True)
    assert view.deleting_since is None
    for phase in ("Succeeded", "Failed"):
        assert workloads.pod_view(pod(phase=phase)).terminal
    leaving = pod(phase="Running")
    leaving["metadata"].update(deletionTimestamp="1970-01-01T00:01:40Z", deletionGracePeriodSeconds=30)
    assert workloads.pod_view(leaving).deleting_since == 70.0
    pending = pod(phase="Pending")
    del pending["spec"]["nodeName"]
    assert workloads.pod_view(pending).node is None


def test_ownership_goes_by_uid_along_the_chain() -> None:
    jobset = {"metadata": {"uid": "top"}}
    between = {
        "metadata": {"uid": "u1", "ownerReferences": [{"kind": "JobSet", "uid": "top", "controller": True}]}
    }
    assert workloads.owned(pod(), "u1")
    assert not workloads.owned(pod(), "other")
    assert workloads.owned(pod(), "top", [between, jobset])
    assert not workloads.owned(pod(), "top")
    assert not workloads.owned({"metadata": {"labels": {names.LABEL_JOB: "run"}}}, "u1")
    adopted = pod()
    adopted["metadata"]["ownerReferences"][0]["controller"] = False
    assert not workloads.owned(adopted, "u1")
    assert workloads.owned(pod(), "u1")


def test_a_circle_of_owners_ends() -> None:
    a = {"metadata": {"uid": "a", "ownerReferences": [{"uid": "b", "controller": True}]}}
    b = {"metadata": {"uid": "b", "ownerReferences": [{"uid": "a", "controller": True}]}}
    assert not workloads.owned(a, "c", [a, b])


@pytest.mark.parametrize("sizes", [(2, 0), (1, 1), (2, 1)])
def test_a_job_that_was_scaled_down_is_known(sizes: tuple[int, int]) -> None:
    found = job(suspend=False)
    found["spec"] |= {"completions": sizes[0], "parallelism": sizes[1]}
    assert workloads.view(found).sizes == (("spec.completions", sizes[0]), ("spec.parallelism", sizes[1]))
    field = "completions" if sizes[0] < 2 else "parallelism"
    told = f"spec.{field} is {min(sizes)}, expected 2 as in spec.gang.replicas"
    assert workloads.scaled_down(found, 2) == told
    found["spec"] |= {"completions": 2, "parallelism": 2}
    assert workloads.scaled_down(found, 2) == ""
