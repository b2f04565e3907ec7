"""The access Job that is to run now, and what its result changes: secure, retain, check, restore.

What users pin is in `pinning`, the checkpoints that are given up in `lost_bests`.

At most one access Job per RLHFJob. A request's id (operation, step, serial number) is in the record before
the Job is made, so that a restarted operator finds the Job it started before. A pin is recorded under the
eval that it was asked for, known by attempt, life and step, with that eval's score.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import (
    access_pod,
    access_requests,
    folder_gone,
    gone_copies,
    linked_pins,
    lives,
    location_claim,
    lost_bests,
    pins,
    remedies,
    step_counts,
)
from controller.policy.job import conditions as c
from controller.policy.job.bests import higher_of, keepable
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Best, InFlight, JobRecord, Operation, ProtectedCheckpoint
from controller.policy.job.rule_in_use import better
from controller.policy.job.types import AccessView, ForgetAccess, StartAccess
from controller.policy.types import Attempt, Mode, Problem
from controller.policy.wording import EVAL_PROCESS, NO_CHECKPOINT, REPORTED_FIRST, did_you_mean, whole_by

# What the pin of a new best goes before: a user's pin, the copy of a linked one, what is done for a stop with
# the former best, and a claim that takes long (`claiming.goes_first`).
_GIVES_WAY = (
    Operation.SECURE,
    Operation.PIN,
    Operation.DETACH,
    Operation.RETAIN,
    Operation.CHECK,
    Operation.CLAIM,
)


def answer(context: PlanContext) -> AccessView | None:
    """Return the access Job that the record waits for, once it has ended or does not move any more.

    Every other one is cleared away: it has ended, or was given up by a pass that did not come so far.
    """
    waited = context.record.access
    found = None
    for access in context.observed.access:
        if waited is not None and access.request_id == waited.request_id:
            found = access if access.finished else access_requests.stalled(context, waited, access)
        else:
            context.act(ForgetAccess(access.request_id))
    return found


def secure_best(context: PlanContext) -> None:
    """See to it that the checkpoints of the best eval, and of one above it that waits to be borne out, are
    out of rotation's reach."""
    if step_counts.disagree(context.record):
        step_counts.tell(context)
        return
    _settle_beside(context)
    waited = context.record.access
    if waited is not None and waited.operation not in _GIVES_WAY:
        return
    if location_claim.goes_first(context, retries=location_claim.may_tell(context)):
        return
    if location_claim.comes_first(context):
        return
    wanted = lost_bests.late(context) or to_pin(context)
    if (
        waited is not None
        and waited.operation is Operation.SECURE
        and not access_requests.running(context, waited)
    ):
        left = wanted is None or not waited.is_for(wanted)
        early = wanted is not None and not _checkpoint_due(context, wanted)
        if left or early:  # on record it would keep all else waiting
            access_requests.give_up(context)
    if wanted is not None:
        _secure(context, wanted)
    condition, kept = context.conditions.get(c.SECURED), context.record.secured
    best = context.record.best
    if condition is None or condition.status or best is None or kept is None or not kept.stands_for(best):
        return
    if condition.reason == access_pod.MOVING or context.record.access is None:
        _set_secured(context, kept)  # the run went back to it, and the other one's Job was given up


def to_pin(context: PlanContext) -> Best | None:
    """Return the eval whose checkpoint is not pinned and can still be looked for: the best, or one above it
    that is still to be borne out.

    That one goes before those that stand in for a best whose checkpoint is lost: it is worth more, and what
    is older is likely to be gone as well. So it does between the tries of a best's pin that fails.
    """
    record = context.record
    if step_counts.disagree(record):
        return None
    best, awaiting = keepable(record, context.desired.direction, context.use), record.awaiting
    if best is not None and _is_kept(record.secured, best):
        best = None
    if awaiting is not None and (awaiting in record.lost_bests or _is_safe(record, awaiting)):
        awaiting = None
    if best is None or (awaiting is not None and (best != record.best or _comes_between(context, awaiting))):
        return awaiting
    return best


