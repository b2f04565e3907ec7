"""Nodes and their GPUs: a node's pool, its GPUs that others use, and the taints it should have.

Pure functions on trimmed Kubernetes objects.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from controller import names, workloads

Object = Mapping[str, Any]

_TERMINAL = ("Succeeded", "Failed")


def is_terminal(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in _TERMINAL


def node_of(pod: Object) -> str | None:
    return (pod.get("spec") or {}).get("nodeName") or None


def place(pod: Object | None) -> str | None:
    """Return the node on which a pod holds what it asked for; None: it is not there, has none, or is
    terminal."""
    return None if pod is None or is_terminal(pod) else node_of(pod)


def rack(node: Object) -> str:
    """Return the rack that the node's label names; "": none."""
    return str((node["metadata"].get("labels") or {}).get(names.RACK_LABEL, ""))


def selector_of(pool: Object) -> dict[str, str]:
    """Label -> value of a GPUPool's ``spec.nodeSelector``, whatever is wrong with the rest of its spec."""
    return {label["key"]: label["value"] for label in (pool.get("spec") or {}).get("nodeSelector") or ()}


def selects(selector: Mapping[str, str], node: Object) -> bool:
    """Return whether a pool's selector picks the node; an empty selector picks none, so that no pool takes
    all."""
    labels = node["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


Selectors = Sequence[tuple[str, Mapping[str, str]]]  # (pool, selector), oldest pool first


def claims(selectors: Selectors, nodes: Iterable[Object]) -> dict[str, tuple[str, ...]]:
    """Node name -> the pools that select it, oldest first; nodes that none selects are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        if pools := tuple(name for name, selector in selectors if selects(selector, node)):
            found[node["metadata"]["name"]] = pools
    return found


def assign(selectors: Selectors, nodes: Iterable[Object]) -> dict[str, str]:
    """Node name -> pool name. Where two pools select one node, the older one has it, for a node can carry
    only one pool's taint."""
    return {node: pools[0] for node, pools in claims(selectors, nodes).items()}


def wanted_taints(node: Object, pool: str | None) -> list[dict[str, Any]] | None:
    """Return the node's whole list of taints as it should be, or None if it is so already.

    Only the pool's taint is ours; all others stay as they are, in their order.
    """
    taints = list((node.get("spec") or {}).get("taints") or ())
    ours = [t for t in taints if t.get("key") == names.POOL_TAINT]
    wanted = [] if pool is None else [{"key": names.POOL_TAINT, "value": pool, "effect": "NoSchedule"}]
    if [_core(t) for t in ours] == wanted:
        return None
    return [t for t in taints if t.get("key") != names.POOL_TAINT] + wanted


def _core(taint: Object) -> dict[str, Any]:
    return {key: taint.get(key) for key in ("key", "value", "effect")}


def with_gpus_on(pods: Iterable[Object], nodes: Container[str]) -> list[Object]:
    """Return those of these pods that hold GPUs on these nodes: not terminal, with GPUs."""
    return [
        pod
        for pod in pods
        if node_of(pod) in nodes and not is_terminal(pod) and workloads.gpus(pod.get("spec") or {})
    ]


def gpus_by_node(pods: Iterable[Object]) -> dict[str, int]:
    """Return GPUs that pods request, per node."""
    used: dict[str, int] = {}
    for pod in pods:
        node = node_of(pod)
        if node is not None:
            used[node] = used.get(node, 0) + workloads.gpus(pod.get("spec") or {})
    return used
