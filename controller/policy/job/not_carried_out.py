"""Actions that the API server does not let through: a webhook does not answer, or something refuses them.

Decided here: what condition ActionsCarriedOut says, and which mark it is. The operator tries such an action
again and again, and everything else of the job's plan is written all the same; without a word on the job it
would look as if nothing was to be done.
"""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.record import JobRecord
from controller.policy.types import Mode, Problem

WEBHOOK_FAILS = "WebhookFails"  # whether by a condition or as why a spec is refused
ACTION_REFUSED = "ActionRefused"
WAIT = 30.0  # s that a webhook may be away: what serves it is being updated


def tell(context: PlanContext) -> None:
    """Say in condition ActionsCarriedOut, while it is so, which action was not let through, and why."""
    problem = context.observed.not_carried_out
    if context.observed.carried_out:
        context.conditions.drop(c.CARRIED_OUT)
    elif problem is not None and not _says_it(context.problem):
        context.conditions.set(c.CARRIED_OUT, False, *problem, warning=True)


def _says_it(problem: Problem | None) -> bool:
    return problem is not None and problem.reason == WEBHOOK_FAILS


def leaves(record: JobRecord) -> bool:
    """Return whether the job is on its way off its GPUs, by a stop or back into the queue."""
    decision, admission = record.decision, record.admission
    if decision is not None and decision.mode is Mode.ENFORCE and decision.pods_gone_at is None:
        return True
    return record.preempting is not None or (admission is not None and admission.withdrawn is not None)
