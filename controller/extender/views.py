"""Kubernetes objects in the ledger's words: pods that ask, pods that are bound, admissions and promises.

What comes with a request is not trusted to be well-formed; what comes from the watch is what the API server
accepted. A pod's labels let it claim the nodes of an RLHFJob of its own namespace and of no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller import names, workloads
from controller.policy.node import Asker, Bound, Gang
from controller.policy.types import Reservation
from controller.workloads.pods import parse_time

Object = Mapping[str, Any]

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
GANG_TIMEOUT = 300.0  # s, for a pool that is not known (any more)
_TERMINAL = ("Succeeded", "Failed")


def asker(pod: Object) -> Asker:
    """Return the pod of a request. Without an admission number it is of no admitted gang."""
    metadata = _mapping(pod.get("metadata"))
    namespace, labels = metadata.get("namespace") or "default", _mapping(metadata.get("labels"))
    annotations = _mapping(metadata.get("annotations"))
    name = f"{namespace}/{metadata.get('name') or metadata.get('generateName') or '?'}"
    gpus = _asked(_mapping(pod.get("spec")))
    job, number = labels.get(names.LABEL_JOB), _number(annotations.get(names.ANNOTATION_ADMISSION))
    if not job or number is None:
        return Asker(name, gpus)
    member = _number(labels.get(COMPLETION_INDEX) or annotations.get(COMPLETION_INDEX))
    return Asker(name, gpus, f"{namespace}/{job}", number, member)


def uid(pod: Object) -> str:
    """Return the uid of a request's pod; empty if it has none."""
    return str(_mapping(pod.get("metadata")).get("uid") or "")


def bound(pod: Object) -> Bound | None:
    """Return a labelled pod that has a node and is not terminal; None for any other."""
    node, metadata = (pod.get("spec") or {}).get("nodeName"), pod["metadata"]
    if not node or (pod.get("status") or {}).get("phase") in _TERMINAL:
        return None
    number = _number((metadata.get("annotations") or {}).get(names.ANNOTATION_ADMISSION))
    key = f"{metadata['namespace']}/{metadata['labels'][names.LABEL_JOB]}"
    return Bound(key, number or 0, node, workloads.gpus(pod["spec"]))


def key_of(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def gpus_per_member(job: Object) -> int:
    return int(((job.get("spec") or {}).get("gang") or {}).get("gpusPerReplica", 1))


def ended(job: Object) -> bool:
    return bool((job.get("status") or {}).get("finished"))


def gang(job: Object, timeout: float) -> Gang | None:
    """Return the admission of an RLHFJob, as its status has it; None: it has none, or has ended.

    ``timeout``: seconds that its pods have to get their nodes.
    """
    admission = (job.get("status") or {}).get("admission")
    if not admission or ended(job):
        return None
    begin = parse_time(admission.get("unboundSince"))
    return Gang(
        key_of(job),
        int(admission.get("number", 0)),
        tuple(admission.get("nodes") or ()),
        gpus_per_member(job),
        None if begin is None else begin + timeout,
        tuple(admission.get("ended") or ()),
    )


def gang_timeout(pool: Object | None) -> float:
    """Return seconds that a pool gives its gangs to get all their nodes."""
    spec = (pool or {}).get("spec") or {}
    return float(spec.get("gangTimeoutSeconds", GANG_TIMEOUT))


def promises(pool: Object) -> tuple[Reservation, ...]:
    """Return the holds in a GPUPool's status; one whose end cannot be read is over."""
    found = (pool.get("status") or {}).get("holds") or ()
    return tuple(
        Reservation(
            h["source"],
            h["target"],
            tuple(h["nodes"]),
            parse_time(h["expires"]) or 0.0,
            h.get("admission", 0),
        )
        for h in found
    )


def node_gpus(node: Object) -> int:
    """Allocatable GPUs."""
    return _number(((node.get("status") or {}).get("allocatable") or {}).get(names.GPU_RESOURCE)) or 0


def _asked(spec: Object) -> int:
    """Return how many GPUs a pod asks for.

    A pod with a ResourceClaim counts as one: which devices it gets is known only when the claim is allocated.
    """
    return workloads.gpus(spec) or int(bool(spec.get("resourceClaims")))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> int | None:
    text = str(value) if value is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
