"""Score of a node for a pod, on kube-scheduler's scale for extenders. From the plan, never from live usage.

Usage moves with every pod and would pull gangs apart; the plan says where the gang belongs. For pods that no
plan places, the same order as for gangs: a node that the pod fills whole first, then one beside its gang's
other nodes, then the one that is left with the smallest gap.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.node.ledger import GpuLedger, PodRequest

MAX_SCORE = 10  # MaxExtenderPriority of k8s.io/kube-scheduler/extender/v1
WHOLE, RACK, EXACT, BROKEN = 6, 3, 2, 1


def scores(ledger: GpuLedger, request: PodRequest, nodes: Sequence[str], now: float) -> list[int]:
    """0 to 10 for each of ``nodes``, in their order.

    10: the plan's node for this pod. Otherwise ``WHOLE`` if the pod takes all GPUs of the node; if not,
    ``EXACT`` if it takes just what is not kept for others, ``BROKEN`` if part of the node is kept already;
    and ``RACK`` more on a rack of the gang. Each outweighs all that follow it.
    """
    if request.gpus == 0:
        return [0] * len(nodes)
    planned = frozenset(ledger.planned(request))
    gang = ledger.gang(request.gang) if request.gang is not None else None
    racks = {rack for node in (gang.nodes if gang else ()) if (rack := ledger.rack(node)) is not None}
    capacity, gpus = ledger.capacity, request.gpus
    found = []
    for node in nodes:
        total = capacity.get(node)
        if node in planned:
            score = MAX_SCORE
        elif total is None:
            score = 0
        elif total == gpus:
            score = WHOLE
        elif ledger.untouched(node):
            score = 0
        else:
            kept = ledger.kept(node, now)[0]
            score = EXACT if gpus == total - kept else BROKEN if kept else 0
        found.append(score + RACK if racks and score < MAX_SCORE and ledger.rack(node) in racks else score)
    return found
