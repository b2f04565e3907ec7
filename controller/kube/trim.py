"""What the operator remembers of each object: only the fields it reads, so that memory stays small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Any

from controller import names
from controller.kube import devices
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
_SHORT = 64  # characters
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trim(resource: Resource, obj: Mapping[str, Any]) -> Object:
    """A copy that holds what the operator reads of this kind; ``obj`` is neither changed nor shared."""
    copied: Object = _compact(picked(resource, obj))
    return copied


def picked(resource: Resource, obj: Mapping[str, Any]) -> Object:
    """What the operator reads of this kind, in parts that are ``obj``'s own."""
    metadata = obj.get("metadata") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    if resource != NODES:  # annotated by half of what runs in a cluster, for nobody here
        annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != _LAST_APPLIED}
        if annotations:
            kept["annotations"] = annotations
    if resource == WORKLOADS:
        kept = _named_after_its_pods(obj, kept)
    result: Object = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept}
    result.update(_BODIES.get(resource, _spec_and_status)(obj))
    return result


def _compact(value: Any) -> Any:
    """A deep copy in which equal short texts are one object: field names, labels, node names, reasons.

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
    return {key: obj[key] for key in ("spec", "status") if key in obj}


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
        "terminationGracePeriodSeconds",
    )
    kept: Object = _pick(spec, *wanted)
    for group in ("containers", "initContainers"):
        if group in spec:
            kept[group] = [_pick(c, "name", "ports", "resources", "restartPolicy") for c in spec[group]]
    fields = ("phase", "podIP", "reason", "message", "startTime", "conditions", "containerStatuses")
    return {"spec": kept, "status": _pick(status, *fields)}


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
    return {"data": _pick(obj.get("data") or {}, names.RUN_KEY)}


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
    JOBS: _spec_and_status,
    WORKLOADS: _workload,
    LOCAL_QUEUES: _queue,
    CLUSTER_QUEUES: _queue,
    RESOURCE_CLAIMS: devices.claim_body,
    RESOURCE_SLICES: devices.slice_body,
}
