"""The owner of an object, by the uid of its controlling owner, never by name or label alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller import workloads
from controller.objects import parse_time
from controller.policy.job import EarlierJob

Object = Mapping[str, Any]


def generation(obj: Object) -> int:
    return int(obj["metadata"].get("generation") or 0)


def pool_of(obj: Object) -> str:
    """Return the pool an RLHFJob asks for."""
    return str((obj.get("spec") or {}).get("pool") or "")


def is_ref(obj: Object) -> bool:
    """Return whether the RLHFJob names a workload that exists, rather than bringing its template."""
    return "ref" in ((obj.get("spec") or {}).get("workload") or {})


def child_key(obj: Object) -> str:
    """namespace/name of the RLHFJob's workload."""
    metadata = obj["metadata"]
    ref = ((obj.get("spec") or {}).get("workload") or {}).get("ref") or {}
    return f"{metadata['namespace']}/{ref.get('name') or metadata['name']}"


def controlled_by(obj: Object, uid: str) -> bool:
    owner = workloads.controller_of(obj)
    return owner is not None and owner.get("uid") == uid


def controller_name(obj: Object) -> tuple[str, str] | None:
    """(kind, name) of the controlling owner; None: nobody controls it."""
    owner = workloads.controller_of(obj)
    return (owner["kind"], owner["name"]) if owner is not None else None


def leftover(found: Object, obj: Object) -> bool:
    """Return whether ``found`` is of an earlier RLHFJob of the same name: the garbage collector will remove
    it."""
    return controller_name(found) == ("RLHFJob", obj["metadata"]["name"]) and not controlled_by(
        found, obj["metadata"]["uid"]
    )


def earlier_job(found: Object, obj: Object) -> EarlierJob:
    """Return what a Job that is a `leftover` tells of its removal, before a new RLHFJob of its name."""
    metadata = found["metadata"]
    deleted = str(metadata.get("deletionTimestamp") or "")
    times = (parse_time(deleted), parse_time(obj["metadata"].get("creationTimestamp")))
    since = min((time for time in times if time is not None), default=0.0)
    return EarlierJob(metadata["name"], since, deleted, tuple(metadata.get("finalizers") or ()))
