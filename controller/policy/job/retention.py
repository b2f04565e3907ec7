"""The best checkpoint of a run that is stopped: what must be retained before the suspend, and what follows.

Before the suspend of an automatic stop the best checkpoint is pinned, and copied out of the trainer's reach;
with `Retain.AFTER_SUSPEND` it is enough that the pin is unchanged since its digest, and the copy follows. A
new best under a verdict that stands goes through the same, once. Where bests come faster than they are
copied, as under a guardrail's stop while the Primary metric rises, the run is suspended with the pin made
since the decision, and the newest best is pinned and copied then: nothing rotates it any more.

A user's stop waits for the same, but not for ever: after a few failed tries, or when nothing has moved for a
while, the run is suspended, the condition says what is missing, and the operator goes on trying.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import access_requests, checkpoints, location_claim, lost_bests, remedies
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.past_losses import NOTHING_RETAINED
from controller.policy.job.record import Best, Condition, Decision, JobRecord, Operation, ProtectedCheckpoint
from controller.policy.job.types import Retain, SetFinalizer
from controller.policy.job.withdrawal import is_users, unsettle
from controller.policy.types import Mode, Problem

USER_TRIES = 3  # failed tries after which a user's stop waits no longer
USER_STILL = 300.0  # s without a byte moved after which it does not either
DELETED_TRIES = 5  # failed tries after which a deleted RLHFJob goes without its copy
DELETED_STILL = 600.0  # s
GIVEN_UP = "RetentionGivenUp"
# Why a copy has no place, whatever is to be copied: told before a stop that would have to wait for it.
_NO_PLACE = frozenset({"ClaimMissing", "ClaimForOnePod", "PlaceMissing"})
_ELSE = (Operation.PIN, Operation.CLAIM, Operation.DETACH)  # not of a stop


def settled(context: PlanContext) -> bool:
    """Take the next step before the suspend; True once nothing more is to be waited for."""
    decision = context.record.decision
    assert decision is not None
    if not context.observed.finalizer and _anything(context) and not context.desired.deleting:
        # At once: a finalizer cannot be put on an object that is being deleted.
        context.act(SetFinalizer(True))
    return _settled_user(context, decision) if is_users(context) else _settled_rule(context, decision)


def tell_place(context: PlanContext) -> None:
    """Say of a run under way, before there is anything to be copied, that its copies have no place now.

    Pins go on where the trainer writes. Once a stop is decided, what its copies come to is said.
    """
    runs = context.record.admission is not None and context.desired.mode is Mode.ENFORCE
    problem, known = context.observed.no_retention if runs else None, context.conditions.get(c.RETAINED)
    stops = _is_stopped(context.record)
    if problem is not None and (known is None or not stops):
        message = f"{remedies.of(problem, context.layout)}; until then the best checkpoint is pinned where "
        message += "the trainer writes, and no stop of its rule is carried out"
        context.conditions.set(c.RETAINED, False, problem.reason, message, warning=True)
    elif problem is None and not stops and known is not None and _is_no_place(known):
        context.conditions.drop(c.RETAINED)


def place_is_missing(record: JobRecord) -> bool:
    """Return whether it is said of a job that its copies have no place, and no stop has been decided."""
    return place_problem(record) is not None


def place_problem(record: JobRecord) -> Problem | None:
    """Return what is said of that, as it was before its remedy was added; None: nothing is."""
    known = record.condition(c.RETAINED)
    if known is None or not _is_no_place(known) or _is_stopped(record):
        return None
    return Problem(known.reason, known.message.partition(remedies.HELPS)[0])


def _is_no_place(known: Condition) -> bool:
    return not known.status and known.reason in _NO_PLACE


def _is_stopped(record: JobRecord) -> bool:
    return record.decision is not None and record.decision.mode is Mode.ENFORCE


def follows(context: PlanContext) -> bool:
    """After the suspend: go on with what was not done before it; True while something is owed."""
    decision = context.record.decision
    if decision is None or decision.deferred_at is None or decision.retained_at is not None:
        return False
    waited = context.record.access
    if waited is not None and waited.operation is Operation.RESTORE:
        return True  # its user wants it to go on: that comes first
    if context.observed.workload is None and context.desired.workload_ref:
        _nothing(context, "the workload is gone; the best checkpoint stays pinned where the trainer wrote")
        return False
    if checkpoints.to_pin(context) is not None:
        checkpoints.secure_best(context)
        return True
    secured = context.record.secured
    if secured is None:
        _nothing(context, "no checkpoint of this run could be pinned, so none was copied")
        return False
    return not _copied_now(context, secured)


def promised(context: PlanContext) -> bool:
    """Return whether a deletion finds a stop whose copy is not made yet."""
    decision = context.record.decision
    return decision is not None and decision.retained_at is None and _anything(context)


def before_deletion(context: PlanContext) -> bool:
    """Return whether an RLHFJob that is being deleted still waits for the copy of its best checkpoint."""
    secured, condition = context.record.secured, context.conditions.get(c.RETAINED)
    if secured is None or (condition is not None and condition.reason == GIVEN_UP):
        return False
    if hopeless(context, DELETED_TRIES, DELETED_STILL):
        return False
    return not _copied_now(context, secured)


def hopeless(context: PlanContext, tries: int, still: float) -> bool:
    """Return whether what is asked for now has failed so often, or not moved for so long (s)."""
    waited = context.record.access
    if waited is None or waited.operation in (*_ELSE, Operation.RESTORE):
        return False
    if waited.tries >= tries:
        return True
    view = next((a for a in context.observed.access if a.request_id == waited.request_id), None)
    moved = waited.started
    if view is not None and view.progress is not None:
        moved = max(view.progress.moved_at, moved or 0.0)
    if moved is None:
        return False
    if (left := moved + still - context.now) > 0:
        context.wake_in(left + 1.0)
        return False
    return True


def copy_of(
    secured: ProtectedCheckpoint, decision: Decision, retained: tuple[ProtectedCheckpoint, ...]
) -> ProtectedCheckpoint | None:
    """Return the copy of this pin that was made or verified for this stop."""
    return next((k for k in secured.copies(retained) if k.at >= decision.at), None)


def best_of(context: PlanContext, candidates: tuple[ProtectedCheckpoint, ...]) -> ProtectedCheckpoint | None:
    """Return the best by score, of equals the newest; those whose score is unknown, or of another baseline,
    last."""
    baseline = context.record.baseline_number
    sign = 1.0 if context.desired.direction == "Maximize" else -1.0
    best: tuple[tuple[bool, float, float], ProtectedCheckpoint] | None = None
    for kept in candidates:
        counts = kept.score is not None and kept.baseline == baseline
        rank = (counts, sign * kept.score if counts and kept.score is not None else 0.0, kept.at)
        if best is None or rank >= best[0]:
            best = rank, kept
    return None if best is None else best[1]


def _settled_rule(context: PlanContext, decision: Decision) -> bool:
    secured, wanted = context.record.secured, checkpoints.to_pin(context)
    if decision.overtaken_by(secured) and (wanted is not None or decision.deferred_at is not None):
        if decision.deferred_at is None and wanted is not None:
            _put_off_newer(context, wanted.step)
        return True
    if wanted is not None or secured is None:
        unsettle(context)
        checkpoints.secure_best(context)
        return False
    if context.desired.retain is Retain.AFTER_SUSPEND:
        if copy_of(secured, decision, context.record.retained) is None:
            if decision.deferred_at is None:
                checkpoints.check_secured(context, secured)
            return decision.deferred_at is not None
    elif decision.deferred_at is not None:
        unsettle(context)  # spec.checkpoints.retain was changed
    return _copied_now(context, secured)


def _settled_user(context: PlanContext, decision: Decision) -> bool:
    """Once a copy is made or put off, a newer best is pinned and copied after the suspend."""
    if decision.deferred_at is not None:
        return True
    secured, wanted = context.record.secured, checkpoints.to_pin(context)
    if decision.retained_at is not None:
        if wanted is None and (secured is None or copy_of(secured, decision, context.record.retained)):
            return True
        step = wanted.step if wanted is not None else context.record.best.step if context.record.best else 0
        _put_off_newer(context, step)
        return True
    if context.observed.workload is None and context.desired.workload_ref:
        _nothing(context, "the workload is gone; the best checkpoint stays pinned where the trainer wrote")
        context.update(decision=replace(decision, retained_at=None, deferred_at=context.now))
        return True
    if secured is None and wanted is None:
        _nothing(context, "stopped on request; there is no checkpoint to retain")
        context.update(decision=replace(decision, deferred_at=context.now))
        return True
    condition = context.conditions.get(c.RETAINED)
    if condition is not None and not condition.status and condition.reason in lost_bests.DAMAGED:
        _put_off(
            context, condition.reason, f"suspended without a copy, which is still tried: {condition.message}"
        )
        return True
    if hopeless(context, USER_TRIES, USER_STILL) or _lost_meanwhile(context, decision, wanted):
        condition = context.conditions.get(c.RETAINED if _access_copies(context) else c.SECURED)
        why = (
            condition.message
            if condition is not None and not condition.status
            else "nothing has moved for a while"
        )
        reason = condition.reason if condition is not None and not condition.status else "AccessStalled"
        _put_off(context, reason, f"suspended without a copy, which is still tried: {why}")
        return True
    if wanted is not None or secured is None:
        checkpoints.secure_best(context)
        if checkpoints.to_pin(context) is None and context.record.secured is not None:
            context.wake_in(0.0)
            return False
        if location_claim.goes_first(context):
            return False
        if not _under_way(context, wanted):
            what = f"the best eval's step {wanted.step if wanted else 0} has no checkpoint yet"
            _put_off(context, "WaitingForCheckpoint", f"{what}: it is looked for once the run is suspended")
            return True
        return False
    if context.desired.retain is Retain.AFTER_SUSPEND:
        checkpoints.check_secured(context, secured)
        return False
    return _copied_now(context, secured)


def _lost_meanwhile(context: PlanContext, decision: Decision, wanted: Best | None) -> bool:
    """Return whether a best was given up since the stop was asked for: that took its tries, and each of those
    that stand in for it may take as many."""
    tried = context.record.lost_tried
    return wanted is not None and tried is not None and tried >= decision.at


def _copied_now(context: PlanContext, secured: ProtectedCheckpoint) -> bool:
    """Have the pin copied; True once it is, which is then on record."""
    decision = context.record.decision
    assert decision is not None
    copy = copy_of(secured, decision, context.record.retained)
    if copy is None:
        if decision.retained_at is not None:
            context.update(decision=replace(decision, retained_at=None))
        checkpoints.retain_secured(context, secured)
        return False
    if decision.retained_at is None:
        context.update(decision=replace(decision, retained_at=copy.at))
    return True


def _put_off(context: PlanContext, reason: str, message: str) -> None:
    decision = context.record.decision
    assert decision is not None
    context.update(decision=replace(decision, retained_at=None, deferred_at=context.now))
    context.conditions.set(c.RETAINED, False, reason, message, warning=True)


def _put_off_newer(context: PlanContext, step: int) -> None:
    _put_off(context, "NewBest", f"a newer best at step {step} is copied once it is suspended")


def _nothing(context: PlanContext, why: str) -> None:
    context.conditions.set(c.RETAINED, False, NOTHING_RETAINED, why, warning=True)


def _anything(context: PlanContext) -> bool:
    return context.record.secured is not None or context.record.best is not None


def _under_way(context: PlanContext, wanted: Best | None) -> bool:
    """Return whether the pin of ``wanted`` is asked for, or something runs that goes before it. A former
    best's copy that is only to be tried again does not: it is copied after the suspend, if ever."""
    waited = context.record.access
    if waited is None or waited.operation in _ELSE:
        return False
    if waited.operation is Operation.SECURE and wanted is not None and waited.is_for(wanted):
        return True
    return access_requests.running(context, waited)


def _access_copies(context: PlanContext) -> bool:
    waited = context.record.access
    return waited is not None and waited.operation in (Operation.RETAIN, Operation.CHECK)
