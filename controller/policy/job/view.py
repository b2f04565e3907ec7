"""The view of a job that its pool plans with."""

from __future__ import annotations

from typing import Any

from controller.policy.actor_types import Rollout
from controller.policy.job import endings, preemption, residency, rollout_actors, verdicts
from controller.policy.job.comparability import seen_by_fleet
from controller.policy.job.record import JobRecord
from controller.policy.job.service import attained, remaining_seconds
from controller.policy.job.types import Answer, Desired, Observed, Plan
from controller.policy.node import remaining_nodes
from controller.policy.types import JobState, JobView, Mode


def job_view(
    desired: Desired,
    observed: Observed,
    record: JobRecord,
    planned: Plan,
    *,
    submitted: float,
    priority: int,
    weight: float = 1.0,
    preemptible: bool = True,
    now: float,
) -> JobView | None:
    """Return how the job stands before its pool at ``now`` (s); None if it does not compete for GPUs.

    ``submitted``: s, of the RLHFJob's creation. ``priority``: with the pool's ceiling applied. ``weight``:
    its namespace's in the pool. ``preemptible``: whether the operator may go so far. An estimate of its
    running time is not in it: that takes the pool's other jobs (`estimates`).
    """
    state = _state(record, planned)
    if state is None:
        return None
    live = [p for p in observed.pods if not p.terminal]
    bound = tuple((p.node, p.gpus) for p in live if p.node is not None)
    admission = record.admission
    nodes = remaining_nodes(admission.nodes, admission.ended) if admission is not None else ()
    ended = len(admission.ended) if admission is not None else 0
    return JobView(
        key=desired.key,
        submitted=submitted,
        sequence=0,
        replicas=desired.replicas,
        gpus_per_replica=desired.gpus_per_replica,
        priority=priority,
        state=state,
        bound=bound,
        unbound=max(0, desired.replicas - len(bound) - ended) if planned.queue is JobState.ADMITTED else 0,
        nodes=nodes,
        attained=attained(desired, record, now),
        remaining=remaining_seconds(desired, record, now),
        proposal=planned.proposal,
        since=_since(record, state, submitted),
        progress=record.progress.share if record.progress is not None else None,
        weight=weight,
        preemptible=preemptible,
        loss_trend=record.loss_trend,
        policy_state=record.queue_policy_state,
        demoted=verdicts.is_demoted(desired, record),
        waited=max(0.0, admission.at - queued_at(record, submitted)) if admission is not None else 0.0,
        attempt=record.attempt,
        not_before=record.gang_backoff.until if record.gang_backoff is not None else None,
        avoid=record.gang_backoff.avoid if record.gang_backoff is not None else (),
        refused=record.refusal is not None and record.refusal.final,
        taken_back=record.taken_back.at if record.taken_back is not None else None,
        delayed_at=record.delayed_at,
        may_return=admission is not None and not endings.is_quiet(observed.workload),
        may_stay=(state is JobState.PREEMPTING and preemption.may_be_called_off(record)) or None,
        rollout=_rollout(desired, observed, record),
        sharing=residency.shared_training(desired, record),
        **(_offered(observed, record, state) if _in_its_queue(desired, observed) else {}),
        **seen_by_fleet(desired, record, judged=state is JobState.ADMITTED and desired.mode is not Mode.OFF),
    )


def _offered(observed: Observed, record: JobRecord, state: JobState) -> dict[str, Any]:
    """Return what an external queue says of a waiting job: the offer that is not answered yet, and its words.
    Where something is wrong with that queue no offer is answered (`outside.wait`)."""
    queue = observed.queue
    if queue is None or state is not JobState.QUEUED:
        return {}
    open_ = queue.answer is Answer.PENDING and record.refusal is None and observed.queue_problem is None
    return {
        "offer": queue.offer if open_ else "",
        "offered_at": queue.offered_at if open_ and queue.offer else None,
        "queue_message": "" if queue.offer else queue.message,
    }


def _in_its_queue(desired: Desired, observed: Observed) -> bool:
    """Not so a child that is still to be made anew for another one (`outside.wait`)."""
    workload = observed.workload
    return workload is not None and (workload.queue == desired.queue or bool(desired.workload_ref))


def _rollout(desired: Desired, observed: Observed, record: JobRecord) -> Rollout | None:
    """Return the job's actors, and what it would have now; None: it has none."""
    terms, view = desired.rollout, observed.rollout
    if terms is None:
        return None
    wants = rollout_actors.wanted(terms, view) if record.admission is not None else 0
    gain = view.gain if view is not None else None
    actors = rollout_actors.as_known(record.actors, view)
    return Rollout(terms.base, terms.gpus, actors, wants, gain, record.actor_starts)


def queued_at(record: JobRecord, submitted: float) -> float:
    """Return since when (s) a job has stood in the queue, this time: at first since it was submitted."""
    return submitted if record.queued_at is None else record.queued_at


def _since(record: JobRecord, state: JobState, submitted: float) -> float | None:
    """Return since when (s) it has waited, or has run; None: it is on its way out."""
    if state is JobState.QUEUED:
        return queued_at(record, submitted)
    admission = record.admission
    if state is not JobState.ADMITTED or admission is None:
        return None
    return admission.at if admission.running_since is None else admission.running_since


def _state(record: JobRecord, planned: Plan) -> JobState | None:
    """Return how the job stands by its record: what the pool wrote into it since the plan was made counts."""
    decision = record.decision
    if decision is not None and decision.mode is Mode.ENFORCE and decision.pods_gone_at is None:
        return JobState.STOPPING
    if record.admission is None or planned.queue is JobState.STOPPING:
        return planned.queue
    leaving = record.preempting is not None or record.admission.withdrawn is not None
    return JobState.PREEMPTING if leaving else JobState.ADMITTED
