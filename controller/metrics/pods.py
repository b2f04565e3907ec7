"""Pods that may speak for a job, and the port to scrape. Pure functions on Kubernetes objects as
dictionaries.

Only pods that the job's own child workload controls are listened to: a label alone could be set by anybody
who may create pods in the namespace. Which of them does speak is `policy.job.speaker`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller import names
from controller.objects import completion_index, controller_uid, has_started, is_terminal, mapping
from controller.policy.job import Member

KubeObject = Mapping[str, Any]


def members(pods: Iterable[KubeObject], workload: KubeObject | None, job_uid: str | None) -> list[KubeObject]:
    """Return the pods of an RLHFJob's gang that could be scraped, one for each completion index, in order.

    Each has an IP, has started and not ended, and is owned pod -> workload -> RLHFJob by uid. Of several with
    one index it is the newest, one that is not being deleted first. Pods of a Job that is not indexed have
    index 0.

    Args:
        pods: candidates; what does not belong to the job is passed over.
        workload: the child as last seen.
        job_uid: uid of the RLHFJob; None where ``spec.workload.ref`` names the workload, which then is not
            owned by the RLHFJob but chosen by its author.
    """
    if workload is None or (job_uid is not None and controller_uid(workload) != job_uid):
        return []
    workload_uid = workload.get("metadata", {}).get("uid")
    namespace = workload.get("metadata", {}).get("namespace")

    def usable(pod: KubeObject) -> bool:
        status = pod.get("status") or {}
        return (
            workload_uid is not None
            and controller_uid(pod) == workload_uid
            and pod.get("metadata", {}).get("namespace") == namespace
            and bool(status.get("podIP"))
            and has_started(pod)
            and not is_terminal(pod)
        )

    newest: dict[int, KubeObject] = {}
    for pod in sorted(filter(usable, pods), key=_freshness):
        newest[completion_index(pod) or 0] = pod
    return [newest[index] for index in sorted(newest)]


def _freshness(pod: KubeObject) -> tuple[bool, str, str]:
    metadata = pod["metadata"]
    return (
        metadata.get("deletionTimestamp") is None,
        str(metadata.get("creationTimestamp", "")),
        str(metadata.get("name", "")),
    )


def member(pod: KubeObject) -> Member:
    """Return one of `members` as it is chosen from."""
    metadata = mapping(pod.get("metadata"))
    return Member(
        str(metadata.get("uid", "")),
        str(metadata.get("name", "")),
        completion_index(pod) or 0,
        metadata.get("deletionTimestamp") is not None,
        {str(key): str(value) for key, value in mapping(metadata.get("labels")).items()},
    )


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
