"""The best checkpoint of a run that is stopped: what must be in safety before the suspend, and what follows.

Before the suspend of an automatic stop the best checkpoint is pinned, and copied out of the trainer's reach;
with `Retain.AFTER_SUSPEND` it is enough that the pin is unchanged since its digest, and the copy follows. A
new best under a verdict that stands goes through the same.

A user's stop waits for the same, but not for ever: after a few failed tries, or when nothing has moved for a
while, the run is suspended, the condition says what is missing, and the operator goes on trying.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import checkpoints, location_claim, lost_bests
from controller.policy.job import conditions as c
from controller.policy.job.context import Draft
from controller.policy.job.types import Best, Decision, Kept, Operation, Retain, SetFinalizer
from controller.policy.job.withdrawal import is_users, unsettle

USER_TRIES = 3  # failed tries after which a user's stop waits no longer
USER_STILL = 300.0  # s without a byte moved after which it does not either
DELETED_TRIES = 5  # failed tries after which a deleted RLHFJob goes without its copy
DELETED_STILL = 600.0  # s
GIVEN_UP = "RetentionGivenUp"


def settled(draft: Draft) -> bool:
    """Take the next step before the suspend; True once nothing more is to be waited for."""
    decision = draft.record.decision
    assert decision is not None
    if not draft.observed.finalizer and _anything(draft) and not draft.desired.deleting:
        # At once: a finalizer cannot be put on an object that is being deleted.
        draft.act(SetFinalizer(True))
    return _settled_user(draft, decision) if is_users(draft) else _settled_rule(draft)


def follows(draft: Draft) -> bool:
    """After the suspend: go on with what was not done before it; True while something is owed."""
    decision = draft.record.decision
    if decision is None or decision.deferred_at is None or decision.retained_at is not None:
        return False
    waited = draft.record.access
    if waited is not None and waited.operation is Operation.RESTORE:
        return True  # its user wants it to go on: that comes first
    if draft.observed.workload is None and draft.desired.workload_ref:
        _nothing(draft, "the workload is gone; the best checkpoint stays pinned where the trainer wrote")
        return False
    if checkpoints.to_pin(draft) is not None:
        checkpoints.secure_best(draft)
        return True
    secured = draft.record.secured
    if secured is None:
        _nothing(draft, "no checkpoint of this run could be pinned, so none was copied")
        return False
    return not _copied_now(draft, secured)


def promised(draft: Draft) -> bool:
    """Whether a deletion finds a stop whose copy is not made yet."""
    decision = draft.record.decision
    return decision is not None and decision.retained_at is None and _anything(draft)


def before_deletion(draft: Draft) -> bool:
    """The RLHFJob is being deleted: whether it still waits for the copy of its best checkpoint."""
    secured, told = draft.record.secured, draft.conditions.get(c.RETAINED)
    if secured is None or (told is not None and told.reason == GIVEN_UP):
        return False
    if hopeless(draft, DELETED_TRIES, DELETED_STILL):
        return False
    return not _copied_now(draft, secured)


def hopeless(draft: Draft, tries: int, still: float) -> bool:
    """Whether what is asked for now has failed so often, or not moved for so long (s)."""
    waited = draft.record.access
    if waited is None or waited.operation in (Operation.PIN, Operation.CLAIM, Operation.RESTORE):
        return False
    if waited.tries >= tries:
        return True
    view = next((a for a in draft.observed.access if a.request_id == waited.request_id), None)
    moved = waited.started
    if view is not None and view.progress is not None:
        moved = max(view.progress.moved_at, moved or 0.0)
    if moved is None:
        return False
    if (left := moved + still - draft.now) > 0:
        draft.wake_in(left + 1.0)
        return False
    return True


def copy_of(secured: Kept, decision: Decision, retained: tuple[Kept, ...]) -> Kept | None:
    """The copy of this pin that was made or verified for this stop."""
    same = (k for k in retained if (k.attempt, k.best_step) == (secured.attempt, secured.best_step))
    return next((k for k in same if k.at >= decision.at), None)


def best_of(draft: Draft, candidates: tuple[Kept, ...]) -> Kept | None:
    """The best by score, of equals the newest; those whose score is unknown, or on another scale, last."""
    scale = draft.record.scale_number
    sign = 1.0 if draft.desired.direction == "Maximize" else -1.0
    best: tuple[tuple[bool, float, float], Kept] | None = None
    for kept in candidates:
        counts = kept.score is not None and kept.scale == scale
        rank = (counts, sign * kept.score if counts and kept.score is not None else 0.0, kept.at)
        if best is None or rank >= best[0]:
            best = rank, kept
    return None if best is None else best[1]


def _settled_rule(draft: Draft) -> bool:
    secured = draft.record.secured
    if checkpoints.to_pin(draft) is not None or secured is None:
        unsettle(draft)
        checkpoints.secure_best(draft)
        return False
    if draft.desired.retain is Retain.AFTER_SUSPEND:
        decision = draft.record.decision
        assert decision is not None
        if copy_of(secured, decision, draft.record.retained) is None:
            if decision.deferred_at is None:
                checkpoints.check_secured(draft, secured)
            return decision.deferred_at is not None
    elif draft.record.decision is not None and draft.record.decision.deferred_at is not None:
        unsettle(draft)  # spec.checkpoints.retain was changed
    return _copied_now(draft, secured)


def _settled_user(draft: Draft, decision: Decision) -> bool:
    """Once a copy is made or put off, a newer best is pinned and copied after the suspend."""
    if decision.deferred_at is not None:
        return True
    secured, wanted = draft.record.secured, checkpoints.to_pin(draft)
    if decision.retained_at is not None:
        if wanted is None and (secured is None or copy_of(secured, decision, draft.record.retained)):
            return True
        step = wanted.step if wanted is not None else draft.record.best.step if draft.record.best else 0
        _put_off(draft, "NewBest", f"a newer best at step {step} is copied once it is suspended")
        return True
    if draft.observed.workload is None and draft.desired.workload_ref:
        _nothing(draft, "the workload is gone; the best checkpoint stays pinned where the trainer wrote")
        draft.update(decision=replace(decision, retained_at=None, deferred_at=draft.now))
        return True
    if secured is None and wanted is None:
        _nothing(draft, "stopped on request; there is no checkpoint to retain")
        draft.update(decision=replace(decision, deferred_at=draft.now))
        return True
    told = draft.conditions.get(c.RETAINED)
    if told is not None and not told.status and told.reason in lost_bests.DAMAGED:
        _put_off(draft, told.reason, f"suspended without a copy, which is still tried: {told.message}")
        return True
    if hopeless(draft, USER_TRIES, USER_STILL) or _lost_meanwhile(draft, decision, wanted):
        told = draft.conditions.get(c.RETAINED if _access_copies(draft) else c.SECURED)
        why = told.message if told is not None and not told.status else "nothing has moved for a while"
        reason = told.reason if told is not None and not told.status else "AccessStalled"
        _put_off(draft, reason, f"suspended without a copy, which is still tried: {why}")
        return True
    if wanted is not None or secured is None:
        checkpoints.secure_best(draft)
        if checkpoints.to_pin(draft) is None and draft.record.secured is not None:
            draft.wake_in(0.0)
            return False
        if location_claim.goes_first(draft):
            return False
        if not _for_best(draft):
            what = f"the best eval's step {wanted.step if wanted else 0} has no checkpoint yet"
            _put_off(draft, "WaitingForCheckpoint", f"{what}: it is looked for once the run is suspended")
            return True
        return False
    if draft.desired.retain is Retain.AFTER_SUSPEND:
        checkpoints.check_secured(draft, secured)
        return False
    return _copied_now(draft, secured)


def _lost_meanwhile(draft: Draft, decision: Decision, wanted: Best | None) -> bool:
    """Whether a best was given up since the stop was asked for: that took its tries, and each of those that
    stand in for it may take as many."""
    tried = draft.record.lost_tried
    return wanted is not None and tried is not None and tried >= decision.at


def _copied_now(draft: Draft, secured: Kept) -> bool:
    """Have the pin copied; True once it is, which is then on record."""
    decision = draft.record.decision
    assert decision is not None
    copy = copy_of(secured, decision, draft.record.retained)
    if copy is None:
        if decision.retained_at is not None:
            draft.update(decision=replace(decision, retained_at=None))
        checkpoints.retain_secured(draft, secured)
        return False
    if decision.retained_at is None:
        draft.update(decision=replace(decision, retained_at=copy.at))
    return True


def _put_off(draft: Draft, reason: str, message: str) -> None:
    decision = draft.record.decision
    assert decision is not None
    draft.update(decision=replace(decision, retained_at=None, deferred_at=draft.now))
    draft.conditions.set(c.RETAINED, False, reason, message, warning=True)


def _nothing(draft: Draft, why: str) -> None:
    draft.conditions.set(c.RETAINED, False, "NothingRetained", why, warning=True)


def _anything(draft: Draft) -> bool:
    return draft.record.secured is not None or draft.record.best is not None


def _for_best(draft: Draft) -> bool:
    """Whether something is under way for the best checkpoint."""
    waited = draft.record.access
    return waited is not None and waited.operation not in (Operation.PIN, Operation.CLAIM)


def _access_copies(draft: Draft) -> bool:
    waited = draft.record.access
    return waited is not None and waited.operation in (Operation.RETAIN, Operation.CHECK)
