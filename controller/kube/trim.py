"""Trim objects to the fields that the operator reads, so that memory stays small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Any, TypeVar

from controller import names
from controller.bounded import quoted, shown
from controller.kube import devices, wire
from controller.kube.resources import (
    CLUSTER_QUEUES,
    CONFIGMAPS,
    JOBS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    WORKLOADS,
    Resource,
)

Object = dict[str, Any]
T = TypeVar("T", dict[str, Any], list[Any])

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "ownerReferences",
    "finalizers",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_SCALARS = {
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "generation": int,
    "deletionGracePeriodSeconds": int,
}
_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_OUR_LABELS = (names.LABEL_JOB, names.LABEL_COMPONENT)
_CONTAINERS = 256  # with GPUs, of one pod: more than any node has
_SHORT = 64  # characters
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trim(resource: Resource, obj: Mapping[str, Any]) -> Object:
    """Return a copy that holds what the operator reads of this kind; ``obj`` is neither changed nor shared.
    Raises like `picked`."""
    copied: Object = _compact(picked(resource, obj))
    return copied


def trim_or_bare(resource: Resource, obj: Mapping[str, Any]) -> Object:
    """Return the same; of an object that is not to be gone by, what `bare` leaves."""
    why = wire.problem(obj)
    if not why:
        try:
            return trim(resource, obj)
        except Exception as error:  # whatever is in it
            why = failure(error)
    return bare(resource, obj, why)


def failure(error: Exception) -> str:
    """Return what is said of an object that cannot be kept."""
    return shown(f"{error}" if isinstance(error, ValueError | TypeError) else repr(error), 200)


def picked(resource: Resource, obj: Mapping[str, Any]) -> Object:
    """Return what the operator reads of this kind, in parts that are ``obj``'s own.

    Raises:
        ValueError, TypeError, KeyError: a field has not the form that the API server gives it. Not every
        kind's
            schema is known there; who reads what is kept need not ask again.
    """
    metadata = obj.get("metadata") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    for name, kind in _SCALARS.items():
        _scalar(metadata.get(name), kind, f"metadata.{name}")
    _texts(metadata.get("labels"), "metadata.labels")
    for owner in _list(metadata.get("ownerReferences"), "metadata.ownerReferences"):
        _texts({key: owner[key] for key in ("kind", "name", "uid")}, "metadata.ownerReferences[]")
    if resource != NODES:  # annotated by half of what runs in a cluster, for nobody here
        given = _texts(metadata.get("annotations"), "metadata.annotations")
        annotations = {k: v for k, v in given.items() if k != _LAST_APPLIED}
        if annotations:
            kept["annotations"] = annotations
    if resource == WORKLOADS:
        kept = _named_after_its_pods(obj, kept)
    result: Object = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept}
    result.update(_BODIES.get(resource, _spec_and_status)(obj))
    return result


def bare(resource: Resource, obj: Mapping[str, Any], why: str) -> Object:
    """Return what is kept of an object that is not to be gone by: who it is, whose it is, and of a pod the
    GPUs that it holds, for it goes on holding them. ``why`` is its `wire.problem`."""
    given = obj["metadata"]
    kept = {key: given[key] for key in _IDENTITY if isinstance(given.get(key), str)}
    labels = _of(dict, given.get("labels"))
    kept["labels"] = {key: labels[key] for key in _OUR_LABELS if isinstance(labels.get(key), str)}
    owners = [o for o in _of(list, given.get("ownerReferences")) if isinstance(o, dict)]
    controllers = [
        o
        for o in owners
        if o.get("controller") and all(isinstance(o.get(key), str) for key in ("kind", "name", "uid"))
    ][:1]
    kept["ownerReferences"] = [
        _pick(o, "apiVersion", "kind", "name", "uid", "controller") for o in controllers
    ]
    result: Object = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept}
    if resource == PODS:
        result.update(_bare_pod(obj))
    return result | {wire.PROBLEM: why}


def _bare_pod(obj: Mapping[str, Any]) -> Object:
    spec, status = _of(dict, obj.get("spec")), _of(dict, obj.get("status"))
    kept: Object = {key: spec[key] for key in ("nodeName",) if isinstance(spec.get(key), str)}
    for group in ("containers", "initContainers"):
        kept[group] = [
            {"resources": {"limits": {names.GPU_RESOURCE: gpus}}} | _pick(container, "restartPolicy")
            for container in _of(list, spec.get(group))
            if isinstance(container, dict) and (gpus := _gpus(container)) is not None
        ][:_CONTAINERS]
    phase = {key: status[key] for key in ("phase",) if isinstance(status.get(key), str)}
    return {"spec": kept, "status": phase}


def _gpus(container: Mapping[str, Any]) -> str | None:
    for group in ("limits", "requests"):
        value = _of(dict, _of(dict, container.get("resources")).get(group)).get(names.GPU_RESOURCE)
        if value is not None:
            return str(value)[:_SHORT]
    return None


def _of(kind: type[T], value: object) -> T:
    """Return the value if it is of that kind, else an empty one."""
    return value if isinstance(value, kind) else kind()


def _scalar(value: Any, kind: type, field: str) -> None:
    if value is not None and type(value) is not kind:
        raise TypeError(f"{field}: {quoted(value)}, expected a {'text' if kind is str else 'whole number'}")


def _object(value: Any, field: str) -> dict[str, Any]:
    if value is not None and type(value) is not dict:
        raise TypeError(f"{field}: {quoted(value)}, expected an object")
    return value or {}


def _list(value: Any, field: str) -> list[dict[str, Any]]:
    if value is not None and (type(value) is not list or any(type(entry) is not dict for entry in value)):
        raise TypeError(f"{field}: {quoted(value)}, expected a list of objects")
    return value or []


def _texts(value: Any, field: str) -> dict[str, str]:
    if value is not None and (
        type(value) is not dict or any(type(text) is not str for text in value.values())
    ):
        raise TypeError(f"{field}: {quoted(value)}, expected an object of texts")
    return value or {}


def _compact(value: Any) -> Any:
    """Return a deep copy in which equal short texts are one object: field names, labels, node names, reasons.

    Every answer of the API server comes with texts of its own; thousands of objects that say the same in the
    same words take half the memory so.
    """
    if type(value) is dict:
        return {intern(key): _compact(item) for key, item in value.items()}
    if type(value) is list:
        return [_compact(item) for item in value]
    if type(value) is str and len(value) <= _SHORT:
        return intern(value)
    return value


def _spec_and_status(obj: Mapping[str, Any]) -> Object:
    return {key: _object(obj[key], key) for key in ("spec", "status") if key in obj}


def _pick(source: Mapping[str, Any], *keys: str) -> Object:
    return {key: source[key] for key in keys if key in source}


def _pod(obj: Mapping[str, Any]) -> Object:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    wanted = (
        "nodeName",
        "restartPolicy",
        "overhead",
        "resources",
        "resourceClaims",
        "readinessGates",
        "terminationGracePeriodSeconds",
    )
    kept: Object = _pick(spec, *wanted)
    for group in ("containers", "initContainers"):
        if group in spec:
            found = _list(spec[group], f"spec.{group}")
            kept[group] = [_pick(c, "name", "ports", "resources", "restartPolicy") for c in found]
            for container in kept[group]:
                resources = _object(container.get("resources"), "resources")
                for amounts in ("limits", "requests"):
                    _object(resources.get(amounts), amounts)
                _list(container.get("ports"), "ports")
    _list(spec.get("resourceClaims"), "spec.resourceClaims")
    if not spec.get("nodeName"):  # of one that waits for its scheduler
        kept |= _pick(spec, "schedulerName")
    for name in ("nodeName", "restartPolicy", "schedulerName"):
        _scalar(spec.get(name), str, f"spec.{name}")
    for name in ("phase", "podIP", "reason", "message"):
        _scalar(status.get(name), str, f"status.{name}")
    for group in ("conditions", *_STATUSES):
        _list(status.get(group), f"status.{group}")
    for group in _STATUSES:
        for container in status.get(group) or ():
            for which in ("state", "lastState"):
                state = _object(container.get(which), f"status.{group}[].{which}")
                for name in ("waiting", "running", "terminated"):
                    _object(state.get(name), f"status.{group}[].{which}.{name}")
    fields = ("phase", "podIP", "reason", "message", "startTime", "conditions", *_STATUSES)
    return {"spec": kept, "status": _pick(status, *fields)}


_STATUSES = ("containerStatuses", "initContainerStatuses")


def _job(obj: Mapping[str, Any]) -> Object:
    kept = _spec_and_status(obj)
    _list(kept.get("status", {}).get("conditions"), "status.conditions")
    return kept


def _node(obj: Mapping[str, Any]) -> Object:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = status.get("conditions") or []
    ready = [_pick(c, "type", "status", "reason") for c in conditions if c.get("type") == "Ready"]
    gpus = {
        key: value for key, value in (status.get("allocatable") or {}).items() if key == names.GPU_RESOURCE
    }
    return {
        "spec": _pick(spec, "unschedulable", "taints"),
        "status": {"allocatable": gpus, "conditions": ready},
    }


def _configmap(obj: Mapping[str, Any]) -> Object:
    # All that the operator writes there: what is missing here it would write again at every pass.
    return {"data": _pick(obj.get("data") or {}, names.RUN_KEY, names.STEPS_CA_KEY)}


def _named_after_its_pods(workload: Mapping[str, Any], metadata: Object) -> Object:
    """Kueue puts no label of the Job onto its Workload; that of the pods says which RLHFJob it is of."""
    for podset in (workload.get("spec") or {}).get("podSets") or ():
        labels = ((podset.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if name := labels.get(names.LABEL_JOB):
            return metadata | {"labels": {names.LABEL_JOB: name}}
    return {key: value for key, value in metadata.items() if key != "labels"}


def _workload(obj: Mapping[str, Any]) -> Object:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    podsets = [_pick(podset, "name", "count") for podset in spec.get("podSets") or ()]
    fields = ("conditions", "admissionChecks", "schedulingStats")
    return {
        "spec": _pick(spec, "active", "queueName") | {"podSets": podsets},
        "status": _pick(status, *fields),
    }


def _queue(obj: Mapping[str, Any]) -> Object:
    """Of its status the conditions: how much of its quota is in use changes all the time."""
    return {"spec": obj.get("spec") or {}, "status": _pick(obj.get("status") or {}, "conditions")}


_BODIES: Mapping[Resource, Callable[[Mapping[str, Any]], Object]] = {
    PODS: _pod,
    NODES: _node,
    CONFIGMAPS: _configmap,
    JOBS: _job,
    WORKLOADS: _workload,
    LOCAL_QUEUES: _queue,
    CLUSTER_QUEUES: _queue,
    RESOURCE_CLAIMS: devices.claim_body,
    RESOURCE_SLICES: devices.slice_body,
}
