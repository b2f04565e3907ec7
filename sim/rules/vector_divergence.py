"""`controller.policy.stopping.divergence` over whole matrices: where it would let a STOP through."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from controller.policy.stopping import noise
from controller.policy.stopping.divergence import LARGEST, DivergenceParams

Matrix = npt.NDArray[np.float64]


def passes(scores: Matrix, proxies: Matrix | None, p: DivergenceParams) -> npt.NDArray[np.bool_]:
    """Return whether a STOP counts at each eval: (runs, evals).

    Args:
        scores: (runs, evals).
        proxies: (runs, evals), NaN where unknown; None: no run has any, and no STOP counts.
        p: parameters of the modifier.
    """
    out = np.zeros(scores.shape, dtype=bool)
    if proxies is None or scores.shape[1] < p.window:
        return out
    limit = noise.widen(-NormalDist().inv_cdf(p.level), p.window - 2)
    known = np.isfinite(proxies) & np.isfinite(scores)
    # Evals that have both, moved to the left: a window is of the newest of these.
    order = np.argsort(~known, axis=1, kind="stable")
    both = [np.take_along_axis(np.where(known, values, 0.0), order, axis=1) for values in (scores, proxies)]
    score, proxy = (_slopes(_single(values), p.window) for values in both)
    falling = score < -limit
    judged = falling & ((proxy > limit) | ((proxy < -limit) & p.collapse))
    number = np.cumsum(known, axis=1)  # of this eval among those that have both, from 1
    full = known & (number >= p.window)
    at = np.where(full, number - p.window, 0)
    return full & np.take_along_axis(judged, at, axis=1)


def _slopes(values: Matrix, window: int) -> Matrix:
    """`divergence.slope` of every window, by its first eval."""
    seen = np.lib.stride_tricks.sliding_window_view(values, window, axis=1)
    seen = seen - seen[:, :, :1]  # a level stretch is then exactly nothing
    x = np.arange(window) - (window - 1) / 2.0
    across = window * (window * window - 1) / 12.0
    rise = seen @ x / across
    rest = np.square(seen - seen.mean(axis=2, keepdims=True) - rise[:, :, None] * x).sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = rise / np.sqrt(rest / (window - 2) / across)
    found: Matrix = np.where(rise == 0.0, 0.0, t)
    return found


def _single(values: Matrix) -> Matrix:
    """As `divergence.pack` keeps them."""
    found: Matrix = np.clip(values, -LARGEST, LARGEST).astype(np.float32).astype(np.float64)
    return found
