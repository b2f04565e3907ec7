"""Best evals whose checkpoint is lost: when it is given up, what replaces it, when it is searched again.

Some checkpoints appear late.
"""

from __future__ import annotations

from collections.abc import Collection

from controller.policy.job import access_requests, lives, remedies, rotation
from controller.policy.job import conditions as c
from controller.policy.job.bests import keepable, stand_anew
from controller.policy.job.context import PlanContext
from controller.policy.job.cures import key_of
from controller.policy.job.record import Best, InFlight, Operation
from controller.policy.types import Attempt, Problem

FINISH_TRIES = 3  # failed tries after which a checkpoint is lost that is not there
# The same once the run has ended: nothing can come any more, but for a save that is just through, or that the
# store does not list yet.
ENDED_TRIES = 2
LOST_TRIES = 6  # failed tries after which a checkpoint that is not whole is given up, with
LOST_EVALS = 2  # as many evals after its own
LOOK_AGAIN = 300.0  # s after which the checkpoint of the best eval is looked for again though it was lost

LOST = "BestCheckpointLost"  # reason of BestCheckpointSecured
CHANGED = "DigestMismatch"  # what was pinned is there no more, and its score is of nothing that lies there
# What will not come right by trying again: the checkpoint itself is not what it was.
DAMAGED = frozenset({CHANGED, "CheckpointMissing", "CheckpointIncomplete"})
MISSING = frozenset({"CheckpointMissing", "CheckpointIncomplete"})


def late(context: PlanContext) -> Best | None:
    """Return the best eval, if its checkpoint is lost and it is time to look for it again."""
    record, waited, best = context.record, context.record.access, context.record.best
    if best is None or best not in record.lost_bests:
        return None
    if record.secured is not None and record.secured.stands_for(best):
        return None
    if best in record.changed_bests:
        return None  # what lies there is not what was evaluated
    if waited is not None and waited.is_for(best):
        return best
    if waited is not None and (waited.tries < LOST_TRIES or access_requests.running(context, waited)):
        return None  # that of another eval is asked for now
    tried, ended = record.lost_tried or 0.0, _ended_at(context)
    if ended is not None:
        return best if tried < ended else None  # once more, for what came last
    left = tried + LOOK_AGAIN - context.now
    if left > 0.0:
        context.wake_in(left)
        return None
    return best


def given_up(
    context: PlanContext, waited: InFlight, tries: int, problem: Problem, lowest: int | None
) -> bool:
    """Return whether the checkpoint of a best eval is given up for now: so many tries failed, the last one
    so.

    ``lowest``: the lowest step of which any checkpoint was there then; None: not known.
    """
    enough = FINISH_TRIES if problem.reason == "CheckpointMissing" else LOST_TRIES
    if _ended_at(context) is not None:
        enough = ENDED_TRIES
    if any(waited.is_for(lost) for lost in context.record.lost_bests):
        context.update(access=None, lost_tried=context.now)  # looked for again, and still not there
        context.wake_in(0.0)
        return True
    if problem.reason in MISSING and tries >= enough and _overtaken(context, waited):
        context.update(access=None)
        lose(context, _of(waited), problem, _lay_below(context, waited, lowest))
        return True
    return False


def _overtaken(context: PlanContext, waited: InFlight) -> bool:
    """Return whether the trainer has gone on so far that the checkpoint of this eval is not still being
    written."""
    later = sum(1 for p in context.record.evals if p.step > waited.step)
    scrape = context.observed.scrape
    saved = scrape.checkpoint_step if scrape is not None else None
    if saved is not None and saved > waited.step:
        return True  # a later save is through
    if _ended_at(context) is not None or lives.has_ended(context.record, waited.attempt):
        return True
    return later >= LOST_EVALS or all(p.attempt != waited.attempt for p in context.record.evals)


def _ended_at(context: PlanContext) -> float | None:
    """Return since when (s) the run has ended, by itself or by its stop, and no pod of it can save any
    more."""
    decision = context.record.decision
    if context.pods_left:
        return None
    if context.record.finished is not None:
        conditions = (context.conditions.get(type_) for type_ in (c.COMPLETED, c.FAILED))
        return max((one.since for one in conditions if one is not None and one.status), default=0.0)
    return decision.suspended_at if decision is not None else None