def _comes_between(context: PlanContext, awaiting: Best) -> bool:
    """Return whether what waits above the best is pinned now, for the best's own pin has failed and is to be
    tried again later."""
    record, waited = context.record, context.record.access
    best = record.best
    if waited is None or waited.operation is not Operation.SECURE or best is None:
        return False
    if not better(context.desired.direction, awaiting.score, best.score) or not _checkpoint_due(
        context, awaiting
    ):
        return False
    runs = access_requests.running(context, waited)
    if waited.is_for(awaiting):
        return runs or waited.tries < lost_bests.LOST_TRIES
    return waited.is_for(best) and waited.tries > 0 and not runs


def leave_off(context: PlanContext) -> None:
    """In a mode that secures nothing: what was asked for before it, and does not run, is asked for no more.

    On record it would keep what the user pins waiting. One that runs is left to end: what it pins is good.
    """
    waited, desired = context.record.access, context.desired
    if waited is None or desired.mode is Mode.ENFORCE or access_requests.running(context, waited):
        return
    if waited.operation is Operation.SECURE or (waited.operation is Operation.CLAIM and not desired.pins):
        access_requests.give_up(context)


def _is_safe(record: JobRecord, one: Best) -> bool:
    """Return whether a pin of the two, the best's and that beside it, stands for this eval."""
    return _is_kept(record.secured, one) or _is_kept(record.beside, one)


def _is_kept(kept: ProtectedCheckpoint | None, best: Best) -> bool:
    return kept is not None and kept.stands_for(best)


def _settle_beside(context: PlanContext) -> None:
    """Once the eval that waited is borne out, its checkpoint is the best's; once it is dropped, it may go."""
    record = context.record
    beside, best = record.beside, keepable(record, context.desired.direction, context.use)
    if beside is None:
        return
    if best is not None and beside.stands_for(best):
        _take_the_place(context, beside)
    elif record.awaiting is None or not beside.stands_for(record.awaiting):
        context.update(beside=None)
        access_requests.release(context, beside.path)


def _take_the_place(context: PlanContext, kept: ProtectedCheckpoint) -> None:
    """Make ``kept`` the pin of the best checkpoint; release the former unless it is still wanted."""
    former, awaiting, beside = context.record.secured, context.record.awaiting, context.record.beside
    stays = former is not None and awaiting is not None and former.stands_for(awaiting)
    after = former if stays else None if beside == kept else beside
    context.update(secured=kept, beside=after)
    for gone in (former, beside):
        if gone is not None and gone not in (kept, after):
            _replaced(context, gone, kept)


def _secure(context: PlanContext, best: Best) -> None:
    waited = context.record.access
    if not _checkpoint_due(context, best):
        waits, text = "WaitingForCheckpoint", f"the best eval's step {best.step} has no checkpoint yet"
        if context.record.secured is None:
            access_pod.go_on(context, c.SECURED, waits, text)
        else:
            context.conditions.set(c.SECURED, False, waits, text)
        return
    if waited is None or waited.operation is not Operation.SECURE or not waited.is_for(best):
        # The newest best wins. A secure Job that still runs is left to end, for what it pins is recorded
        # under the eval and the score that it was asked for; all else is asked for again later.
        if (
            waited is not None
            and waited.operation is Operation.SECURE
            and access_requests.running(context, waited)
        ):
            return
        access_requests.give_way(context)
        waited = access_requests.begin(
            context, Operation.SECURE, best.step, attempt=best.attempt, score=best.score
        )
    access_requests.start(context, waited, _secure_request(context, waited))


def take_answer(context: PlanContext, answered: AccessView) -> None:
    """Write an access Job's answer into the record, and let the Job go."""
    waited = context.record.access
    assert waited is not None
    context.act(ForgetAccess(answered.request_id))
    if answered.layout is not None:
        context.update(layout=answered.layout)
    if access_requests.note_owner(context, waited, answered):
        return
    if waited.operation is Operation.PIN:
        pins.take_answer(context, waited, answered)
    elif waited.operation is Operation.CLAIM:
        location_claim.take_answer(context, waited, answered)
    elif waited.operation is Operation.DETACH:
        linked_pins.take_answer(context, waited, answered)
    else:
        context.record = gone_copies.with_answer(context.record, waited, answered)
        (_succeeded if answered.ok else _failed)(context, waited, answered)
    folder_gone.take_answer(context, waited, answered)
    linked_pins.drop_changed(context, answered.changed)


