"""Hysteresis of the count of actors: a start costs, and a curve is an estimate.

The count and dispatch of the step before are kept if they are still fast enough by the objective and the
best point gains less than ``least_gain``: of GPU-seconds (cheapestWithin), or of the weighted sum's range
(weighted).
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.rollout.objective import score
from controller.policy.rollout.types import CurvePoint, Dispatch, Objective, RolloutSettings


def keep(
    best: CurvePoint,
    before: tuple[int, Dispatch] | None,
    points: Sequence[CurvePoint],
    settings: RolloutSettings,
) -> CurvePoint | None:
    """Return the point of the step before if it is kept, else None."""
    old = next((p for p in points if (p.actors, p.dispatch) == before), None)
    if old is None or old is best:
        return None
    (old_slow, old_score), (best_slow, best_score) = (score(p, points, settings) for p in (old, best))
    if old_slow > best_slow:
        return None
    relative = Objective(settings.objective) is Objective.CHEAPEST_WITHIN
    gain = (old_score - best_score) / old_score if relative and old_score > 0.0 else old_score - best_score
    return old if gain < settings.least_gain else None
