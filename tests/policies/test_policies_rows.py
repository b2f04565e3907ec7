"""Each policy refuses what it says, lets through what is needed, and every expression of it counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from policies_rows import ALICE, BOB, CAROL, ROWS, Row, asked
from policies_scene import INSTALL, OPERATOR, POLICIES, VARIANTS, Json, Scene, path

from controller import names, workloads
from controller.api import admission
from controller.kube.errors import ApiError
from tests.support.waiting import wait_until


def ask(scene: Scene, row: Row, by: str = "", *groups: str) -> str:
    """What the server says against a row's request; "" if nothing."""
    return scene.refusal(by or row.by, row.method, asked(row), row.body(scene), *groups)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row(guarded: Scene, row: Row) -> None:
    said = ask(guarded, row)
    if row.refused:
        assert row.refused in said
        assert f"{row.policy}.{names.GROUP}" in said
    else:
        assert said == ""


def test_a_started_workload_has_no_record_of_who_wrote_which_field(guarded: Scene) -> None:
    """Each policy would convert it at each write, four times as much as all the rest of the Job."""
    child = guarded.admin.get(path("jobs", "run", dry=False))
    assert child["metadata"]["managedFields"]
    started = guarded.admin.patch(path("jobs", "run"), workloads.start_patch(child, 1, {"gpu": "a100"}))
    assert started["spec"]["suspend"] is False
    assert "managedFields" not in started["metadata"]


MADE = admission.manifests(INSTALL)
MANIFESTS = {
    made["metadata"]["name"].removesuffix(f".{names.GROUP}"): made
    for made in MADE
    if made["kind"] == "ValidatingAdmissionPolicy"
}
VALIDATIONS = [(name, i) for name, made in MANIFESTS.items() for i in range(len(made["spec"]["validations"]))]
OF_ALL = (
    "rlhfjob-author",
    "gpu-pods",
    "operator-workergroups",
)  # policies that are not about the operator's account


def row_of(name: str, index: int) -> Row:
    """The row that tells whether a validation is there."""
    found = MANIFESTS[name]["spec"]["validations"][index]
    words = found.get("message") or found["messageExpression"].replace(
        "' + variables.child.apiVersion + ' ' + variables.child.kind + '", "apps/v1 Deployment"
    )
    rows = [row for row in ROWS if row.policy == name and row.refused and row.refused in words]
    assert rows, f"{name}: no row turns without {found['expression']}"
    return max(rows, key=lambda row: len(row.refused))  # "jobs.batch" is in "jobs.batch.volcano.sh", too


def user_of(name: str, number: int) -> str:
    """For whom alone a policy lacks its validation of this number."""
    who = f"{VARIANTS}-{number}"
    return who if name in OF_ALL else replace(INSTALL, namespace=who).operator


@pytest.fixture(scope="module")
def variants(guarded: Scene) -> Iterator[None]:
    """Each policy once more for each of its validations, without it, for a user of its own whom the whole
    policy does not hear of: so that all are in force at once."""
    made: list[Json] = []
    for number, (name, index) in enumerate(VALIDATIONS):
        user = user_of(name, number)
        policy, bound = copy.deepcopy(
            next((p, b) for p, b in zip(MADE[::2], MADE[1::2], strict=True) if p is MANIFESTS[name])
        )
        called = f"{name}-{number}.{names.GROUP}"
        policy["metadata"]["name"] = bound["metadata"]["name"] = bound["spec"]["policyName"] = called
        spec = policy["spec"]
        if name in OF_ALL:
            mine = {"name": "variant", "expression": f"request.userInfo.username == '{user}'"}
            spec["matchConditions"] = [*spec["matchConditions"], mine]
        else:
            spec["matchConditions"][0]["expression"] = f"request.userInfo.username == '{user}'"
        del spec["validations"][index]
        spec["validations"] = spec["validations"] or [{"expression": "true"}]
        made += [policy, bound]
    for name in OF_ALL:
        theirs = f"!request.userInfo.username.startsWith('{VARIANTS}')"
        if name == "gpu-pods":  # the operators of other policies' variants are nobody it knows
            theirs += f" && !request.userInfo.username.startsWith('system:serviceaccount:{VARIANTS}')"
        whole = MANIFESTS[name]["spec"]["matchConditions"]
        others = [*whole, {"name": "no-variant", "expression": theirs}]
        guarded.admin.patch(url(name), {"spec": {"matchConditions": others}})
    for one in made:
        assert guarded.refusal("", "POST", collection(one), one) == ""
    last, number = VALIDATIONS[-1][0], len(VALIDATIONS) - 1
    other = row_of(last, 0)  # which the last variant refuses: it is in force
    wait_until(lambda: f"{last}-{number}." in ask(guarded, other, *identity(other, last, number)), "variants")
    yield
    for one in made:
        assert guarded.refusal("", "DELETE", f"{collection(one)}/{one['metadata']['name']}", None) == ""
    for name in OF_ALL:
        whole = MANIFESTS[name]["spec"]["matchConditions"]
        guarded.admin.patch(url(name), {"spec": {"matchConditions": whole}})


