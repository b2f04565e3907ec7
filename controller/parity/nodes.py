"""The nodes that a trial was given: what keeps pods off them, and which GPUs they have.

Who names nodes for a trial means its pods to run there, so these tolerate the taints that the nodes have at
the start: nvidia.com/gpu, or one of their owner's. Taints that tell of a node's problem are not tolerated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from controller import names

Object = Mapping[str, Any]

_KEEPING_OFF = ("NoSchedule", "NoExecute")
_PROBLEMS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


class Taint(NamedTuple):
    """A taint that a pod may tolerate."""

    key: str
    value: str
    effect: str

    def toleration(self) -> dict[str, str]:
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": self.effect}


def taints(nodes: Iterable[Object]) -> tuple[Taint, ...]:
    """What pods have to tolerate for these nodes, each once. The operator sees to a pool's own."""
    found = {
        taint
        for node in nodes
        for taint in _of(node)
        if not taint.key.startswith(_PROBLEMS) and taint.key != names.POOL_TAINT
    }
    return tuple(sorted(found))


def hidden_gpus(nodes: Iterable[Object], tolerated: Iterable[Taint]) -> int:
    """GPUs of nodes that a pool does not count until it has a job that tolerates their taints.

    It counts those with the taint that is usual on GPU nodes in any case. Nodes that are closed for another
    reason have none here.
    """
    known = set(tolerated)
    counted = (names.POOL_TAINT, names.GPU_RESOURCE)
    found = 0
    for node in nodes:
        closing = [taint for taint in _of(node) if taint.key not in counted]
        if closing and known.issuperset(closing) and _ready(node):
            found += int(((node.get("status") or {}).get("allocatable") or {}).get(names.GPU_RESOURCE, 0))
    return found


def _of(node: Object) -> list[Taint]:
    said = (node.get("spec") or {}).get("taints") or ()
    return [Taint(t["key"], t.get("value") or "", t["effect"]) for t in said if t["effect"] in _KEEPING_OFF]


def _ready(node: Object) -> bool:
    if (node.get("spec") or {}).get("unschedulable") or node["metadata"].get("deletionTimestamp"):
        return False
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
