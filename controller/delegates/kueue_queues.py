"""Check that Kueue's queues can give a pool's jobs their turn, and name what is to be mended if not.

Every answer names object, field, value and remedy. What Kueue itself says of a Workload that waits is another
matter (`QueueView.message`): here is what no waiting mends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller import names
from controller.api.gpupool import GPUPool
from controller.delegates.base import Known, Object
from controller.kube.resources import ADMISSION_CHECKS, CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES
from controller.objects import GPUS_MOST, amount
from controller.policy.types import Problem

_GO = ("", "None")  # stop policies that stop nobody
_FIELD = "spec.resourceGroups[].flavors[].resources[nvidia.com/gpu].nominalQuota"


def is_ours(check: Object | None) -> bool:
    """Return whether an AdmissionCheck is one that this operator answers. Kueue takes one without a spec,
    too."""
    return check is not None and (check.get("spec") or {}).get("controllerName") == names.CHECK_CONTROLLER


def installed_problem(pool: GPUPool, known: Known) -> Problem | None:
    """Return why Kueue cannot serve any job of a pool."""
    if known.absent(CLUSTER_QUEUES):
        return Problem(
            "KueueNotInstalled",
            f"GPUPool {pool.metadata.name!r}: spec.delegate is Kueue, but the cluster does not serve "
            f"{CLUSTER_QUEUES.api_version}; install Kueue 0.15 or newer (it is found by itself), or choose "
            "another delegate",
        )
    checks = (c for c in known.values(ADMISSION_CHECKS) if not c["metadata"].get("deletionTimestamp"))
    if known.listed(ADMISSION_CHECKS) and not any(map(is_ours, checks)):
        return Problem(
            "CheckNotFound",
            f"GPUPool {pool.metadata.name!r}: spec.delegate is Kueue, but there is no AdmissionCheck with "
            f"spec.controllerName {names.CHECK_CONTROLLER!r}; make one and name it in the ClusterQueue "
            "(docs/operate/kueue.md)",
        )
    return None


def problem(namespace: str, queue: str, gpus: int, pool: GPUPool, known: Known) -> Problem | None:
    """Return why a gang of so many GPUs will not get its turn from LocalQueue ``namespace/queue``; None also
    while that is not known yet, or as far as those who ask may not read it."""
    found = installed_problem(pool, known)
    if found is not None:
        return found
    if not known.listed(LOCAL_QUEUES):
        return None
    local = known.get(LOCAL_QUEUES, f"{namespace}/{queue}")
    if local is None:
        return Problem(
            "QueueNotFound",
            f"GPUPool {pool.metadata.name!r}: spec.kueue.localQueue: there is no LocalQueue {queue!r} in "
            f"namespace {namespace!r}; make it, or name one that is there in the template's label "
            f"{names.QUEUE_LABEL}",
        )
    if stopped := _stopped(local, f"LocalQueue {namespace}/{queue}", "QueueStopped"):
        return stopped
    if not all(map(known.listed, (CLUSTER_QUEUES, FLAVORS, ADMISSION_CHECKS))):
        return None
    name = str(local["spec"].get("clusterQueue") or "")
    cluster = known.get(CLUSTER_QUEUES, name)
    if cluster is None:
        return Problem(
            "ClusterQueueNotFound",
            f"LocalQueue {namespace}/{queue}: spec.clusterQueue: there is no ClusterQueue {name!r}; make it",
        )
    return (
        _stopped(cluster, f"ClusterQueue {name}", "ClusterQueueStopped")
        or _check_problem(cluster, name, known)
        or _quota_problem(cluster, name, gpus)
        or _flavor_problem(cluster, name, pool, known)
        or _inactive(cluster, name)
    )


def _stopped(queue: Object, what: str, reason: str) -> Problem | None:
    policy = str(queue["spec"].get("stopPolicy") or "")
    if policy in _GO:
        return None
    return Problem(reason, f"{what}: spec.stopPolicy is {policy!r}, so it admits nobody; set it to None")


def _check_problem(cluster: Object, name: str, known: Known) -> Problem | None:
    """Without our check Kueue would start workloads that nobody has found nodes for."""
    strategy = cluster["spec"].get("admissionChecksStrategy") or {}
    flavors = set(_gpu_flavors(cluster))
    for rule in strategy.get("admissionChecks") or ():
        some = set(rule.get("onFlavors") or ())
        if is_ours(known.get(ADMISSION_CHECKS, str(rule["name"]))) and (not some or flavors <= some):
            return None
    return Problem(
        "CheckMissing",
        f"ClusterQueue {name}: spec.admissionChecksStrategy.admissionChecks names no AdmissionCheck with "
        f"controllerName {names.CHECK_CONTROLLER!r} for all flavors of its GPUs; add it, for Kueue would "
        "start workloads that no node was found for",
    )


def _quota_problem(cluster: Object, name: str, gpus: int) -> Problem | None:
    """Quota that is too small for ever: one flavor must have it, and nothing can be borrowed beyond a
    limit."""
    flavors = _gpu_flavors(cluster)
    if not flavors:
        return Problem(
            "QuotaMissing",
            f"ClusterQueue {name}: spec.resourceGroups covers no {names.GPU_RESOURCE}; add it with a quota",
        )
    most = 0
    for quota in flavors.values():
        borrow = quota.get("borrowingLimit")
        if _cohort(cluster) and borrow is None:
            return None
        most = max(most, _quota(quota.get("nominalQuota")) + (_quota(borrow) if _cohort(cluster) else 0))
    if gpus <= most:
        return None
    return Problem(
        "QuotaTooSmall",
        f"ClusterQueue {name}: {_FIELD}: {most} with all that may be borrowed, but spec.gang needs {gpus}; "
        f"raise it to {gpus}, or make the gang smaller",
    )


def _flavor_problem(cluster: Object, name: str, pool: GPUPool, known: Known) -> Problem | None:
    """Kueue gives a Workload up for good whose pods would get two values for one node label."""
    selector = {label.key: label.value for label in pool.spec.node_selector}
    for flavor in _gpu_flavors(cluster):
        found = known.get(FLAVORS, flavor)
        for key, value in ((found or {}).get("spec") or {}).get("nodeLabels", {}).items():
            if selector.get(key, value) != value:
                return Problem(
                    "FlavorMismatch",
                    f"ResourceFlavor {flavor} of ClusterQueue {name}: spec.nodeLabels[{key}] is {value!r}, "
                    f"but GPUPool {pool.metadata.name!r} selects {selector[key]!r}; let them agree, or leave "
                    "the label out of the flavor",
                )
    return None


def _inactive(cluster: Object, name: str) -> Problem | None:
    """Return whatever else Kueue has against its own queue, in its words."""
    for condition in (cluster.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Active" and condition["status"] == "False":
            return Problem(
                "ClusterQueueInactive", f"ClusterQueue {name}: {condition['reason']}: {condition['message']}"
            )
    return None


def _gpu_flavors(cluster: Object) -> dict[str, Mapping[str, Any]]:
    """Flavor -> its quota of GPUs."""
    return {str(flavor): quota for flavor, quota in _quotas(cluster)}


def _quotas(cluster: Object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for group in cluster["spec"].get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for quota in flavor.get("resources") or ():
                if quota["name"] == names.GPU_RESOURCE:
                    yield flavor["name"], quota


def _cohort(cluster: Object) -> str:
    return str(cluster["spec"].get("cohortName") or "")


def _quota(quantity: object) -> int:
    """Return how many GPUs a quota says, none if it is absent; one with a suffix is in nobody's way."""
    found = amount(quantity or 0)
    return GPUS_MOST if found is None else found
