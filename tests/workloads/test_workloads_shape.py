"""A template whose fields are not what they must be: told with field, value and what would be right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.workloads import build_child, template_problem, template_shape_problem
from controller.workloads.pods import gpus

GPUS = names.GPU_RESOURCE
POD = "spec.workload.template.spec.template.spec"
GOOD: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "trainer",
                        "image": "trainer",
                        "ports": [{"name": "metrics", "containerPort": 9400}],
                        "resources": {"limits": {GPUS: "2"}},
                        "env": None,
                    }
                ],
            }
        },
    },
}
PATHS = (
    ("metadata",),
    ("metadata", "labels"),
    ("spec",),
    ("spec", "completions"),
    ("spec", "template"),
    ("spec", "template", "metadata"),
    ("spec", "template", "spec"),
    *(
        ("spec", "template", "spec", name)
        for name in (
            "containers",
            "initContainers",
            "volumes",
            "tolerations",
            "nodeSelector",
            "schedulerName",
        )
    ),
    *(
        ("spec", "template", "spec", name)
        for name in ("resourceClaims", "priorityClassName", "securityContext")
    ),
    *(
        ("spec", "template", "spec", "containers", 0, name)
        for name in ("ports", "env", "volumeMounts", "resources", "name")
    ),
    ("spec", "template", "spec", "containers", 0),
    ("spec", "template", "spec", "containers", 0, "ports", 0),
    ("spec", "template", "spec", "containers", 0, "ports", 0, "containerPort"),
    ("spec", "template", "spec", "containers", 0, "resources", "limits"),
    ("spec", "template", "spec", "containers", 0, "resources", "limits", GPUS),
)


def job(path: tuple[str | int, ...] = (), value: Any = None) -> dict[str, Any]:
    template = copy.deepcopy(GOOD)
    at: Any = template
    for name in path[:-1]:
        at = at.setdefault(name, {}) if isinstance(at, dict) else at[name]
    if path:
        at[path[-1]] = value
    spec = {"gang": {"replicas": 1, "gpusPerReplica": 2}, "workload": {"template": template}}
    return {"metadata": {"name": "run", "namespace": "ns", "uid": "u"}, "spec": spec}


def test_a_good_template_has_no_problem() -> None:
    assert template_shape_problem(job()) is None
    assert template_problem(job()) is None


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (PATHS[7], "abc", f"{POD}.containers: 'abc', expected a list"),
        (PATHS[8], {}, f"{POD}.initContainers: object of 0, expected a list"),
        (PATHS[7], [None], f"{POD}.containers[0]: None, expected an object"),
        (PATHS[7], ["a"], f"{POD}.containers[0]: 'a', expected an object"),
        (
            PATHS[-1],
            "1" * 5000,
            f"{POD}.containers[0].resources.limits[{GPUS}]: '{'1' * 59}…', expected a whole number of GPUs",
        ),
        (
            PATHS[-1],
            "two",
            f"{POD}.containers[0].resources.limits[{GPUS}]: 'two', expected a whole number of GPUs",
        ),
        (("metadata",), "abc", "spec.workload.template.metadata: 'abc', expected an object"),
        (
            ("metadata", "labels"),
            {"a": 1},
            "spec.workload.template.metadata.labels: object of 1, expected an ",
        ),
        (("spec",), [], "spec.workload.template.spec: list of 0, expected an object"),
    ],
)
def test_what_is_wrong_is_told(path: tuple[str | int, ...], value: Any, says: str) -> None:
    problem = template_shape_problem(job(path, value))
    assert problem is not None
    assert problem.reason == "InvalidTemplate"
    assert problem.message.startswith(says)
    assert len(problem.message) < 250


def test_a_value_that_a_message_repeats_is_short() -> None:
    problem = template_problem(job(("spec", "completionMode"), "x" * 10**6))
    assert problem is not None
    assert len(problem.message) < 250


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "ports", "resources", "limits", "x", GPUS]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(st.sampled_from(PATHS), anything)
def test_whatever_stands_anywhere_it_is_a_problem_or_becomes_a_workload(path: Any, value: Any) -> None:
    obj = job(path, value)
    problem = template_problem(obj)
    if problem is None:
        assert build_child(obj)["kind"] == "Job"
    else:
        assert problem.message.startswith("spec.workload.template")
        assert len(problem.message) < 400


@pytest.mark.parametrize(
    ("quantity", "count"),
    [
        ("2", 2),
        (2, 2),
        ("1k", 1000),
        ("x", 0),
        ("1" * 5000, 10**9),
        ("9" * 18 + "k", 10**9),
        (None, 0),
        ("٣", 0),
    ],
)
def test_gpus_of_a_pod_are_a_number_whatever_it_asks_for(quantity: object, count: int) -> None:
    assert gpus({"containers": [{"resources": {"limits": {GPUS: quantity}}}]}) == count
