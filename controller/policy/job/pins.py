"""Checkpoints that a user pins: secured like the best one, and kept while the spec names them.

One access Job at a time, and the best checkpoint comes first: a pin waits for it and never holds it up. What
the spec no longer names is let go by the next Job that secures something, never by a Job of its own.
"""

from __future__ import annotations

from controller.policy.job import access_requests, lives, location_claim, remedies
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.record import InFlight, Operation, ProtectedCheckpoint
from controller.policy.job.types import AccessView, StartAccess
from controller.policy.types import Problem

_LATER = "WaitsItsTurn"
_NO_WORKLOAD = (
    "cannot be pinned, for the run is off and its workload gone, whose pod template says how they are "
    "reached; copy them, or have the run go on"
)


def keep(context: PlanContext) -> None:
    """See to it that the checkpoints which the spec pins are secured; says how that stands."""
    wanted, waited = context.desired.pins, context.record.access
    _take_back(context)
    if not wanted:
        context.conditions.drop(c.PINNED)
        if (
            waited is not None
            and waited.operation is Operation.PIN
            and not access_requests.running(context, waited)
        ):
            access_requests.give_up(context)
        return
    missing = _missing(context)
    if not missing:
        steps = ", ".join(map(str, sorted(wanted)))
        context.conditions.set(
            c.PINNED, True, "Pinned", f"checkpoints of steps {steps} are kept from rotation"
        )
        return
    if context.observed.workload is None:  # access Jobs run by its template
        text = ", ".join(map(str, missing))
        context.conditions.set(c.PINNED, False, "WorkloadGone", f"step {text}: {_NO_WORKLOAD}")
        return
    if location_claim.goes_first(context, retries=True):
        return
    if location_claim.comes_first(context):
        _report_taken(context, missing)
        return
    if waited is not None and waited.operation not in (Operation.PIN, Operation.CLAIM):
        wait(context)  # the best one goes first, and what the trainer may write over
        return
    due = [step for step in missing if not _to_come(context, step)]
    if not due:
        text = ", ".join(map(str, missing))
        context.conditions.set(
            c.PINNED, False, "WaitingForCheckpoint", f"the trainer has not saved step {text} yet"
        )
        return
    if waited is None or waited.operation is Operation.CLAIM or waited.step not in missing:
        if (
            waited is not None
            and waited.operation is Operation.PIN
            and access_requests.running(context, waited)
        ):
            return
        access_requests.give_way(context)
        known = context.record.condition(c.PINNED)
        if known is None or known.status or known.reason in ("WaitingForCheckpoint", _LATER):
            context.conditions.set(c.PINNED, False, "Pinning", f"step {due[0]} is being pinned")
        attempt = lives.newest(context.record)
        waited = access_requests.begin(
            context, Operation.PIN, due[0], attempt=attempt, score=_score(context, due[0])
        )
    request = StartAccess(
        waited.request_id,
        Operation.PIN,
        waited.step,
        release=waited.release,
        attempt=waited.attempt,
        branch=lives.branch(context.record, waited.attempt),
    )
    access_requests.start(context, waited, request)


def wait(context: PlanContext) -> None:
    """Something more urgent is to be done: says so of pins of which nothing is said yet."""
    missing, known, waited = _missing(context), context.record.condition(c.PINNED), context.record.access
    if not missing or waited is None or (known is not None and not known.status):
        return
    text = ", ".join(map(str, missing))
    first = f"{waited.operation}, step {waited.step}"
    context.conditions.set(c.PINNED, False, _LATER, f"step {text} is pinned after what goes first: {first}")


def _report_taken(context: PlanContext, missing: list[int]) -> None:
    text, claim = ", ".join(map(str, missing)), context.record.claim
    remedy = remedies.of(Problem(access_requests.TAKEN, claim.message if claim is not None else ""))
    context.conditions.set(c.PINNED, False, access_requests.TAKEN, f"step {text}: {remedy}", warning=True)


def _missing(context: PlanContext) -> list[int]:
    known = {kept.step for kept in context.record.pinned}
    return [step for step in context.desired.pins if step not in known]


def take_answer(context: PlanContext, waited: InFlight, answered: AccessView) -> None:
    """Write a pin's answer into the record. After a failure the next missing step has its turn."""
    step = waited.step
    if answered.ok:
        kept = ProtectedCheckpoint(
            step,
            step,
            answered.path,
            answered.digest,
            context.now,
            answered.bytes,
            waited.score,
            waited.attempt,
            waited.baseline,
            answered.evidence,
            answered.method,
        )
        access_requests.let_go(context, waited)
        if step not in context.desired.pins:  # taken back while it was being made
            context.update(access=None)
            access_requests.release(context, kept.path)
            return
        others = tuple(k for k in context.record.pinned if k.step != step)
        pinned = tuple(sorted((*others, kept), key=lambda k: k.step))
        to_release = tuple(p for p in context.record.to_release if p != kept.path)
        context.update(access=None, pinned=pinned, to_release=to_release)
        return
    tries = waited.tries + 1
    delay = access_requests.retry_delay(tries, access_requests.RETRY_RARELY)
    reason = answered.reason or "AccessFailed"
    problem = Problem(reason, f"step {step} of spec.checkpoints.pins: {answered.message}")
    message = remedies.retry(problem, tries, delay)
    context.conditions.set(c.PINNED, False, reason, message, warning=True)
    turn = _after(context, step)
    if turn is None:
        context.update(access=None)
        return
    access_requests.begin(
        context,
        Operation.PIN,
        turn,
        attempt=waited.attempt,
        score=_score(context, turn),
        tries=tries,
        not_before=context.now + delay,
    )
    context.wake_in(delay)


def _take_back(context: PlanContext) -> None:
    """Release the pins that the spec no longer names. One that is named again later is pinned again."""
    record, wanted = context.record, context.desired.pins
    dropped = tuple(kept.path for kept in record.pinned if kept.step not in wanted)
    if dropped:
        context.update(pinned=tuple(kept for kept in record.pinned if kept.step in wanted))
        access_requests.release(context, *dropped)


def _to_come(context: PlanContext, step: int) -> bool:
    """Return whether the trainer itself says that it has not saved so far yet."""
    scrape = context.observed.scrape
    running = context.record.admission is not None and context.record.finished is None
    return (
        running
        and scrape is not None
        and scrape.checkpoint_step is not None
        and scrape.checkpoint_step < step
    )


def _after(context: PlanContext, step: int) -> int | None:
    """Return the next step whose turn it is: a pin that fails does not keep the others from being tried."""
    pinned = {kept.step for kept in context.record.pinned}
    missing = sorted(s for s in context.desired.pins if s not in pinned and not _to_come(context, s))
    return next((s for s in missing if s > step), missing[0] if missing else None)


def _score(context: PlanContext, step: int) -> float | None:
    """Return the score of that step's eval; None: it is not known."""
    best = context.record.best
    if best is not None and best.step == step:
        return best.score
    return next((p.score for p in context.record.evals if p.step == step), None)
