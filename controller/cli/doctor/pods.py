"""Reasons for which a pod does not run, in the cluster's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.objects import COMPLETION_INDEX, controller_uid
from controller.workloads.pods import unseen_by
from controller.workloads.trainer_end import trainer_end

USUAL = ("ContainerCreating", "PodInitializing")


def trouble(pod: Mapping[str, Any]) -> str:
    """``run-0: ImagePullBackOff, …``; "": nothing is wrong with it."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") and waiting["reason"] not in USUAL:
            return f"{name}: {waiting['reason']}, {waiting.get('message', '')}".rstrip(", ")
        if ended.get("exitCode"):
            return f"{name}: ended with exit code {ended['exitCode']}, {ended.get('reason', '')}".rstrip(", ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{name}: {condition.get('reason')}, {condition.get('message', '')}".rstrip(", ")
    if status.get("phase") == "Failed":
        return f"{name}: Failed, {status.get('reason', '')} {status.get('message', '')}".rstrip(", ")
    return ""


def replaced(pod: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a pod has failed and a later one of its Job's has its index, and has not failed too.

    A Job keeps those that failed for as long as it is there.
    """
    if (pod.get("status") or {}).get("phase") != "Failed" or (place := _place(pod)) is None:
        return False
    return any(
        _place(other) == place
        and (other.get("status") or {}).get("phase") != "Failed"
        and str(other["metadata"].get("creationTimestamp")) >= str(pod["metadata"].get("creationTimestamp"))
        for other in others
    )


def _place(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the pod's Job and its index there; None: it has none."""
    index = (pod["metadata"].get("annotations") or {}).get(COMPLETION_INDEX)
    owner = controller_uid(pod)
    return None if index is None or not owner else (owner, str(index))


def trainer_ended(pod: Mapping[str, Any]) -> str:
    """``run-0: its container trainer has ended, exit code 0; still running: proxy``; "": it is not so."""
    end = trainer_end(pod)
    if end is None:
        return ""
    name, going = pod["metadata"]["name"], ", ".join(end.going)
    return f"{name}: its container {end.container} has ended, exit code {end.code}; still running: {going}"


def unseen(pod: Mapping[str, Any]) -> str:
    """``run-0: scheduler x has said nothing of it yet``; "": it has, or the pod does not wait for one."""
    name = unseen_by(pod)
    return f"{pod['metadata']['name']}: scheduler {name} has said nothing of it yet" if name else ""
