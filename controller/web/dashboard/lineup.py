"""Queue positions worked out from the jobs' statuses, where the operator's queue API cannot be asked."""

from __future__ import annotations

from collections.abc import Iterable

from controller.api import convert
from controller.policy.job import ADMITTED, attained, is_demoted, queued_at, remaining_seconds
from controller.policy.queueing import MAX_WAIT, make_policy
from controller.policy.queueing.ageing import overdue
from controller.policy.queueing.srtf_est import SrtfEst
from controller.policy.types import Delegate, JobState, JobView
from controller.web.dashboard.feed import Job, Pool
from controller.web.dashboard.states import state
from controller.web.positions import Queue, QueuePosition

_LEAVING = ("Stopping", "Preempting")


def line_up(pool: Pool, jobs: Iterable[Job], now: float) -> Queue | None:
    """Return who waits before ``pool``, by its queue policy, as of ``now`` (s); then those that cannot start
    now.

    ``jobs``: all of the pool, of whatever namespace. It is the policy's order and no more: who fits, whom a
    hold is for, who starts again after a while, only the operator's plan tells.

    None: the order is not to be had from statuses. Kueue has its own; srtfEst goes by running times that the
    operator has learned from other jobs.
    """
    if pool.spec is None or pool.spec.spec.delegate != Delegate.BUILTIN:
        return None
    spec = convert.policy(pool.spec)
    if spec.name == SrtfEst.name:
        return None
    waiting = {job.key: job for job in jobs if state(job.summary).group == "waiting"}
    running = [job for job in jobs if state(job.summary).group == "running"]
    queued = [job for job in waiting.values() if job.summary == "Queued"]
    policy = make_policy(spec, convert.quotas(pool.spec))
    views = {job.key: _view(pool, job, now) for job in (*queued, *running)}
    policy.rebuild(views.values(), now)
    most = float(spec.params[MAX_WAIT])
    items = []
    for n, found in enumerate((f for f in policy.queue() if f.key in waiting), start=1):
        items.append(_place(waiting.pop(found.key), n, overdue(views[found.key], most, now), now))
    items += [_place(job, None, False, now) for _, job in sorted(waiting.items())]
    return Queue(pool=pool.name, policy=spec.name, planned=now, total=len(items), items=tuple(items))


def _view(pool: Pool, job: Job, now: float) -> JobView:
    assert pool.spec is not None
    desired, record = job.desired, job.record
    how, since = JobState.QUEUED, _queued(job)
    if job.summary != "Queued":
        how = JobState.STOPPING if job.summary in _LEAVING else JobState.ADMITTED
        since = record.admission.at if record.admission is not None else since
    return JobView(
        key=job.key,
        submitted=job.created,
        sequence=0,
        replicas=desired.replicas,
        gpus_per_replica=desired.gpus_per_replica,
        priority=job.priority,
        state=how,
        attained=attained(desired, record, now),
        remaining=remaining_seconds(desired, record, now),
        since=since,
        progress=record.progress.share if record.progress is not None else None,
        weight=float(pool.spec.weight(job.namespace)),
        loss_trend=record.loss_trend,
        policy_state=record.queue_policy_state,
        demoted=is_demoted(desired, record),
    )


def _place(job: Job, position: int | None, late: bool, now: float) -> QueuePosition:
    why = job.record.condition(ADMITTED)
    return QueuePosition(
        job=job.key,
        state=job.summary,
        position=position,
        reason=why.reason if why is not None else "",
        message=why.message if why is not None else state(job.summary).meaning,
        waited_seconds=max(0.0, now - _queued(job)),
        overdue=late,
        replicas=job.desired.replicas,
        gpus=job.gpus,
        key={},
        family=job.desired.sharing.family if job.desired.sharing is not None else "",
    )


def _queued(job: Job) -> float:
    return queued_at(job.record, job.created)
