"""Kueue (0.15 or newer): its quotas say whose turn it is, and it unsuspends and suspends the workloads
itself.

The operator is the controller of an AdmissionCheck that the ClusterQueues name. To a Workload that has quota
it answers Ready, with what the pods get (node selector, toleration, admission number) as ``podSetUpdates``;
Kueue puts that into the pod template when it starts the Job, and takes it out again when it puts it out.

Measured with 0.15.2 (docs/operate/kueue.md):
- Retry with ``requeueAfterSeconds`` puts a Workload out only when these seconds are over, quota and GPUs stay
  with it until then. So Retry is answered without, and whoever is to wait longer is switched off.
- A Workload whose check was Rejected is never queued again, not even when ``spec.active`` is set to true
  anew. So a gang that is too large is switched off instead, and on again when it would fit.

Read in 0.15.2: putting a Workload out resets its checks in the same write, and nothing else ever does. Its
Job is suspended only then, and its quota goes last. A Retry written in between would stay: the scheduler
refuses it, and it is never put out again, for it is already. A Ready would start the next offer on nodes that
were planned for this one. So nothing is answered but while quota is held (`_holding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from controller import names, workloads
from controller.api.gpupool import GPUPool
from controller.api.values import timestamp
from controller.delegates import kueue_queues
from controller.delegates.base import ExternalQueue, Known, NotYet, Object, Placement, Write
from controller.kube.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    FLAVORS,
    JOBS,
    LOCAL_QUEUES,
    WORKLOADS,
    Resource,
)
from controller.objects import parse_time
from controller.policy.job import Answer, QueueView
from controller.policy.types import Delegate, Problem

MESSAGE_MAX = 1024  # characters of an answer's message


class Kueue:
    """Jobs wait in Kueue."""

    delegate: ClassVar[Delegate] = Delegate.KUEUE
    resources: ClassVar[tuple[Resource, ...]] = (
        ADMISSION_CHECKS,
        FLAVORS,
        CLUSTER_QUEUES,
        LOCAL_QUEUES,
        WORKLOADS,
    )

    def manages(self, workload: Object) -> bool:
        return bool(workloads.queue_of(workload))

    def enqueue(self, child: dict[str, Any], queue: str) -> None:
        child["metadata"].setdefault("labels", {})[names.QUEUE_LABEL] = queue

    def problem(self, workload: Object, pool: GPUPool, queue: str, where: str) -> Problem | None:
        """Kueue gives a Workload up for good if what it is to put into the pods is there with another
        value."""
        selector = {label.key: label.value for label in pool.spec.node_selector}
        for key, value in workloads.node_selector(workload).items():
            if selector.get(key, value) != value:
                return Problem(
                    "NodeSelectorMismatch",
                    f"{where}: pod template: nodeSelector[{key}] is {value!r}, but GPUPool "
                    f"{pool.metadata.name!r} selects {selector[key]!r}; leave the key out",
                )
        if not workloads.queue_of(workload):
            return Problem(
                "QueueLabelMissing",
                f"{where}: metadata.labels[{names.QUEUE_LABEL}] is not set, but GPUPool "
                f"{pool.metadata.name!r} has delegate Kueue; set it to {queue!r}",
            )
        if names.ANNOTATION_ADMISSION in workloads.pod_annotations(workload):
            return Problem(
                "ReservedName",
                f"{where}: pod template: annotation {names.ANNOTATION_ADMISSION} is the operator's, leave "
                "it out",
            )
        return None

    # -- what Kueue knows --------------------------------------------------------------------------------

    def view(self, workload: Object, known: Known) -> QueueView | None:
        found = _record_of(workload, known)
        if found is None:
            return None
        spec, status, metadata = found["spec"], found.get("status") or {}, found["metadata"]
        reserved, evicted = _condition(status, "QuotaReserved"), _true(status, "Evicted")
        active = spec.get("active") is not False
        # One that has finished keeps its offer: to be told of that before its Job is no eviction.
        quota = _holding(found) if active else None
        has = reserved is not None and reserved["status"] == "True"
        words = evicted if evicted is not None else None if has else reserved
        return QueueView(
            name=str(metadata["name"]),
            active=active,
            ours=names.ANNOTATION_SWITCHED_OFF in (metadata.get("annotations") or {}),
            offer=_offer(found, quota) if quota is not None else "",
            offered_at=parse_time(quota["lastTransitionTime"]) if quota is not None else None,
            answer=_answer(found, known),
            evicted=evicted["reason"] if evicted is not None else "",
            message=str(words.get("message") or "") if words is not None else "",
        )

    def queue_problem(
        self, namespace: str, queue: str, gpus: int, pool: GPUPool, known: Known
    ) -> Problem | None:
        return kueue_queues.problem(namespace, queue, gpus, pool, known)

    def pool_problem(self, pool: GPUPool, known: Known) -> Problem | None:
        return kueue_queues.installed_problem(pool, known)

    # -- what Kueue is told ------------------------------------------------------------------------------

    def start(self, workload: Object, place: Placement, known: Known, now: float) -> Sequence[Write]:
        found = self._record(workload, known)
        if found is None or not _asks(found, known):
            return ()
        has = workloads.node_selector(workload)
        update = {
            "annotations": {names.ANNOTATION_ADMISSION: str(place.number)},
            "labels": {names.LABEL_POOL: place.pool},
            "nodeSelector": {k: v for k, v in place.node_selector.items() if k not in has},
            "tolerations": [workloads.pool_toleration(place.pool)],
        }
        updates = [{"name": podset["name"], **update} for podset in found["spec"]["podSets"]]
        message = f"admission {place.number} to GPUPool {place.pool}"
        return (_answered(found, known, Answer.READY, message, now, podSetUpdates=updates),)

    def stop(self, workload: Object, reason: str, again: bool, known: Known, now: float) -> Sequence[Write]:
        found = self._record(workload, known)
        if found is None:  # Kueue does not have it: nobody suspends it but us
            suspended = workloads.view(workload).suspended
            return () if suspended else (Write(JOBS, workload, workloads.suspend_patch(workload)),)
        answer = _answer(found, known)
        if found["spec"].get("active") is False or (again and answer is Answer.RETRY):
            return ()
        if again and answer is not None:
            if _holding(found) is None:  # it is being put out already, by our Retry or for another reason
                return ()
            return (_answered(found, known, Answer.RETRY, reason, now),)
        mark = {"annotations": {names.ANNOTATION_SWITCHED_OFF: reason}}
        return (Write(WORKLOADS, found, {"metadata": mark, "spec": {"active": False}}),)

    def resume(self, workload: Object, known: Known) -> Sequence[Write]:
        found = self._record(workload, known)
        if found is None or found["spec"].get("active") is not False:
            return ()
        mark = {"annotations": {names.ANNOTATION_SWITCHED_OFF: None}}
        return (Write(WORKLOADS, found, {"metadata": mark, "spec": {"active": True}}),)

    def refuse(self, workload: Object, message: str, known: Known, now: float) -> Sequence[Write]:
        found = self._record(workload, known)
        if found is None or not _asks(found, known):
            return ()
        return (_answered(found, known, Answer.RETRY, message, now),)

    def sync(
        self, pools: Iterable[GPUPool], changed: Iterable[Object], known: Known, now: float
    ) -> Sequence[Write]:
        """AdmissionChecks say whether they are answered. Workloads that are no RLHFJob's are let through:
        their queue asks of them what it asks of all, and the operator has nothing to say to it. And a Retry
        is taken back that was left on one without quota, where Kueue would never look at it again."""
        served = any(pool.spec.delegate is Delegate.KUEUE for pool in pools)
        found = [obj for obj in changed if obj["kind"] == WORKLOADS.kind]
        return [*_activity(served, known, now), *_strangers(found, known, now), *_stuck(found, known, now)]

    def _record(self, workload: Object, known: Known) -> Object | None:
        if not known.absent(WORKLOADS) and not all(map(known.listed, (WORKLOADS, ADMISSION_CHECKS))):
            raise NotYet("Kueue's Workloads are not read yet")
        return _record_of(workload, known)


def _record_of(workload: Object, known: Known) -> Object | None:
    """Return the Workload that Kueue made for a child: by its owner's uid, for anybody may set a label."""
    job = (workload["metadata"].get("labels") or {}).get(names.LABEL_JOB)
    if not job or known.absent(WORKLOADS):
        return None
    uid = workload["metadata"]["uid"]
    for found in known.of_job(WORKLOADS, f"{workload['metadata']['namespace']}/{job}"):
        owner = workloads.controller_of(found)
        if owner is not None and owner.get("uid") == uid and not found["metadata"].get("deletionTimestamp"):
            return found
    return None


