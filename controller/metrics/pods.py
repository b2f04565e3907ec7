"""Which pod speaks for a job, and on which port. Pure functions on Kubernetes objects as dictionaries.

Only completion index 0 speaks for its job, and only a pod that the job's own child workload controls is
listened to: a label alone could be set by anybody who may create pods in the namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller import names
from controller.objects import completion_index, controller_uid, is_terminal

KubeObject = Mapping[str, Any]


def pick_pod(
    pods: Iterable[KubeObject], workload: KubeObject | None, job_uid: str | None
) -> KubeObject | None:
    """Return the pod to scrape for an RLHFJob: index 0, with an IP, owned pod -> workload -> RLHFJob by uid.

    Args:
        pods: candidates; what does not belong to the job is passed over.
        workload: the child as last seen.
        job_uid: uid of the RLHFJob; None where ``spec.workload.ref`` names the workload, which then is not
            owned by the RLHFJob but chosen by its author.

    Returns:
        The newest such pod, one that is not being deleted first. None: nothing to scrape now.
    """
    if workload is None or (job_uid is not None and controller_uid(workload) != job_uid):
        return None
    workload_uid = workload.get("metadata", {}).get("uid")
    namespace = workload.get("metadata", {}).get("namespace")

    def speaks(pod: KubeObject) -> bool:
        status = pod.get("status") or {}
        return (
            workload_uid is not None
            and controller_uid(pod) == workload_uid
            and pod.get("metadata", {}).get("namespace") == namespace
            and not completion_index(pod)  # of a Job that is not indexed, any
            and bool(status.get("podIP"))
            and not is_terminal(pod)
        )

    def freshness(pod: KubeObject) -> tuple[bool, str, str]:
        metadata = pod["metadata"]
        return (
            metadata.get("deletionTimestamp") is None,
            str(metadata.get("creationTimestamp", "")),
            str(metadata.get("name", "")),
        )

    return max(filter(speaks, pods), key=freshness, default=None)


def metrics_port(pod: KubeObject, port: int | None = None) -> int | None:
    """``spec.scrape.port`` if set, else the container port named ``metrics``; None: neither."""
    if port is not None:
        return port
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for candidate in container.get("ports") or ():
            if candidate.get("name") == names.METRICS_PORT_NAME:
                return int(candidate["containerPort"])
    return None
