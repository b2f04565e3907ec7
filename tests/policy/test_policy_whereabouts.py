"""Where a gang is told to be: on the nodes of its bound pods; before that the plan, as a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job import nodes_of, place
from controller.policy.job.record import AdmissionRecord
from controller.policy.job.types import PodView
from tests.support.policy_world import PolicyWorld

PLAN = ("n1", "n2", "n2")
STARTS, RUNS = AdmissionRecord(3, PLAN, 0.0), AdmissionRecord(3, PLAN, 0.0, running_since=1.0)


@pytest.mark.parametrize(
    ("admission", "bound", "told", "nodes", "there"),
    [
        (STARTS, (), "planned on n1, n2 (2 pods)", ("n1", "n2"), False),
        (STARTS, ("n4",), "on n4 so far, planned on n1, n2 (2 pods)", ("n4",), True),
        (STARTS, ("n3", "n3", "n4"), "on n3 (2 pods), n4", ("n3", "n4"), True),
        (replace(STARTS, ended=(0,)), ("n3", "n4"), "on n3, n4", ("n3", "n4"), True),
        (RUNS, ("n3", "n3", "n4"), "on n3 (2 pods), n4", ("n3", "n4"), True),
        (RUNS, ("n4",), "on n4", ("n4",), True),  # it lost two
        (RUNS, (), "planned on n1, n2 (2 pods)", ("n1", "n2"), False),  # of an operator before
        (AdmissionRecord(3, (), 0.0), (), "", (), False),
        (AdmissionRecord(3, (), 0.0), ("n4",), "on n4", ("n4",), True),
        (AdmissionRecord(3, ("", ""), 0.0), (), "", (), False),
    ],
)
def test_a_place(
    admission: AdmissionRecord, bound: tuple[str, ...], told: str, nodes: tuple[str, ...], there: bool
) -> None:
    admission = replace(admission, bound_nodes=bound)
    assert (place(admission), nodes_of(admission)) == (told, (nodes, there))


def test_nobody_admitted_is_nowhere() -> None:
    assert nodes_of(None) == ((), False)


def pod(name: str, node: str | None, **more: object) -> PodView:
    return PodView(name, node, 2, **{"terminal": False, "ready": True, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ([pod("a", "n1")], "on n1"),
        ([pod("a", "n2")], "on n2"),
        ([pod("a", "n2", ready=False)], "on n2"),
        ([pod("a", None, ready=False)], "planned on n1"),
        ([], "planned on n1"),
        ([pod("a", "n2", terminal=True, ready=False)], "planned on n1"),
        ([pod("old", "n2", admission=0), pod("a", None, ready=False, admission=1)], "planned on n1"),
    ],
)
def test_admitted_says_where_the_pods_are_wherever_they_were_planned(pods: list[PodView], told: str) -> None:
    world = PolicyWorld({"n1": 2, "n2": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    assert job.record.admission is not None
    assert job.record.admission.nodes == ("n1",)
    job.observed = replace(job.observed, pods=tuple(pods))
    world.step("ns/a")
    condition = job.record.condition(c.ADMITTED)
    assert condition is not None
    assert condition.message == f"GPUs granted, {told}"
