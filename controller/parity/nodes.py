"""The nodes that a trial was given: what keeps pods off them, and which GPUs they have.

Who names nodes for a trial means its pods to run there, so these tolerate the taints that the nodes have at
the start: nvidia.com/gpu, or one of their owner's. Taints that tell of a node's problem are not tolerated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from controller import names
from controller.kube.nodes import keeping_off, node_gpus, usable

Object = Mapping[str, Any]

_PROBLEMS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


class Taint(NamedTuple):
    """A taint that a pod may tolerate."""

    key: str
    value: str
    effect: str

    def toleration(self) -> dict[str, str]:
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": self.effect}


def taints(nodes: Iterable[Object]) -> tuple[Taint, ...]:
    """Return what pods have to tolerate for these nodes, each once. The operator sees to a pool's own."""
    found = {
        Taint(taint["key"], taint.get("value") or "", taint["effect"])
        for node in nodes
        for taint in keeping_off(node)
        if not taint["key"].startswith(_PROBLEMS) and taint["key"] != names.POOL_TAINT
    }
    return tuple(sorted(found))


def hidden_gpus(nodes: Iterable[Object], tolerated: Iterable[Taint]) -> int:
    """Return GPUs of nodes that a pool does not count until it has a job that tolerates their taints."""
    tolerations = [taint.toleration() for taint in tolerated]
    return sum(node_gpus(node) for node in nodes if usable(node, tolerations) and not usable(node))
