"""A job's cached plan. The full plan is kept for the newest jobs; for others only the fields that pools read.

A pool pass looks at all jobs of its pool, nearly all of them unchanged, and reads of each a tenth of what
its plan was made from. The rest is made again when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from controller.kube.cache import Key
from controller.kube.packed import Stored
from controller.operator.state.cluster import JobSnapshot, Object
from controller.policy.job import (
    ADMITTED,
    COMPLETED,
    FAILED,
    TERMINATION,
    Desired,
    JobRecord,
    Plan,
    attained,
    job_view,
    remaining_seconds,
)
from controller.policy.types import JobKey, JobView, Mode

_TOLD = (ADMITTED, COMPLETED, FAILED, TERMINATION)

Again = Callable[["PlannedJob"], tuple[JobSnapshot, Plan]]


class PlannedJob:
    """A job as loaded, and the plan made of it at ``now`` (s).

    Args:
        again: loads and plans once more what this was; asked when ``loaded`` or ``plan`` is wanted of a
            plan that was evicted (`evict`). It raises `Stale` where the job has changed since.
    """

    __slots__ = (
        "_again",
        "_whole",
        "child",
        "desired",
        "key",
        "now",
        "pods",
        "record",
        "stored",
        "version",
        "view",
        "written",
    )

    key: JobKey
    now: float
    desired: Desired
    stored: Stored  # the RLHFJob
    version: str  # its resourceVersion
    pods: tuple[Key, ...]  # of those that hold GPUs in the job's name
    child: Stored | None  # its workload
    written: JobRecord  # extract of the record as loaded (`extract`)
    record: JobRecord  # extract of the record as planned
    view: JobView | None  # how the job stood before its pool when the plan was made

    def __init__(self, loaded: JobSnapshot, plan: Plan, now: float, again: Again | None = None) -> None:
        self.key, self.now, self.desired = loaded.key, now, loaded.desired
        self.stored, self.version, self.child = loaded.stored, loaded.version, loaded.stored_child
        self.pods = tuple(pod.key for pod in loaded.stored_pods)
        self.written = extract(loaded.record)
        self.record = self.written if plan.record == loaded.record else extract(plan.record)
        self.view = _view(loaded, plan, now)
        self._again, self._whole = again, (loaded, plan)

    _again: Again | None
    _whole: tuple[JobSnapshot, Plan] | None

    @property
    def obj(self) -> Object:
        """The RLHFJob."""
        return self.stored.open()

    @property
    def gpus(self) -> int:
        """Of the whole gang."""
        return self.desired.replicas * self.desired.gpus_per_replica

    @property
    def loaded(self) -> JobSnapshot:
        """Raises `Stale` if it is not at hand and the job has changed."""
        return self._warm()[0]

    @property
    def plan(self) -> Plan:
        """Raises `Stale` if it is not at hand and the job has changed."""
        return self._warm()[1]

    def view_at(self, now: float) -> JobView | None:
        """Return how the job stands before its pool: since the plan its service has gone on."""
        if self.view is None or now == self.now:
            return self.view
        return replace(
            self.view,
            attained=attained(self.desired, self.record, now),
            remaining=remaining_seconds(self.desired, self.record, now),
        )

    def evict(self) -> None:
        """Keep the extract only."""
        if self._again is not None:
            self._whole = None

    def _warm(self) -> tuple[JobSnapshot, Plan]:
        if self._whole is None:
            assert self._again is not None
            self._whole = self._again(self)
        return self._whole


def extract(record: JobRecord) -> JobRecord:
    """Return what a pool asks of a record: service, progress, admission and decision, and how the job stands.

    Its evals and what its rule remembers are not in it; what they come to is in the `JobView`.
    """
    return JobRecord(
        attempt=record.attempt,
        secured=record.secured,
        decision=record.decision,
        admission=record.admission,
        preempting=record.preempting,
        queued_at=record.queued_at,
        mark=record.mark,
        progress=record.progress,
        expected=record.expected,
        lost=record.lost,
        preemptions=record.preemptions,
        gang_backoff=record.gang_backoff,
        attained=record.attained,
        conditions=tuple(c for c in record.conditions if c.type in _TOLD),
        finished=record.finished,
        taken_back=record.taken_back,
        delayed_at=record.delayed_at,
    )


def _view(loaded: JobSnapshot, plan: Plan, now: float) -> JobView | None:
    obj = loaded.obj
    return job_view(
        loaded.desired,
        loaded.observed,
        plan.record,
        plan,
        submitted=_submitted(obj),
        priority=_priority(loaded, obj),
        weight=_weight(loaded, obj),
        preemptible=_preemptible(loaded),
        now=now,
    )


def _submitted(obj: Object) -> float:
    created: Any = obj["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(created).timestamp() if created else 0.0


def _preemptible(loaded: JobSnapshot) -> bool:
    """Return whether the job may be preempted.

    Below Enforce, as the pool's limit, no running workload is touched. Nor is, in a job below Enforce, a
    workload that the operator did not make.
    """
    if loaded.pool is not None and loaded.pool.spec.mode_cap is not Mode.ENFORCE:
        return False
    return loaded.desired.mode is Mode.ENFORCE or not loaded.desired.workload_ref


def _weight(loaded: JobSnapshot, obj: Object) -> float:
    return 1.0 if loaded.pool is None else float(loaded.pool.weight(obj["metadata"]["namespace"]))


def _priority(loaded: JobSnapshot, obj: Object) -> int:
    """Return the spec's, at most the pool's ceiling, which may have been lowered while the job ran."""
    wanted = int((obj.get("spec") or {}).get("priority") or 0)
    ceiling = None if loaded.pool is None else loaded.pool.ceiling(obj["metadata"]["namespace"])
    return wanted if ceiling is None else min(wanted, ceiling)
