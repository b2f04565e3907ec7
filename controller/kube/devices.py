"""GPUs that dynamic resource allocation gives out: which a node has, and which a claim holds.

A driver publishes a node's devices in ResourceSlices; kube-scheduler writes into a ResourceClaim's status
which of them it has given to whom. Pure functions on trimmed objects (`controller.kube.trim`): of a slice
each GPU device is kept as [name, physical GPU], so that parts of one GPU (MIG) count as that GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from controller import names

Object = Mapping[str, Any]

# On a claim that kube-scheduler makes for a pod's request of an extended resource: the pod's request counts.
_FOR_EXTENDED = "resource.kubernetes.io/extended-resource-claim"


class Holding(NamedTuple):
    """GPUs of one node that a claim holds. ``pods``: (name, uid) of those that it is reserved for."""

    claim: str  # namespace/name
    node: str
    gpus: frozenset[str]
    pods: tuple[tuple[str, str], ...]


class Inventory:
    """The GPUs of the nodes, by the newest slices of each of their drivers' pools."""

    def __init__(self, slices: Iterable[Object]) -> None:
        newest: dict[str, tuple[int, list[Object]]] = {}  # pool -> (generation, its slices)
        for found in slices:
            spec = found.get("spec") or {}
            if spec.get("driver") != names.GPU_DRIVER:
                continue
            pool, generation = spec["pool"]["name"], int(spec["pool"].get("generation") or 0)
            known = newest.get(pool)
            if known is None or known[0] < generation:
                newest[pool] = (generation, [spec])
            elif known[0] == generation:
                known[1].append(spec)
        self._places: dict[tuple[str, str], tuple[str, str]] = {}  # (pool, device) -> (node, physical GPU)
        self._of_node: dict[str, set[str]] = {}
        for pool, (_, specs) in newest.items():
            for spec in specs:
                node = str(spec.get("nodeName") or "")
                for name, physical in spec.get("devices") or ():
                    self._places[pool, name] = node, physical
                    self._of_node.setdefault(node, set()).add(physical)

    def gpus(self, node: str) -> int:
        """Physical GPUs that the node's slices show."""
        return len(self._of_node.get(node, ()))

    def holdings(self, claim: Object) -> list[Holding]:
        """Return what a claim holds, by node; nothing while it is not allocated."""
        metadata, status = claim["metadata"], claim.get("status") or {}
        if _FOR_EXTENDED in (metadata.get("annotations") or {}):
            return []
        allocation = status.get("allocation") or {}
        held: dict[str, set[str]] = {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if result.get("driver") != names.GPU_DRIVER or result.get("adminAccess"):
                continue
            pool, device = result["pool"], result["device"]
            node, physical = self._places.get((pool, device), ("", ""))
            # A device that is no longer published is still held, where the allocation says.
            node, physical = node or _selected(allocation) or pool, physical or f"{pool}/{device}"
            held.setdefault(node, set()).add(physical)
        users = status.get("reservedFor") or ()
        pods = tuple(sorted((str(u["name"]), str(u["uid"])) for u in users if u.get("resource") == "pods"))
        key = f"{metadata['namespace']}/{metadata['name']}"
        return [Holding(key, node, frozenset(gpus), pods) for node, gpus in sorted(held.items())]


def slice_body(obj: Object) -> dict[str, Any]:
    """Return what is kept of a ResourceSlice: a driver's own words about a device may be long."""
    spec = obj.get("spec") or {}
    kept = {key: spec[key] for key in ("driver", "nodeName", "pool") if key in spec}
    if spec.get("driver") == names.GPU_DRIVER:
        kept["devices"] = [[device["name"], _physical(device)] for device in spec.get("devices") or ()]
    return {"spec": kept}


def claim_body(obj: Object) -> dict[str, Any]:
    """Return what is kept of a ResourceClaim."""
    status = obj.get("status") or {}
    allocation = status.get("allocation") or {}
    results = [
        {key: result[key] for key in ("driver", "pool", "device")}
        | {key: result[key] for key in ("adminAccess",) if key in result}
        for result in (allocation.get("devices") or {}).get("results") or ()
        if result.get("driver") == names.GPU_DRIVER
    ]
    if not results:
        return {}
    kept = {"devices": {"results": results}}
    if "nodeSelector" in allocation:
        kept["nodeSelector"] = allocation["nodeSelector"]
    users = [
        {key: user.get(key) for key in ("resource", "name", "uid")}
        for user in status.get("reservedFor") or ()
    ]
    return {"status": {"allocation": kept, "reservedFor": users}}


def _physical(device: Object) -> str:
    """Return which physical GPU a device is, or is part of."""
    attributes = device.get("attributes") or {}
    for wanted in ("parentUUID", "uuid"):
        for name in (wanted, f"{names.GPU_DRIVER}/{wanted}"):
            if value := (attributes.get(name) or {}).get("string"):
                return str(value)
    return str(device["name"])


def _selected(allocation: Object) -> str:
    """Return the node that an allocation is bound to; "": it names none."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    for term in terms:
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return ""