def retain_secured(context: PlanContext, secured: ProtectedCheckpoint) -> None:
    """Copy the secured checkpoint out of the trainer's reach."""
    _ask_of(context, Operation.RETAIN, secured)


def check_secured(context: PlanContext, secured: ProtectedCheckpoint) -> None:
    """Have looked whether the pin is unchanged since its digest."""
    _ask_of(context, Operation.CHECK, secured)


def _ask_of(context: PlanContext, operation: Operation, secured: ProtectedCheckpoint) -> None:
    waited = _ask(context, operation, secured.best_step, secured.attempt, secured.score)
    if waited is not None:
        record = context.record  # whose the latest one is, where that is copied too
        branch = lives.branch(record, lives.newest(record)) if operation is Operation.RETAIN else ()
        asked = StartAccess(
            waited.request_id,
            operation,
            secured.step,
            source=secured,
            attempt=secured.attempt,
            branch=branch,
        )
        access_requests.start(context, waited, asked)


def _ask(
    context: PlanContext,
    operation: Operation,
    step: int,
    attempt: Attempt,
    score: float | None,
) -> InFlight | None:
    """Return the request for this, begun if it is not under way; None: what is under way goes first."""
    waited = context.record.access
    if waited is not None and (waited.operation, waited.step, waited.attempt) == (operation, step, attempt):
        return waited
    if not _yields(context):
        return None
    access_requests.give_way(context)
    return access_requests.begin(context, operation, step, attempt=attempt, score=score)


def _yields(context: PlanContext) -> bool:
    """Return whether what is under way is given up for what a stop or a resume asks for. A secure Job that
    runs is left to end, a first claim for a while."""
    waited = context.record.access
    if (
        waited is not None
        and waited.operation is Operation.SECURE
        and access_requests.running(context, waited)
    ):
        return False
    return not location_claim.goes_first(context)


def restore(context: PlanContext, step: int, source: ProtectedCheckpoint | None, attempt: Attempt) -> None:
    """Copy a retained checkpoint back to the workload's volume; without one, find that step where it lies.

    ``attempt``: the process of whose eval it is, and on whose branch it lies.
    """
    record = context.record
    score = source.score if source is not None else None
    waited = _ask(context, Operation.RESTORE, step, attempt, score)
    if waited is None:
        return
    asked = StartAccess(
        waited.request_id,
        Operation.RESTORE,
        step,
        source=source,
        attempt=waited.attempt,
        branch=lives.branch(record, waited.attempt),
    )
    access_requests.start(context, waited, asked)


def _checkpoint_due(context: PlanContext, best: Best) -> bool:
    """Return whether a checkpoint for the best eval can be there, as far as the trainer's metrics tell.

    Trainers often evaluate first and save right after: looking at once would find the one before.
    """
    scrape, decision = context.observed.scrape, context.record.decision
    if scrape is None or scrape.checkpoint_step is None or scrape.checkpoint_step >= best.step:
        return True
    if decision is not None and decision.suspended_at is not None:
        return True  # whatever it saved is there
    return bool(context.record.evals) and context.record.evals[-1].step > best.step


def _secure_request(context: PlanContext, waited: InFlight) -> StartAccess:
    return StartAccess(
        waited.request_id,
        Operation.SECURE,
        waited.step,
        max_step_lag=context.desired.max_step_lag,
        release=waited.release,
        attempt=waited.attempt,
        branch=lives.branch(context.record, waited.attempt),
    )


