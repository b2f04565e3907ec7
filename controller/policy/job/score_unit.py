"""Sign that a metric's unit has changed within a run: from percent to a share of 1, or back.

From one eval to the next the score is a hundredth of what it was, or a hundred times it, and goes on at the
same level once that is taken out. To a stop rule it is a collapse, or a best that no later eval reaches. A
real collapse of a score in percent ends within the same hundredth only by chance, and stays there by another
one, so two evals are asked for; of a single one nothing is said yet but that it is not sure. A score that
was below 1 and is below 1 changed no unit: 0.6 to 0.006 is a collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from controller.policy.job.record import JobRecord
from controller.policy.stopping import noise
from controller.policy.types import EvalPoint

FACTOR = 100.0
HUNDREDTH, HUNDREDFOLD = "Hundredth", "Hundredfold"
LEVEL = 5  # evals before that make the level
LEAST = 2  # of them; and of those after, until it is sure
SIGMAS = 3.0  # of one eval's noise by which the level may differ
NARROW, WIDE, UNKNOWN = 0.05, 0.2, 0.1  # shares of the level: least, most, and where no noise is known


def changed_at(evals: Sequence[EvalPoint]) -> int | None:
    """Return the index of the first eval in another unit than those before it; None: there is none.

    Args:
        evals: by step, in the trainer's own orientation. Of the last `LEAST` nothing is known yet.
    """
    for at in range(len(evals) - LEAST, LEAST - 1, -1):
        if _continues(evals, at, LEAST):
            return at
    return None


def in_doubt(evals: Sequence[EvalPoint]) -> bool:
    """Return whether the newest eval may be the first in another unit."""
    return len(evals) > LEAST and _continues(evals, len(evals) - 1, 1)


def named(before: float, after: float) -> str:
    """Return what `EvalBaseline.unit` calls the change between two scores in different units."""
    return HUNDREDTH if before > after else HUNDREDFOLD


def complaint(record: JobRecord, metric: str) -> str:
    """Return in a sentence that the evals kept are in another unit than those before; "": they are not."""
    baseline = record.baseline
    if baseline is None or not baseline.unit:
        return ""
    what = "a hundredth" if baseline.unit == HUNDREDTH else "100 times"
    return (
        f"the unit of {metric!r} seems to have changed after step {baseline.step} (scores go on at {what} of "
        "what they were): evals before are not compared with later ones; report one unit throughout, or name "
        "another version of the evaluator with it (rlhf_evaluator_info)"
    )


def _continues(evals: Sequence[EvalPoint], at: int, count: int) -> bool:
    """Return whether ``count`` evals from ``at`` on go on at the level before, in the other unit."""
    before = [p.score for p in evals[max(0, at - LEVEL) : at]]
    after = [p.score for p in evals[at : at + count]]
    if len(before) < LEAST or min(*before, *after) <= 0.0:
        return False
    level = median_low(before)  # a mean of two may be no number
    down = min(before) > 1.0 >= max(after)
    if not down and not max(before) <= 1.0 < min(after):
        return False
    far = _tolerance(before, level)
    slope, middle = _trend(before)
    goes_on = [one * FACTOR if down else one / FACTOR for one in after]
    if not slope:
        return all(abs(one - level) <= far for one in goes_on)
    first = len(before) - (len(before) - 1) / 2.0  # evals from the middle of those before
    return all(abs(one - middle - slope * (first + n)) <= far for n, one in enumerate(goes_on))


def _trend(before: Sequence[float]) -> tuple[float, float]:
    """Return by how much scores rise (< 0: fall) from eval to eval, 0 where noise may explain it, and their
    mean."""
    n, sigma = len(before), noise.robust(before)
    mean = sum(one / n for one in before)
    if n < LEVEL or sigma is None:
        return 0.0, mean
    squares = n * (n * n - 1) / 12.0
    slope = sum((k - (n - 1) / 2.0) * (one - mean) for k, one in enumerate(before)) / squares
    rises = math.isfinite(slope) and abs(slope) * (n - 1) > SIGMAS * sigma
    return (slope if rises else 0.0), mean


def _tolerance(before: Sequence[float], level: float) -> float:
    """Return by how much an eval may differ from the level, in the unit of the evals before."""
    sigma = noise.robust(before)
    far = UNKNOWN * level if sigma is None or not math.isfinite(sigma) else SIGMAS * sigma
    return min(WIDE * level, max(NARROW * level, far))
