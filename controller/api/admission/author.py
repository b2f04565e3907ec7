"""The policy on who may write an RLHFJob, so that the operator is no way around RBAC.

The operator creates, stops and starts workloads and reaches checkpoints with rights that its users need not
have. So whoever makes an RLHFJob, or changes anything of its spec, must be allowed to do to the workload what
the operator may come to do to it: ``create`` on the template's kind, or ``patch`` on the object that a ref
names. At every change: `runState` stops a run, `checkpoints.retention` says where its weights go. One
validation per kind: an ``authorizer`` check is dear in CEL's cost budget, at most two fit into one.
"""

from __future__ import annotations

from controller import names
from controller.api.admission.base import Check, Policy
from controller.api.kinds import KINDS, RUN, Kind
from controller.policy.group_types import GROUPS_NAMESPACE

NAME = f"rlhfjob-author.{names.GROUP}"
_WORKLOAD, _NAMESPACE = "object.spec.workload", "object.metadata.namespace"


def policy() -> Policy:
    return Policy(
        NAME,
        ((names.GROUP, names.VERSION, ("CREATE", "UPDATE"), ("rlhfjobs",)),),
        (("spec-new-or-changed", "request.operation == 'CREATE' || object.spec != oldObject.spec"),),
        (
            (
                "child",
                f"has({_WORKLOAD}.template) ? {_WORKLOAD}.template : {_WORKLOAD}.ref",
            ),
            (
                "group",
                "variables.child.apiVersion.contains('/') ? variables.child.apiVersion.split('/')[0] : ''",
            ),
            ("gk", "variables.child.kind + '.' + variables.group"),
        ),
        (_elsewhere(), _known(), *(check for kind in KINDS for check in _checks(kind)), _actors()),
    )


def _elsewhere() -> Check:
    """Jobs and worker groups have keys alike: in the groups' namespace there are no jobs."""
    return Check(
        f"{_NAMESPACE} != '{GROUPS_NAMESPACE}'",
        f"namespace {GROUPS_NAMESPACE} is for worker groups alone: submit RLHFJobs in another one",
    )


def _known() -> Check:
    quoted = ", ".join(f"'{k.kind}.{k.group}'" for k in KINDS)
    # Names what runs, not what is let in: the operator's own refusal of the others says the same.
    message = (
        "'spec.workload: kind ' + variables.child.apiVersion + ' ' + "
        f"variables.child.kind + ', expected one of {', '.join(RUN)}'"
    )
    return Check(f"variables.gk in [{quoted}]", message, cel=True, reason="Invalid")


def _actors() -> Check:
    """Actors are Jobs of the author's own template."""
    jobs = f"authorizer.group('batch').resource('jobs').namespace({_NAMESPACE})"
    return Check(
        f"!has(object.spec.rollout) || {jobs}.check('create').allowed()",
        f"'spec.rollout: you may not create jobs.batch in namespace ' + {_NAMESPACE} + "
        "', and so may not have the operator create actors'",
        cel=True,
    )


def _checks(kind: Kind) -> tuple[Check, Check]:
    this = f"variables.gk == '{kind.kind}.{kind.group}'"
    asked = f"authorizer.group('{kind.group}').resource('{kind.resource}').namespace({_NAMESPACE})"
    full = f"{kind.resource}.{kind.group}"
    create = Check(
        f"!({this} && has({_WORKLOAD}.template)) || {asked}.check('create').allowed()",
        f"'spec.workload.template: you may not create {full} in namespace ' + "
        f"{_NAMESPACE} + ', and so may not have the operator create them'",
        cel=True,
    )
    patch = Check(
        f"!({this} && has({_WORKLOAD}.ref)) || {asked}.name({_WORKLOAD}.ref.name).check('patch').allowed()",
        f"'spec.workload.ref: you may not patch {full} ' + {_WORKLOAD}.ref.name + "
        f"' in namespace ' + {_NAMESPACE} + ', and so may not have the operator stop and start it'",
        cel=True,
    )
    return create, patch