def _holding(found: Object) -> Object | None:
    """Condition QuotaReserved of a Workload that has quota and is not being put out; None: another."""
    status = found.get("status") or {}
    return None if _true(status, "Evicted") else _true(status, "QuotaReserved")


def _asks(found: Object, known: Known) -> bool:
    """Return whether a Workload's quota waits for our answer."""
    return _holding(found) is not None and _answer(found, known) is Answer.PENDING


def _offer(found: Object, quota: Object) -> str:
    """Return what no other reservation of quota has: Workload, how often it was put out, and when this one
    was made."""
    stats = (found.get("status") or {}).get("schedulingStats") or {}
    evictions = sum(int(entry.get("count") or 0) for entry in stats.get("evictions") or ())
    return f"{found['metadata']['uid']}/{evictions}/{quota['lastTransitionTime']}"


def _ours(found: Object, known: Known) -> Iterator[Object]:
    """Yield the states, on a Workload, of the AdmissionChecks that this operator answers."""
    for state in (found.get("status") or {}).get("admissionChecks") or ():
        if kueue_queues.is_ours(known.get(ADMISSION_CHECKS, str(state["name"]))):
            yield state


def _answer(found: Object, known: Known) -> Answer | None:
    """Return what was said; with several checks of ours the least of it."""
    states = {Answer(state["state"]) for state in _ours(found, known)}
    return next(
        (a for a in (Answer.REJECTED, Answer.RETRY, Answer.PENDING, Answer.READY) if a in states), None
    )


