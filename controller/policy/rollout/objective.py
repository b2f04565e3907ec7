"""Choice of a point of the curve.

`cheapestWithin`: of those that take at most ``within`` longer than the fastest, the one with the fewest
GPU-seconds. `weighted`: RLHFless's (arXiv 2602.22718, 4.4), time and cost min-max normalised over the
curve, the smaller ``weight x time + (1 - weight) x cost``. The paper warns that min-max distorts both
scales: one more count at the end of the curve may change the choice.

Ties go to fewer actors, then to the order of `Dispatch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.rollout.types import CurvePoint, Dispatch, Objective, RolloutSettings

_ORDER = {dispatch: place for place, dispatch in enumerate(Dispatch)}


def best_point(points: Sequence[CurvePoint], settings: RolloutSettings) -> CurvePoint:
    """Return the point that the settings' objective likes best, of at least one."""
    return min(
        points, key=lambda point: (score(point, points, settings), point.actors, _ORDER[point.dispatch])
    )


def score(point: CurvePoint, points: Sequence[CurvePoint], settings: RolloutSettings) -> tuple[float, float]:
    """Return what is compared, smaller is better: (s that it is too slow by, cost), or (0, weighted sum)."""
    if Objective(settings.objective) is Objective.CHEAPEST_WITHIN:
        most = (1.0 + settings.within) * min(p.seconds for p in points)
        return (max(0.0, point.seconds - most), point.gpu_seconds)
    weight = settings.time_weight
    seconds = _normalised(point.seconds, [p.seconds for p in points])
    cost = _normalised(point.gpu_seconds, [p.gpu_seconds for p in points])
    return (0.0, weight * seconds + (1.0 - weight) * cost)


def _normalised(value: float, values: Sequence[float]) -> float:
    low, high = min(values), max(values)
    return (value - low) / (high - low) if high > low else 0.0
