"""Pods as the brain sees them, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable

from controller import bounded, names
from controller.objects import Object, controller_of, has_condition, is_ready, is_terminal, parse_time
from controller.policy.job import PodView
from controller.workloads.pod_trouble import pod_trouble, unplaced
from controller.workloads.requests import requested
from controller.workloads.trainer_end import trainer_end

OWNER_DEPTH = (
    5  # links followed up from a pod; the longest known chain has three (Pod, Job, JobSet, TrainJob)
)


def gpus(spec: Object, resource: str = names.GPU_RESOURCE) -> int:
    """Return GPUs that a pod with this spec holds, as the scheduler counts them.

    Containers and sidecars add up; an init container needs its own beside the sidecars started before it,
    for a time, so the largest such sum counts if it exceeds the steady one.
    """
    steady = sum(requested(c, resource) for c in spec.get("containers") or ())
    sidecars = largest = 0
    for container in spec.get("initContainers") or ():
        amount = requested(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            largest = max(largest, sidecars)
        else:
            largest = max(largest, sidecars + amount)
    return max(steady + sidecars, largest)


def pod_view(pod: Object) -> PodView:
    """Return a pod in the brain's words. ``deleting_since`` is when its deletion was asked for, in s."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    spec = pod.get("spec") or {}
    return PodView(
        name=str(metadata.get("name", "")),
        node=spec.get("nodeName") or None,
        gpus=gpus(spec),
        terminal=is_terminal(pod),
        succeeded=status.get("phase") == "Succeeded",
        ready=is_ready(pod),
        deleting_since=_deleting_since(metadata),
        admission=_admission(metadata),
        uid=str(metadata.get("uid", "")),
        created=parse_time(metadata.get("creationTimestamp")) or 0.0,
        trouble=pod_trouble(pod) or unplaced(pod),
        trainer_end=trainer_end(pod),
        unseen_by=unseen_by(pod),
        unheard=unheard(pod),
    )


def unseen_by(pod: Object) -> str:
    """Return the scheduler that a pod waits for and that has said nothing of it; "": it has, or the pod does
    not wait. A scheduler says at once why it finds no node, in condition PodScheduled."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    told = any(c.get("type") == "PodScheduled" for c in status.get("conditions") or ())
    if spec.get("nodeName") or told or status.get("phase") != "Pending":
        return ""
    return str(spec.get("schedulerName") or "default-scheduler")[:253]


def unheard(pod: Object) -> bool:
    """Return whether the kubelet of a pod's node is not heard of, by the pod alone.

    A kubelet that finds a pod not ready says which containers are not. The cluster's node controller, which
    stands in for one that is silent, sets Ready alone. (So does a readiness gate; a pod with gates tells
    nothing here.)
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if status.get("phase") != "Running" or spec.get("readinessGates"):
        return False
    return has_condition(pod, "Ready", "False") and has_condition(pod, "ContainersReady", "True")


def owned(obj: Object, owner_uid: str, known: Iterable[Object] = ()) -> bool:
    """Return whether the chain of controllers of ``obj`` leads to the object of that uid.

    ``known`` are the objects in between, where there are any (a JobSet's Jobs, say). Names and labels are
    not trusted: anybody may set them.
    """
    by_uid = {str(item["metadata"]["uid"]): item for item in known}
    current: Object | None = obj
    for _ in range(OWNER_DEPTH):
        owner = controller_of(current) if current is not None else None
        if owner is None:
            return False
        if owner.get("uid") == owner_uid:
            return True
        current = by_uid.get(str(owner.get("uid")))
    return False


def _admission(metadata: Object) -> int | None:
    return bounded.whole((metadata.get("annotations") or {}).get(names.ANNOTATION_ADMISSION))


def _deleting_since(metadata: Object) -> float | None:
    ends = parse_time(metadata.get("deletionTimestamp"))
    if ends is None:
        return None
    return ends - float(metadata.get("deletionGracePeriodSeconds") or 0)
