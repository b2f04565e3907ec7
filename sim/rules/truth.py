"""Is a whole curve, seen from its end, healthy or declining? For histories without labels.

With sigma the noise of one eval (reported standard errors, else the mean absolute second difference, as in
`controller.policy.stopping.noise`) and w = max(2, n // 8): let P be the largest mean of w consecutive
evals and L the mean of the last w. Then

    z = (P - L) / (sigma * sqrt(2 / w))

z >= 5: declining. z <= 3: healthy; the largest of many means lies above the true level, so a flat run has
a z of about 2 to 3. Between: ambiguous, counted for neither. Fewer than 8 evals, or no noise seen:
ambiguous. The peak is the middle of the first window whose mean is within 2 * sigma * sqrt(2 / w) of P:
who stops on a top that is flat does not stop too early. It is a test of a lasting fall: a run that
recovered is healthy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from controller.policy.stopping import noise
from controller.policy.types import EvalPoint
from sim.rules.history import Series

CONFIRMED = 5.0  # standard deviations from which a decline counts as one
HEALTHY = 3.0  # up to which it counts as none
SAME = 2.0  # within which two means count as the same level
LEAST_EVALS = 8


class Truth(NamedTuple):
    """``peak``: index of the eval at which the true score is best (declining runs)."""

    label: str  # healthy | plateau | declining | ambiguous
    peak: int
    z: float


def sigma(series: Series) -> float:
    """Noise of one eval over the whole curve; 0: none seen."""
    state = noise.initial()
    for step, score, stderr in zip(series.steps, series.scores, series.stderrs, strict=True):
        state = noise.observe(state, EvalPoint(int(step), score, stderr=stderr))
    known = noise.estimate(state, 0.0, 1.0)
    return known.sigma if known is not None else 0.0


def truth(series: Series) -> Truth:
    """The label a series brings with it, else the test's."""
    count = len(series.scores)
    peak, z = 0, math.nan
    if count >= LEAST_EVALS:
        spread = sigma(series)
        w = max(2, count // 8)
        means = np.convolve(np.asarray(series.scores), np.full(w, 1.0 / w), mode="valid")
        unit = spread * math.sqrt(2.0 / w)
        near = means >= means.max() - SAME * unit
        peak = int(near.argmax()) + w // 2
        z = float(means.max() - means[-1]) / unit if spread > 0.0 else math.nan
    if series.peak_step is not None:
        peak = max(0, sum(1 for step in series.steps if step <= series.peak_step) - 1)
    if series.label is not None:
        return Truth(series.label, peak, z)
    if math.isnan(z):
        return Truth("ambiguous", peak, z)
    return Truth("declining" if z >= CONFIRMED else "healthy" if z <= HEALTHY else "ambiguous", peak, z)
