"""Policies on what the operator's own account may write, even where its token is stolen.

RBAC gives it the verbs on whole kinds; each policy here says which of their objects and fields. Every policy
is bound to the operator's user name alone. What that account reads, admission does not see
(docs/operate/security.md).

Objects are compared field by field, never their ``metadata`` as a whole: managedFields differ with every
write. ``dyn``: so that the fields of a typed object can be gone through, those among them that a later
Kubernetes adds.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller import names
from controller.api.admission.access_jobs import access_checks
from controller.api.admission.actor_jobs import IS_ACTOR, actor_checks
from controller.api.admission.base import (
    OURS,
    UPDATED,
    Check,
    Install,
    Policy,
    controlled_by_rlhfjob,
    field_of,
    of_operator,
    open_namespaces,
    same,
    same_apart,
)
from controller.api.admission.group_jobs import IS_GROUP, group_checks, made_for_group
from controller.policy.group_types import GROUPS_NAMESPACE

_WRITES = ("CREATE", "UPDATE")
_EMPTY = {"labels": "{}", "annotations": "{}", "ownerReferences": "[]", "finalizers": "[]"}
_OURS = (names.LABEL_JOB, names.LABEL_COMPONENT, names.LABEL_MANAGED_BY)
_PLACEMENT = f"{names.GROUP}/placement"
_IS_ACCESS = f"variables.marks[?'{names.LABEL_COMPONENT}'].orValue('') == 'access'"
LABELLED = f"{names.LABEL_MANAGED_BY}: {names.MANAGED_BY}"
_START = "startTime"
_EVENT = "dyn(object)"  # two groups serve Events, and only one of them has these fields


def policies(install: Install) -> tuple[Policy, ...]:
    return (
        jobs(install),
        job_changes(install),
        job_status(install),
        configmaps(install),
        nodes(install),
        rlhfjobs(install),
        events(install),
        workloads(install),
        workload_status(install),
        check_status(install),
    )


def jobs(install: Install) -> Policy:
    """Workloads, access Jobs, rollout actors and worker groups: made suspended, and deleted.

    Apart from `job_changes`, so that a suspend asks none of the many questions about a new Job.
    """
    return Policy(
        f"operator-jobs.{names.GROUP}",
        (("batch", "v1", ("CREATE", "DELETE"), ("jobs",)),),
        (of_operator(install),),
        (
            ("found", "request.operation == 'DELETE' ? oldObject : object"),
            ("marks", field_of("variables.found.metadata", "labels", "{}")),
            ("owners", field_of("variables.found.metadata", "ownerReferences", "[]")),
            ("access", _IS_ACCESS),
            ("actor", IS_ACTOR),
            ("workers", IS_GROUP),
        ),
        (
            *open_namespaces(install, "Jobs"),
            Check(
                "variables.access || variables.actor || variables.workers || "
                + controlled_by_rlhfjob("variables.owners", "variables.found.metadata.name"),
                "the EvalStop operator makes and deletes no Job but workloads, which their RLHFJob controls, "
                "those that reach checkpoints, rollout actors, and worker groups",
            ),
            Check(
                OURS,
                f"the EvalStop operator makes and deletes Jobs with its own label alone ({LABELLED})",
            ),
            Check(
                "request.operation != 'CREATE' || variables.actor || variables.workers || "
                "object.spec.?suspend.orValue(false)",
                "the EvalStop operator makes every Job suspended, but rollout actors and worker groups",
            ),
            *access_checks(install),
            *actor_checks(),
            *group_checks(),
        ),
    )


def job_changes(install: Install) -> Policy:
    """Jobs that are there: started, placed, suspended."""
    template = "the pod template of a Job"
    kept = "variables.sameTemplate || "
    return Policy(
        f"operator-job-changes.{names.GROUP}",
        (("batch", "v1", ("UPDATE",), ("jobs",)),),
        (of_operator(install),),
        (
            *_variables("labels", "annotations", "ownerReferences", "finalizers"),
            ("access", _IS_ACCESS.replace("variables.marks", "variables.labels")),
            ("spec", "dyn(object.spec)"),
            ("specBefore", "dyn(oldObject.spec)"),
            ("template", "variables.spec.template"),
            ("templateBefore", "variables.specBefore.template"),
            # A suspend leaves it as it is: then it is compared once, and not once in each check.
            ("sameTemplate", "variables.template == variables.templateBefore"),
            *_metadata_variables("template", "templateBefore"),
            ("tolerations", field_of("variables.template.spec", "tolerations", "[]")),
            ("tolerationsBefore", field_of("variables.templateBefore.spec", "tolerations", "[]")),
        ),
        (
            *open_namespaces(install, "Jobs"),
            Check(
                f"'{names.LABEL_JOB}' in variables.labelsBefore",
                f"the EvalStop operator changes no Job without label {names.LABEL_JOB}",
            ),
            Check(
                f"!({IS_ACTOR.replace('variables.marks', 'variables.labels')})",
                "the EvalStop operator changes no Job of a rollout actor: it makes them and deletes them",
            ),
            Check(
                f"request.namespace != '{GROUPS_NAMESPACE}'",
                "the EvalStop operator changes no Job of a worker group: it makes them and deletes them",
            ),
            *_unchanged(
                "Jobs",
                {"labels": (names.QUEUE_LABEL,), "annotations": (_PLACEMENT, names.ANNOTATION_ATTEMPT)},
                updates_only=True,
            ),
            Check(
                f"!('{names.QUEUE_LABEL}' in variables.labels) || "
                f"variables.labels[?'{names.QUEUE_LABEL}'] == variables.labelsBefore[?'{names.QUEUE_LABEL}']",
                "the EvalStop operator takes a Job out of a queue of Kueue's, and puts none into another",
            ),
            Check(
                "variables.ownerReferences == variables.ownerReferencesBefore || "
                "(variables.access && variables.ownerReferences.size() == 0)",
                "the EvalStop operator changes no owners of Jobs but takes that of an access Job away",
            ),
            Check(
                same("variables.finalizers", "variables.finalizersBefore"),
                "the EvalStop operator changes no finalizers of Jobs",
            ),
            Check(
                same_apart("variables.spec", "variables.specBefore", ("suspend", "template")),
                "the EvalStop operator changes of a Job's spec suspend and its pods' placement alone",
            ),
            Check(
                kept
                + same("variables.templateLabels", "variables.templateBeforeLabels", (names.LABEL_POOL,)),
                f"the EvalStop operator changes no labels of {template} but {names.LABEL_POOL}",
            ),
            Check(
                kept
                + same(
                    "variables.templateAnnotations",
                    "variables.templateBeforeAnnotations",
                    (names.ANNOTATION_ADMISSION,),
                ),
                f"the EvalStop operator changes no annotations of {template} but "
                f"{names.ANNOTATION_ADMISSION}",
            ),
            Check(
                kept
                + same(
                    "variables.template.spec",
                    "variables.templateBefore.spec",
                    ("nodeSelector", "tolerations"),
                ),
                f"the EvalStop operator changes nothing of {template} but nodeSelector and tolerations",
            ),
            Check(
                kept
                + _others("variables.tolerations", "t")
                + " == "
                + _others("variables.tolerationsBefore", "t"),
                f"the EvalStop operator changes no tolerations of {template} but those of {names.POOL_TAINT}",
            ),
        ),
    )


def job_status(install: Install) -> Policy:
    """Before Kubernetes 1.36 the start time of a suspended Job is the operator's to take away."""
    return Policy(
        f"operator-job-status.{names.GROUP}",
        (("batch", "v1", ("UPDATE",), ("jobs/status",)),),
        (of_operator(install),),
        (
            *_variables("labels", "annotations", "ownerReferences", "finalizers"),
            ("state", "dyn(object.status)"),
            ("stateBefore", "dyn(oldObject.status)"),
        ),
        (
            Check(
                f"'{names.LABEL_JOB}' in variables.labelsBefore",
                f"the EvalStop operator changes no status of a Job without label {names.LABEL_JOB}",
            ),
            *_all_unchanged("Jobs"),
            Check(
                same("variables.state", "variables.stateBefore", (_START,)),
                f"the EvalStop operator changes of a Job's status {_START} alone",
            ),
            Check(
                f"!has(object.status.{_START}) || object.status.?{_START} == oldObject.status.?{_START}",
                f"the EvalStop operator sets no {_START} of a Job",
            ),
        ),
    )


