"""`controller.policy.stopping.divergence` over whole matrices: where it would let a STOP through."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from controller.policy.stopping.divergence import DivergenceParams
from sim.rules.vector_noise import levels, running_best, widen

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
    _, at = running_best(score)
    change = proxy - np.take_along_axis(proxy, at, axis=1)
    known = levels(proxy, np.full(proxy.shape, np.nan), 0.0, 1.0)
    with np.errstate(invalid="ignore"):
        z, limit = change / (np.sqrt(2.0) * known.sigma), widen(level, known.freedom)
        clear = (z > limit).astype(np.int64) - (z < -limit)
    signs = np.sign(change).astype(np.int64)  # of proxies without noise
    return np.where(np.isnan(known.freedom), 0, np.where(np.isnan(known.sigma), signs, clear))
