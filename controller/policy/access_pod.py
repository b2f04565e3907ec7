"""What is said while an access Job goes on: how far it is, or that its pod finds no node, with the cure."""

from __future__ import annotations

from controller.policy import conditions as c
from controller.policy import transfer
from controller.policy.draft import Draft
from controller.policy.jobs import AccessView, InFlight, Operation

REASON = "AccessPodUnschedulable"
MOVING = "InProgress"
_TOLD_BY = {
    Operation.SECURE: c.SECURED,
    Operation.RETAIN: c.RETAINED,
    Operation.RESTORE: c.RESUMED,
    Operation.PIN: c.PINNED,
    Operation.CLAIM: c.CLAIMED,
}


def tell(draft: Draft) -> None:
    """Say in the condition of what the record waits for how far it is, or that its pod finds no node."""
    waited = draft.record.access
    if waited is None or waited.operation not in _TOLD_BY:
        return
    for view in draft.observed.access:
        if view.request_id != waited.request_id or view.finished:
            continue
        if view.unplaced:
            draft.conditions.set(_TOLD_BY[waited.operation], False, REASON, view.message, warning=True)
        else:
            _tell_progress(draft, waited, view)


def _tell_progress(draft: Draft, waited: InFlight, view: AccessView) -> None:
    """Bytes, rate and time left, as often as the operator hears of them. What is true stays so: a checkpoint
    in safety is not less safe because another is on its way."""
    kind = _TOLD_BY[waited.operation]
    if (
        view.progress is None
        or waited.operation in (Operation.PIN, Operation.CLAIM)
        or draft.conditions.is_true(kind)
    ):
        return
    tries = f" (try {waited.tries + 1})" if waited.tries else ""
    message = f"step {waited.step}: {transfer.describe(view.progress)}{tries}"
    draft.conditions.set(kind, False, MOVING, message)
