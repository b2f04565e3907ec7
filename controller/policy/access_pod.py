"""What is said while an access Job's pod finds no node: its condition says so at once, with the cure."""

from __future__ import annotations

from controller.policy import conditions as c
from controller.policy.draft import Draft
from controller.policy.jobs import Operation

REASON = "AccessPodUnschedulable"
_TOLD_BY = {
    Operation.SECURE: c.SECURED,
    Operation.RETAIN: c.RETAINED,
    Operation.RESTORE: c.RESUMED,
    Operation.PIN: c.PINNED,
}


def tell(draft: Draft) -> None:
    """Say in the condition of what the record waits for that its pod finds no node."""
    waited = draft.record.access
    if waited is None or waited.operation not in _TOLD_BY:
        return
    for view in draft.observed.access:
        if view.request_id == waited.request_id and view.unplaced and not view.finished:
            draft.conditions.set(_TOLD_BY[waited.operation], False, REASON, view.message, warning=True)
