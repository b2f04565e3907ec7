"""A worker group's Job: an Indexed Job of the operator's own namespace, one pod per member.

Each start of the group is another Job, named by its number, so pods of two starts never mix. A container that
ends is started again in its pod, as often as it takes: its volumes outlive it. A pod that is gone is not: the
operator starts the group anew under the next number.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from controller import names
from controller.api.workergroup import ANNOTATION_NODES
from controller.objects import Object, controller_of, controller_reference, is_terminal
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.types import Problem
from controller.workloads.kinds import get
from controller.workloads.pods import gpus
from controller.workloads.problems import ProblemError
from controller.workloads.running import pool_toleration
from controller.workloads.scheduling import Scheduling, set_scheduling
from controller.workloads.step_token import token_source

COMPONENT = "group"
LABEL_GROUP = f"{names.GROUP}/group"
PORT = names.GROUP_PORT
MEMORY_DIR, DISK_DIR = "/run/evalstop/memory", "/run/evalstop/disk"
MEMORY_VOLUME, DISK_VOLUME = "evalstop-memory", "evalstop-disk"
RETRIES = 2**31 - 1  # of containers: a supervisor that dies is started again
_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip


class GroupSettings(NamedTuple):
    """Settings that a group's pods are given.

    ``steps``: https:// addresses of the operator's step API, by commas. ``ca_configmap``: ConfigMap of the
    groups' namespace whose key `names.STEPS_CA_KEY` has the authority of its certificate.
    """

    steps: str
    ca_configmap: str
    device_bytes: int
    residual_bytes: int
    host_bytes: int
    gpus: int
    max_residents: int = 3
    turn_seconds: int = 600
    idle_seconds: int = 30


def family_problem(family: str, template: Object, gpus_per_replica: int, host_bytes: int) -> Problem | None:
    """Return what is wrong with a family's template, by field, and what would be right."""
    where = f"spec.sharing.families[{family}].template.spec"
    pod = get(template, ("spec",)) or {}
    containers = pod.get("containers") or []
    if len(containers) != 1:
        return Problem("FamilyContainers", f"{where}.containers: {len(containers)}, expected 1, the workers'")
    asked = gpus(pod)
    if asked != gpus_per_replica:
        return Problem(
            "FamilyGPUs",
            f"{where}.containers[0].resources.limits[{names.GPU_RESOURCE}]: {asked}, expected "
            f"{gpus_per_replica} as in gpusPerReplica",
        )
    told = get(containers[0], ("resources", "limits", "memory"))
    limit = None if told is None else quantity(told)
    field = f"{where}.containers[0].resources.limits.memory"
    if limit is None:
        return Problem("FamilyMemory", f"{field}: {told!r}, expected more than the {host_bytes} of hostBytes")
    if limit < host_bytes:
        return Problem(
            "FamilyMemory",
            f"{field}: {told} is less than the {host_bytes} of hostBytes, which count to it: expected more, "
            "as the processes need some, too",
        )
    if pod.get("nodeName"):
        return Problem("FamilyPlaced", f"{where}.nodeName: leave it out, the pool chooses the nodes")
    for volume in pod.get("volumes") or ():
        if volume.get("name") in (MEMORY_VOLUME, DISK_VOLUME, names.STEPS_TOKEN_VOLUME):
            return Problem("ReservedName", f"{where}.volumes: {volume['name']!r} is the operator's")
    return None


def quantity(value: object) -> int | None:
    """Return a quantity of memory in bytes; None: it is none."""
    text = str(value)
    number = text.rstrip("kKMGTPi")
    unit = _UNITS.get(text[len(number) :])
    try:
        return None if unit is None else int(float(number) * unit)
    except ValueError:
        return None


def group_job_name(group: str, number: int) -> str:
    """Return the name of the Job of a group's start of that number."""
    return f"{group}-{number}"


