"""Is a whole curve, seen from its end, healthy or declining? For histories without labels.

With w = max(2, n // 8), let P be the largest mean of w consecutive evals and L the mean of the last w. Then

    z = (P - L) / sqrt((variance at P + variance at L) / w)

z >= 5: declining. z <= 3: healthy; the largest of many means lies above the true level, so a flat run has
a z of about 2 to 3. Between: ambiguous, counted for neither. Fewer than 8 evals, or no noise seen:
ambiguous.

The variance of one eval is that of the reported standard errors (their mean square), where every eval has
one. Else it is that of the curve's second differences (`controller.policy.stopping.noise`), or, where it is
larger and w is at least 4, that of the w evals at P (at L) about their own straight line: a curve that is
noisier at its end than before, or whose last evals hold one deep dip, has not been shown to decline.

The peak is the middle of the first window whose mean is within two standard errors (of P - L) of P: who
stops on a top that is flat does not stop too early. It is a test of a lasting fall: a run that recovered is
healthy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.policy.stopping import noise
from sim.rules.history import Series

CONFIRMED = 5.0  # standard deviations from which a decline counts as one
HEALTHY = 3.0  # up to which it counts as none
SAME = 2.0  # within which two means count as the same level
LEAST_EVALS = 8
LEAST_FOR_LINE = 4  # evals of which a straight line leaves something to judge by


class Truth(NamedTuple):
    """``peak``: index of the eval at which the true score is best (declining runs)."""

    label: str  # healthy | plateau | declining | ambiguous
    peak: int
    z: float


def sigma(series: Series) -> float:
    """Noise of one eval over the whole curve; 0: none seen."""
    known = noise.own(series.points())
    return known.sigma if known is not None else 0.0


def truth(series: Series) -> Truth:
    """Return the label a series brings with it, else the test's."""
    peak, z = _test(series) if len(series.scores) >= LEAST_EVALS else (0, math.nan)
    if series.peak_step is not None:
        peak = max(0, sum(1 for step in series.steps if step <= series.peak_step) - 1)
    if series.label is not None:
        return Truth(series.label, peak, z)
    if math.isnan(z):
        return Truth("ambiguous", peak, z)
    return Truth("declining" if z >= CONFIRMED else "healthy" if z <= HEALTHY else "ambiguous", peak, z)


def _test(series: Series) -> tuple[int, float]:
    """Peak and z; NaN: no noise seen."""
    scores = np.asarray(series.scores)
    w = max(2, len(scores) // 8)
    means = np.convolve(scores, np.full(w, 1.0 / w), mode="valid")
    top = int(means.argmax())
    usual = sigma(series) ** 2
    variances = usual, usual
    if w >= LEAST_FOR_LINE and not all(series.stderrs):
        variances = max(usual, _about_line(scores[top : top + w])), max(usual, _about_line(scores[-w:]))
    unit = math.sqrt(sum(variances) / w)
    near = means >= means[top] - SAME * unit
    peak = int(near.argmax()) + w // 2
    return peak, float(means[top] - means[-1]) / unit if usual > 0.0 else math.nan


def _about_line(scores: npt.NDArray[np.float64]) -> float:
    """Variance about the least-squares line."""
    x = np.arange(len(scores)) - (len(scores) - 1) / 2.0
    rest = scores - scores.mean()
    rest = rest - x * (x @ rest) / (x @ x)
    return float(rest @ rest) / (len(scores) - 2)
