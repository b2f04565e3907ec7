"""Policies on worker groups: their namespace is the operator's, and so are WorkerGroups and their Jobs."""

from __future__ import annotations

from controller import names
from controller.api.admission.base import Check, Install, Policy
from controller.policy.group_types import GROUPS_NAMESPACE

NAME = f"operator-workergroups.{names.GROUP}"
IS_GROUP = f"variables.marks[?'{names.LABEL_COMPONENT}'].orValue('') == 'group'"
_POD = "object.spec.template.spec"
_SUBJECT = "the EvalStop operator's Jobs of worker groups"


def made_for_group(owners: str, name: str) -> str:
    """Return whether the only owner of an object is the WorkerGroup of a name."""
    return (
        f"({owners}.size() == 1 && {owners}.all(o, o.?controller.orValue(false) && "
        f"o.kind == 'WorkerGroup' && o.apiVersion == '{names.API_VERSION}' && o.name == {name}))"
    )


def group_checks() -> tuple[Check, ...]:
    """For the policy on the operator's Jobs; its variable ``workers`` says whether one is of a group."""
    label = names.LABEL_JOB
    made = "request.operation != 'CREATE' || !variables.workers || "
    return (
        Check(
            f"(request.namespace == '{GROUPS_NAMESPACE}') == (variables.workers)",
            f"{_SUBJECT} are in namespace {GROUPS_NAMESPACE}, and no others are",
        ),
        Check(
            f"!variables.workers || "
            f"variables.found.metadata.name.startsWith(variables.marks[?'{label}'].orValue('/') + '-')",
            f"{_SUBJECT} say whose they are",
        ),
        Check(
            made + made_for_group("variables.owners", f"variables.marks['{label}']"),
            f"{_SUBJECT} are made under their WorkerGroup",
        ),
        Check(
            f"{made}!{_POD}.?automountServiceAccountToken.orValue(true)",
            f"{_SUBJECT} have no right to the API server",
        ),
    )


def policy(install: Install) -> Policy:
    """WorkerGroups are made and changed by the operator alone."""
    return Policy(
        NAME,
        ((names.GROUP, names.VERSION, ("CREATE", "UPDATE"), ("workergroups",)),),
        (("spec-new-or-changed", "request.operation == 'CREATE' || object.spec != oldObject.spec"),),
        (),
        (
            Check(
                f"request.userInfo.username == '{install.operator}'",
                "WorkerGroups are the EvalStop operator's: ask for one by spec.sharing of an RLHFJob",
            ),
        ),
    )
