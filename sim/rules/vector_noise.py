"""`controller.policy.stopping.noise` over whole matrices, and the best eval so far: rows are runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.policy.stopping import noise

Matrix = npt.NDArray[np.float64]


class NoiseLevels(NamedTuple):
    """Noise of one eval as known at each eval (NaN: unknown) and its degrees of freedom."""

    sigma: Matrix
    freedom: Matrix


def levels(scores: Matrix, stderrs: Matrix, usual: float, weight: float) -> NoiseLevels:
    """`noise.estimate` after every eval; noise that is none at all leaves the degrees of freedom."""
    runs, count = scores.shape
    mean = np.zeros(runs)
    sigma, freedom = np.full((runs, count), np.nan), np.full((runs, count), np.nan)
    largest = np.fmax.accumulate(stderrs, axis=1)
    reported = np.logical_and.accumulate(~np.isnan(stderrs), axis=1) & (largest > 0.0)
    for t in range(count):
        differences = max(0, t - 1)
        if t >= 2:
            size = np.abs(scores[:, t] - 2.0 * scores[:, t - 1] + scores[:, t - 2])
            size = np.minimum(size, noise.LARGEST)
            mean = mean + (size * size - mean) / differences
        own = differences * noise.FREEDOM_PER_DIFFERENCE
        variance, known = mean / noise.PER_VARIANCE, own
        if usual > 0.0:
            variance = (own * variance + weight * usual * usual) / (own + weight)
            known = own + weight
        if known >= noise.LEAST_FREEDOM:
            sigma[:, t] = np.where(variance > 0.0, np.sqrt(variance), np.nan)
            freedom[:, t] = known
    return NoiseLevels(np.where(reported, largest, sigma), np.where(reported, np.inf, freedom))


def widen(z: float, freedom: Matrix) -> Matrix:
    """`noise.widen`."""
    first, second = (z * z + 1.0) * z / 4.0, ((5.0 * z * z + 16.0) * z * z + 3.0) * z / 96.0
    return z + first / freedom + second / (freedom * freedom)


def running_best(scores: Matrix) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """Return the highest score up to each eval, and the column of the first that has it."""
    highest = np.maximum.accumulate(scores, axis=1)
    new = np.column_stack([np.ones(len(scores), dtype=bool), scores[:, 1:] > highest[:, :-1]])
    return highest, np.maximum.accumulate(np.where(new, np.arange(scores.shape[1]), 0), axis=1)