def configmaps(install: Install) -> Policy:
    """``<RLHFJob>-run``, the way back to the trainer."""
    job = names.LABEL_JOB
    keys = (names.RUN_KEY, names.STEPS_CA_KEY)
    listed_keys = ", ".join(f"'{key}'" for key in keys)
    return Policy(
        f"operator-configmaps.{names.GROUP}",
        (("", "v1", _WRITES, ("configmaps",)),),
        (of_operator(install),),
        (
            *_variables("labels", "annotations", "ownerReferences", "finalizers"),
            ("data", field_of("object", "data", "{}")),
            ("dataBefore", field_of("oldObject", "data", "{}")),
            ("binary", field_of("object", "binaryData", "{}")),
            ("binaryBefore", field_of("oldObject", "binaryData", "{}")),
            ("job", f"variables.labels[?'{job}'].orValue('')"),
        ),
        (
            *open_namespaces(install, "ConfigMaps"),
            Check(
                f"object.metadata.name == variables.job + '{names.RUN_CONFIGMAP_SUFFIX}'",
                f"the EvalStop operator writes ConfigMaps <name>{names.RUN_CONFIGMAP_SUFFIX}, as label {job} "
                "says <name>, and no others",
            ),
            Check(
                f"variables.labels[?'{names.LABEL_COMPONENT}'].orValue('') == 'run' && "
                + OURS.replace("variables.marks", "variables.labels"),
                "the EvalStop operator writes ConfigMaps with its own labels alone",
            ),
            Check(
                controlled_by_rlhfjob("variables.ownerReferences", "variables.job")
                + f" || (request.namespace == '{GROUPS_NAMESPACE}' && "
                + made_for_group("variables.ownerReferences", "variables.job")
                + ")",
                "the EvalStop operator writes ConfigMaps that their RLHFJob controls, or their WorkerGroup, "
                "and no others",
            ),
            Check(
                f"request.operation != 'CREATE' || (variables.data.all(k, k in [{listed_keys}]) && "
                "variables.binary.size() == 0)",
                f"the EvalStop operator makes ConfigMaps with keys {' and '.join(keys)} alone",
            ),
            Check(
                f"{UPDATED}variables.labelsBefore[?'{job}'].orValue('') == variables.job",
                f"the EvalStop operator takes over no ConfigMap without label {job} of that RLHFJob",
            ),
            Check(
                UPDATED + same("variables.data", "variables.dataBefore", keys),
                f"the EvalStop operator changes of a ConfigMap keys {' and '.join(keys)} alone",
            ),
            Check(
                UPDATED + same("variables.binary", "variables.binaryBefore"),
                "the EvalStop operator changes no binaryData of ConfigMaps",
            ),
            *_unchanged("ConfigMaps", {"labels": _OURS, "annotations": ()}),
            Check(
                f"{UPDATED}!variables.ownerReferencesBefore.exists(o, o.?controller.orValue(false) && "
                "!variables.ownerReferences.exists(n, n.uid == o.uid))",
                "the EvalStop operator takes no ConfigMap from who controls it",
            ),
            Check(
                UPDATED + same("variables.finalizers", "variables.finalizersBefore"),
                "the EvalStop operator changes no finalizers of ConfigMaps",
            ),
        ),
    )


