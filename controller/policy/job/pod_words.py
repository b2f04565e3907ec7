"""The end of a pod, or the thing that it waits for, in a sentence."""

from __future__ import annotations

from controller.policy.job.record import FAILED_CREATE, NO_SCHEDULER, NODE_NOT_READY, PodTrouble


def node_away(pod: str, node: str | None) -> PodTrouble:
    """Return that the kubelet of a pod's node is not heard of."""
    return PodTrouble(pod, waits=NODE_NOT_READY, message=f"{node} is down, or cut off from the cluster")


def pod_sentence(trouble: PodTrouble) -> str:
    """Return in a sentence how a pod ended, or what it waits for."""
    detail = f": {trouble.message}" if trouble.message else ""
    if trouble.waits == NO_SCHEDULER:
        return f"nobody schedules pod {trouble.pod}{detail}"
    if trouble.waits == FAILED_CREATE:
        return f"the cluster refuses its pods{detail}"
    if trouble.waits == NODE_NOT_READY:
        return f"the node of pod {trouble.pod} is not ready{detail}"
    if trouble.exit_code is None:
        return f"pod {trouble.pod} waits, {trouble.waits}{detail}"
    often = f" ({trouble.count} times)" if trouble.count > 1 else ""
    return f"pod {trouble.pod} ended with exit code {trouble.exit_code}{often}{detail}"
