"""Rollout planning: the count of actors for a step, dispatch of responses, actors that leave early.

Decided here: a step's plan (`plan_rollout`), from a histogram of expected lengths, the actors' law of time,
what actors there are, and the job's settings; and what is learned from a step for the next one: lengths, the
law, whether predictions are worth planning by, and how much shorter steps got by the last added actors
(`measured_gain`): by that a pool shares spare ones (`controller.policy.pool.lending`). Nothing here knows
pods or nodes.
May import: no other room that decides (contract "The planner is for operator and simulator alike").
Tests: tests/policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.doors import lazy

if TYPE_CHECKING:
    from controller.policy.rollout.curve import *
    from controller.policy.rollout.gain import *
    from controller.policy.rollout.idle import *
    from controller.policy.rollout.late import *
    from controller.policy.rollout.lead import *
    from controller.policy.rollout.learn import *
    from controller.policy.rollout.lengths import *
    from controller.policy.rollout.objective import *
    from controller.policy.rollout.plan import *
    from controller.policy.rollout.question import *
    from controller.policy.rollout.refit import *
    from controller.policy.rollout.room import *
    from controller.policy.rollout.sample import *
    from controller.policy.rollout.trust import *
    from controller.policy.rollout.types import *

SHOWS = {
    "curve": "bound_times ready_times rollout_curve",
    "gain": "StepTime measured_gain",
    "idle": "releases",
    "lengths": "LengthHistory forecast",
    "objective": "best_point",
    "plan": "plan_rollout",
    "question": "StepQuestion as_logged planned",
    "late": "with_starts",
    "lead": "REMEMBERED actors_due lead_seconds way_seconds",
    "learn": "Learned StepSeen expected_seconds learned",
    "refit": "WorkReport refit_law",
    "room": "CHANGING_HANDS Rooms actor_room lasting_room",
    "sample": "check_size",
    "trust": "Trust rank_correlation",
    "types": "ActorLaw CurvePoint Dispatch Forecast MOST_ACTORS Objective Reason RolloutPlan"
    " RolloutSettings Supply WhenIdle",
}
__all__ = [name for names in SHOWS.values() for name in names.split()]
__getattr__ = lazy(__name__, SHOWS)
