"""The policy on access Jobs (`controller.checkpoints.access_jobs`), as far as it is the same for all: what
they run, with which rights of the node, and that they ask for no GPU.

They have no controlling RLHFJob, so their shape is all that tells them from any other Job. What differs
from workload to workload admission cannot know, and leaves free: service account, user, claims, credentials,
place.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller import names
from controller.api.admission.base import Check, Install, listed

COMMAND = ("python", "-m", "controller.checkpoints.access")
# Fields that an access Job's pods have, and those that the API server fills in (of pod templates it never
# fills in more later: every Deployment would start its pods anew). What is not here is refused: an `exec`
# probe runs a program, a working directory is one that Python looks for modules in.
POD_FIELDS = (
    *("restartPolicy", "serviceAccountName", "serviceAccount", "automountServiceAccountToken"),
    *("enableServiceLinks", "terminationGracePeriodSeconds", "securityContext", "tolerations", "containers"),
    *("volumes", "imagePullSecrets", "runtimeClassName", "affinity", "priorityClassName"),
    *("dnsPolicy", "schedulerName"),
)
CONTAINER_FIELDS = (
    *("name", "image", "imagePullPolicy", "command", "env", "envFrom", "ports", "resources"),
    *("securityContext", "terminationMessagePath", "terminationMessagePolicy", "volumeMounts"),
)
_USER = ("runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions")
CONTAINER_SECURITY = (*_USER, "allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities")
POD_SECURITY = (
    *(*_USER, "fsGroup", "fsGroupChangePolicy", "supplementalGroups", "supplementalGroupsPolicy"),
    "seccompProfile",
)
OWN_PYTHON = "PYTHONDONTWRITEBYTECODE"
PROGRAMS = "^(PYTHON|LD_|PATH$|HOME$)"  # what Python and the loader read before the program's first line
_ASKED = "request.operation != 'CREATE' || !variables.access || "
_POD = "object.spec.template.spec"
_ONE = f"{_POD}.containers[0]"
_SUBJECT = "the EvalStop operator's Jobs that reach checkpoints"


def access_checks(install: Install) -> tuple[Check, ...]:
    """For the policy on the operator's Jobs; its variable ``access`` says whether one is such a Job."""
    command = ", ".join(f"'{word}'" for word in COMMAND)
    return (
        Check(
            f"{_ASKED}('{names.LABEL_JOB}' in variables.marks && "
            f"object.metadata.?annotations[?'{names.ANNOTATION_JOB_UID}'].hasValue())",
            f"{_SUBJECT} say whose they are",
        ),
        Check(
            f"{_ASKED}variables.owners.all(o, o.kind == 'Job' && o.apiVersion == 'batch/v1' && "
            "o.?controller.orValue(false))",
            f"{_SUBJECT} are made under their workload or under nothing",
        ),
        Check(
            f"{_ASKED}(object.spec.completions == 1 && object.spec.parallelism == 1 && "
            "object.spec.backoffLimit == 0)",
            f"{_SUBJECT} have one pod, once",
        ),
        Check(
            f"{_ASKED}!object.spec.?manualSelector.orValue(false)",
            f"{_SUBJECT} choose no pods themselves",
        ),
        Check(
            f"{_ASKED}{_fields(_POD, POD_FIELDS)}",
            f"{_SUBJECT} have of a pod's fields their own alone: no other containers, no node, no namespaces "
            "of their node, no claims of devices",
        ),
        Check(
            f"{_ASKED}{_POD}.containers.size() == 1",
            f"{_SUBJECT} have one container",
        ),
        Check(
            f"{_ASKED}{_fields(_ONE, CONTAINER_FIELDS)}",
            f"{_SUBJECT} have of a container's fields their own alone: no arguments, no probes, no hooks, no "
            "folder to start in, no devices",
        ),
        Check(
            f"{_ASKED}{_ONE}.?command.orValue([]) == [{command}]",
            f"{_SUBJECT} run the access program and nothing else",
        ),
        Check(
            f"{_ASKED}{_ONE}.?env.orValue([]).all(e, e.name == '{OWN_PYTHON}' || "
            f"!e.name.matches('{PROGRAMS}'))",
            f"{_SUBJECT} have no variables that change how a program starts",
        ),
        Check(
            f"{_ASKED}{_ONE}.image == '{install.image}'",
            f"{_SUBJECT} run image {install.image}",
        ),
        Check(
            f"{_ASKED}({_fields(f'{_ONE}.securityContext', CONTAINER_SECURITY)} && "
            f"!{_ONE}.securityContext.?allowPrivilegeEscalation.orValue(true))",
            f"{_SUBJECT} have no privileges",
        ),
        Check(
            f"{_ASKED}({_fields(f'{_POD}.securityContext', POD_SECURITY)} && "
            f"{_POD}.securityContext.?seccompProfile.?type.orValue('') == 'RuntimeDefault')",
            f"{_SUBJECT} have the runtime's own seccomp profile, and no sysctls",
        ),
        Check(
            f"{_ASKED}dyn({_ONE}).securityContext.?capabilities.orValue({{}}) == {{'drop': ['ALL']}}",
            f"{_SUBJECT} have no capabilities",
        ),
        Check(
            f"{_ASKED}{_ONE}.securityContext.?readOnlyRootFilesystem.orValue(false)",
            f"{_SUBJECT} have a read-only root file system",
        ),
        Check(
            f"{_ASKED}!{_POD}.?automountServiceAccountToken.orValue(true)",
            f"{_SUBJECT} get no token of the API server",
        ),
        Check(
            f"{_ASKED}{_POD}.?volumes.orValue([]).all(v, has(v.persistentVolumeClaim) || "
            "has(v.secret) || has(v.projected))",
            f"{_SUBJECT} mount claims, and the Secrets and projected volumes of their trainer",
        ),
        Check(
            f"{_ASKED}{_POD}.?volumes.orValue([]).all(v, v.?projected.?sources.orValue([]).all(s, "
            f"!has(s.serviceAccountToken) || !s.serviceAccountToken.?audience.orValue('{names.API_AUDIENCE}')"
            f".contains('{names.API_AUDIENCE}')))",
            f"{_SUBJECT} mount no token of the API server: projected tokens are for another audience",
        ),
        Check(
            f"{_ASKED}{_ONE}.?ports.orValue([]).all(p, !has(p.hostPort))",
            f"{_SUBJECT} take no port of their node",
        ),
        *(
            Check(
                f"{_ASKED}dyn({_ONE}).?resources.?{of}.orValue({{}}).all(r, r in ['cpu', 'memory'])",
                f"{_SUBJECT} ask for no devices in {of}",
            )
            for of in ("limits", "requests")
        ),
    )


def _fields(owner: str, names_of: Sequence[str]) -> str:
    """Return whether an object has no fields but these. ``dyn``: also those that a later Kubernetes adds."""
    return f"dyn({owner}).all(k, k in [{listed(names_of)}])"