def nodes(install: Install) -> Policy:
    """Of nodes the pools' taint alone."""
    return Policy(
        f"operator-nodes.{names.GROUP}",
        (("", "v1", ("UPDATE",), ("nodes",)),),
        (of_operator(install),),
        (
            *_variables("labels", "annotations", "ownerReferences", "finalizers"),
            ("taints", field_of("object.spec", "taints", "[]")),
            ("taintsBefore", field_of("oldObject.spec", "taints", "[]")),
        ),
        (
            *_all_unchanged("nodes"),
            Check(
                same("dyn(object.spec)", "dyn(oldObject.spec)", ("taints",)),
                "the EvalStop operator changes of a node's spec its taints alone",
            ),
            Check(
                f"{_others('variables.taints', 't')} == {_others('variables.taintsBefore', 't')}",
                f"the EvalStop operator changes no taints of nodes but {names.POOL_TAINT}",
            ),
            Check(
                "variables.taints.all(t, t.effect == 'NoSchedule' || t in variables.taintsBefore)",
                f"the EvalStop operator sets taint {names.POOL_TAINT} with effect NoSchedule alone: "
                "it puts nobody out",
            ),
        ),
    )


def rlhfjobs(install: Install) -> Policy:
    """Of RLHFJobs the finalizer alone; their status is another resource."""
    ours = f"filter(f, f != '{names.FINALIZER}')"
    return Policy(
        f"operator-rlhfjobs.{names.GROUP}",
        ((names.GROUP, names.VERSION, ("UPDATE",), ("rlhfjobs",)),),
        (of_operator(install),),
        _variables("labels", "annotations", "ownerReferences", "finalizers"),
        (
            *_unchanged("RLHFJobs", {"labels": (), "annotations": ()}, updates_only=True),
            Check(
                same("variables.ownerReferences", "variables.ownerReferencesBefore"),
                "the EvalStop operator changes no owners of RLHFJobs",
            ),
            Check(
                f"variables.finalizers.{ours} == variables.finalizersBefore.{ours}",
                f"the EvalStop operator changes no finalizers of RLHFJobs but {names.FINALIZER}",
            ),
            Check(
                same("object.spec", "oldObject.spec"),
                "the EvalStop operator changes no spec of RLHFJobs",
            ),
        ),
    )


