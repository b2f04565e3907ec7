"""What the pool's plan writes into the record of one of its jobs: grant, admission, preemption, refusal, and
why it waits.

Each gives the record as it is to be written before anything is done about it; what follows is the job's own
next plan (`lifecycle`).
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.fleet import ASKS_POOL
from controller.policy.job import AdmissionRecord, Conditions, Decision, Desired, JobRecord, RefusalRecord
from controller.policy.job import conditions as c
from controller.policy.job import preemption as job_preemption
from controller.policy.types import Admission, Grant, HeldBack, JobKey, Mode, Preemption, Refusal, Waiting


def granted(record: JobRecord, desired: Desired, grant: Grant, now: float) -> JobRecord:
    """The record once the pool has released the job: the stop's intent, to be written before any act."""
    proposal = grant.proposal
    guards = {guardrail.metric: guardrail.rule.name for guardrail in desired.guardrails}
    by = guards.get(proposal.metric, desired.rule.name)
    of = f"guardrail {proposal.metric!r}, {by}" if proposal.metric else by
    message = (
        f"{of}: {proposal.reason}, {proposal.statistic:g} against {proposal.threshold:g} "
        f"at step {proposal.step}; best eval at step {proposal.best_step}"
    )
    # What was copied for an earlier stop says nothing of this one.
    left = tuple(known for known in record.conditions if known.type != c.RETAINED)
    decision = Decision(by, Mode.ENFORCE, proposal, message, now)
    return replace(record, decision=decision, preempting=None, delayed_at=None, conditions=left)


def admitted(record: JobRecord, admission: Admission, now: float) -> JobRecord:
    """The record once the pool has granted GPUs: the next attempt, to be written before the start."""
    number = record.attempt + 1
    return replace(
        record,
        attempt=number,
        admission=AdmissionRecord(
            number, admission.nodes, now, admission.source, unbound_since=now, offer=admission.offer
        ),
        preempting=None,
        refusal=None,
    )


def refused(record: JobRecord, desired: Desired, refusal: Refusal, now: float) -> JobRecord:
    """The record once the pool has not taken an offer of quota: to be written before its queue is told."""
    conditions = Conditions(record.conditions, desired.generation, now)
    conditions.set(c.ADMITTED, False, refusal.reason, refusal.message)
    told = RefusalRecord(refusal.offer, refusal.reason, refusal.message, now, refusal.final)
    return replace(record, refusal=told, conditions=conditions.result())


def lifted(record: JobRecord) -> JobRecord:
    """The record once a gang that was refused for good would fit."""
    return record if record.refusal is None else replace(record, refusal=None)


def preempted(record: JobRecord, preemption: Preemption, now: float) -> JobRecord:
    """The record once the pool wants the job's GPUs for another."""
    return job_preemption.begin(record, preemption, now)


def marked(record: JobRecord, mark: tuple[int, ...]) -> JobRecord:
    """The record with what the pool's queue policy asks to remember of the job."""
    return record if record.mark == mark else replace(record, mark=mark)


def handed(record: JobRecord, target: JobKey, now: float) -> JobRecord:
    """The stopped job's record once its GPUs were given to ``target``; the first hand-over is kept."""
    decision = record.decision
    if decision is None or decision.handed_to is not None:
        return record
    # The pool may have seen its pods gone a moment before this record says so.
    at = max(now, decision.pods_gone_at or now)
    return replace(record, decision=replace(decision, handed_to=target, handed_at=at))


def waiting(record: JobRecord, desired: Desired, why: Waiting, now: float) -> JobRecord:
    """The record with the pool's reason in condition Admitted; the same record if nothing is new.

    The queue position is not in it: positions change all the time and are served on demand.
    """
    known = record.condition(c.ADMITTED)
    if known is not None and not known.status and (known.reason, known.message) == (why.reason, why.message):
        return record
    conditions = Conditions(record.conditions, desired.generation, now)
    conditions.set(c.ADMITTED, False, why.reason, why.message)
    return replace(record, conditions=conditions.result())


def held_back(record: JobRecord, desired: Desired, why: HeldBack, now: float) -> JobRecord:
    """The record with the pool's reason for not releasing it; the same record if the reason is known.

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
