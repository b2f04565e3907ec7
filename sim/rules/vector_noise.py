"""`controller.policy.stopping.noise` over whole matrices, and the best eval so far: rows are runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.policy.stopping import noise

Matrix = npt.NDArray[np.float64]

NEWTON_STEPS = 8
LARGEST_Z = 1e150  # its square is still a number


class NoiseLevels(NamedTuple):
    """Noise of one eval as known at each eval (NaN: unknown) and its degrees of freedom."""

    sigma: Matrix
    freedom: Matrix


def levels(
    scores: Matrix,
    stderrs: Matrix,
    usual: float | Matrix,
    weight: float | Matrix,
    *,
    before_fall: bool = False,
) -> NoiseLevels:
    """`noise.estimate` after every eval; noise that is none at all leaves the degrees of freedom.

    ``usual``, ``weight``: for all runs, or shape (runs,) (0: unknown).
    """
    runs, count = scores.shape
    mean, number = np.zeros(runs), np.zeros(runs)
    kept_mean, kept = np.zeros(runs), np.zeros(runs)
    fall, since = np.zeros(runs), np.full(runs, noise.RECENT + 1)
    usual, weight = np.broadcast_to(usual, runs), np.broadcast_to(weight, runs)
    sigma, freedom = np.full((runs, count), np.nan), np.full((runs, count), np.nan)
    largest = np.fmax.accumulate(stderrs, axis=1)
    reported = np.logical_and.accumulate(~np.isnan(stderrs), axis=1) & (largest > 0.0)
    for t in range(count):
        if t:
            fell = np.minimum(scores[:, t - 1] - scores[:, t], noise.LARGEST)
            new, since = fell > fall, since + 1
            fall, since = np.where(new, fell, fall), np.where(new, 0, since)
            kept, kept_mean = np.where(new, number, kept), np.where(new, mean, kept_mean)
        if t >= 2:
            size = np.abs(scores[:, t] - 2.0 * scores[:, t - 1] + scores[:, t - 2])
            square = np.square(np.minimum(size, noise.LARGEST))
            number = number + 1.0
            mean = mean + (square - mean) / number
            keep = since >= noise.ACROSS
            kept = kept + keep
            kept_mean = np.where(keep, kept_mean + (square - kept_mean) / np.maximum(kept, 1.0), kept_mean)
        recent = before_fall & (since <= noise.RECENT)
        differences = np.where(recent, kept, number)
        left = np.where(usual > 0.0, 1.0, noise.share_left(kept))
        variance = np.where(recent, kept_mean / left, mean)
        least = np.where(recent, noise.LEAST_BEFORE_FALL, noise.LEAST_FREEDOM)
        own, variance = differences * noise.FREEDOM_PER_DIFFERENCE, variance / noise.PER_VARIANCE
        known = own + np.where(usual > 0.0, weight, 0.0)
        with np.errstate(invalid="ignore"):
            shrunk = (own * variance + weight * usual * usual) / known
        variance = np.where(usual > 0.0, shrunk, variance)
        enough = known >= least
        sigma[:, t] = np.where(enough & (variance > 0.0), np.sqrt(variance), np.nan)
        freedom[:, t] = np.where(enough, known, np.nan)
    return NoiseLevels(np.where(reported, largest, sigma), np.where(reported, np.inf, freedom))


def widen(z: float, freedom: Matrix) -> Matrix:
    """`noise.widen`."""
    with np.errstate(invalid="ignore"):
        straight = z * noise.slant(z, freedom)  # type: ignore[arg-type, unused-ignore]
        exponent = np.where(np.isinf(freedom), 0.0, np.square(straight) / freedom)
        wide = np.sqrt(freedom * np.expm1(np.minimum(exponent, noise.MOST_EXPONENT)))
    wide = np.where(exponent < noise.MOST_EXPONENT, wide, np.inf)
    found: Matrix = np.where(np.isinf(freedom), z, np.where(np.isnan(freedom), np.nan, wide))
    return found


def unwiden(z: Matrix, freedom: Matrix) -> Matrix:
    """Return the threshold that `noise.widen` makes ``z`` of: its inverse, by Newton's method; NaN stays."""
    if np.isinf(freedom).all():
        return z
    with np.errstate(invalid="ignore"):
        root = np.sqrt(freedom * np.log1p(np.square(np.minimum(np.maximum(z, 0.0), LARGEST_Z)) / freedom))
        a, b = 4.0 * freedom * freedom + freedom + 0.75, 4.0 * freedom * freedom + 0.625
        h = root * b / a
        for _ in range(NEWTON_STEPS):  # of h (a + h^2 / 3) = root (b + 5 h^2 / 12)
            value = h * (a + h * h / 3.0) - root * (b + h * h / 2.4)
            h = h - value / (a + h * h - root * h / 1.2)
    return np.where((z > 0.0) & ~np.isinf(freedom), h, z)


def running_best(scores: Matrix) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """Return the highest score up to each eval, and the column of the first that has it."""
    highest = np.maximum.accumulate(scores, axis=1)
    new = np.column_stack([np.ones(len(scores), dtype=bool), scores[:, 1:] > highest[:, :-1]])
    return highest, np.maximum.accumulate(np.where(new, np.arange(scores.shape[1]), 0), axis=1)