def events(install: Install) -> Policy:
    """Return events about RLHFJobs and GPUPools, as its own; of those that are there, how often and when."""
    counted = ("count", "lastTimestamp", "metadata")
    return Policy(
        f"operator-events.{names.GROUP}",
        (("", "v1", _WRITES, ("events",)),),
        (of_operator(install),),
        (),
        (
            Check(
                f"{_EVENT}.involvedObject.?apiVersion.orValue('') == '{names.API_VERSION}'",
                "the EvalStop operator tells Events of RLHFJobs and GPUPools, and of nothing else",
            ),
            Check(
                f"{_EVENT}.?reportingComponent.orValue('') == 'evalstop' && "
                f"{_EVENT}.?source.?component.orValue('') == 'evalstop'",
                "the EvalStop operator tells Events in its own name",
            ),
            Check(
                UPDATED + same("dyn(object)", "dyn(oldObject)", counted),
                "the EvalStop operator changes of an Event count and lastTimestamp alone",
            ),
        ),
    )


def workloads(install: Install) -> Policy:
    """Kueue's Workloads: switched on and off."""
    return Policy(
        f"operator-workloads.{names.GROUP}",
        (("kueue.x-k8s.io", "*", ("UPDATE",), ("workloads",)),),
        (of_operator(install),),
        _variables("labels", "annotations", "ownerReferences", "finalizers"),
        (
            *_unchanged(
                "Workloads",
                {"labels": (), "annotations": (names.ANNOTATION_SWITCHED_OFF,)},
                updates_only=True,
            ),
            Check(
                same("variables.ownerReferences", "variables.ownerReferencesBefore"),
                "the EvalStop operator changes no owners of Workloads",
            ),
            Check(
                same("variables.finalizers", "variables.finalizersBefore"),
                "the EvalStop operator changes no finalizers of Workloads",
            ),
            Check(
                same("dyn(object.spec)", "dyn(oldObject.spec)", ("active",)),
                "the EvalStop operator changes of a Workload's spec active alone",
            ),
        ),
    )


