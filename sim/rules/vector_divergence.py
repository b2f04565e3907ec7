"""`controller.policy.stopping.divergence` over whole matrices: where it would let a STOP through."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.policy.stopping import noise
from controller.policy.stopping.divergence import DivergenceParams

Matrix = npt.NDArray[np.float64]


def passes(scores: Matrix, proxies: Matrix | None, p: DivergenceParams) -> npt.NDArray[np.bool_]:
    """Return whether a STOP counts at each eval: (runs, evals).

    Args:
        scores: (runs, evals).
        proxies: (runs, evals), NaN where unknown; None: no run has any.
        p: parameters of the modifier.
    """
    if proxies is None:
        return np.full(scores.shape, not p.strict)
    known = np.isfinite(proxies) & np.isfinite(scores)
    # Evals that have both, moved to the left.
    order = np.argsort(~known, axis=1, kind="stable")
    there = np.take_along_axis(known, order, axis=1)
    score = np.where(there, np.take_along_axis(scores, order, axis=1), -np.inf)
    proxy = np.where(there, np.take_along_axis(proxies, order, axis=1), 0.0)
    moved = _moved(score, proxy, -NormalDist().inv_cdf(p.level))
    number = np.cumsum(known, axis=1)  # of this eval among those that have both, from 1
    found = np.where(known, np.take_along_axis(moved, np.maximum(number - 1, 0), axis=1), 0)
    passed: npt.NDArray[np.bool_] = found > 0
    passed |= ((found < 0) & p.collapse) | ((found == 0) & (not p.strict))
    return passed


def _moved(score: Matrix, proxy: Matrix, level: float) -> npt.NDArray[np.int64]:
    """Return 1 where the proxy rose since the best eval, -1 where it fell, 0 where that cannot be told."""
    highest = np.maximum.accumulate(score, axis=1)
    new = np.column_stack([np.ones(len(score), dtype=bool), score[:, 1:] > highest[:, :-1]])
    at = np.maximum.accumulate(np.where(new, np.arange(score.shape[1]), 0), axis=1)
    change = proxy - np.take_along_axis(proxy, at, axis=1)
    sigma, freedom = np.full(proxy.shape, np.nan), np.zeros(proxy.shape)
    mean = np.zeros(len(proxy))
    widen: Any = noise.widen  # of numbers, it says; of arrays it does as well
    for t in range(2, proxy.shape[1]):
        size = np.minimum(np.abs(proxy[:, t] - 2.0 * proxy[:, t - 1] + proxy[:, t - 2]), noise.LARGEST)
        mean = mean + (size * size - mean) / (t - 1)
        sigma[:, t] = np.sqrt(mean / noise.PER_VARIANCE)
        freedom[:, t] = (t - 1) * noise.FREEDOM_PER_DIFFERENCE
    with np.errstate(divide="ignore", invalid="ignore"):
        z, limit = change / (np.sqrt(2.0) * sigma), widen(level, freedom)
        signs = np.sign(change).astype(np.int64)  # of proxies without noise
        clear = np.where(sigma > 0.0, (z > limit).astype(np.int64) - (z < -limit), signs)
    return np.where(freedom >= noise.LEAST_FREEDOM, clear, 0)