def _answered(found: Object, known: Known, answer: Answer, message: str, now: float, **more: Any) -> Write:
    """Return all states of a Workload's checks, ours changed: a merge patch replaces a list whole."""
    ours = {state["name"] for state in _ours(found, known)}
    states = []
    for state in found["status"]["admissionChecks"]:
        if state["name"] in ours:
            kept = {key: state[key] for key in ("name", "retryCount") if key in state}
            shortened = message if len(message) <= MESSAGE_MAX else message[: MESSAGE_MAX - 1] + "…"
            state = {
                **kept,
                "state": str(answer),
                "message": shortened,
                "lastTransitionTime": timestamp(now),
                **more,
            }
        states.append(state)
    return Write(WORKLOADS, found, {"status": {"admissionChecks": states}}, "status")


def _activity(served: bool, known: Known, now: float) -> Iterator[Write]:
    """Condition Active of our AdmissionChecks: Kueue admits nobody to a ClusterQueue while one is not."""
    for check in known.values(ADMISSION_CHECKS):
        if not kueue_queues.is_ours(check) or check["metadata"].get("deletionTimestamp"):
            continue
        if check["spec"].get("parameters"):
            active = (
                "False",
                "ParametersNotSupported",
                "spec.parameters: none are known; leave the field out",
            )
        elif not served:
            active = ("False", "NoPool", "no GPUPool has spec.delegate Kueue: nobody could answer this check")
        else:
            active = ("True", "Answered", "the EvalStop operator answers this check")
        known_one = _condition(check.get("status") or {}, "Active")
        generation = int(check["metadata"].get("generation") or 0)
        if known_one is None or tuple(known_one[k] for k in ("status", "reason", "message")) != active:
            status, reason, message = active
            condition = {
                "type": "Active",
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": timestamp(now),
                "observedGeneration": generation,
            }
            others = [c for c in (check.get("status") or {}).get("conditions") or () if c["type"] != "Active"]
            yield Write(ADMISSION_CHECKS, check, {"status": {"conditions": [*others, condition]}}, "status")


def _strangers(changed: Iterable[Object], known: Known, now: float) -> Iterator[Write]:
    for found in changed:
        if names.LABEL_JOB in (found["metadata"].get("labels") or {}):
            continue
        if _asks(found, known):
            message = "no RLHFJob's: its queue's quota is all that it needs"
            yield _answered(found, known, Answer.READY, message, now)


def _stuck(changed: Iterable[Object], known: Known, now: float) -> Iterator[Write]:
    for found in changed:
        waits = not _true(found.get("status") or {}, "QuotaReserved")
        if waits and _answer(found, known) is Answer.RETRY:
            yield _answered(found, known, Answer.PENDING, "taken back: there is no quota to give back", now)


def _condition(status: Mapping[str, Any], type_: str) -> Object | None:
    return next((c for c in status.get("conditions") or () if c["type"] == type_), None)


def _true(status: Mapping[str, Any], type_: str) -> Object | None:
    found = _condition(status, type_)
    return found if found is not None and found["status"] == "True" else None


ADAPTER: ExternalQueue = Kueue()