def workload_status(install: Install) -> Policy:
    return Policy(
        f"operator-workload-status.{names.GROUP}",
        (("kueue.x-k8s.io", "*", ("UPDATE",), ("workloads/status",)),),
        (of_operator(install),),
        (
            ("state", "has(object.status) ? dyn(object.status) : {}"),
            ("stateBefore", "has(oldObject.status) ? dyn(oldObject.status) : {}"),
        ),
        (
            Check(
                same("variables.state", "variables.stateBefore", ("admissionChecks",)),
                "the EvalStop operator changes of a Workload's status its answers alone (admissionChecks)",
            ),
        ),
    )


def check_status(install: Install) -> Policy:
    """Condition Active of AdmissionChecks that name this operator."""
    others = "filter(c, c.type != 'Active')"
    return Policy(
        f"operator-admissioncheck-status.{names.GROUP}",
        (("kueue.x-k8s.io", "*", ("UPDATE",), ("admissionchecks/status",)),),
        (of_operator(install),),
        (
            ("conditions", _conditions("object")),
            ("conditionsBefore", _conditions("oldObject")),
        ),
        (
            Check(
                f"object.spec.controllerName == '{names.CHECK_CONTROLLER}'",
                f"the EvalStop operator answers AdmissionChecks of controller {names.CHECK_CONTROLLER} alone",
            ),
            Check(
                f"variables.conditions.{others} == variables.conditionsBefore.{others}",
                "the EvalStop operator sets condition Active of AdmissionChecks alone",
            ),
        ),
    )


# -- pieces --------------------------------------------------------------------------------------------------


def _conditions(root: str) -> str:
    return f"{root}.?status.?conditions.orValue([])"


def _others(items: str, item: str) -> str:
    """Taints or tolerations that are not of a pool."""
    return f"{items}.filter({item}, {item}.?key.orValue('') != '{names.POOL_TAINT}')"


def _variables(*fields: str) -> tuple[tuple[str, str], ...]:
    """Return what of the metadata is compared: now, and before (of an object that is being made never
    asked)."""
    return tuple(
        pair
        for field in fields
        for pair in (
            (field, field_of("object.metadata", field, _EMPTY[field])),
            (f"{field}Before", field_of("oldObject.metadata", field, _EMPTY[field])),
        )
    )


def _metadata_variables(*roots: str) -> tuple[tuple[str, str], ...]:
    """Labels and annotations of a pod template, which need have no metadata."""
    return tuple(
        (
            f"{root}{field.capitalize()}",
            f"variables.{root}.?metadata.?{field}.orValue({{}})",
        )
        for root in roots
        for field in ("labels", "annotations")
    )


def _unchanged(
    what: str, kept: Mapping[str, tuple[str, ...]], updates_only: bool = False
) -> tuple[Check, ...]:
    """Return one check for each of these parts of the metadata; the keys that may differ.

    Args:
        what: what the metadata belongs to, for messages.
        kept: part of the metadata -> the keys in it that may differ.
        updates_only: whether the policy is asked about updates alone.
    """
    return tuple(
        Check(
            ("" if updates_only else UPDATED) + same(f"variables.{field}", f"variables.{field}Before", but),
            f"the EvalStop operator changes no {field} of {what}" + (f" but {', '.join(but)}" if but else ""),
        )
        for field, but in kept.items()
    )


def _all_unchanged(what: str) -> tuple[Check, ...]:
    """Nothing of the metadata differs, in a policy about updates."""
    return _unchanged(
        what, {"labels": (), "annotations": (), "ownerReferences": (), "finalizers": ()}, updates_only=True
    )
