"""One step's plan: how many actors, which dispatch, who leaves when it is done, and why.

`plan_rollout` is the only place where that is decided; operator and simulator carry it out.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.rollout.curve import rollout_curve
from controller.policy.rollout.hysteresis import keep
from controller.policy.rollout.idle import explain, releases
from controller.policy.rollout.objective import best_point
from controller.policy.rollout.trust import GOOD_RANK, GOOD_TIME, HIGH_TIME, LOW_RANK, Trust
from controller.policy.rollout.types import (
    ActorLaw,
    CurvePoint,
    Dispatch,
    Forecast,
    Objective,
    Reason,
    RolloutPlan,
    RolloutSettings,
    Supply,
    WhenIdle,
)


def plan_rollout(
    forecast: Forecast | None,
    law: ActorLaw,
    settings: RolloutSettings,
    supply: Supply,
    *,
    trust: Trust | None = None,
    before: tuple[int, Dispatch] | None = None,
) -> RolloutPlan:
    """Return the plan of a step's generation.

    Args:
        forecast: of the step's lengths; None, or one without prompts: nothing is known.
        law: of an actor.
        settings: of the job.
        supply: of actors.
        trust: in predictions; None: they are trusted.
        before: count and dispatch of the step before; None: there was none.
    """
    trust = trust or Trust()
    if forecast is None or not forecast.bins:
        return _static(settings, supply, None, Reason.NO_FORECAST, "no lengths were announced", ())
    if trust.poor:
        count = _static_count(settings, supply)
        dispatch = _without_forecast(settings)
        one = replace(settings, min=count, max=count, static=count, dispatch=dispatch.value)
        points, _ = rollout_curve(forecast, law, one, supply)
        reason, message = _distrust(trust)
        return _static(settings, supply, points[0] if points else None, reason, message, tuple(points))
    points, late = rollout_curve(forecast, law, settings, supply)
    chosen = best_point(points, settings)
    reason, message = Reason.PLANNED, _why(chosen, points, settings)
    kept = keep(chosen, before, points, settings)
    if kept is not None:
        message = (
            f"{_named(kept)} of the step before: {_named(chosen)} would gain less than"
            f" {100 * settings.least_gain:.0f} % ({_numbers(chosen)} against {_numbers(kept)})"
        )
        chosen, reason = kept, Reason.KEPT_COUNT
    release, idle = _release(chosen, settings, supply)
    if late:
        message += f"; counts from {late[0]} would start actors that get nothing to do"
    return RolloutPlan(
        chosen.actors,
        chosen.dispatch,
        release,
        chosen.seconds,
        chosen.gpu_seconds,
        reason,
        f"{message}; {idle}",
        tuple(points),
        tuple(late),
    )


def _static_count(settings: RolloutSettings, supply: Supply) -> int:
    most = settings.static if supply.most is None else max(settings.min, min(settings.static, supply.most))
    return most


def _static(
    settings: RolloutSettings,
    supply: Supply,
    point: CurvePoint | None,
    reason: Reason,
    why: str,
    points: tuple[CurvePoint, ...],
) -> RolloutPlan:
    """Return the plan at `static` that needs neither lengths nor times."""
    count = _static_count(settings, supply)
    seconds = gpu_seconds = None
    if point is not None:
        seconds, gpu_seconds = point.seconds, point.gpu_seconds
        release, idle = _release(point, settings, supply)
    else:
        leave = releases(WhenIdle(settings.when_idle), supply.between, supply)
        release, idle = (leave,) * count, explain(WhenIdle(settings.when_idle), supply.between, supply)
    dispatch = _without_forecast(settings)
    how = "equal groups" if dispatch is Dispatch.EVEN else "one queue"
    message = f"{why}: {how} for the static count, {count}; {idle}"
    return RolloutPlan(count, dispatch, release, seconds, gpu_seconds, reason, message, points)


def _without_forecast(settings: RolloutSettings) -> Dispatch:
    """Return the dispatch where nothing is predicted: one queue; `Even`, which needs none either, for
    who has chosen it."""
    return Dispatch.EVEN if Dispatch(settings.dispatch) is Dispatch.EVEN else Dispatch.LONGEST_FIRST


def _release(point: CurvePoint, settings: RolloutSettings, supply: Supply) -> tuple[tuple[bool, ...], str]:
    when = WhenIdle(settings.when_idle)
    idle = [point.seconds - end + supply.between for end in point.ends]
    shortest = min(idle)
    return tuple(releases(when, seconds, supply) for seconds in idle), explain(when, shortest, supply)


def _distrust(trust: Trust) -> tuple[Reason, str]:
    if trust.ranks_poor:
        return Reason.PREDICTIONS_POOR, (
            f"predictions rank prompts with correlation {trust.rank:.2f}:"
            f" once below {LOW_RANK:g}, {GOOD_RANK:g} is needed"
        )
    return Reason.TIMES_POOR, (
        f"steps differ from their plan by {trust.time_error:.2f} (|log ratio|),"
        f" once above {HIGH_TIME:g}, at most {GOOD_TIME:g} is allowed"
    )


def _why(chosen: CurvePoint, points: list[CurvePoint], settings: RolloutSettings) -> str:
    fastest = min(points, key=lambda point: (point.seconds, point.gpu_seconds))
    if Objective(settings.objective) is Objective.CHEAPEST_WITHIN:
        rule = f"the cheapest within {100 * settings.within:.0f} % of the fastest"
    else:
        rule = f"the smallest weighted sum, time at {settings.time_weight:g}"
    return f"{_named(chosen)}, {_numbers(chosen)}: {rule}, {_named(fastest)} with {_numbers(fastest)}"


def _named(point: CurvePoint) -> str:
    return f"{point.actors} {point.dispatch.value}"


def _numbers(point: CurvePoint) -> str:
    return f"{point.seconds:.1f} s, {point.gpu_seconds:.0f} GPU-seconds"
