"""Checkpoints that a user pins: put in safety like the best one, and kept there while the spec names them.

One access Job at a time, and the best checkpoint comes first: a pin waits for it and never holds it up. What
the spec no longer names is let go by the next Job that secures something, never by a Job of its own.
"""

from __future__ import annotations

from controller.policy.job import access_requests, lives, location_claim, remedies
from controller.policy.job import conditions as c
from controller.policy.job.context import Draft
from controller.policy.job.types import AccessView, InFlight, Kept, Operation, StartAccess

_LATER = "WaitsItsTurn"
_GONE = (
    "cannot be pinned, for the run is off and its workload gone, whose pod template says how they are "
    "reached; copy them, or have the run go on"
)


def keep(draft: Draft) -> None:
    """See to it that the checkpoints which the spec pins are in safety; says how that stands."""
    wanted, waited = draft.desired.pins, draft.record.access
    _take_back(draft)
    if not wanted:
        draft.conditions.drop(c.PINNED)
        if (
            waited is not None
            and waited.operation is Operation.PIN
            and not access_requests.running(draft, waited)
        ):
            access_requests.give_up(draft)
        return
    missing = _missing(draft)
    if not missing:
        steps = ", ".join(map(str, sorted(wanted)))
        draft.conditions.set(c.PINNED, True, "Pinned", f"checkpoints of steps {steps} are kept from rotation")
        return
    if draft.observed.workload is None:  # access Jobs run by its template
        text = ", ".join(map(str, missing))
        draft.conditions.set(c.PINNED, False, "WorkloadGone", f"step {text}: {_GONE}")
        return
    if location_claim.goes_first(draft, retries=True):
        return
    if location_claim.comes_first(draft):
        _say_taken(draft, missing)
        return
    if waited is not None and waited.operation not in (Operation.PIN, Operation.CLAIM):
        wait(draft)  # the best one goes first
        return
    due = [step for step in missing if not _to_come(draft, step)]
    if not due:
        text = ", ".join(map(str, missing))
        draft.conditions.set(
            c.PINNED, False, "WaitingForCheckpoint", f"the trainer has not saved step {text} yet"
        )
        return
    if waited is None or waited.operation is Operation.CLAIM or waited.step not in missing:
        if (
            waited is not None
            and waited.operation is Operation.PIN
            and access_requests.running(draft, waited)
        ):
            return
        access_requests.give_way(draft)
        known = draft.record.condition(c.PINNED)
        if known is None or known.status or known.reason in ("WaitingForCheckpoint", _LATER):
            draft.conditions.set(c.PINNED, False, "Pinning", f"step {due[0]} is being pinned")
        attempt = lives.newest(draft.record)
        waited = access_requests.begin(
            draft, Operation.PIN, due[0], attempt=attempt, score=_score(draft, due[0])
        )
    request = StartAccess(
        waited.request_id,
        Operation.PIN,
        waited.step,
        release=waited.release,
        attempt=waited.attempt,
        branch=lives.branch(draft.record, waited.attempt),
    )
    access_requests.start(draft, waited, request)


def wait(draft: Draft) -> None:
    """Something more urgent is to be done: says so of pins of which nothing is said yet."""
    missing, known, waited = _missing(draft), draft.record.condition(c.PINNED), draft.record.access
    if not missing or waited is None or (known is not None and not known.status):
        return
    text = ", ".join(map(str, missing))
    first = f"{waited.operation}, step {waited.step}"
    draft.conditions.set(c.PINNED, False, _LATER, f"step {text} is pinned after what goes first: {first}")


def _say_taken(draft: Draft, missing: list[int]) -> None:
    text, claim = ", ".join(map(str, missing)), draft.record.claim
    told = remedies.of(access_requests.TAKEN, claim.message if claim is not None else "")
    draft.conditions.set(c.PINNED, False, access_requests.TAKEN, f"step {text}: {told}", warning=True)


def _missing(draft: Draft) -> list[int]:
    known = {kept.step for kept in draft.record.pinned}
    return [step for step in draft.desired.pins if step not in known]


def take_answer(draft: Draft, waited: InFlight, answered: AccessView) -> None:
    """Write a pin's answer into the record. After a failure the next missing step has its turn."""
    step = waited.step
    if answered.ok:
        kept = Kept(
            step,
            step,
            answered.path,
            answered.digest,
            draft.now,
            answered.bytes,
            waited.score,
            waited.attempt,
            waited.scale,
            answered.evidence,
        )
        access_requests.let_go(draft, waited)
        if step not in draft.desired.pins:  # taken back while it was being made
            draft.update(access=None)
            access_requests.release(draft, kept.path)
            return
        others = tuple(k for k in draft.record.pinned if k.step != step)
        pinned = tuple(sorted((*others, kept), key=lambda k: k.step))
        to_release = tuple(p for p in draft.record.to_release if p != kept.path)
        draft.update(access=None, pinned=pinned, to_release=to_release)
        return
    tries = waited.tries + 1
    delay = access_requests.retry_delay(tries, access_requests.RETRY_RARELY)
    reason = answered.reason or "AccessFailed"
    message = remedies.retry(reason, f"step {step}: {answered.message}", tries, delay)
    draft.conditions.set(c.PINNED, False, reason, message, warning=True)
    turn = _after(draft, step)
    if turn is None:
        draft.update(access=None)
        return
    access_requests.begin(
        draft,
        Operation.PIN,
        turn,
        attempt=waited.attempt,
        score=_score(draft, turn),
        tries=tries,
        not_before=draft.now + delay,
    )
    draft.wake_in(delay)


def _take_back(draft: Draft) -> None:
    """Notes which pins are no longer wanted. One that is named again meanwhile is pinned anew."""
    record, wanted = draft.record, draft.desired.pins
    gone = tuple(kept.path for kept in record.pinned if kept.step not in wanted)
    if gone:
        draft.update(pinned=tuple(kept for kept in record.pinned if kept.step in wanted))
        access_requests.release(draft, *gone)


def _to_come(draft: Draft, step: int) -> bool:
    """Whether the trainer itself says that it has not saved so far yet."""
    scrape = draft.observed.scrape
    running = draft.record.admission is not None and draft.record.finished is None
    return (
        running
        and scrape is not None
        and scrape.checkpoint_step is not None
        and scrape.checkpoint_step < step
    )


def _after(draft: Draft, step: int) -> int | None:
    """The next step whose turn it is: a pin that fails does not keep the others from being tried."""
    pinned = {kept.step for kept in draft.record.pinned}
    missing = sorted(s for s in draft.desired.pins if s not in pinned and not _to_come(draft, s))
    return next((s for s in missing if s > step), missing[0] if missing else None)


def _score(draft: Draft, step: int) -> float | None:
    """The score of that step's eval; None: it is not known."""
    best = draft.record.best
    if best is not None and best.step == step:
        return best.score
    return next((p.score for p in draft.record.evals if p.step == step), None)
