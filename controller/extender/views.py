"""Kubernetes objects in the ledger's words: pods that ask, pods that are bound, and admissions.

What comes with a request is not trusted to be well-formed; what comes from the watch is what the API server
accepted. A pod's labels let it claim the nodes of an RLHFJob of its own namespace and of no other.
"""

from __future__ import annotations

from controller import bounded, names, workloads
from controller.api import convert
from controller.api.gpupool import GANG_TIMEOUT_SECONDS
from controller.api.workergroup import group_record
from controller.kube.cache import key_of
from controller.objects import Object, completion_index, is_terminal, mapping
from controller.policy.actor_types import Actor
from controller.policy.job import AdmissionRecord
from controller.policy.node import Bound, Gang, PodRequest
from controller.workloads.actor_jobs import COMPONENT


def pod_request(pod: Object) -> PodRequest:
    """Return the pod of a request. Without an admission number it is of no admitted gang."""
    metadata = mapping(pod.get("metadata"))
    namespace = metadata.get("namespace") or "default"
    job = mapping(metadata.get("labels")).get(names.LABEL_JOB)
    number = bounded.whole(mapping(metadata.get("annotations")).get(names.ANNOTATION_ADMISSION))
    name = f"{namespace}/{metadata.get('name') or metadata.get('generateName') or '?'}"
    gpus = _asked(mapping(pod.get("spec")))
    if not job or number is None:
        return PodRequest(name, gpus)
    actor = _actor(mapping(metadata.get("labels")))
    return PodRequest(name, gpus, f"{namespace}/{job}", number, completion_index(pod), actor)


def uid(pod: Object) -> str:
    """Return the uid of a request's pod; empty if it has none."""
    return str(mapping(pod.get("metadata")).get("uid") or "")


def bound(pod: Object) -> Bound | None:
    """Return a labelled pod that has a node and is not terminal; None for any other."""
    node, metadata = (pod.get("spec") or {}).get("nodeName"), pod["metadata"]
    if not node or is_terminal(pod):
        return None
    number = bounded.whole((metadata.get("annotations") or {}).get(names.ANNOTATION_ADMISSION))
    key = f"{metadata['namespace']}/{metadata['labels'][names.LABEL_JOB]}"
    return Bound(key, number or 0, node, workloads.gpus(pod["spec"]), _actor(metadata["labels"]))


def job(obj: Object, timeout: float) -> tuple[int | None, Gang | None]:
    """Return (GPUs of each member, admission) of an RLHFJob; (None, None): it has ended, and nothing is kept
    for it, by admission or reservation. It may have no admission.

    ``timeout``: seconds that its pods have to get their nodes.

    Raises:
        StatusError: its status does not read back.
    """
    status = obj.get("status")
    if convert.field(status, "finished") is not None:
        return None, None
    gpus = int(((obj.get("spec") or {}).get("gang") or {}).get("gpusPerReplica", 1))
    given: AdmissionRecord | None = convert.field(status, "admission")
    if given is None:
        return gpus, None
    expires = None if given.unbound_since is None else given.unbound_since + timeout
    return gpus, Gang(key_of(obj), given.number, given.nodes, gpus, expires, given.ended)


def group(obj: Object, timeout: float) -> tuple[int, Gang]:
    """Return (GPUs of each member, admission) of a WorkerGroup: its present start. Like `job`."""
    record, gpus = group_record(obj), int(obj["spec"]["gpusPerReplica"])
    expires = record.opened + timeout if record.bound_at is None else None
    ended = tuple(range(len(record.nodes))) if record.closing else ()
    return gpus, Gang(key_of(obj), record.number, record.nodes, gpus, expires, ended)


def actors(obj: Object) -> tuple[Actor, ...]:
    """Return the entries of an RLHFJob's rollout actors.

    Raises:
        StatusError: they do not read back.
    """
    found: tuple[Actor, ...] = convert.field(obj.get("status"), "actors")
    return found


def gang_timeout(pool: Object | None) -> float:
    """Return seconds that a pool gives its gangs to get all their nodes; None: the pool is not known."""
    spec = (pool or {}).get("spec") or {}
    return float(spec.get("gangTimeoutSeconds", GANG_TIMEOUT_SECONDS))


def _actor(labels: Object) -> int | None:
    """Return the number of a rollout actor's pod; None: it is none."""
    if labels.get(names.LABEL_COMPONENT) != COMPONENT:
        return None
    return bounded.whole(labels.get(names.LABEL_ACTOR))


def _asked(spec: Object) -> int:
    """Return how many GPUs a pod asks for.

    A pod with a ResourceClaim counts as one: which devices it gets is known only when the claim is allocated.
    """
    return workloads.gpus(spec) or int(bool(spec.get("resourceClaims")))
