"""A job's plan: the full plan, and the extract of it that pools read.

A pool pass looks at all jobs of its pool, nearly all of them unchanged, and reads of each a tenth of what
its plan was made from.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from controller.frozen import dataclass
from controller.kube.cache import Key
from controller.kube.packed import Stored
from controller.objects import parse_time
from controller.operator.state.cluster import Object
from controller.operator.state.job_snapshot import JobSnapshot, State
from controller.policy.job import (
    ADMITTED,
    COMPLETED,
    FAILED,
    NO_SCHEDULER,
    TERMINATION,
    Desired,
    JobRecord,
    Plan,
    PodTrouble,
    attained,
    job_view,
    remaining_seconds,
)
from controller.policy.types import JobKey, JobView, Mode

# s: for so long a plan that found nothing to do stands for one of the same input. Most passes are called by
# changes that no plan reads (a pod's conditions, the version of what the pass before wrote), in bursts.
AT_REST = 5.0
_READ_BY_POOLS = (ADMITTED, COMPLETED, FAILED, TERMINATION)


@dataclasses.dataclass(slots=True)
class PlannedJob:
    """The part of a job and of its plan, made at ``now`` (s), that pools read.

    Nothing of it changes but the view, by `view_at`.

    Attributes:
        state: of what the plan was made (`ClusterState.state`).
        stored: the RLHFJob.
        pods: those that hold GPUs in the job's name.
        child: its workload.
        written: extract of the record as loaded (`extract`).
        record: extract of the record as planned.
        view: how the job stood before its pool when the plan was made, or when it was last asked.
    """

    key: JobKey
    now: float
    state: State
    desired: Desired
    stored: Stored
    pods: tuple[Key, ...]
    child: Stored | None
    written: JobRecord
    record: JobRecord
    view: JobView | None
    viewed: float

    @property
    def obj(self) -> Object:
        """The RLHFJob."""
        return self.stored.open()

    @property
    def version(self) -> str:
        """The RLHFJob's resourceVersion."""
        return str(self.stored.version)

    @property
    def gpus(self) -> int:
        """Of the whole gang, and of its base actors."""
        return self.desired.gpus

    def view_at(self, now: float) -> JobView | None:
        """Return how the job stands before its pool: since the plan its service has gone on.

        The view before it is let go of: whoever keeps a pool's newest views has these.
        """
        if self.view is not None and now != self.viewed:
            self.viewed, self.view = (
                now,
                replace(
                    self.view,
                    attained=attained(self.desired, self.record, now),
                    remaining=remaining_seconds(self.desired, self.record, now),
                ),
            )
        return self.view

    def share_view(self, before: PlannedJob | None) -> None:
        """Have the view of the plan before, where the job stands as it did: then so has the pool's snapshot.

        Of a job that trains, the service alone differs, which `view_at` works out anew.
        """
        former = before.view if before is not None else None
        if before is not None and former is not None and self.view is not None:
            at_rest = replace(former, attained=self.view.attained, remaining=self.view.remaining)
            if at_rest == self.view:
                self.view, self.viewed = former, before.viewed


@dataclass(frozen=True, slots=True)
class FullPlan:
    """A job as loaded, the plan made of it, and what its pool reads of both.

    ``decided`` (s): the moment for which the planner was asked; a plan `still_at_rest` is of an earlier one.
    """

    loaded: JobSnapshot
    plan: Plan
    planned_job: PlannedJob
    decided: float

    def still_at_rest(self, loaded: JobSnapshot, now: float) -> Plan | None:
        """Return this plan once more, as of ``now`` (s), if it found nothing to do and nothing that it was
        made of has changed; None: the planner is to be asked.

        That nothing is due before ``requeue_after`` is what the plan said itself. Ages in its texts may be
        `AT_REST` behind.
        """
        plan, since = self.plan, self.planned_job.now
        if plan.actions or plan.events or plan.record != self.loaded.record:
            return None
        due = None if plan.requeue_after is None else since + plan.requeue_after - now
        if not since <= now < self.decided + AT_REST or (due is not None and due <= 0):
            return None
        before = self.loaded
        same = (
            before.desired == loaded.desired
            and before.observed == loaded.observed
            and before.record == loaded.record
        )
        return replace(plan, requeue_after=due) if same else None


def full_plan(loaded: JobSnapshot, plan: Plan, now: float, decided: float | None = None) -> FullPlan:
    """Return the full plan of a job whose ``plan`` was made for ``now`` (s), or at ``decided`` and stands."""
    written = extract(loaded.record)
    planned_job = PlannedJob(
        key=loaded.key,
        now=now,
        state=loaded.state,
        desired=loaded.desired,
        stored=loaded.stored,
        pods=tuple(pod.key for pod in (*loaded.stored_pods, *loaded.stored_actor_pods)),
        child=loaded.stored_child,
        written=written,
        record=written if plan.record == loaded.record else extract(plan.record),
        view=_view(loaded, plan, now),
        viewed=now,
    )
    return FullPlan(loaded, plan, planned_job, now if decided is None else decided)


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
        queue_policy_state=record.queue_policy_state,
        progress=record.progress,
        expected=record.expected,
        lost=record.lost,
        preemptions=record.preemptions,
        gang_backoff=record.gang_backoff,
        attained=record.attained,
        conditions=tuple(c for c in record.conditions if c.type in _READ_BY_POOLS),
        finished=record.finished,
        taken_back=record.taken_back,
        delayed_at=record.delayed_at,
        residency=record.residency,
        charged=record.charged,
        pod_trouble=_unserved(record),
    )


def _unserved(record: JobRecord) -> PodTrouble | None:
    """Return that nobody schedules the job's pods, which is its pool's to mend; None: that is not so."""
    trouble = record.pod_trouble
    return trouble if trouble is not None and trouble.waits == NO_SCHEDULER else None


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
    return parse_time(obj["metadata"].get("creationTimestamp")) or 0.0


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
