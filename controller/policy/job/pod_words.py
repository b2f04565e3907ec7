"""The end of a pod, or the thing that it waits for, in a sentence."""

from __future__ import annotations

from controller.policy.job.record import (
    FAILED_CREATE,
    NO_SCHEDULER,
    NODE_NOT_READY,
    UNSCHEDULABLE,
    PodTrouble,
)
from controller.policy.wording import STATE_TAINTS

# What kube-scheduler says of nodes on which others have what the pod asks for: that may come free.
FULL = "Insufficient "
# What it says of nodes that the pod's own template rules out, or that are none of its pool's.
NOT_MATCHED, NOT_TOLERATED = "node affinity/selector", "untolerated taint"
_AVAILABLE = "nodes are available: "


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
    return trouble is not None and trouble.waits == UNSCHEDULABLE and rules_out(trouble.message)


def rules_out(words: str) -> bool:
    """Return whether a scheduler's words, alone or in a sentence, name labels and taints alone. Not those
    taints that come and go with a node's state."""
    each = words.partition(_AVAILABLE)[2].partition("; ")[0].split(", ")
    return all(NOT_MATCHED in one or _lasting_taint(one) for one in each)


def free_first(words: str) -> str:
    """Return a scheduler's words with what may come free at their beginning: their end may be cut off."""
    nodes, available, rest = words.partition(_AVAILABLE)
    each = sorted(rest.split(", "), key=lambda one: FULL not in one)
    return f"{nodes}{available}{', '.join(each)}"


def _lasting_taint(clause: str) -> bool:
    return NOT_TOLERATED in clause and not any(f"{{{key}" in clause for key in STATE_TAINTS)


def without_numbers(trouble: PodTrouble) -> str:
    """Return the words of a trouble without the numbers, which change with each look at the nodes."""
    return "".join(x for x in trouble.message if not x.isdigit())
