"""Writes of a pool's plan to the records of its jobs: grants, preemptions, admissions, why one waits.

`outcomes` lists the writes in their order, `after` gives the record that one of them makes. Each record is
written before anything is done about it; what follows is the job's own next plan (`plan_job`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Protocol, TypeVar

from controller.frozen import dataclass
from controller.policy.actor_types import Actor, ActorStart, Recall, RolloutTerms
from controller.policy.fleet import ASKS_POOL
from controller.policy.job import (
    AdmissionRecord,
    Conditions,
    Decision,
    Desired,
    JobRecord,
    RefusalRecord,
    preemption,
    residency,
    rollout_actors,
    with_recalls,
    with_starts,
)
from controller.policy.job import conditions as c
from controller.policy.pool.groups import SLOWS_OTHERS
from controller.policy.types import (
    Admission,
    Grant,
    HeldBack,
    JobKey,
    Mode,
    PoolPlan,
    Preemption,
    Refusal,
    Waiting,
)
from controller.policy.wording import statistic

_Act = TypeVar("_Act", ActorStart, Recall)


class Verb(StrEnum):
    """Kinds of writes, in the order in which they are made."""

    GRANT = "grant"
    PREEMPTION = "preemption"
    CALLED_OFF = "called-off"
    RECALL = "recall"
    ADMISSION = "admission"
    ACTOR_START = "actor-start"
    REFUSAL = "refusal"
    LIFTED_REFUSAL = "lifted-refusal"
    HELD_BACK = "held-back"
    POLICY_STATE = "policy_state"
    HANDOVER = "handover"
    WAITING = "waiting"

    @property
    def moves_gpus(self) -> bool:
        """Return whether GPUs change hands by it."""
        return self in (Verb.GRANT, Verb.PREEMPTION, Verb.RECALL, Verb.ADMISSION, Verb.ACTOR_START)


@dataclass(frozen=True, slots=True)
class Starts:
    """Rollout actors of one job to start."""

    actors: tuple[ActorStart, ...]


@dataclass(frozen=True, slots=True)
class Recalls:
    """Rollout actors of one job that have to go."""

    actors: tuple[Recall, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """One write into a job's record.

    Attributes:
        what: of the plan; of a handover, the job that got the GPUs.
        mark: what the queue policy asks to remember of the job as well; None: nothing new.
    """

    key: JobKey
    verb: Verb
    what: Grant | Preemption | Recalls | Admission | Starts | Refusal | HeldBack | Waiting | JobKey | None = (
        None
    )
    policy_state: tuple[int, ...] | None = None


class Planned(Protocol):
    """A job with the plan that was made of it."""

    @property
    def desired(self) -> Desired: ...

    @property
    def record(self) -> JobRecord:
        """Its admission, decision and conditions at least."""


def outcomes(
    plan: PoolPlan, jobs: Mapping[JobKey, Planned], now: float, just_written: Container[JobKey] = ()
) -> Iterator[Write]:
    """Yield a plan's writes in their order; those that would change nothing are left out.

    Args:
        plan: made of ``jobs`` at ``now``.
        jobs: the pool's jobs.
        now: time (s).
        just_written: jobs whose reason to wait was written a moment ago. For these a new reason is written at
            once, but not new numbers in the old one: else a change of one GPU would be a write for every job
            in the queue.
    """
    policy_states = dict(plan.policy_states)
    for grant in plan.grants:
        yield Write(grant.key, Verb.GRANT, grant)
    for preempted_ in plan.preemptions:
        yield Write(preempted_.key, Verb.PREEMPTION, preempted_, policy_states.pop(preempted_.key, None))
    for key in plan.called_off or ():
        if called_off(jobs[key].record) is not jobs[key].record:
            yield Write(key, Verb.CALLED_OFF)
    lent = plan.lending
    for key, recalls in _by_job(lent.recalls if lent is not None else ()).items():
        yield Write(key, Verb.RECALL, Recalls(tuple(recalls)))
    for admission in plan.admissions:
        yield Write(admission.key, Verb.ADMISSION, admission, policy_states.pop(admission.key, None))
    for key, starts in _by_job(lent.starts if lent is not None else ()).items():
        yield Write(key, Verb.ACTOR_START, Starts(tuple(starts)))
    for refusal in plan.refusals:
        yield Write(refusal.key, Verb.REFUSAL, refusal)
    for key in plan.lifted:
        yield Write(key, Verb.LIFTED_REFUSAL)
    for held in plan.held_back:
        job = jobs[held.key]
        if held_back(job.record, job.desired, held, now) is not job.record:
            yield Write(held.key, Verb.HELD_BACK, held)
    for key, policy_state in policy_states.items():
        yield Write(key, Verb.POLICY_STATE, policy_state=policy_state)
    for source, target in _handovers(plan, jobs):
        if source in jobs and handed(jobs[source].record, target, now) is not jobs[source].record:
            yield Write(source, Verb.HANDOVER, target)
    answered = {refusal.key for refusal in plan.refusals} | set(plan.lifted)
    for why in plan.waiting:
        if why.key not in answered and _is_news(jobs[why.key], why, now, just_written):
            yield Write(why.key, Verb.WAITING, why)


def after(write: Write, record: JobRecord, desired: Desired, now: float) -> JobRecord:
    """Return the record that a write makes of ``record``; the same one if it changes nothing."""
    match write.what:
        case Grant() as grant:
            record = granted(record, desired, grant, now)
        case Preemption() as preempted_:
            record = preempted(record, preempted_, now)
        case Recalls() as recalls:
            record = recalled(record, desired, recalls, now)
        case Admission() as admission:
            record = admitted(record, admission, now, desired.rollout)
        case Starts() as starts:
            record = started(record, desired, starts, now)
        case Refusal() as refusal:
            record = refused(record, desired, refusal, now)
        case HeldBack() as held:
            record = held_back(record, desired, held, now)
        case Waiting() as why:
            record = waiting(record, desired, why, now)
        case str() as target:
            record = handed(record, target, now)
        case None if write.verb is Verb.LIFTED_REFUSAL:
            record = lifted(record)
        case None if write.verb is Verb.CALLED_OFF:
            record = called_off(record)
    return record if write.policy_state is None else with_policy_state(record, write.policy_state)


def _handovers(plan: PoolPlan, jobs: Mapping[JobKey, Planned]) -> Iterator[tuple[JobKey, JobKey]]:
    """Yield whose GPUs went to whom. Looked at anew each pass: a crash may have come between the admission,
    whose record names the source, and the note on the stopped job."""
    for admission in plan.admissions:
        if admission.source is not None:
            yield admission.source, admission.key
    for key, job in jobs.items():
        if job.record.admission is not None and job.record.admission.source is not None:
            yield job.record.admission.source, key


def _by_job(acts: Iterable[_Act]) -> dict[JobKey, list[_Act]]:
    found: dict[JobKey, list[_Act]] = {}
    for act in acts:
        found.setdefault(act.key, []).append(act)
    return found


def _is_news(job: Planned, why: Waiting, now: float, just_written: Container[JobKey]) -> bool:
    if waiting(job.record, job.desired, why, now) is job.record:
        return False
    known = job.record.condition(c.ADMITTED)
    return known is None or known.status or known.reason != why.reason or why.key not in just_written


def granted(record: JobRecord, desired: Desired, grant: Grant, now: float) -> JobRecord:
    """Return the record once the pool has released the job: the stop's intent, to be written before any
    act."""
    proposal = grant.proposal
    guards = {guardrail.metric: guardrail.rule.name for guardrail in desired.guardrails}
    by = guards.get(proposal.metric, desired.rule.name)
    of = f"guardrail {proposal.metric!r}, {by}" if proposal.metric else by
    seen = statistic(proposal.statistic, proposal.threshold, 6)
    message = (
        f"{of}: {proposal.reason}, {seen} against {proposal.threshold:g} "
        f"at step {proposal.step}; best eval at step {proposal.best_step}"
    )
    # What was copied for an earlier stop says nothing of this one.
    left = tuple(known for known in record.conditions if known.type != c.RETAINED)
    decision = Decision(by, Mode.ENFORCE, proposal, message, now)
    return replace(record, decision=decision, preempting=None, delayed_at=None, conditions=left)


def admitted(
    record: JobRecord, admission: Admission, now: float, terms: RolloutTerms | None = None
) -> JobRecord:
    """Return the record once the pool has granted GPUs: the next attempt, with the entries of its base
    actors, to be written before the start. ``terms``: of its actors; None: it has none."""
    number = record.attempt + 1
    if admission.actors is not None and terms is not None:
        first, gpus = record.actor_starts, terms.gpus
        entries = (Actor(first + i, node, gpus, since=now) for i, node in enumerate(admission.actors))
        record = rollout_actors.with_entries(record, (*record.actors, *entries), terms, now)
    record = replace(
        record,
        attempt=number,
        admission=AdmissionRecord(
            number, admission.nodes, now, admission.source, unbound_since=now, offer=admission.offer
        ),
        preempting=None,
        refusal=None,
    )
    return residency.admitted(record, admission, now)


def started(record: JobRecord, desired: Desired, starts: Starts, now: float) -> JobRecord:
    """Return the record with the entries of actors that are to start, to be written before their Jobs are
    made; the same one if the job does not run any more."""
    if record.admission is None:
        return record
    entries = with_starts(record.actors, starts.actors, now)
    return rollout_actors.with_entries(record, entries, desired.rollout, now)


def recalled(record: JobRecord, desired: Desired, recalls: Recalls, now: float) -> JobRecord:
    """Return the record with actors that have to go; the same one if none of them stays."""
    entries = with_recalls(record.actors, recalls.actors)
    if entries == record.actors:
        return record
    return rollout_actors.with_entries(record, entries, desired.rollout, now)


def refused(record: JobRecord, desired: Desired, refusal: Refusal, now: float) -> JobRecord:
    """Return the record once the pool has not taken an offer of quota: to be written before its queue is
    told."""
    conditions = Conditions(record.conditions, desired.generation, now)
    conditions.set(c.ADMITTED, False, refusal.reason, refusal.message)
    stored = RefusalRecord(refusal.offer, refusal.reason, refusal.message, now, refusal.final)
    return replace(record, refusal=stored, conditions=conditions.result())


def lifted(record: JobRecord) -> JobRecord:
    """Return the record once a gang that was refused for good would fit."""
    return record if record.refusal is None else replace(record, refusal=None)


def preempted(record: JobRecord, why: Preemption, now: float) -> JobRecord:
    """Return the record once the pool wants the job's GPUs for another."""
    if why.reason == SLOWS_OTHERS:
        record = residency.slowed_others(record)
    return preemption.begin(record, why, now)


