"""Which access Job is to run now, and what its answer means: secure, retain, restore (pins: `pinning`).

At most one access Job per RLHFJob. A request's id (operation, best step, serial number) is in the record
before the Job is made, so that a restarted operator finds the Job it started before. A newer best supersedes
the request for an older one.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy import conditions as c
from controller.policy import pinning, requests
from controller.policy.draft import Draft
from controller.policy.jobs import (
    AccessView,
    Best,
    Decision,
    ForgetAccess,
    InFlight,
    Kept,
    Operation,
    StartAccess,
)

RETRY_FIRST = 5.0  # s
RETRY_MOST = 60.0  # s
RETAINED_KEPT = 2  # records of retained checkpoints in a status; the copies themselves are never deleted

# What will not come right by trying again: the checkpoint itself is not what it was.
DAMAGED = frozenset({"DigestMismatch", "CheckpointMissing", "CheckpointIncomplete"})


def retry_delay(tries: int) -> float:
    """Seconds before try number ``tries`` (1 = the second)."""
    return min(RETRY_MOST, RETRY_FIRST * 2.0 ** (tries - 1))


def answer(draft: Draft) -> AccessView | None:
    """The finished access Job that the record waits for; every other finished one is cleared away."""
    waited = draft.record.access
    found = None
    for access in draft.observed.access:
        if waited is not None and access.request_id == waited.request_id:
            found = access if access.finished else None
        elif access.finished:
            draft.act(ForgetAccess(access.request_id))
    return found


def secure_best(draft: Draft) -> None:
    """See to it that the best checkpoint seen so far is out of rotation's reach."""
    best, secured, waited = draft.record.best, draft.record.secured, draft.record.access
    if best is None or (waited is not None and waited.operation in (Operation.RETAIN, Operation.RESTORE)):
        return
    if secured is not None and secured.best_step == best.step:
        return
    if not _checkpoint_due(draft, best):
        draft.conditions.set(
            c.SECURED,
            False,
            "WaitingForCheckpoint",
            f"the best eval's step {best.step} has no checkpoint yet",
        )
        return
    if waited is None or waited.best_step != best.step or waited.operation is Operation.PIN:
        # The newest best wins. One that is still running is left to end: its pin is let go by the next.
        if waited is not None and requests.running(draft, waited):
            return
        waited = requests.begin(draft, Operation.SECURE, best.step)
    requests.start(draft, waited, _secure_request(draft, waited))


def take_answer(draft: Draft, answered: AccessView) -> None:
    """Write an access Job's answer into the record, and let the Job go."""
    waited = draft.record.access
    assert waited is not None
    draft.act(ForgetAccess(answered.request_id))
    if waited.operation is Operation.PIN:
        pinning.take_answer(draft, waited, answered)
    elif answered.ok:
        _succeeded(draft, waited, answered)
    else:
        _failed(draft, waited, answered)


def retain_secured(draft: Draft, secured: Kept) -> None:
    """Copy the secured checkpoint out of the trainer's reach."""
    waited = draft.record.access
    if waited is None or waited.operation is not Operation.RETAIN:
        if waited is not None and requests.running(draft, waited):
            return
        waited = requests.begin(draft, Operation.RETAIN, secured.best_step)
    requests.start(
        draft, waited, StartAccess(waited.request_id, Operation.RETAIN, secured.step, source=secured)
    )


def restore(draft: Draft, step: int, source: Kept | None) -> None:
    """Copy a retained checkpoint back to the workload's volume; without one, find that step where it lies."""
    waited = draft.record.access
    if waited is None or (waited.operation, waited.best_step) != (Operation.RESTORE, step):
        if waited is not None and requests.running(draft, waited):
            return
        waited = requests.begin(draft, Operation.RESTORE, step)
    requests.start(draft, waited, StartAccess(waited.request_id, Operation.RESTORE, step, source=source))