def _succeeded(context: PlanContext, waited: InFlight, answered: AccessView) -> None:
    step = answered.step if answered.step is not None else waited.step
    at = context.now
    if waited.operation is Operation.RETAIN and context.record.decision is not None:
        # A copy made for a stop is told from an older one by its time, which must not depend on two clocks.
        at = max(at, context.record.decision.at)
    copied = context.record.secured if waited.operation is Operation.RETAIN else None
    kept = ProtectedCheckpoint(
        waited.step,
        step,
        answered.path,
        answered.digest,
        at,
        answered.bytes,
        waited.score,
        waited.attempt,
        waited.baseline,
        answered.evidence or (copied.evidence if copied is not None else ""),
        answered.method if waited.operation is Operation.SECURE else "",
    )
    context.update(access=None)
    if waited.operation is Operation.SECURE:
        _take_pin(context, waited, kept)
    elif waited.operation is Operation.RETAIN:
        context.update(retained=_remembered(context, kept))
        context.conditions.set(
            c.RETAINED, True, "Retained", f"checkpoint of step {kept.step} is at {kept.path} ({kept.digest})"
        )
    elif waited.operation is Operation.CHECK:
        if context.record.decision is not None:
            context.update(decision=replace(context.record.decision, deferred_at=context.now))
    else:
        context.update(restored=kept)


def _take_pin(context: PlanContext, waited: InFlight, kept: ProtectedCheckpoint) -> None:
    """Record a pin under the eval that it was asked for; what it replaces is let go by a later request."""
    access_requests.let_go(context, waited)
    record = context.record
    context.update(to_release=tuple(p for p in record.to_release if p != kept.path))
    secured, baseline = record.secured, record.baseline
    if baseline is not None and kept.baseline != baseline.number:
        # Meanwhile the scores became another baseline's: it is a candidate for the best of the former one.
        former, short = baseline.kept, baseline.short
        if former is not None and short is not None and kept.baseline > former.baseline:
            highest = higher_of(context.desired.direction, short.highest, kept)
            context.update(baseline=replace(baseline, short=replace(short, highest=highest)))
            left = [one.path for one in (short.highest, kept) if one is not None and one != highest]
            access_requests.release(context, *left)
        elif former is None or kept.baseline > former.baseline or _beats(context, kept, former):
            context.update(baseline=replace(baseline, kept=kept))
            _replaced(context, former, kept)
        else:
            _replaced(context, kept, former)
        return
    if record.awaiting is not None and kept.stands_for(record.awaiting):
        context.update(beside=kept)
        _replaced(context, record.beside, kept)
        return
    best = keepable(record, context.desired.direction, context.use)
    if best is None or not kept.stands_for(best):
        if not _counts(context, kept) or (secured is not None and not _beats(context, kept, secured)):
            access_requests.release(context, kept.path)
            return
        _lead(context, kept)
    _take_the_place(context, kept)
    _set_secured(context, kept)


def _set_secured(context: PlanContext, kept: ProtectedCheckpoint) -> None:
    text = f"checkpoint of step {kept.step} pinned for the best eval at step {kept.best_step}"
    if kept.evidence:
        text += f", {whole_by(kept.evidence)}"
    context.conditions.set(c.SECURED, True, "Secured", text)


def _counts(context: PlanContext, kept: ProtectedCheckpoint) -> bool:
    """Return whether the eval of a pin that came late counts: it was not dropped, and does not wait any
    more."""
    record, score = context.record, kept.score
    if score is None:
        return False
    known = any((p.attempt, p.step) == (kept.attempt, kept.best_step) for p in record.evals)
    if not known or record.best is None or kept.stands_for(record.best):
        return True
    return not better(context.desired.direction, score, record.best.score)  # above the best is what waits


def _lead(context: PlanContext, kept: ProtectedCheckpoint) -> None:
    """Make the pinned eval the best one if its score is better than the best's, whatever branch it is of.

    `evals` decides the same when the answer came before the branch was left.
    """
    best, awaiting, direction = context.record.best, context.record.awaiting, context.desired.direction
    if kept.score is None or (best is not None and not better(direction, kept.score, best.score)):
        return
    if awaiting is not None and not better(direction, awaiting.score, kept.score):
        awaiting = None
    context.update(best=Best(kept.best_step, kept.score, kept.attempt), awaiting=awaiting)


