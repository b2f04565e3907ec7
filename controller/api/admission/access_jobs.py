"""The policy on access Jobs (`controller.checkpoints.access_jobs`), as far as it is the same for all: what
they run, with which rights of the node, and that they ask for no GPU.

They have no controlling RLHFJob, so their shape is all that tells them from any other Job.
"""

from __future__ import annotations

from controller import names
from controller.api.admission.base import Check, Install

COMMAND = ("python", "-m", "controller.checkpoints.access")
_ASKED = "request.operation != 'CREATE' || !variables.access || "
_POD = "object.spec.template.spec"
_ONE = f"{_POD}.containers[0]"
_SUBJECT = "the EvalStop operator's Jobs that reach checkpoints"


def access_checks(install: Install) -> tuple[Check, ...]:
    """For the policy on the operator's Jobs; its variable ``access`` says whether one is such a Job."""
    command = ", ".join(f"'{word}'" for word in COMMAND)
    return (
        Check(
            f"{_ASKED}('{names.LABEL_MANAGED_BY}' in variables.marks && "
            f"variables.marks['{names.LABEL_MANAGED_BY}'] == '{names.MANAGED_BY}' && "
            f"'{names.LABEL_JOB}' in variables.marks && has(object.metadata.annotations) && "
            f"'{names.ANNOTATION_JOB_UID}' in object.metadata.annotations)",
            f"{_SUBJECT} say whose they are",
        ),
        Check(
            "request.operation != 'DELETE' || !variables.access || "
            f"('{names.LABEL_MANAGED_BY}' in variables.marks && "
            f"variables.marks['{names.LABEL_MANAGED_BY}'] == '{names.MANAGED_BY}')",
            "the EvalStop operator deletes Jobs that reach checkpoints only if it made them itself",
        ),
        Check(
            f"{_ASKED}variables.owners.all(o, o.kind == 'Job' && o.apiVersion == 'batch/v1' && "
            "has(o.controller) && o.controller)",
            f"{_SUBJECT} are made under their workload or under nothing",
        ),
        Check(
            f"{_ASKED}(object.spec.completions == 1 && object.spec.parallelism == 1 && "
            "object.spec.backoffLimit == 0)",
            f"{_SUBJECT} have one pod, once",
        ),
        Check(
            f"{_ASKED}({_POD}.containers.size() == 1 && !has({_POD}.initContainers))",
            f"{_SUBJECT} have one container",
        ),
        Check(
            f"{_ASKED}(has({_ONE}.command) && {_ONE}.command == [{command}] && !has({_ONE}.args) && "
            f"!has({_ONE}.lifecycle))",
            f"{_SUBJECT} run the access program and nothing else",
        ),
        Check(
            f"{_ASKED}{_ONE}.image == '{install.image}'",
            f"{_SUBJECT} run image {install.image}",
        ),
        Check(
            f"{_ASKED}(has({_ONE}.securityContext) && "
            f"(!has({_ONE}.securityContext.privileged) || !{_ONE}.securityContext.privileged) && "
            f"has({_ONE}.securityContext.allowPrivilegeEscalation) && "
            f"!{_ONE}.securityContext.allowPrivilegeEscalation)",
            f"{_SUBJECT} have no privileges",
        ),
        Check(
            f"{_ASKED}(has({_ONE}.securityContext) && has({_ONE}.securityContext.capabilities) && "
            f"dyn({_ONE}.securityContext.capabilities) == {{'drop': ['ALL']}})",
            f"{_SUBJECT} have no capabilities",
        ),
        Check(
            f"{_ASKED}(has({_ONE}.securityContext) && has({_ONE}.securityContext.readOnlyRootFilesystem) && "
            f"{_ONE}.securityContext.readOnlyRootFilesystem)",
            f"{_SUBJECT} have a read-only root file system",
        ),
        Check(
            f"{_ASKED}((!has({_POD}.hostNetwork) || !{_POD}.hostNetwork) && "
            f"(!has({_POD}.hostPID) || !{_POD}.hostPID) && (!has({_POD}.hostIPC) || !{_POD}.hostIPC))",
            f"{_SUBJECT} use no namespaces of their node",
        ),
        Check(
            f"{_ASKED}(has({_POD}.automountServiceAccountToken) && !{_POD}.automountServiceAccountToken)",
            f"{_SUBJECT} get no token of the API server",
        ),
        Check(
            f"{_ASKED}!has({_POD}.volumes) || {_POD}.volumes.all(v, has(v.persistentVolumeClaim) || "
            "has(v.secret) || has(v.projected))",
            f"{_SUBJECT} mount claims, and the Secrets and projected volumes of their trainer",
        ),
        Check(
            f"{_ASKED}(!has(dyn({_ONE}).resources.limits) || "
            f"dyn({_ONE}).resources.limits.all(r, r in ['cpu', 'memory'])) && !has({_POD}.resourceClaims)",
            f"{_SUBJECT} ask for no devices",
        ),
        Check(
            f"{_ASKED}!has({_POD}.nodeName) || {_POD}.nodeName == ''",
            f"{_SUBJECT} are placed by a scheduler",
        ),
    )