def _checkpoint_due(draft: Draft, best: Best) -> bool:
    """Whether a checkpoint for the best eval can be there, as far as the trainer's metrics tell.

    Trainers often evaluate first and save right after: looking at once would find the one before.
    """
    scrape = draft.observed.scrape
    if scrape is None or scrape.checkpoint_step is None or scrape.checkpoint_step >= best.step:
        return True
    return bool(draft.record.evals) and draft.record.evals[-1].step > best.step


def _secure_request(draft: Draft, waited: InFlight) -> StartAccess:
    secured, wanted = draft.record.secured, draft.desired.pins
    former = (secured.step,) if secured is not None and secured.step not in wanted else ()
    return StartAccess(
        waited.request_id,
        Operation.SECURE,
        waited.best_step,
        max_step_lag=draft.desired.max_step_lag,
        release=tuple(dict.fromkeys((*former, *waited.release))),
    )


def _succeeded(draft: Draft, waited: InFlight, answered: AccessView) -> None:
    score = _score(draft.record.best, waited.best_step)
    step = answered.step if answered.step is not None else waited.best_step
    kept = Kept(waited.best_step, step, answered.path, answered.digest, draft.now, answered.bytes, score)
    draft.update(access=None)
    if waited.operation is Operation.SECURE:
        requests.let_go(draft, waited)
        draft.update(secured=kept)
        draft.conditions.set(
            c.SECURED,
            True,
            "Secured",
            f"checkpoint of step {step} secured for the best eval at step {kept.best_step}",
        )
    elif waited.operation is Operation.RETAIN:
        secured, decision = draft.record.secured, draft.record.decision
        # A copy made for a stop is told from an older one by its time, which must not depend on two clocks.
        at = draft.now if decision is None else max(draft.now, decision.at)
        kept = replace(kept, at=at)
        kept = (
            kept
            if secured is None
            else Kept(
                secured.best_step,
                secured.step,
                answered.path,
                answered.digest,
                at,
                answered.bytes,
                secured.score,
            )
        )
        others = tuple(k for k in draft.record.retained if k.path != kept.path)
        draft.update(retained=(*others, kept)[-RETAINED_KEPT:])
        draft.conditions.set(
            c.RETAINED, True, "Retained", f"checkpoint of step {kept.step} is at {kept.path} ({kept.digest})"
        )
    else:
        draft.update(restored=kept)


def _failed(draft: Draft, waited: InFlight, answered: AccessView) -> None:
    tries = waited.tries + 1
    not_before = draft.now + retry_delay(tries)
    message = f"{answered.message} (try {tries}; the next in {retry_delay(tries):.0f} s)"
    reason = answered.reason or "AccessFailed"
    if waited.operation is Operation.SECURE:
        draft.conditions.set(c.SECURED, False, reason, message, warning=True)
    elif waited.operation is Operation.RETAIN:
        draft.conditions.set(c.RETAINED, False, reason, message, warning=True)
        if reason in DAMAGED:
            _withdraw(draft, reason, answered.message)
            return
    else:
        draft.conditions.set(c.RESUMED, False, reason, message, warning=True)
    requests.begin(draft, waited.operation, waited.best_step, tries, not_before)
    draft.wake_in(retry_delay(tries))


def _withdraw(draft: Draft, reason: str, message: str) -> None:
    """The secured checkpoint is damaged: secure it anew; a stop that rested on it is taken back."""
    decision: Decision | None = draft.record.decision
    draft.update(access=None, secured=None, decision=None)
    draft.conditions.set(c.SECURED, False, reason, message, warning=True)
    if decision is not None:
        draft.conditions.set(
            c.TERMINATION,
            False,
            "NoVerifiableCheckpoint",
            f"the stop is taken back, the run goes on: {message}",
            warning=True,
        )


def _score(best: Best | None, step: int) -> float:
    return best.score if best is not None and best.step == step else 0.0
