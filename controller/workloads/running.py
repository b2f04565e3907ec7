"""Starting and suspending a child workload: the patches, and what its status says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from controller import bounded, names
from controller.objects import controller_of
from controller.policy.job import WorkloadView
from controller.policy.wording import agreeing, counted, lacks_members
from controller.workloads.kinds import Object, dotted, get, kind_of, nested

# What `start_patch` put into the pod template, so that the next admission can take it out again.
ANNOTATION_PLACEMENT = f"{names.GROUP}/placement"

INDEXES_MOST = 1024  # as many members as a gang may have


def view(workload: Object) -> WorkloadView:
    """Return a workload in the brain's words.

    Raises:
        ValueError: its kind is not supported.
    """
    kind = kind_of(workload)
    suspended = get(workload, kind.suspend) is True
    finished, message = _finished(workload)
    settled = (
        suspended
        and _condition(workload, (kind.suspended,)) is not None
        and not any(get(workload, path) for path in kind.active)
    )
    return WorkloadView(
        uid=str(workload["metadata"]["uid"]),
        suspended=suspended,
        settled=settled,
        finished=finished,
        message=message,
        queue=queue_of(workload),
        active=sum(count for path in kind.active if isinstance(count := get(workload, path), int)),
        completed=indexes(get(workload, kind.completed)),
        expires=kind.expires is not None and get(workload, kind.expires) is not None,
        sizes=_sizes(workload),
    )


def indexes(text: object) -> tuple[int, ...]:
    """Completion indexes as a Job's status writes them, ``"0,3-5"``; of what is no such text, none."""
    found: list[int] = []
    for part in str(text).split(",") if isinstance(text, str) else ():
        first, _, last = part.partition("-")
        begin, end = bounded.whole(first), bounded.whole(last or first)
        if begin is None or end is None:
            return ()
        found += range(begin, min(end, begin + INDEXES_MOST) + 1)
        if len(found) >= INDEXES_MOST:
            break
    return tuple(found[:INDEXES_MOST])


def start_problem(workload: Object) -> str | None:
    """Return why the pod template cannot be changed now, so that a start has to wait; None: it can.

    Kubernetes 1.36 lets a suspended Job's node selector, tolerations and annotations change if it never
    started or is reported Suspended, and no pod is active; older ones also while it has no start time.
    """
    kind = kind_of(workload)
    if get(workload, kind.suspend) is not True:
        return "it is not suspended"
    if active := get(workload, ("status", "active")):
        return f"{counted(active, 'pod')} {agreeing(active, 'is', 'are')} still active"
    started = get(workload, ("status", "startTime")) is not None
    if started and _condition(workload, (kind.suspended,)) is None:
        return "its controller has not reported it suspended yet"
    return None


