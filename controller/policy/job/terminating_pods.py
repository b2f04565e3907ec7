"""Terminating pods: how many still hold their GPUs, and which take too long."""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.wording import some

STUCK_AFTER = 120.0  # s a pod may be terminating before it is reported by name
NAMED = 5  # pods that are


def report(context: PlanContext) -> None:
    """Say in condition GPUsReleased what a job that leaves its GPUs still waits for.

    A pod that is stuck is named with its age. Nothing is done about it: to force it would give away GPUs
    that a process may still be using.
    """
    left = [p for p in context.observed.pods if not p.terminal]
    ages = [(context.now - p.deleting_since, p.name) for p in left if p.deleting_since is not None]
    stuck = sorted((age, name) for age, name in ages if age > STUCK_AFTER)
    if stuck:
        named = some([f"{name} ({age:.0f} s)" for age, name in stuck], NAMED)
        message = f"still terminating: {named}"
        context.conditions.set(c.RELEASED, False, "PodsStuck", message, warning=True)
    else:
        holders = [f"{len(left)} pods"] if left or not context.actors_left else []
        holders += [f"{context.actors_left} rollout actors"] if context.actors_left else []
        message = f"{' and '.join(holders)} still hold their GPUs"
        context.conditions.set(c.RELEASED, False, "PodsTerminating", message)
        context.wake_in(STUCK_AFTER)
