"""Readers of fields that many kinds of Kubernetes objects have: quantities, times, owners, the state of a
pod.

Everything here takes objects and texts of any content, and says None where they say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller import bounded

Object = Mapping[str, Any]

GPUS_MOST = 10**9  # of one container, so that sums stay numbers that everything downstream can hold
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def parse_time(text: object) -> float | None:
    """Return seconds since the epoch of an RFC 3339 time; None if it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


def amount(quantity: object) -> int | None:
    """Return how many of an extended resource a quantity says, as the API server writes it; None: it says
    nothing.

    Nobody has more than `GPUS_MOST`: of a quantity that says so it is that many.
    """
    text = str(quantity).strip() if isinstance(quantity, str | int) else ""
    number = bounded.whole(text.removesuffix("k"))
    if number is None:
        # The server takes 5,000 digits for what an int64 holds at most, and so does who counts GPUs.
        return GPUS_MOST if text.isascii() and text.isdecimal() else None
    return min(GPUS_MOST, number * (1000 if text.endswith("k") else 1))


def controller_of(obj: Object) -> Object | None:
    """Return the owner reference marked as controller."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def controller_reference(owner: Object, *, blocks: bool = True) -> dict[str, Any]:
    """Return the owner reference of what an object controls.

    Args:
        owner: the object, by its apiVersion, kind, name and uid.
        blocks: a deletion of the owner in the foreground waits for what it controls.
    """
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": blocks,
    }


def controller_uid(obj: Object) -> str | None:
    """Return the uid of the controlling owner; None: nobody controls it."""
    uid = (controller_of(obj) or {}).get("uid")
    return str(uid) if uid else None


def is_ready(obj: Object) -> bool:
    """Return whether a pod, or a node, is ready by its condition."""
    return has_condition(obj, "Ready", "True")


def has_condition(obj: Object, kind: str, status: str) -> bool:
    """Return whether the condition ``kind`` of an object has that status ("True", "False", "Unknown")."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == kind and c.get("status") == status for c in conditions)


def has_started(pod: Object) -> bool:
    """Return whether a container of a pod runs, or ran, as far as its status tells."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return True
    return is_ready(pod) or any(
        (one.get(state) or {}).get(how) is not None
        for group in ("initContainerStatuses", "containerStatuses")
        for one in status.get(group) or ()
        for state in ("state", "lastState")
        for how in ("running", "terminated")
    )


def is_terminal(pod: Object) -> bool:
    """Return whether all of a pod's containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def completion_index(pod: Object) -> int | None:
    """Return a pod's index in its indexed Job (label, else annotation); None: it has none."""
    metadata = mapping(pod.get("metadata"))
    for source in (mapping(metadata.get("labels")), mapping(metadata.get("annotations"))):
        index = bounded.whole(source.get(COMPLETION_INDEX))
        if index is not None:
            return index
    return None


def mapping(value: object) -> Object:
    """Return a value that is a JSON object; of anything else the empty one."""
    return value if isinstance(value, dict) else {}