def identity(row: Row, name: str, number: int) -> tuple[str, str]:
    """The variant's user, and the group that has the rights of who asks in the row."""
    mine = {OPERATOR: "-operator", ALICE: "", BOB: "-bob", CAROL: "-carol"}
    group = f"{VARIANTS}{mine[row.by]}"
    return user_of(name, number), group


@pytest.mark.parametrize(("number", "name", "index"), [(n, *v) for n, v in enumerate(VALIDATIONS)])
def test_without_a_validation_its_row_turns(
    guarded: Scene, variants: None, number: int, name: str, index: int
) -> None:
    """What it alone refused is admitted."""
    row = row_of(name, index)
    assert ask(guarded, row, *identity(row, name, number)) == ""


def resources(name: str) -> set[str]:
    """What a policy is asked about."""
    rules = MANIFESTS[name]["spec"]["matchConstraints"]["resourceRules"]
    return {resource for rule in rules for resource in rule["resources"]}


def apart() -> list[tuple[int, list[str]]]:
    """(number of a match condition, policies that have it), so that no two of them are asked of one kind:
    the API server names one alone of those that refuse, and not always the same."""
    rounds: list[tuple[int, list[str]]] = []
    for name, made in MANIFESTS.items():
        for index in range(len(made["spec"]["matchConditions"])):
            for number, others in rounds:
                if number == index and not any(resources(name) & resources(other) for other in others):
                    others.append(name)
                    break
            else:
                rounds.append((index, [name]))
    return rounds


@pytest.mark.parametrize(("index", "policies"), apart())
def test_without_a_condition_others_are_refused(guarded: Scene, index: int, policies: list[str]) -> None:
    """Some policies at once: each then refuses what is none of its business."""
    fewer = {name: MANIFESTS[name]["spec"]["matchConditions"] for name in policies}
    rows = {}
    for name, conditions in fewer.items():
        (rows[name],) = [r for r in ROWS if (r.policy, r.without) == (name, conditions[index]["name"])]
        less = [c for i, c in enumerate(conditions) if i != index]
        guarded.admin.patch(url(name), {"spec": {"matchConditions": less}})
    try:
        for name, row in rows.items():
            wait_until(
                lambda name=name, row=row: f"'{name}." in ask(guarded, row),
                f"{row.id} is refused: {ask(guarded, row)!r}",
            )
    finally:
        for name, conditions in fewer.items():
            guarded.admin.patch(url(name), {"spec": {"matchConditions": conditions}})
    for row in rows.values():
        wait_until(lambda row=row: ask(guarded, row) == "", row.id)


@pytest.mark.parametrize("name", MANIFESTS)
def test_no_variable_can_be_left_out(guarded: Scene, name: str) -> None:
    """Each is referred to: the API server refuses the policy without it."""
    whole = MANIFESTS[name]["spec"]
    for i, variable in enumerate(whole.get("variables", ())):
        less = [v for j, v in enumerate(whole["variables"]) if j != i]
        with pytest.raises(ApiError, match=rf"undefined field '{variable['name']}'"):
            guarded.admin.patch(f"{url(name)}?dryRun=All", {"spec": {"variables": less}})


def test_no_policy_has_type_errors(guarded: Scene) -> None:
    """The controller checks the expressions against the kinds' schemas; one warned of cannot fire."""
    for name in MANIFESTS:

        def found(name: str = name) -> Any:
            return guarded.admin.get(url(name))

        def checked(found: Callable[[], Any] = found) -> bool:
            policy = found()
            return bool(
                policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"]
            )

        wait_until(checked, f"{name} is checked")
        warned = found()["status"].get("typeChecking", {}).get("expressionWarnings", [])
        assert not warned, f"{name}: " + " ".join(w["fieldRef"] + w["warning"] for w in warned)


def collection(made: Json) -> str:
    return POLICIES if made["kind"] == "ValidatingAdmissionPolicy" else f"{POLICIES[:-3]}ybindings"


def url(name: str) -> str:
    return f"{POLICIES}/{name}.{names.GROUP}"
