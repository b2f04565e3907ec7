"""The checkpoint folder is claimed before each attempt: it is this RLHFJob's, and what lies there is noted.

A checkpoint belongs to the process that wrote it. What lay there before the job's first admission is
nobody's; what lay there when a process began is an earlier one's. So an access Job takes the folder
(`claim`) while the job waits, and again when a process begins within an attempt. A start waits for it a
while only: without it checkpoints are told by the trainer's save records alone.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy import conditions as c
from controller.policy import lives, requests
from controller.policy.draft import Draft
from controller.policy.jobs import AccessView, Claim, InFlight, Operation, StartAccess
from controller.policy.types import Attempt, Mode

START_WAITS = 30.0  # s that a start waits for the folder to be claimed
TAKEN = "LocationTaken"
TAKEN_AGAIN = 60.0  # s after which a folder that another RLHFJob has is asked for again


def before_start(draft: Draft) -> bool:
    """Claim the folder for the attempt to come; whether the start is still to wait for it."""
    if not _wanted(draft):
        return False
    admission = draft.record.admission
    number = admission.number if admission is not None else draft.record.attempt + 1
    known = draft.record.claim
    if known is not None and known.attempt == number and known.problem != TAKEN:
        return False
    _claim(draft, Attempt(number))
    if admission is None:
        return True
    left = admission.at + START_WAITS - draft.now
    if left > 0:
        draft.wake_in(left)
        return True
    if known is None or known.attempt != number:
        why = f"not claimed within {START_WAITS:.0f} s"
        draft.update(claim=Claim(number, draft.now, problem=why))
    return taken(draft)


def within_attempt(draft: Draft) -> None:
    """Claim the folder anew when another process has begun within the attempt, or none was claimed yet."""
    record = draft.record
    if not _wanted(draft) or not record.lives or record.admission is None:
        return
    life, known = record.lives[-1].attempt, record.claim
    first = sum(1 for one in record.lives if one.attempt.number == life.number) == 1
    claimed = known is not None and known.attempt == life.number and not known.problem
    if claimed and (first or (known is not None and known.life == life.life)):
        return
    _claim(draft, life)


def taken(draft: Draft) -> bool:
    """Whether another RLHFJob has the folder: this one is not started then."""
    claim = draft.record.claim
    return claim is not None and claim.problem == TAKEN


def take_answer(draft: Draft, waited: InFlight, answered: AccessView) -> None:
    """Write a claim's answer into the record; a claim that failed is tried again later."""
    life = waited.attempt
    if answered.ok:
        draft.update(access=None, claim=Claim(life.number, draft.now, life.life))
        return
    if answered.reason == TAKEN and _follows(draft, waited, answered):
        return
    if answered.reason == TAKEN:
        draft.update(claim=Claim(life.number, draft.now, life.life, TAKEN))
        draft.conditions.set(c.ACCEPTED, False, TAKEN, answered.message, warning=True)
        delay = TAKEN_AGAIN
    else:
        delay = requests.retry_delay(waited.tries + 1, requests.RETRY_RARELY)
    requests.again(draft, waited, waited.tries + 1, draft.now + delay)
    draft.wake_in(delay)


def _follows(draft: Draft, waited: InFlight, answered: AccessView) -> bool:
    """Whether the folder is that of a deleted RLHFJob of this namespace: claimed again at once, as its
    follower. A name has one RLHFJob at a time, so one of this very name is deleted.
    """
    holder = answered.holder
    if holder is None or not (holder[1] == draft.desired.key or answered.holder_gone):
        return False
    if holder[0] in (draft.desired.uid, waited.former):
        return False
    requests.again(draft, replace(waited, former=holder[0]), waited.tries + 1, draft.now)
    draft.wake_in(0.0)
    return True


def _wanted(draft: Draft) -> bool:
    return draft.observed.workload is not None and (
        draft.desired.mode is Mode.ENFORCE or bool(draft.desired.pins)
    )


def _claim(draft: Draft, attempt: Attempt) -> None:
    waited = draft.record.access
    if waited is None or (waited.operation, waited.attempt) != (Operation.CLAIM, attempt):
        if waited is not None and waited.operation not in (Operation.PIN, Operation.CLAIM):
            return  # what it keeps safe comes first
        requests.give_up(draft)
        waited = requests.begin(draft, Operation.CLAIM, attempt.number, attempt=attempt)
    request = StartAccess(
        waited.request_id,
        Operation.CLAIM,
        waited.step,
        attempt=attempt,
        branch=lives.branch(draft.record, lives.newest(draft.record)),
        former=waited.former,
    )
    requests.start(draft, waited, request)