def _replaced(context: PlanContext, former: ProtectedCheckpoint | None, by: ProtectedCheckpoint) -> None:
    if former is not None and former.path != by.path:
        access_requests.release(context, former.path)


def _beats(context: PlanContext, one: ProtectedCheckpoint, other: ProtectedCheckpoint) -> bool:
    """Return whether one stands for a better eval; a score that is not known, or of another baseline, is no
    better."""
    if one.score is None or other.score is None or one.baseline != other.baseline:
        return False
    return better(context.desired.direction, one.score, other.score)


def _remembered(context: PlanContext, kept: ProtectedCheckpoint) -> tuple[ProtectedCheckpoint, ...]:
    """Return the retained checkpoints to keep on record: the newest, and before it the best of the others."""
    others = [k for k in context.record.retained if k.path != kept.path]
    best = others[-1:]
    for other in others[::-1]:
        if _beats(context, other, best[0]):
            best = [other]
    return (*best, kept)


def _other_folder(context: PlanContext, message: str) -> str:
    """Return which folder the template names, where the spec's has no checkpoint, a clause; "": none."""
    empty = NO_CHECKPOINT in message or "is not there" in message
    hint = context.desired.folder_hint if empty else ""
    return f"; the template names {hint}: {did_you_mean(hint)}" if hint else ""


def _reported_first(context: PlanContext, waited: InFlight, answered: AccessView) -> AccessView:
    """Return the answer to a pin that found no checkpoint; where the newest eval came before its checkpoint,
    and each eval has one, it says so."""
    scrape, evals = context.observed.scrape, context.record.evals
    if waited.operation is not Operation.SECURE or answered.reason not in lost_bests.MISSING:
        return answered
    if (
        scrape is None
        or scrape.checkpoint_step is None
        or len(evals) < 2
        or NO_CHECKPOINT in answered.message
    ):
        return answered
    if not evals[-2].step == scrape.checkpoint_step < evals[-1].step:
        return answered
    return replace(
        answered, message=f"{answered.message}; the eval of step {evals[-1].step} {REPORTED_FIRST}"
    )


def _evaluated_apart(context: PlanContext, waited: InFlight, answered: AccessView) -> AccessView:
    """Return the answer to a pin that found no checkpoint of the process whose eval it is; where evals come
    from processes of their own, it says so."""
    if waited.operation is not Operation.SECURE or answered.reason != "CheckpointIncomplete":
        return answered
    apart = lives.apart_clause(context.record)
    if not apart or EVAL_PROCESS in answered.message:
        return answered
    return replace(answered, message=f"{apart}; {answered.message}")  # at its end it might be cut off


def _failed(context: PlanContext, waited: InFlight, answered: AccessView) -> None:
    answered = _reported_first(context, waited, gone_copies.named(waited, answered))
    answered = _evaluated_apart(context, waited, answered)
    tries = waited.tries + 1
    over = context.record.finished is not None
    delay = access_requests.retry_delay(
        tries, access_requests.RETRY_RARELY if over else access_requests.RETRY_MOST
    )
    reason = answered.reason or "AccessFailed"
    problem = Problem(reason, answered.message + _other_folder(context, answered.message))
    message = remedies.retry(problem, tries, delay, context.layout)
    if waited.operation is Operation.SECURE:
        if lost_bests.given_up(context, waited, tries, problem, answered.lowest):
            return
        said, told = lost_bests.still_told(context, waited, reason, message)
        context.conditions.set(c.SECURED, False, said, told, warning=True)
        if reason == access_requests.TAKEN and location_claim.note_taken(context, answered.message):
            context.update(access=None)
            context.wake_in(0.0)
            return
    elif waited.operation in (Operation.RETAIN, Operation.CHECK):
        if reason in lost_bests.DAMAGED:
            # An automatic stop that rested on it is taken back (`withdrawal`).
            lost_bests.drop_pin(context, waited, problem)
            return
        context.conditions.set(c.RETAINED, False, reason, message, warning=True)
    else:
        context.conditions.set(c.RESUMED, False, reason, message, warning=True)
    access_requests.again(context, waited, tries, context.now + delay)
    context.wake_in(delay)
