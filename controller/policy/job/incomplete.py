"""Gangs that cannot be complete any more, because some of their members have already succeeded.

A completed index of an Indexed Job is not started again. A gang that is suspended after such an end would be
admitted for nothing, time after time; so it is tried rarely, counted, and told what would help.
"""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job.conditions import MEMBERS_ENDED
from controller.policy.job.context import PlanContext
from controller.policy.job.record import GangBackoff
from controller.policy.wording import some

FIRST = 600.0  # s of the first back-off, doubled each time
MOST = 6 * 3600.0  # s
NAMED = 8  # members that a message names


def back_off(context: PlanContext) -> GangBackoff | None:
    """Return how long the gang stays out of the queue from now on; says why. None: all members would
    start."""
    workload, known = context.observed.workload, context.record.gang_backoff
    if workload is None or not workload.completed:
        return None
    failures = 1 + (known.failures if known is not None else 0)
    pause = min(MOST, FIRST * 2.0 ** min(failures - 1, 32))
    ended = some([str(member) for member in workload.completed], NAMED)
    what = context.desired.workload_ref or "its Job"
    message = (
        f"members {ended} of {context.desired.replicas} ended well; completed indexes are not started "
        f"again, so the gang stays in parts. Delete {what} while it is suspended, and all members start anew "
        f"from the newest checkpoint; or let members end together. Time {failures}, next try in {pause:g} s"
    )
    context.conditions.set(c.RUNNING, False, MEMBERS_ENDED, message, warning=True)
    return GangBackoff(failures, context.now + pause)


def made_anew(context: PlanContext) -> None:
    """Drop the wait of a gang whose new workload has all its members starting."""
    workload, known = context.observed.workload, context.conditions.get(c.RUNNING)
    if known is None or known.reason != MEMBERS_ENDED or workload is None or workload.completed:
        return
    context.update(gang_backoff=None)
    context.conditions.drop(c.RUNNING)
