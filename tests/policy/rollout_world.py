"""Forecasts, laws and settings that tests of the rollout planner share."""

from __future__ import annotations

from typing import Any

from controller.policy.rollout import ActorLaw, Forecast, RolloutSettings

# 30 long prompts and 270 short ones, four copies each, none of which differ.
FORECAST = Forecast(((2000.0, 30), (200.0, 270)), 4, 0.0, 2048)
LAW = ActorLaw(iteration=0.01, sequence=0.0001, growth=0.0, prefill=0.002, slots=64)


def settings(**changes: Any) -> RolloutSettings:
    return RolloutSettings(**({"min": 1, "max": 8, "static": 3} | changes))
