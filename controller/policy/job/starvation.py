"""A trainer that had no rollout actor left, or whose worker group lost its state: its job gives its GPUs back
and waits in the queue again.

The trainer tells it by its exit code (`EXIT_STARVED`, `evalstop_client.rollouts.RolloutStarved`), which its
Job does not count as a failure (`workloads.child`). So a pod that ended so is all that has to be seen, by
whoever leads. Each time in a row the job stays out of the queue for twice as long, up to `MOST`: what keeps
its actors from coming may last, and its gang holds GPUs while it finds out. A step that ends begins the
count anew. A worker group is there again within seconds, with nothing of the job's: the run resumes from its
checkpoint after one short pause.
"""

from __future__ import annotations

from dataclasses import replace

from controller.names import EXIT_STARVED
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.record import GangBackoff, PodTrouble, Preempting
from controller.policy.job.rollout_record import RolloutRecord
from controller.policy.job.types import Desired
from controller.policy.types import Mode

REASON = c.ROLLOUT_STARVED
FIRST = 60.0  # s of the first back-off, doubled each time in a row
MOST = 3600.0  # s
REASONS = (REASON, c.GROUP_LOST)
GROUP_PAUSE = 10.0  # s that a job stays out of the queue whose worker group lost its state


def backoff_seconds(times: int) -> float:
    """Return how long a job stays out of the queue after it starved ``times`` times in a row (s).

    Raises:
        ValueError: ``times`` is less than 1.
    """
    if times < 1:
        raise ValueError(f"times: {times}, expected at least 1")
    return min(MOST, FIRST * 2.0 ** min(times - 1, 32))


def is_starved(desired: Desired, trouble: PodTrouble | None) -> bool:
    """Return whether a pod of the job ended for want of rollout actors, or of its worker group."""
    asked = desired.rollout is not None or desired.sharing is not None
    return asked and trouble is not None and trouble.exit_code == EXIT_STARVED


def note(context: PlanContext) -> None:
    """Put a job whose trainer starved in this admission on its way back into the queue."""
    record, workload = context.record, context.observed.workload
    admission, decision = record.admission, record.decision
    stops = decision is not None and decision.mode is Mode.ENFORCE
    if admission is None or admission.withdrawn is not None or record.preempting is not None or stops:
        return
    if workload is None or workload.suspended or workload.finished is not None or context.desired.deleting:
        return
    pods = [p for p in context.observed.pods if p.admission == admission.number and p.deleting_since is None]
    if not any(is_starved(context.desired, p.trouble) for p in pods):
        return
    if context.desired.rollout is None:
        context.update(preempting=Preempting(c.GROUP_LOST, context.now))
        return
    account = record.rollout or RolloutRecord()
    context.update(
        rollout=replace(account, starved=account.starved + 1), preempting=Preempting(REASON, context.now)
    )


def back_off(context: PlanContext, since: float) -> GangBackoff:
    """Return how long the job stays out of the queue from now on; says why, and what became of its actors
    since ``since`` (s), when the attempt that starved was admitted."""
    if context.desired.rollout is None:
        message = (
            f"its worker group has its state no more, so its trainer ended with exit code {EXIT_STARVED}; it "
            f"waits in the queue again, and resumes from its checkpoint, after {GROUP_PAUSE:g} s"
        )
        context.conditions.set(c.RUNNING, False, c.GROUP_LOST, message, warning=True)
        return GangBackoff(1, context.now + GROUP_PAUSE)
    account = context.record.rollout or RolloutRecord()
    times = max(1, account.starved)
    pause = backoff_seconds(times)
    often = "" if times == 1 else f" for the {times}. time without a step in between"
    lost = account.aside
    which = f" (step {lost.step}: {lost.failures})" if lost is not None and lost.at >= since else ""
    message = (
        f"its trainer had no rollout actor left{often}{which}, and ended with exit code {EXIT_STARVED}; it "
        f"waits in the queue again, and is tried again after {pause:g} s"
    )
    context.conditions.set(c.RUNNING, False, REASON, message, warning=True)
    return GangBackoff(times, context.now + pause)
