"""Messages while an access Job runs: how far it is, or why its pod does not, with a remedy."""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job import transfer
from controller.policy.job.bests import keepable
from controller.policy.job.context import PlanContext
from controller.policy.job.cures import CURES
from controller.policy.job.record import InFlight, Operation
from controller.policy.job.types import AccessView, Hindrance

MOVING = "InProgress"
LONG = 60.0  # s: what is secured stays so in words while the pin of a new best takes no longer
_CONDITION_OF = {
    Operation.SECURE: c.SECURED,
    Operation.RETAIN: c.RETAINED,
    Operation.CHECK: c.RETAINED,
    Operation.RESTORE: c.RESUMED,
    Operation.PIN: c.PINNED,
    Operation.CLAIM: c.CLAIMED,
}
_HINDRANCES = frozenset(str(one) for one in Hindrance)  # of a pod that does not run: they end as it does
_AGAIN = "; under way: "  # between why a try failed and how far the next one is
# Where the condition says already what is under way, its reason stays: an Event once, not twice.
_MOVING = {Operation.RESTORE: "Restoring", Operation.PIN: "Pinning"}


def report_progress(context: PlanContext) -> None:
    """Say in the condition of what the record waits for how far it is, or why its pod does not run."""
    waited = context.record.access
    if waited is None or waited.operation not in _CONDITION_OF:
        return
    view = _under_way(context, waited)
    if view is None:
        return
    if view.hindered is not None:
        kind = _CONDITION_OF[waited.operation]
        context.conditions.set(kind, False, view.hindered, view.message, warning=True)
    else:
        _report_progress(context, waited, view)


def how_far(context: PlanContext) -> str:
    """Return how far the access Job under way is, as the end of a message; "": it has not said."""
    waited = context.record.access
    view = _under_way(context, waited) if waited is not None else None
    if waited is None or view is None:
        return ""
    return f": {view.message}" if view.hindered is not None else _words(waited, view, ": ")


def _under_way(context: PlanContext, waited: InFlight) -> AccessView | None:
    views = (v for v in context.observed.access if v.request_id == waited.request_id and not v.finished)
    return next(views, None)


def _words(waited: InFlight, view: AccessView, before: str) -> str:
    if view.progress is None:
        return ""
    tries = f" (try {waited.tries + 1})" if waited.tries else ""
    return f"{before}{transfer.describe(view.progress)}{tries}"


def _report_progress(context: PlanContext, waited: InFlight, view: AccessView) -> None:
    """Bytes, rate and time left, as often as the operator hears of them."""
    kind, operation = _CONDITION_OF[waited.operation], waited.operation
    checked = ", compared with its digest" if operation is Operation.CHECK else ""
    message = _words(waited, view, f"step {waited.step}{checked}: ")
    if not message or operation is Operation.CLAIM:
        return
    if operation is Operation.SECURE:
        # What is pinned is not less safe because another is on its way; but it is the best's no more.
        best, former = (
            keepable(context.record, context.desired.direction, context.use),
            context.record.secured,
        )
        of_best = best is not None and waited.is_for(best)
        short = waited.started is None or context.now - waited.started <= LONG
        if context.conditions.is_true(kind) and (short or not of_best):
            return
        if of_best and former is not None:
            message += f"; the pin of step {former.step}, the best before, stands"
    reason = _MOVING.get(operation, MOVING)
    go_on(context, kind, reason, message)


def go_on(context: PlanContext, kind: str, reason: str, message: str) -> None:
    """Say in a condition how it goes on; if a try failed or a checkpoint is lost, that stays its reason.

    It stays so until a later try is through: a job must not look healthy for as long as each try takes.
    """
    said = context.conditions.get(kind)
    if said is not None and not said.status and said.reason in CURES and said.reason not in _HINDRANCES:
        reason, message = said.reason, f"{said.message.partition(_AGAIN)[0]}{_AGAIN}{message}"
    context.conditions.set(kind, False, reason, message)
