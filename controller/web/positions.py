"""Queue of a pool: who waits, in which place, why and for how long, made from its newest plan when asked.

Positions change with every arrival; written into statuses they would be most of all writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controller.policy.pool import ordered_by
from controller.policy.queueing import MAX_WAIT, make_policy
from controller.policy.queueing.ageing import overdue
from controller.policy.queueing.base import waits_since
from controller.policy.queueing.explain import ranked_by
from controller.policy.queueing.quota_ledger import quota_state
from controller.policy.types import JobKey, JobState, JobView, PoolPlan, PoolSnapshot, Waiting

Known = float | int | str | None


class PlannedPool(NamedTuple):
    """A pool as it was planned at ``at`` (s)."""

    snapshot: PoolSnapshot
    plan: PoolPlan
    at: float


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class QueuePosition(_Answer):
    """One job before its pool."""

    job: str = Field(description="namespace/name")
    state: str = Field(description="Queued, Admitted, Stopping or Preempting.")
    position: int | None = Field(description="1 is next; null: it does not wait, or cannot be admitted now.")
    reason: str = Field(description="Why it waits, as a CamelCase code; empty if it does not.")
    message: str = Field(description="Why, for people.")
    waited_seconds: float | None = Field(description="For how long it has waited; null: it does not.")
    overdue: bool = Field(description="It has waited for the pool's maxWaitSeconds: nobody passes it.")
    replicas: int
    gpus: int = Field(description="GPUs of the whole gang, and its share of a worker group's.")
    key: Mapping[str, Known] = Field(description="What the pool's queue policy ranks it by.")
    family: str = Field("", description="Of worker groups, if it asks for a residency; empty: it does not.")


class Queue(_Answer):
    """Waiting jobs of a pool, next one first; then those that cannot be admitted now."""

    pool: str
    policy: str
    planned: float = Field(description="When the pool was last planned, s since the epoch.")
    total: int = Field(description="How many wait.")
    items: tuple[QueuePosition, ...] = Field(description="The first of them.")


class Pools(_Answer):
    """The pools whose queues can be asked for."""

    items: tuple[str, ...]


def queue(planned: PlannedPool, now: float, limit: int) -> Queue:
    """Return the first ``limit`` who wait, as of ``now`` (s)."""
    snapshot = planned.snapshot
    waiting = sorted(planned.plan.waiting, key=lambda w: (w.position == 0, w.position, w.key))
    views = {job.key: job for job in snapshot.jobs}
    keys = _Keys(planned)
    items = (_place(planned, keys, views[why.key], why, now) for why in waiting[:limit] if why.key in views)
    return Queue(
        pool=snapshot.pool,
        policy=ordered_by(snapshot.delegate, snapshot.policy.name),
        planned=planned.at,
        total=len(waiting),
        items=tuple(items),
    )


def place(planned: PlannedPool, key: JobKey, now: float) -> QueuePosition | None:
    """Return one job; None if it does not stand before this pool."""
    view = next((job for job in planned.snapshot.jobs if job.key == key), None)
    if view is None:
        return None
    why = next((w for w in planned.plan.waiting if w.key == key), None)
    return _place(planned, _Keys(planned), view, why, now)


class _Keys:
    """Sort keys of the pool's policy for its jobs; made once for many jobs."""

    def __init__(self, planned: PlannedPool) -> None:
        snapshot = planned.snapshot
        self._policy = make_policy(snapshot.policy)
        self._quota = quota_state(snapshot.quotas, snapshot.jobs, (a.key for a in planned.plan.admissions))
        self._running: dict[str, list[JobView]] = {}
        for job in snapshot.jobs:
            if job.state is JobState.ADMITTED:
                self._running.setdefault(_namespace(job), []).append(job)

    def of(self, job: JobView) -> Mapping[str, Known]:
        key = ranked_by(self._policy, job, self._running.get(_namespace(job), ()))
        return {"quota": self._quota[job.key], **key} if job.key in self._quota else key


def _namespace(job: JobView) -> str:
    return job.key.partition("/")[0]


def _place(planned: PlannedPool, keys: _Keys, job: JobView, why: Waiting | None, now: float) -> QueuePosition:
    snapshot = planned.snapshot
    state = job.state
    if why is None and any(a.key == job.key for a in planned.plan.admissions):
        state = JobState.ADMITTED
    queued = state is JobState.QUEUED
    most = snapshot.policy.params.get(MAX_WAIT)
    return QueuePosition(
        job=job.key,
        state=str(state),
        position=why.position if why is not None and why.position else None,
        reason=why.reason if why is not None else "",
        message=why.message if why is not None else "",
        waited_seconds=max(0.0, now - waits_since(job)) if queued else None,
        overdue=queued and isinstance(most, float) and overdue(job, most, now),
        replicas=job.replicas,
        gpus=job.gpus,
        key=keys.of(job),
        family=job.sharing.family if job.sharing is not None else "",
    )
