"""The ValidatingAdmissionPolicy that keeps the operator from being a way around RBAC.

The operator creates and starts workloads with its own rights. So whoever makes an RLHFJob, or changes what it
runs, must be allowed to do that to the workload directly: ``create`` on the template's kind, or ``patch`` on
the object that a ref names. One validation per kind: an ``authorizer`` check is dear in CEL's cost budget, at
most two fit into one expression.
"""

from __future__ import annotations

from typing import Any

from controller import names
from controller.api.kinds import KINDS, RUN, Kind

Json = dict[str, Any]

NAME = f"rlhfjob-author.{names.GROUP}"
_CHANGED = "request.operation == 'CREATE' || object.spec.workload != oldObject.spec.workload"


def manifests() -> tuple[Json, Json]:
    """The policy and its binding."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": names.MANAGED_BY}},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [names.GROUP],
                        "apiVersions": [names.VERSION],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["rlhfjobs"],
                    }
                ]
            },
            "matchConditions": [{"name": "workload-new-or-changed", "expression": _CHANGED}],
            "variables": [
                {
                    "name": "child",
                    "expression": "has(object.spec.workload.template) ? object.spec.workload.template : "
                    "object.spec.workload.ref",
                },
                {
                    "name": "group",
                    "expression": "variables.child.apiVersion.contains('/') ? "
                    "variables.child.apiVersion.split('/')[0] : ''",
                },
                {"name": "gk", "expression": "variables.child.kind + '.' + variables.group"},
            ],
            "validations": [_known(), *(check for kind in KINDS for check in _checks(kind))],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": names.MANAGED_BY}},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
    return policy, binding


def _known() -> Json:
    quoted = ", ".join(f"'{k.kind}.{k.group}'" for k in KINDS)
    return {
        "expression": f"variables.gk in [{quoted}]",
        # Names what runs, not what is let in: the operator's own refusal of the others says the same.
        "messageExpression": "'spec.workload: kind ' + variables.child.apiVersion + ' ' + "
        f"variables.child.kind + ', expected one of {', '.join(RUN)}'",
        "reason": "Invalid",
    }


def _checks(kind: Kind) -> tuple[Json, Json]:
    workload, namespace = "object.spec.workload", "object.metadata.namespace"
    this = f"variables.gk == '{kind.kind}.{kind.group}'"
    asked = f"authorizer.group('{kind.group}').resource('{kind.resource}').namespace({namespace})"
    full = f"{kind.resource}.{kind.group}"
    create = {
        "expression": f"!({this} && has({workload}.template)) || {asked}.check('create').allowed()",
        "messageExpression": f"'spec.workload.template: you may not create {full} in namespace ' + "
        f"{namespace} + ', and so may not have the operator create them'",
        "reason": "Forbidden",
    }
    patch = {
        "expression": f"!({this} && has({workload}.ref)) || "
        f"{asked}.name({workload}.ref.name).check('patch').allowed()",
        "messageExpression": f"'spec.workload.ref: you may not patch {full} ' + {workload}.ref.name + "
        f"' in namespace ' + {namespace} + ', and so may not have the operator stop and start it'",
        "reason": "Forbidden",
    }
    return create, patch