def called_off(record: JobRecord) -> JobRecord:
    """Return the record once nobody waits for the GPUs of a job that was preempted; the same one if it is
    too late."""
    return preemption.call_off(record)


def with_policy_state(record: JobRecord, policy_state: tuple[int, ...]) -> JobRecord:
    """Return the record with what the pool's queue policy asks to remember of the job."""
    known = record.queue_policy_state == policy_state
    return record if known else replace(record, queue_policy_state=policy_state)


def handed(record: JobRecord, target: JobKey, now: float) -> JobRecord:
    """Return the stopped job's record once its GPUs were given to ``target``; the first hand-over is kept."""
    decision = record.decision
    if decision is None or decision.handed_to is not None:
        return record
    # The pool may have seen its pods gone a moment before this record says so.
    at = max(now, decision.pods_gone_at or now)
    return replace(record, decision=replace(decision, handed_to=target, handed_at=at))


def waiting(record: JobRecord, desired: Desired, why: Waiting, now: float) -> JobRecord:
    """Return the record with the pool's reason in condition Admitted; the same record if nothing is new.

    The queue position is not in it: positions change all the time and are served on demand.
    """
    known = record.condition(c.ADMITTED)
    if known is not None and not known.status and (known.reason, known.message) == (why.reason, why.message):
        return record
    conditions = Conditions(record.conditions, desired.generation, now)
    conditions.set(c.ADMITTED, False, why.reason, why.message)
    return replace(record, conditions=conditions.result())


def held_back(record: JobRecord, desired: Desired, why: HeldBack, now: float) -> JobRecord:
    """Return the record with the pool's reason for not releasing it; the same record if the reason is known.

    The numbers in the message are those of the first time: they change at every pass.
    """
    if why.reason == ASKS_POOL and record.delayed_at is None:
        record = replace(record, delayed_at=now)
    known = record.condition(c.TERMINATION)
    if known is not None and not known.status and known.reason == why.reason:
        return record
    conditions = Conditions(record.conditions, desired.generation, now)
    conditions.set(
        c.TERMINATION, False, why.reason, f"to be stopped, but held back by the pool: {why.message}"
    )
    return replace(record, conditions=conditions.result())