def start_patch(
    workload: Object,
    attempt: int,
    node_selector: Mapping[str, str],
    tolerations: Sequence[Object] = (),
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return one merge patch that places and starts a suspended workload.

    Args:
        workload: as last seen; the patch carries its uid, so that a namesake made meanwhile is not started.
        attempt: the number written into the pods' admission annotation.
        node_selector: the pool's. What an earlier admission put there is taken out first.
        tolerations: of the pool, by default that of its taint.
        labels: for the pods.

    Of a workload that the operator made, the record of who wrote which field (managedFields) is dropped:
    nobody applies to it, and each admission policy would convert that record, four fifths of the work, at
    each write, the suspend among them. Applying the patch again changes nothing.
    """
    kind = kind_of(workload)
    metadata = workload["metadata"]
    template = get(workload, kind.pod_template) or {}
    spec = template.get("spec") or {}
    former = _placement(metadata)
    added = [dict(t) for t in tolerations] or [pool_toleration()]
    selector: dict[str, Any] = {
        key: None for key in former.get("nodeSelector", {}) if key not in node_selector
    }
    selector.update(node_selector)
    outdated = [t for t in former.get("tolerations", []) if t not in added]
    own = [t for t in spec.get("tolerations") or [] if t not in outdated and t not in added]
    # The user's own selector keys are no part of the placement: they stay when the pool's go.
    placed = {
        key: value
        for key, value in node_selector.items()
        if key not in (spec.get("nodeSelector") or {}) or key in former.get("nodeSelector", {})
    }
    placement = json.dumps({"nodeSelector": placed, "tolerations": added}, sort_keys=True)
    change = nested(
        kind.pod_template,
        {
            "metadata": {
                "labels": dict(labels or {}),
                "annotations": {names.ANNOTATION_ADMISSION: str(attempt)},
            },
            "spec": {"nodeSelector": selector, "tolerations": [*own, *added]},
        },
    )
    change["metadata"] = {
        "uid": metadata["uid"],
        "annotations": {ANNOTATION_PLACEMENT: placement, names.ANNOTATION_ATTEMPT: str(attempt)},
    }
    if (controller_of(workload) or {}).get("kind") == "RLHFJob":
        change["metadata"]["managedFields"] = [{}]  # one empty entry: as Kubernetes wants it written
    return _merged(change, nested(kind.suspend, False))


def restart_patch(workload: Object) -> dict[str, Any] | None:
    """Return a merge patch of the status that forgets when a suspended workload last started; None: it never
    did.

    Kubernetes before 1.36 lets the pod template of a suspended Job change only while it has no start time,
    and its controller does not take it away when it suspends one. Ours to take away then, as Kueue does: the
    controller sets it anew at the next start.
    """
    if get(workload, ("status", "startTime")) is None:
        return None
    return {"metadata": {"uid": workload["metadata"]["uid"]}, "status": {"startTime": None}}


def suspend_patch(workload: Object) -> dict[str, Any]:
    """Return a merge patch that suspends exactly this workload. Its pods get SIGTERM and their grace
    period."""
    return _merged(
        {"metadata": {"uid": workload["metadata"]["uid"]}}, nested(kind_of(workload).suspend, True)
    )


def scaled_down(workload: Object, replicas: int) -> str:
    """Return in words which of a workload's sizes is less than its gang's; "": none is."""
    return lacks_members(_sizes(workload), replicas)


def pool_toleration(pool: str | None = None) -> dict[str, str]:
    """Return what lets a pod onto a pool's nodes; without a name: onto any pool's."""
    if pool is None:
        return {"key": names.POOL_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    return {"key": names.POOL_TAINT, "operator": "Equal", "value": pool, "effect": "NoSchedule"}


def tolerations(workload: Object) -> Sequence[Object]:
    """Return what the pods of a workload tolerate, as its template says it."""
    found: Sequence[Object] = get(workload, (*kind_of(workload).pod_template, "spec", "tolerations")) or ()
    return found


def queue_of(workload: Object) -> str:
    """Return the queue of Kueue that a workload, or a template, is labelled for; "": none."""
    return str(((workload.get("metadata") or {}).get("labels") or {}).get(names.QUEUE_LABEL) or "")


def node_selector(workload: Object) -> Mapping[str, str]:
    """Return what a workload's pods select nodes by."""
    return get(workload, (*kind_of(workload).pod_template, "spec", "nodeSelector")) or {}


def pod_annotations(workload: Object) -> Mapping[str, str]:
    """Return the annotations that a workload's pods get."""
    return get(workload, (*kind_of(workload).pod_template, "metadata", "annotations")) or {}


def queue_problem(workload: Object, template: Object) -> str | None:
    """Return whether admission put a workload under a queue that its template does not name; what to do about
    it.

    Args:
        workload: as the API server made it, or would make it (a dry run's answer).
        template: the RLHFJob's, or the manifest that was sent.
    """
    queue = ((workload.get("metadata") or {}).get("labels") or {}).get(names.QUEUE_LABEL)
    wanted = ((template.get("metadata") or {}).get("labels") or {}).get(names.QUEUE_LABEL)
    if not queue or queue == wanted:
        return None
    return (
        f"metadata.labels[{names.QUEUE_LABEL}]: admission sets it to {queue!r} because the namespace has a "
        "LocalQueue of that name, so Kueue would start and suspend the workload by that queue's quota, not "
        "as its pool decides; remove that LocalQueue, use another namespace, or add "
        f"RLHFJob.{names.VERSION}.{names.GROUP} to integrations.externalFrameworks in Kueue's configuration "
        "and let Kueue get, list and watch rlhfjobs"
    )


def strip_queue_patch(workload: Object, template: Object) -> dict[str, Any] | None:
    """Return a merge patch that takes off a queue label the template does not have; None: there is none to
    take.

    Kueue refuses it for as long as a LocalQueue named ``default`` is in the namespace, and by then it may
    have started the workload: `server_problem` asks before there is one, this is for what came in between.
    """
    if queue_problem(workload, template) is None:
        return None
    return {"metadata": {"uid": workload["metadata"]["uid"], "labels": {names.QUEUE_LABEL: None}}}


def _sizes(workload: Object) -> tuple[tuple[str, int], ...]:
    paths = kind_of(workload).replicas
    return tuple((dotted(path), size) for path in paths if isinstance(size := get(workload, path), int))


def _finished(workload: Object) -> tuple[str | None, str]:
    kind = kind_of(workload)
    for outcome, types in (("Complete", kind.complete), ("Failed", kind.failed)):
        condition = _condition(workload, types)
        if condition is not None:
            parts = (condition.get("reason"), condition.get("message"))
            return outcome, ": ".join(str(part) for part in parts if part)
    return None, ""


def _condition(workload: Object, types: Sequence[str]) -> Object | None:
    conditions = get(workload, ("status", "conditions")) or ()
    return next((c for c in conditions if c.get("type") in types and c.get("status") == "True"), None)


def _placement(metadata: Object) -> dict[str, Any]:
    """Return what an earlier admission put into the pod template; of an annotation that is none of ours,
    nothing."""
    text = (metadata.get("annotations") or {}).get(ANNOTATION_PLACEMENT)
    try:
        value = bounded.load(text, ANNOTATION_PLACEMENT) if text else {}
    except ValueError:
        return {}
    selector, tolerations = (
        (value.get("nodeSelector", {}), value.get("tolerations", [])) if isinstance(value, dict) else ({}, [])
    )
    if not isinstance(selector, dict) or not isinstance(tolerations, list):
        return {}
    return {"nodeSelector": selector, "tolerations": tolerations}


def _merged(a: dict[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in b.items():
        if isinstance(value, Mapping) and isinstance(a.get(key), dict):
            _merged(a[key], value)
        else:
            a[key] = value
    return a
