"""Read a Node: its GPUs, and whether new pods may go there.

Pure functions on trimmed Kubernetes objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller import names
from controller.objects import Object, amount, is_ready

_KEEPING_OFF = ("NoSchedule", "NoExecute")


def node_gpus(node: Object) -> int:
    """Allocatable GPUs."""
    return amount(((node.get("status") or {}).get("allocatable") or {}).get(names.GPU_RESOURCE)) or 0


def usable(node: Object, tolerations: Sequence[Object] = ()) -> bool:
    """Return whether new pods may go there: Ready, not cordoned, not on its way out, not tainted by others.

    ``tolerations``: what pods of the pool's jobs tolerate. A taint that some of them tolerates leaves the
    node in the pool; a gang that does not is sent elsewhere after its time-out (`gangs`).
    """
    spec = node.get("spec") or {}
    if spec.get("unschedulable") or node["metadata"].get("deletionTimestamp"):
        return False
    if any(not tolerated(taint, tolerations) for taint in closed_by(node)):
        return False
    return is_ready(node)


def keeping_off(node: Object) -> list[Object]:
    """Return the taints that keep pods off which do not tolerate them, whosever they are."""
    return [t for t in (node.get("spec") or {}).get("taints") or () if t.get("effect") in _KEEPING_OFF]


def closed_by(node: Object) -> list[Object]:
    """Of these taints, those that a pool's pods do not tolerate in any case.

    Not ours, and not the one that is usual on GPU nodes: admission plugin ExtendedResourceToleration lets all
    pods with GPUs tolerate a taint of that resource's name.
    """
    return [t for t in keeping_off(node) if t.get("key") not in (names.POOL_TAINT, names.GPU_RESOURCE)]


def tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    """As kube-scheduler has it; what is tolerated for a while only (``tolerationSeconds``) is not."""
    for one in tolerations:
        if one.get("tolerationSeconds") is not None or one.get("effect") not in (None, "", taint["effect"]):
            continue
        if one.get("key") not in (None, "", taint.get("key")):
            continue
        if one.get("operator") == "Exists":
            return True
        if one.get("key") and (one.get("value") or "") == (taint.get("value") or ""):
            return True
    return False
