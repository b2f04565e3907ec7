"""A step's question to the planner, whole: what the decision log keeps, and what is planned anew from it.

It has no prompts: lengths come as a histogram of at most 256 bins.
"""

from __future__ import annotations

from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.rollout.plan import plan_rollout
from controller.policy.rollout.trust import Trust
from controller.policy.rollout.types import (
    ActorLaw,
    Dispatch,
    Forecast,
    RolloutPlan,
    RolloutSettings,
    Supply,
)


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """Everything that a step's plan is made of; see `plan_rollout`.

    Args:
        key: namespace/name of the job.
        step: its number.
    """

    key: str
    step: int
    forecast: Forecast | None
    law: ActorLaw
    settings: RolloutSettings
    supply: Supply
    trust: Trust | None = None
    before: tuple[int, Dispatch] | None = None


def planned(question: StepQuestion) -> RolloutPlan:
    """Return the plan that the question asks for."""
    return plan_rollout(
        question.forecast,
        question.law,
        question.settings,
        question.supply,
        trust=question.trust,
        before=question.before,
    )


def as_logged(plan: RolloutPlan) -> RolloutPlan:
    """Return the plan as the decision log keeps it: without the points that were not chosen, which are most
    of it."""
    return replace(plan, curve=())
