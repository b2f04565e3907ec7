"""Pins that share their files with the trainer's: copied once the run goes back, told as lost once changed.

A pin on a file system without clones is a second name of the trainer's own files. Rotation does not reach
it, but a trainer that went back and saves a step again in place writes into it. So once a run has gone back
to a step, or is to start from one, the linked pins from that step on are detached: an access Job copies each,
and the copy takes its place on record. What comes too late is told at the next look: every Job that is at
the location compares the pins' files, by size and time of writing, with what was noted when they were made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from controller.policy.job import access_requests, location_claim, lost_bests, remedies
from controller.policy.job import conditions as c
from controller.policy.job.bests import with_pins
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Best, InFlight, JobRecord, Operation, ProtectedCheckpoint
from controller.policy.job.types import AccessView, StartAccess
from controller.policy.types import Mode, Problem

_GIVES_WAY = (Operation.DETACH, Operation.PIN, Operation.CLAIM)
_HOW = "its files were changed after it had been pinned"


def detach(context: PlanContext) -> None:
    """See to it that the linked pins which the trainer may come to write over are copied, one at a time."""
    kept, waited = at_risk(context), context.record.access
    if kept is None or context.observed.workload is None:
        return
    if waited is not None and waited.operation not in _GIVES_WAY:
        return  # a new best goes first, and what a stop asks for
    if location_claim.goes_first(context) or location_claim.comes_first(context):
        return
    if waited is None or waited.operation is not Operation.DETACH or not _is_of(waited, kept):
        access_requests.give_way(context)
        waited = access_requests.begin(
            context, Operation.DETACH, kept.step, attempt=kept.attempt, score=kept.score
        )
    asked = StartAccess(
        waited.request_id,
        Operation.DETACH,
        kept.step,
        source=kept,
        attempt=kept.attempt,
        release=waited.release,
    )
    access_requests.start(context, waited, asked)


def leave_off(context: PlanContext) -> None:
    """Ask no more for the copy of a pin that is at risk no longer. One that is being made is left to end."""
    waited = context.record.access
    if waited is None or waited.operation is not Operation.DETACH:
        return
    kept = at_risk(context)
    if (kept is None or not _is_of(waited, kept)) and not access_requests.running(context, waited):
        access_requests.give_up(context)


def at_risk(context: PlanContext) -> ProtectedCheckpoint | None:
    """Return a linked pin that the trainer may write over: the run went back to its step, or before it.

    While another process is still to start, that is told by the checkpoint it is to start from; pins of the
    newest process itself lie behind it.
    """
    record, decision = context.record, context.record.decision
    if record.finished is not None or (decision is not None and decision.mode is Mode.ENFORCE):
        return None
    newest = record.lives[-1] if record.lives else None
    number = record.admission.number if record.admission is not None else None
    if newest is not None and newest.attempt.number == number:
        back, own = newest.resumed, newest.attempt
    else:
        back, own = (record.restored.step if record.restored is not None else None), None
    if back is None:
        return None
    return next((k for k in _pins(record) if k.linked and k.step >= back and k.attempt != own), None)


def take_answer(context: PlanContext, waited: InFlight, answered: AccessView) -> None:
    """Put the copy in its pin's place on record; a pin that was changed is lost, another failure is tried
    again."""
    kept = next((k for k in _pins(context.record) if k.linked and _is_of(waited, k)), None)
    context.update(access=None)
    if answered.ok:
        access_requests.let_go(context, waited)
        if kept is None:
            access_requests.release(context, answered.path)
            return
        copy = replace(kept, path=answered.path, method=answered.method)
        _exchange(context, kept.path, copy)
        if copy.path != kept.path:
            access_requests.release(context, kept.path)
        context.wake_in(0.0)
        return
    if kept is None:
        return
    reason = answered.reason or "AccessFailed"
    if reason in lost_bests.DAMAGED:
        _drop(context, kept.path, Problem(reason, answered.message))
        return
    tries = waited.tries + 1
    delay = access_requests.retry_delay(tries)
    what = f"the run went back, and may write over the pin of step {kept.step}, which is linked"
    retried = remedies.retry(Problem(reason, f"{what}: {answered.message}"), tries, delay)
    context.event("PinAtRisk", retried, warning=True)
    access_requests.again(context, waited, tries, context.now + delay)
    context.wake_in(delay)


def drop_changed(context: PlanContext, paths: tuple[str, ...]) -> None:
    """Give up the pins that an access Job found changed, before anything rests on them.

    One that a stop has copied already stays on record: nothing reads it again.
    """
    decision = context.record.decision
    for path in paths:
        kept = context.record.secured
        copied = (
            kept is not None
            and decision is not None
            and any(k.at >= decision.at for k in kept.copies(context.record.retained))
        )
        if kept is None or kept.path != path or not copied:
            _drop(context, path, Problem(lost_bests.CHANGED, f"{path}: {_HOW}"))


def _drop(context: PlanContext, path: str, problem: Problem) -> None:
    """Remove the pin at a path from the record, whatever it was kept for, and say what takes its place."""
    record = context.record
    if all(kept.path != path for kept in _pins(record)):
        return
    secured, beside, baseline = record.secured, record.beside, record.baseline
    if any(k.path == path for k in record.pinned):
        context.update(pinned=tuple(k for k in record.pinned if k.path != path))
        steps = ", ".join(str(k.step) for k in record.pinned if k.path == path)
        message = f"step {steps}: {problem.message}; what the trainer has of that step now is pinned instead"
        context.conditions.set(c.PINNED, False, problem.reason, message, warning=True)
    older = [one for one in baseline.pins if one.path == path] if baseline is not None else []
    if baseline is not None and older:
        left = with_pins(baseline, lambda one: one if one.path != path else None)
        context.update(baseline=left)
        message = f"the checkpoint of step {older[0].step}, best of the former evals, is lost"
        context.event("BestCheckpointLost", f"{message}: {problem.message}", warning=True)
    if beside is not None and beside.path == path:
        context.update(beside=None)
    if secured is not None and secured.path == path:
        context.update(secured=None)
    for kept in (beside, secured):
        if kept is not None and kept.path == path:
            best = Best(kept.best_step, kept.score, kept.attempt) if kept.score is not None else None
            lost_bests.lose(context, best, problem)
    if problem.reason == lost_bests.CHANGED:  # one that is missing may be there again: it is not let go
        access_requests.release(context, path)
    context.wake_in(0.0)


def _pins(record: JobRecord) -> Iterator[ProtectedCheckpoint]:
    """Yield the pins on record, the best's first."""
    older = record.baseline.pins if record.baseline is not None else ()
    for kept in (record.secured, record.beside, *older, *record.pinned):
        if kept is not None:
            yield kept


def _is_of(waited: InFlight, kept: ProtectedCheckpoint) -> bool:
    return (waited.attempt, waited.step) == (kept.attempt, kept.step)


def _exchange(context: PlanContext, path: str, copy: ProtectedCheckpoint) -> None:
    """Put a copy in the place of the pin at ``path``, wherever that is on record."""

    def new(kept: ProtectedCheckpoint | None) -> ProtectedCheckpoint | None:
        if kept is None or kept.path != path:
            return kept
        return replace(kept, path=copy.path, method=copy.method)

    record = context.record
    if record.baseline is not None:
        context.update(baseline=with_pins(record.baseline, new))
    context.update(
        secured=new(record.secured),
        beside=new(record.beside),
        restored=new(record.restored),
        pinned=tuple(k for k in map(new, record.pinned) if k is not None),
    )