def template_digest(template: Object) -> str:
    """Return what tells one template of a family from another: a digest, as its groups' Jobs bear it."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_group(
    owner: Object,
    template: Object,
    number: int,
    nodes: tuple[str, ...],
    settings: GroupSettings,
    *,
    pool: str,
    selector: Mapping[str, str],
    scheduling: Scheduling,
) -> dict[str, Any]:
    """Return the Job of one start of a group.

    Args:
        owner: the WorkerGroup, with ``metadata.uid``.
        template: of a member's pod; nothing of it is shared with the result.
        number: of the start.
        nodes: planned node of each member.
        settings: what its pods are told.
        pool: name of the GPUPool, whose taint its pods tolerate.
        selector: labels of the pool's nodes.
        scheduling: what the pool asks of its pods.

    Raises:
        ProblemError: `family_problem` has something to say.
    """
    name = owner["metadata"]["name"]
    problem = family_problem(name, template, settings.gpus, settings.host_bytes)
    if problem is not None:
        raise ProblemError(problem)
    made = copy.deepcopy(dict(template))
    metadata, pod = dict(made.get("metadata") or {}), dict(made["spec"])
    labels = {
        names.LABEL_JOB: name,
        LABEL_GROUP: name,
        names.LABEL_COMPONENT: COMPONENT,
        names.LABEL_POOL: pool,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
    }
    annotations = {names.ANNOTATION_ADMISSION: str(number)}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    pod["restartPolicy"] = "OnFailure"
    pod["automountServiceAccountToken"] = False
    pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **selector}
    tolerations = [t for t in pod.get("tolerations") or [] if t != pool_toleration(pool)]
    pod["tolerations"] = [*tolerations, pool_toleration(pool)]
    set_scheduling(pod, scheduling)
    _set_environment(pod, settings)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": group_job_name(name, number),
            "namespace": GROUPS_NAMESPACE,
            "labels": labels,
            "annotations": {
                **annotations,
                ANNOTATION_NODES: ",".join(nodes),
                names.ANNOTATION_TEMPLATE: template_digest(template),
            },
            "ownerReferences": [controller_reference(owner)],
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            "backoffLimit": RETRIES,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": metadata, "spec": pod},
        },
    }


class GroupPods(NamedTuple):
    """The pods of one start of a group.

    Attributes:
        bound: (node, GPUs) of each non-terminal pod that has a node.
        uids: of the members by index; "" where there is none.
        lost: a member's pod is gone, or another one is in its place.
    """

    bound: tuple[tuple[str, int], ...]
    uids: tuple[str, ...]
    lost: bool = False


def group_pods(job: Object, pods: Iterable[Object], known: tuple[str, ...] = ()) -> GroupPods:
    """Return the pods of a group's Job.

    Args:
        job: of the group's present start.
        pods: any; those that it does not control are left out.
        known: UIDs of the members that were admitted, by index.
    """
    count = int(get(job, ("spec", "completions")) or 0)
    uids = [""] * count
    bound = []
    for pod in pods:
        if (controller_of(pod) or {}).get("uid") != job["metadata"]["uid"] or is_terminal(pod):
            continue
        annotations = pod["metadata"].get("annotations") or {}
        index = annotations.get("batch.kubernetes.io/job-completion-index", "")
        if str(index).isdigit() and int(index) < count:
            uids[int(index)] = str(pod["metadata"]["uid"])
        node = get(pod, ("spec", "nodeName"))
        if node:
            bound.append((str(node), gpus(pod["spec"])))
    lost = any(before and before != now for before, now in zip(known, uids, strict=False))
    return GroupPods(tuple(sorted(bound)), tuple(uids), lost)


def _set_environment(pod: dict[str, Any], settings: GroupSettings) -> None:
    """Give the workers' container its volumes and its environment."""
    container = pod["containers"][0] = dict(pod["containers"][0])
    variables = {
        "EVALSTOP_GROUP_ADDRESS": "$(POD_IP)",
        "EVALSTOP_GROUP_POD": "$(POD_UID)",
        "EVALSTOP_GROUP_PORT": str(PORT),
        "EVALSTOP_GROUP_OPERATOR": settings.steps,
        "EVALSTOP_GROUP_OPERATOR_CA": f"{names.STEPS_TOKEN_DIR}/ca.crt",
        "EVALSTOP_GROUP_TOKEN": f"{names.STEPS_TOKEN_DIR}/token",
        "EVALSTOP_GROUP_MEMORY": MEMORY_DIR,
        "EVALSTOP_GROUP_DISK": DISK_DIR,
        "EVALSTOP_GROUP_DEVICE_BYTES": str(settings.device_bytes),
        "EVALSTOP_GROUP_RESIDUAL_BYTES": str(settings.residual_bytes),
        "EVALSTOP_GROUP_HOST_BYTES": str(settings.host_bytes),
        "EVALSTOP_GROUP_GPUS": str(settings.gpus),
        "EVALSTOP_GROUP_MAX_RESIDENTS": str(settings.max_residents),
        "EVALSTOP_GROUP_TURN_SECONDS": str(settings.turn_seconds),
        "EVALSTOP_GROUP_IDLE_SECONDS": str(settings.idle_seconds),
    }
    fields = {"POD_IP": "status.podIP", "POD_UID": "metadata.uid"}
    of_pod = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    own = [one for one in container.get("env") or [] if one.get("name") not in {*variables, *fields}]
    told = [{"name": key, "value": value} for key, value in variables.items()]
    container["env"] = [*of_pod, *told, *own]
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # for its last words
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or []),
        {"name": MEMORY_VOLUME, "mountPath": MEMORY_DIR},
        {"name": DISK_VOLUME, "mountPath": DISK_DIR},
        {"name": names.STEPS_TOKEN_VOLUME, "mountPath": names.STEPS_TOKEN_DIR, "readOnly": True},
    ]
    container["ports"] = [*(container.get("ports") or []), {"name": "group", "containerPort": PORT}]
    authority = {"key": names.STEPS_CA_KEY, "path": "ca.crt"}
    sources = [token_source(), {"configMap": {"name": settings.ca_configmap, "items": [authority]}}]
    memory = {"medium": "Memory", "sizeLimit": str(settings.host_bytes)}
    pod["volumes"] = [
        *(pod.get("volumes") or []),
        {"name": MEMORY_VOLUME, "emptyDir": memory},
        {"name": DISK_VOLUME, "emptyDir": {}},
        {"name": names.STEPS_TOKEN_VOLUME, "projected": {"sources": sources}},
    ]
