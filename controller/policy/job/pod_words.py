"""The end of a pod, or the thing that it waits for, in a sentence."""

from __future__ import annotations

from controller.policy.job.record import (
    FAILED_CREATE,
    NO_SCHEDULER,
    NODE_NOT_READY,
    UNSCHEDULABLE,
    PodTrouble,
)

# What kube-scheduler says of nodes on which others have what the pod asks for: that may come free.
FULL = "Insufficient "
# What it says of nodes that the pod's own template rules out, or that are none of its pool's.
NOT_MATCHED, NOT_TOLERATED = "node affinity/selector", "untolerated taint"


def node_away(pod: str, node: str | None) -> PodTrouble:
    """Return that the kubelet of a pod's node is not heard of."""
    return PodTrouble(pod, waits=NODE_NOT_READY, message=f"{node} is down, or cut off from the cluster")


def pod_sentence(trouble: PodTrouble) -> str:
    """Return in a sentence how a pod ended, or what it waits for."""
    detail = f": {trouble.message}" if trouble.message else ""
    if trouble.waits == NO_SCHEDULER:
        return f"nobody schedules pod {trouble.pod}{detail}"
    if trouble.waits == UNSCHEDULABLE:
        return f"the scheduler finds no node for pod {trouble.pod}{detail}"
    if trouble.waits == FAILED_CREATE:
        return f"the cluster refuses its pods{detail}"
    if trouble.waits == NODE_NOT_READY:
        return f"the node of pod {trouble.pod} is not ready{detail}"
    if trouble.exit_code is None:
        return f"pod {trouble.pod} waits, {trouble.waits}{detail}"
    often = f" ({trouble.count} times)" if trouble.count > 1 else ""
    return f"pod {trouble.pod} ended with exit code {trouble.exit_code}{often}{detail}"


def ruled_out(trouble: PodTrouble | None) -> bool:
    """Return whether every node is ruled out for a pod by labels or taints, as its scheduler says: no GPUs
    that come free help it, only another template, or other nodes."""
    if trouble is None or trouble.waits != UNSCHEDULABLE:
        return False
    each = trouble.message.partition(": ")[2].split(", ")
    return all(NOT_MATCHED in one or NOT_TOLERATED in one for one in each)


def without_numbers(trouble: PodTrouble) -> str:
    """Return the words of a trouble without the numbers, which change with each look at the nodes."""
    return "".join(x for x in trouble.message if not x.isdigit())
