"""Sign that a metric's unit has changed within a run: from percent to a share of 1, or back.

From one eval to the next the score is a hundredth of what it was, or a hundred times it, and goes on at the
same level once that is taken out. To a stop rule it is a collapse, or a best that no later eval reaches. A
real collapse of a score in percent ends within the same hundredth only by chance, and stays there by another
one, so two evals are asked for. While the one or two that came lie within half of it and no more is known, it
is said that it is not sure: to wait for a third eval costs less than to stop a healthy run. A score that was
below 1 and is below 1 changed no unit: 0.6 to 0.006 is a collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, median_low

from controller.policy.job.record import JobRecord
from controller.policy.stopping import noise
from controller.policy.types import EvalPoint

FACTOR = 100.0
HUNDREDTH, HUNDREDFOLD = "Hundredth", "Hundredfold"
LEVEL = 5  # evals before that make the level; and of those after that are looked at
LEAST = 2  # of both
TREND = 12  # evals before that tell how scores go on
NOISE = 30  # evals before that tell the noise of one
SIGMAS = 3.0  # of one eval's noise by which the level may differ
NARROW, WIDE, UNKNOWN = 0.05, 0.2, 0.1  # shares of the level: least, most, and where no noise is known
SPREAD = 1.5  # times as far one of them may lie
DOUBT = 0.5  # share of the level within which one or two evals are asked to wait for the next


def changed_at(evals: Sequence[EvalPoint]) -> int | None:
    """Return the index of the first eval in another unit than those before it; None: there is none.

    The median of those after, `LEVEL` at most, has to lie as close to where those before went as their noise
    allows, and each of them nearly so; of four or five one may not.

    Args:
        evals: by step, in the trainer's own orientation. Of the last `LEAST` nothing is known yet.
    """
    for at in range(len(evals) - LEAST, LEAST - 1, -1):
        misses = _misses(evals, at)
        if misses is None:
            continue
        far = _tolerance(evals, at)
        if abs(median(misses)) <= far and sum(abs(one) > SPREAD * far for one in misses) <= len(misses) // 4:
            return at
    return None


def in_doubt(evals: Sequence[EvalPoint]) -> bool:
    """Return whether the newest eval, or the newest two, may be the first in another unit."""
    for at in range(max(LEAST, len(evals) - LEAST), len(evals)):
        misses = _misses(evals, at)
        if misses is not None and max(map(abs, misses)) <= DOUBT:
            return True
    return False


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


def _misses(evals: Sequence[EvalPoint], at: int) -> list[float] | None:
    """Return by which share of the level the evals from ``at`` on, `LEVEL` at most, lie above (> 0) or below
    where those before went, the other unit taken out; None: the unit did not change there.

    A run that rose may go on to rise, or not: neither is a miss.
    """
    before = [p.score for p in evals[max(0, at - LEVEL) : at]]
    after = [p.score for p in evals[at : at + LEVEL]]
    if len(before) < LEAST or min(*before, *after) <= 0.0:
        return None
    down = min(before) > 1.0 >= max(after)
    if not down and not max(before) <= 1.0 < min(after):
        return None
    level = median_low(before)  # a mean of two may be no number
    slope, middle, ahead = _trend([p.score for p in evals[max(0, at - TREND) : at]], level)
    found = []
    for n, score in enumerate(after):
        one = score * FACTOR if down else score / FACTOR
        ends = (level, middle + slope * (ahead + n))
        found.append((one - min(max(one, min(ends)), max(ends))) / level)
    return found


def _trend(before: Sequence[float], level: float) -> tuple[float, float, float]:
    """Return by how much scores rise (< 0: fall) from eval to eval, their mean, and how many evals after the
    middle of them the next one is. Of few, or where it is no number: as if they all lay at ``level``."""
    n = len(before)
    middle = (n - 1) / 2.0
    mean = sum(one / n for one in before)
    slope = sum((k - middle) * (one - mean) for k, one in enumerate(before)) / (n * (n * n - 1) / 12.0)
    return (slope, mean, n - middle) if n >= LEVEL and math.isfinite(slope) else (0.0, level, 0.0)


def _tolerance(evals: Sequence[EvalPoint], at: int) -> float:
    """Return by which share of the level an eval from ``at`` on may miss it: by what its noise explains.

    Five evals that lie close together by luck would call the next one far: the noise is that of more.
    """
    before = [p.score for p in evals[max(0, at - NOISE) : at]]
    level, sigma = median_low(before[-LEVEL:]), noise.robust(before)
    far = UNKNOWN if sigma is None or not math.isfinite(sigma / level) else SIGMAS * sigma / level
    return min(WIDE, max(NARROW, far))
