"""Each policy refuses what it says, lets through what is needed, and every expression of it counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from policies_mutants import Mutant, mutants_of, together
from policies_rows import ALICE, BOB, CAROL, DORA, EMIL, FRIDA, ROWS, Row, asked
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
OF_ALL = (
    "rlhfjob-author",
    "gpu-pods",
    "operator-workergroups",
)  # policies that are not about the operator's account
MUTANTS = mutants_of(MANIFESTS)
# With the rights of who asks.
GROUPS = {OPERATOR: "-operator", ALICE: "", **{user: f"-{user}" for user in (BOB, CAROL, DORA, EMIL, FRIDA)}}


def user_of(name: str, number: int) -> str:
    """The user of this number, of whom a policy's mutants alone hear."""
    who = f"{VARIANTS}-{number}"
    return who if name in OF_ALL else replace(INSTALL, namespace=who).operator


@pytest.fixture(scope="module")
def variants(guarded: Scene) -> Iterator[None]:
    """Beside each policy its mutants, which the users of numbers alone meet."""
    made: list[Json] = []
    for policy, bound in zip(MADE[::2], MADE[1::2], strict=True):
        name = policy["metadata"]["name"].removesuffix(f".{names.GROUP}")
        prefix = user_of(name, 0).partition("-0")[0] + "-"
        only = f"request.userInfo.username.startsWith('{prefix}')"
        whole = policy if name in OF_ALL else copy.deepcopy(policy)
        if name not in OF_ALL:
            whole["spec"]["matchConditions"] = []
        mine = [mutant for mutant in MUTANTS if mutant.policy == name]
        policy = together(whole, mine, lambda mutant: user_of(mutant.policy, mutant.number), only)
        bound = copy.deepcopy(bound)
        called = f"{name}-variants.{names.GROUP}"
        policy["metadata"]["name"] = bound["metadata"]["name"] = bound["spec"]["policyName"] = called
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
    last = next(row for row in reversed(ROWS) if row.refused)
    wait_until(lambda: f"{last.policy}-variants." in ask(guarded, last, *identity(last)), "variants")
    yield
    for one in made:
        assert guarded.refusal("", "DELETE", f"{collection(one)}/{one['metadata']['name']}", None) == ""
    for name in OF_ALL:
        whole = MANIFESTS[name]["spec"]["matchConditions"]
        guarded.admin.patch(url(name), {"spec": {"matchConditions": whole}})


def identity(row: Row, number: int = len(MUTANTS)) -> tuple[str, str]:
    """A mutant's user, by default one that meets the whole policy, and the group that has the rights of who
    asks in the row."""
    return user_of(row.policy, number), f"{VARIANTS}{GROUPS[row.by]}"


def rows_for(mutant: Mutant) -> list[Row]:
    """Rows that may tell whether the part is there, the likeliest first."""
    found = [
        row
        for row in ROWS
        if row.policy == mutant.policy
        and row.by in GROUPS
        and not (row.policy in OF_ALL and row.by == OPERATOR)
        and not row.without
    ]
    if mutant.place != "validations":
        return found
    one = MANIFESTS[mutant.policy]["spec"]["validations"][mutant.index]
    words = one.get("message") or one["messageExpression"].replace(
        "' + variables.child.apiVersion + ' ' + variables.child.kind + '", "apps/v1 Deployment"
    )
    mine = [row for row in found if row.refused and row.refused in words]
    return sorted(found, key=lambda row: 0 if row in mine else 1 + bool(row.refused))


# Parts without which all is answered as it was, and why they are there.
ASIDE = {
    (
        "operator-job-status",
        "!has(object.status.startTime)",
    ): "this server lets nobody take a start away; one before 1.36 does",
    (
        "operator-configmaps",
        "request.operation != 'UPDATE'",
    ): "of a new one there was no data: its keys are asked for by another validation",
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_no_part_of_an_expression_can_be_left_out(guarded: Scene, variants: None, name: str) -> None:
    """Without a validation, or one operand of an expression, some row is answered otherwise."""
    mine = [mutant for mutant in MUTANTS if mutant.policy == name]
    known = {row.id: row for mutant in mine for row in rows_for(mutant)}
    bodies = {row.id: row.body(guarded) for row in known.values()}

    def unchanged(row: Row, number: int = len(MUTANTS)) -> bool:
        user, group = identity(row, number)
        said = guarded.refusal(user, row.method, asked(row), bodies[row.id], group)
        return row.refused in said if row.refused else said == ""

    for row in known.values():
        assert unchanged(row), row.id
    left = [
        mutant
        for mutant in mine
        if (name, mutant.part) not in ASIDE and all(unchanged(row, mutant.number) for row in rows_for(mutant))
    ]
    assert not left, "\n".join(f"{m.place}[{m.index}]: {m.part}" for m in left)


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
