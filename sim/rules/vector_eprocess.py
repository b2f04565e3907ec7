"""`controller.policy.stopping.eprocess` over whole matrices of paired differences: rows are runs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.policy.stopping.eprocess import (
    BETS,
    COSTS,
    ROUNDED,
    ROUNDING,
    EProcessParams,
    kept_aside,
    start_weight,
)

Matrix = npt.NDArray[np.float64]


class Pairs(NamedTuple):
    """Prompts, mean and variance of each eval's differences, (runs, evals) each; prompts NaN: none."""

    prompts: Matrix
    means: Matrix
    variances: Matrix


def levels(pairs: Pairs, p: EProcessParams) -> Matrix:
    """Logarithm of the e-value after every eval; -inf where an eval has no differences that can be used."""
    runs, count = pairs.prompts.shape
    scale = p.bound + p.min_drop
    with np.errstate(invalid="ignore", over="ignore"):
        mean_square = pairs.variances * (pairs.prompts - 1) / pairs.prompts + pairs.means * pairs.means
        usable = (pairs.prompts >= 2) & (mean_square <= p.bound * p.bound * (1.0 + ROUNDED))  # NaN is not
        shortfall = -(pairs.means + p.min_drop) / scale
        total = pairs.prompts * shortfall
        squares = (pairs.prompts - 1) * pairs.variances / (scale * scale) + total * shortfall
    numbers = range(count + 1)
    with np.errstate(divide="ignore"):  # of nothing: no start here
        fresh = np.log([start_weight(max(1, number), p.horizon) for number in numbers])
    aside = np.log([kept_aside(number, p.horizon) for number in numbers])
    bets, costs = np.asarray(BETS), np.asarray(COSTS)
    staked = np.full((runs, len(bets)), -np.inf)
    seen = np.zeros(runs, dtype=np.int64)
    out = np.full((runs, count), -np.inf)
    for t in range(count):
        now = usable[:, t]
        seen = seen + now
        gain = bets * total[:, t, None] - costs * squares[:, t, None]
        money = np.logaddexp(staked, fresh[seen][:, None]) + gain
        staked = np.where(now[:, None], np.floor(money * ROUNDING) / ROUNDING, staked)
        together = np.logaddexp.reduce(staked, axis=1) - math.log(len(bets))
        out[:, t] = np.where(now, np.logaddexp(aside[seen], together), -np.inf)
    return out
