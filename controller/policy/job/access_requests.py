"""Requests for access Jobs: each is first recorded in the status with its own number, then started.

What a pin's answer needs to be recorded is in the request itself (`jobs.InFlight`), so that it is taken right
whatever has happened to the run meanwhile. Pins that nothing wants any more are let go by their exact paths,
as they were recorded: that is decided once an answer is recorded, and rides on the next request.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job import lives, transfer
from controller.policy.job.context import PlanContext
from controller.policy.job.record import UNKNOWN, Claim, InFlight, JobRecord, Operation
from controller.policy.job.types import AccessView, ForgetAccess, StartAccess
from controller.policy.types import Attempt

RETRY_FIRST = 5.0  # s
RETRY_MOST = 60.0  # s
RETRY_RARELY = 600.0  # s: for what may never come, or where each try is a write
TAKEN = "LocationTaken"
OTHER_OWNER = "OtherOwner"  # the files are another user's, whom the answer names
PERMISSION_DENIED = "PermissionDenied"
_AT_THE_LOCATION = (Operation.SECURE, Operation.PIN, Operation.DETACH)  # they may delete pins as well
RELEASE_MOST = 8  # paths that are remembered as to be let go; what is beyond stays where it lies


def retry_delay(tries: int, most: float = RETRY_MOST) -> float:
    """Return seconds before the next try after ``tries`` failed ones (at least 1): 5, 10, 20, … up to
    ``most``."""
    return min(most, RETRY_FIRST * 2.0 ** min(tries - 1, 32))


def begin(
    context: PlanContext,
    operation: Operation,
    step: int,
    *,
    attempt: Attempt = UNKNOWN,
    score: float | None = None,
    tries: int = 0,
    not_before: float = 0.0,
    former: str = "",
) -> InFlight:
    """Record the next access Job to wait for, under a serial number of its own."""
    record = context.record
    serial = record.access_serial + 1
    waited = InFlight(
        operation,
        step,
        serial,
        tries,
        not_before,
        release=unwanted(record) if operation in _AT_THE_LOCATION else (),
        attempt=attempt,
        score=score,
        baseline=record.baseline_number,
        former=former,
    )
    context.update(access=waited, access_serial=serial)
    return waited


def again(context: PlanContext, waited: InFlight, tries: int, not_before: float) -> InFlight:
    """Record the same request once more, under a new number."""
    return begin(
        context,
        waited.operation,
        waited.step,
        attempt=waited.attempt,
        score=waited.score,
        tries=tries,
        not_before=not_before,
        former=waited.former,
    )


def start(context: PlanContext, waited: InFlight, request: StartAccess) -> None:
    """Start the Job unless it is there already or its time has not come. Starting twice does no harm.

    It is made first, suspended, and set going once its uid is on record: anybody may make a Job of that name.
    """
    if any(a.request_id == waited.request_id for a in context.observed.access):
        return
    if waited.not_before > context.now:
        context.wake_in(waited.not_before - context.now)
        return
    made = dict(context.observed.made).get(waited.request_id, "")
    if context.record.access == waited:
        started = waited.started if waited.started is not None else context.now
        context.update(access=replace(waited, started=started, job_uid=made or waited.job_uid))
    found, owner = context.record.layout, context.record.file_owner
    layout, empty_at = found.name if found is not None else "", context.record.empty_at
    later = lives.later(context.record, request.attempt) if request.branch else ()
    claims = request.branch and request.operation is Operation.CLAIM
    known = tuple(life.attempt for life in context.record.lives) if claims else ()
    context.act(
        replace(
            request,
            later=later,
            known=known,
            job_uid=made,
            layout=layout,
            file_owner=owner,
            empty_at=empty_at,
            claimed=claim_made(context.record),
        )
    )


def claim_made(record: JobRecord) -> Claim | None:
    """Return the claim that has written to the folder whose it is; None: none has, as far as is known."""
    known = record.claim
    return known if known is not None and not known.problem and not record.empty_at else None


def running(context: PlanContext, waited: InFlight) -> bool:
    """Return whether the Job that the record waits for is there and has not ended."""
    return any(a.request_id == waited.request_id and not a.finished for a in context.observed.access)


def stalled(context: PlanContext, waited: InFlight, view: AccessView) -> AccessView | None:
    """Return the answer of a Job that has not moved for too long: it is given up, and what it did is gone on
    with when it is asked again. None: it moves, or may still begin to."""
    if view.since is None:
        view = replace(view, since=waited.started)
    if transfer.stalled(view, context.now):
        # A new Job is refused, or let in, at once; the Job controller tries this one ever more seldom.
        if view.hindered is not None:
            return replace(view, finished=True, ok=False, reason=view.hindered)
        progress = f"; {transfer.describe(view.progress)}" if view.progress is not None else ""
        why = f"its access Job has not moved a byte for {transfer.duration(view.stall)}{progress}"
        return replace(view, finished=True, ok=False, reason="AccessStalled", message=why)
    left = transfer.due_in(view, context.now)
    if left is not None:
        context.wake_in(left + 1.0)
    return None


def note_owner(context: PlanContext, waited: InFlight, answered: AccessView) -> bool:
    """Record whose the checkpoint's files are; return whether the same was asked for again, as that owner.

    An owner that turned out to be none is looked for anew with the next request.
    """
    known, owner = context.record.file_owner, answered.file_owner
    if owner is None:
        if known is not None and answered.reason == PERMISSION_DENIED:
            context.update(file_owner=None)
        return False
    context.update(file_owner=owner)
    if answered.ok or answered.reason != OTHER_OWNER or known is not None:
        return False
    again(context, waited, waited.tries, context.now)
    context.wake_in(0.0)
    return True


def give_up(context: PlanContext) -> None:
    """Wait no longer for the request under way; its Job is deleted if it runs.

    A pin that it may have made is found again when the same is asked for: paths are made from identities.
    """
    waited = context.record.access
    if waited is not None:
        if running(context, waited):
            context.act(ForgetAccess(waited.request_id))
        context.update(access=None)


def give_way(context: PlanContext) -> None:
    """Wait no longer for the request under way, for a more urgent one. Of a claim that is told."""
    waited = context.record.access
    give_up(context)
    if waited is not None and waited.operation is Operation.CLAIM:
        claim = note_unclaimed(context, waited, "GaveWay")
        text = f"try {claim.tries} to claim the checkpoint folder gave way to what is more urgent"
        context.conditions.set(c.CLAIMED, False, "GaveWay", text)


def note_unclaimed(context: PlanContext, waited: InFlight, problem: str, message: str = "") -> Claim:
    """Note that a claim has failed, or gave way to what is more urgent: it is made again some time later.

    That another RLHFJob has the folder stays known until the folder is claimed.
    """
    known, life = context.record.claim, waited.attempt
    if problem != TAKEN and known is not None and known.problem == TAKEN:
        problem, message = TAKEN, known.message
    text = message[: c.MAX_MESSAGE] if problem == TAKEN else ""
    claim = Claim(life.number, context.now, life.life, problem, text, waited.tries + 1)
    context.update(claim=claim)
    return claim


def let_go(context: PlanContext, waited: InFlight) -> None:
    """Remove the pins that a successful access Job has released from those to be released."""
    context.update(to_release=tuple(p for p in context.record.to_release if p not in waited.release))


def release(context: PlanContext, *paths: str) -> None:
    """Note pins that nothing wants any more; what is kept for another reason is not among them."""
    gone = [p for p in dict.fromkeys(paths) if p not in _wanted(context.record)]
    others = tuple(p for p in context.record.to_release if p not in gone)
    context.update(to_release=(*others, *gone)[-RELEASE_MOST:])


def unwanted(record: JobRecord) -> tuple[str, ...]:
    """Return the recorded paths to be released that nothing uses any more."""
    wanted = _wanted(record)
    return tuple(p for p in record.to_release if p not in wanted)


def _wanted(record: JobRecord) -> set[str]:
    older = record.baseline.pins if record.baseline is not None else ()
    kept = (record.secured, record.beside, *older, record.restored, *record.pinned)
    return {one.path for one in kept if one is not None}
