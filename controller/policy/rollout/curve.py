"""The whole curve: what a step takes in time and GPU-seconds for every count of actors and every dispatch.

GPU-seconds are held ones, from a pod's binding to its end, starts included. An actor that is released when
it has nothing more to do costs until its GPUs are somebody else's, a recall later; one that is kept costs
until the next generation begins. Which of the two it will be is decided for each actor by `idle`. A count
whose last actor would come too late to get anything is left out: it would cost a start and help nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.rollout import even, longest_first, ranked
from controller.policy.rollout.idle import releases
from controller.policy.rollout.sample import MOST_RANKED, Sample, sample
from controller.policy.rollout.types import (
    ActorLaw,
    CurvePoint,
    Dispatch,
    Forecast,
    RolloutSettings,
    Supply,
    WhenIdle,
)

# A forecast does not say in which order the trainer has the prompts, so what `Even` takes is known to so much
# only: where it is one choice of several it must be better by that.
UNKNOWN_ORDER = 0.1


def ready_times(supply: Supply, count: int) -> list[float]:
    """Return s from the begin until each of ``count`` actors can take a prompt, those that are held first."""
    late = max(0.0, supply.start - supply.lead)
    return [0.0 if k < supply.held else late for k in range(count)]


def bound_times(supply: Supply, count: int) -> list[float]:
    """Return s from the begin to each pod's binding: 0 for those that are held, at most 0 for the others.

    An announced step starts its actors as late as it may, so that they are ready with the begin.
    """
    return [0.0 if k < supply.held else -min(supply.lead, supply.start) for k in range(count)]


def rollout_curve(
    forecast: Forecast, law: ActorLaw, settings: RolloutSettings, supply: Supply, least: int | None = None
) -> tuple[list[CurvePoint], list[int]]:
    """Return a point for every count and dispatch that is allowed, and the counts that come too late.

    Args:
        forecast: of the step's lengths; one without prompts has no points.
        law: of an actor.
        settings: of the job.
        supply: of actors.
        least: fewest actors to look at; default: the job's ``min``.
    """
    if not forecast.bins:
        return [], []
    queue = sample(forecast, law.slots, equal=False)
    grouped = sample(forecast, law.slots, MOST_RANKED)
    most = settings.max if supply.most is None else min(settings.max, max(supply.most, settings.min))
    wanted = Dispatch(settings.dispatch)
    dispatches = [d for d in Dispatch if d is not Dispatch.AUTO and wanted in (d, Dispatch.AUTO)]
    whole = queue if queue[0].chained == 1 else sample(forecast, law.slots)
    prompts = whole[0].thinned * whole[0].chained / forecast.copies  # that one of the sample stands for
    order = even.shuffled(whole[0], max(1, round(1.0 / prompts))), whole[1]
    drawn = {Dispatch.LONGEST_FIRST: queue, Dispatch.RANKED: grouped, Dispatch.EVEN: order}
    points, late = [], set()
    for count in range(least or settings.min, most + 1):
        ready = ready_times(supply, count)
        for dispatch in dispatches:
            found = _ends(dispatch, drawn[dispatch], prompts, law, ready, settings.cut)
            if any(end is None for end in found):
                if count > settings.min:
                    late.add(count)
                    continue
                found = [ready[k] if end is None else end for k, end in enumerate(found)]
            margin = 1.0 + UNKNOWN_ORDER if dispatch is Dispatch.EVEN and wanted is Dispatch.AUTO else 1.0
            ends = tuple(margin * end for end in found if end is not None)
            points.append(_point(count, dispatch, ends, settings, supply))
    return points, sorted(late)


def _ends(
    dispatch: Dispatch,
    drawn: tuple[Sample, int],
    together: float,
    law: ActorLaw,
    ready: Sequence[float],
    cut: float,
) -> list[float | None]:
    if dispatch is Dispatch.LONGEST_FIRST:
        return longest_first.actor_ends(*drawn, law, ready)
    if dispatch is Dispatch.RANKED:
        return ranked.actor_ends(*drawn, law, ready, cut)
    return even.actor_ends(*drawn, law, ready, together)


def _point(
    count: int, dispatch: Dispatch, ends: tuple[float, ...], settings: RolloutSettings, supply: Supply
) -> CurvePoint:
    seconds = max(ends)
    bound = bound_times(supply, count)
    when = WhenIdle(settings.when_idle)
    held = 0.0
    for k, end in enumerate(ends):
        idle = seconds - end + supply.between
        held += (end + supply.recall if releases(when, idle, supply) else end + idle) - bound[k]
    return CurvePoint(count, dispatch, seconds, held * settings.gpus_per_actor, ends)
