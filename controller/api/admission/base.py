"""The pieces that policies are made of, and the names of the installation that they are rendered for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controller import names
from controller.frozen import dataclass

Json = dict[str, Any]

UPDATED = "request.operation != 'UPDATE' || "  # what follows is asked about updates only
KUEUE_USER = "system:serviceaccount:kueue-system:kueue-controller-manager"


@dataclass(frozen=True, slots=True)
class Install:
    """An installation's names, as they stand in the policies.

    Args:
        namespace: of the release.
        image: of access Jobs.
        label: of namespaces that the operator may write in; None: it may in all that are not Kubernetes' or
            its own.
        users, groups: who may place GPU pods in pools beside the operator and whoever may update GPUPools.
    """

    namespace: str = names.NAMESPACE
    image: str = f"{names.ACCESS_IMAGE}:0.1.0"
    label: str | None = None
    users: tuple[str, ...] = ("system:kube-controller-manager", KUEUE_USER)
    groups: tuple[str, ...] = ("system:serviceaccounts:kube-system", "system:nodes")

    @property
    def operator(self) -> str:
        """The operator's user name."""
        return f"system:serviceaccount:{self.namespace}:evalstop-operator"


PLAIN = Install()
# What Helm puts its own into; values.schema.json keeps quotes and backslashes out of it.
CHART = replace(PLAIN, namespace="@NAMESPACE@", image="@IMAGE@", label="@LABEL@")
CHART_USERS, CHART_GROUPS = "@USERS@", "@GROUPS@"


@dataclass(frozen=True, slots=True)
class Check:
    """One validation.

    Args:
        expression: CEL, true where nothing is wrong.
        message: what is wrong, for whoever asked; CEL where ``cel``, text otherwise.
        optional: only where namespaces need a label.
    """

    expression: str
    message: str
    cel: bool = False
    reason: str = "Forbidden"
    optional: bool = False

    def rendered(self) -> Json:
        message = {"messageExpression" if self.cel else "message": self.message}
        return {"expression": self.expression, **message, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy.

    Args:
        resources: rules of (group, version, operations, resources).
        conditions: name and CEL; all must be true, or the policy says nothing.
        variables: name and CEL, evaluated when first used.
    """

    name: str
    resources: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]
    conditions: tuple[tuple[str, str], ...]
    variables: tuple[tuple[str, str], ...]
    checks: Sequence[Check]


def manifests_of(policy: Policy, install: Install) -> tuple[Json, Json]:
    """Return a policy and its binding."""
    metadata = {"name": policy.name, "labels": {"app.kubernetes.io/part-of": names.MANAGED_BY}}
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [group],
                    "apiVersions": [version],
                    "operations": list(operations),
                    "resources": list(resources),
                }
                for group, version, operations, resources in policy.resources
            ]
        },
        "matchConditions": [{"name": name, "expression": cel} for name, cel in policy.conditions],
    }
    if policy.variables:
        spec["variables"] = [{"name": name, "expression": cel} for name, cel in policy.variables]
    spec["validations"] = [
        check.rendered() for check in policy.checks if install.label is not None or not check.optional
    ]
    head = {"apiVersion": "admissionregistration.k8s.io/v1"}
    binding = {
        **head,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {**metadata},
        "spec": {"policyName": policy.name, "validationActions": ["Deny"]},
    }
    return {**head, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec}, binding


# -- words of CEL --------------------------------------------------------------------------------------------

# Whether labels, as a policy's variable ``marks``, say that the operator made an object.
OURS = f"variables.marks[?'{names.LABEL_MANAGED_BY}'].orValue('') == '{names.MANAGED_BY}'"


def listed(words: Sequence[str]) -> str:
    """Return the words in quotes, separated by commas: ``'a', 'b'``."""
    return ", ".join(f"'{word}'" for word in words)


def field_of(owner: str, field: str, empty: str) -> str:
    """Return a field of an object, or what stands for it where it is not set."""
    return f"has({owner}.{field}) ? {owner}.{field} : {empty}"


def controlled_by_rlhfjob(owners: str, name: str) -> str:
    """Return whether the controlling one of some owners is the RLHFJob of a name."""
    return (
        f"{owners}.exists(o, o.?controller.orValue(false) && o.kind == 'RLHFJob' && "
        f"o.apiVersion == '{names.API_VERSION}' && o.name == {name})"
    )


def same(new: str, old: str, but: Sequence[str] = ()) -> str:
    """Return a CEL expression that two maps are equal, apart from some keys.

    The equality stands first and costs next to nothing: what a tenant has put into an object can then not
    make the write of something else too dear for CEL's budget, and so refused.
    """
    return f"{new} == {old} || {same_apart(new, old, but)}" if but else f"{new} == {old}"


def same_apart(new: str, old: str, but: Sequence[str]) -> str:
    """Return the same, where it is clear that those keys differ, and the map has few others.

    Keys that may differ are not compared, which the equality of the whole maps does.
    """
    apart = f"k in [{listed(but)}]"
    return (
        f"({new}.all(k, {apart} || (k in {old} && {new}[k] == {old}[k]))"
        f" && {old}.all(k, {apart} || k in {new}))"
    )


def open_namespaces(install: Install, what: str) -> tuple[Check, ...]:
    """Return the checks on where the operator may write ``what``.

    It may not in namespaces kube-* nor in its own; where namespaces need a label, only in those with it.
    """
    return (
        Check(
            "!request.namespace.startsWith('kube-')",
            f"the EvalStop operator writes no {what} in namespaces kube-*",
        ),
        Check(
            f"request.namespace != '{install.namespace}'",
            f"the EvalStop operator writes no {what} in its own namespace",
        ),
        Check(
            f"namespaceObject.metadata.?labels[?'{install.label}'].hasValue()",
            f"the EvalStop operator writes {what} only in namespaces with label {install.label}",
            optional=True,
        ),
    )


def of_operator(install: Install) -> tuple[str, str]:
    """Return the condition that it is the operator who asks."""
    return ("operator", f"request.userInfo.username == '{install.operator}'")