def drop_pin(context: PlanContext, waited: InFlight, problem: Problem) -> None:
    """Give up the pin that was to be copied, since its content is missing or was changed.

    A missing pin is made again from what the trainer still has. If the content was changed, so was the
    trainer's, which is the same file: that eval's checkpoint is lost.
    """
    context.conditions.set(
        c.RETAINED, False, problem.reason, remedies.of(problem, context.layout), warning=True
    )
    damaged = context.record.secured
    context.update(access=None, secured=None)
    if problem.reason == CHANGED:
        if damaged is not None:  # one that is missing may be there again: it is not let go
            access_requests.release(context, damaged.path)
        lose(context, _of(waited), problem)
        return
    delay = access_requests.retry_delay(1)  # not at once: what it is made anew from may be going too
    retried = remedies.retry(problem, 1, delay, context.layout)
    context.conditions.set(c.SECURED, False, problem.reason, retried, warning=True)
    access_requests.begin(
        context,
        Operation.SECURE,
        waited.step,
        attempt=waited.attempt,
        score=waited.score,
        not_before=context.now + delay,
    )
    context.wake_in(delay)


def still_told(context: PlanContext, waited: InFlight, reason: str, message: str) -> tuple[str, str]:
    """Return reason and message of the condition after a try that failed: of one that looks for another
    eval's checkpoint in place of the lost best's, that the best's is lost comes first."""
    best = context.record.best
    if best is None or not context.record.best_is_lost or reason not in MISSING:
        return reason, message
    lost = f"the checkpoint of the best eval, step {best.step} ({best.score:g}), is lost"
    of = Best(waited.step, 0.0, waited.attempt).beside(best)
    return LOST, f"{lost}; of {of}, looked for in its place: {message}"


def _of(waited: InFlight) -> Best | None:
    """Return the eval that a request is for; None: it counts for nothing any more."""
    return None if waited.score is None else Best(waited.step, waited.score, waited.attempt)


def _lay_below(context: PlanContext, waited: InFlight, lowest: int | None) -> Collection[tuple[Attempt, int]]:
    """Return the evals (attempt and life, step) of which nothing lay there when ``waited`` was looked for.

    They are those before the step ``lowest`` that had been followed by others then: what a process had only
    just evaluated may have been saved since.
    """
    record = context.record
    if waited.started is None or lowest is None:
        return ()
    newer = sum(1 for time in record.eval_times if time + 1.0 > waited.started)
    followed = record.evals[: max(0, len(record.evals) - newer - 1)]
    return {(p.attempt, p.step) for p in followed if p.step < lowest}


def lose(
    context: PlanContext,
    lost_best: Best | None,
    problem: Problem,
    others: Collection[tuple[Attempt, int]] = (),
) -> None:
    """Record that the checkpoint of this eval is lost; the best eval that still has one takes its place.

    None: an eval that counts for nothing any more. ``others``: evals (attempt and life, step) that have none
    either. To look for one after the other, a minute or so each, would let rotation take what still lies
    there.
    """
    record = context.record
    if lost_best is None:
        return
    # Of those that can no longer be asked for nothing needs to be known.
    known = {(p.attempt, p.step) for p in record.evals}
    lost = (b for b in record.lost_bests if b == record.best or (b.attempt, b.step) in known)
    context.update(lost_bests=(*(b for b in lost if b != lost_best), lost_best), lost_tried=context.now)
    if problem.reason == CHANGED:
        changed = (b for b in record.changed_bests if b in context.record.lost_bests and b != lost_best)
        context.update(changed_bests=(*changed, lost_best))
    now = keepable(context.record, context.desired.direction, context.use)
    while now is not None and (now.attempt, now.step) in others and not context.record.keeps(now):
        context.update(lost_bests=(*context.record.lost_bests, now))
        now = keepable(context.record, context.desired.direction, context.use)
    if context.use is not None:
        context.record = stand_anew(context.record, context.use)
    instead = (
        f"the best eval that may still have one is at {now.beside(lost_best)} ({now.score:g})"
        if now is not None
        else "no other eval has one"
    )
    how = "was changed after it had been pinned" if problem.reason == CHANGED else "is lost"
    message = (
        f"the checkpoint of the best eval, step {lost_best.step} ({lost_best.score:g}), {how}: {instead}; "
    )
    misplaced = key_of(problem.reason, problem.message) != problem.reason  # its message says what helps
    if problem.reason != CHANGED and not misplaced:
        message += f"what helps: {rotation.remedy(context.layout)}; "
    message += problem.message
    context.conditions.set(c.SECURED, False, LOST, message, warning=True)
    context.wake_in(0.0)
