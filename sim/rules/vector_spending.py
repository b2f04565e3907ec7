"""`controller.policy.stopping.spending` over whole matrices: the budget that `scan` with ``alpha`` spends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr  # type: ignore[import-untyped, unused-ignore]

from controller.policy.stopping import noise, scan, spending, windows
from controller.policy.stopping import ties as of_ties
from sim.rules import vector_gate
from sim.rules.vector_noise import NoiseLevels, running_best

Matrix = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class PromptPairs(NamedTuple):
    """Differences to one earlier eval on the same prompts (NaN: none), each (runs, evals).

    Attributes:
        against: step of the earlier one.
    """

    against: Matrix
    prompts: Matrix
    variance: Matrix
    ranges: Matrix  # highest less lowest score of a prompt, NaN: not known


class Singles(NamedTuple):
    """Each eval against the best before it: its fall, the noise of that, and degrees of freedom."""

    fall: Matrix
    sigma: Matrix
    freedom: Matrix
    paired: Flags | None = None  # whether its noise is that of the prompts of both; None: it is not asked


def against_best(
    scores: Matrix, steps: Matrix, sigma: Matrix, freedom: Matrix, told: Flags, pairs: PromptPairs | None
) -> Singles:
    """Return what single evals are judged by: of the prompts that both scored, else the noise of any eval.

    Where nothing but the scores says how noisy that is (not ``told``, finite ``freedom``), the second highest
    stands for the best.
    """
    best, second, at = _highest_before(scores)
    fall, root = np.where(np.isinf(freedom) | told, best, second), np.sqrt(2.0)
    if pairs is None:
        return Singles(fall / root, sigma, freedom, np.zeros(scores.shape, dtype=bool))
    error = errors(pairs)
    own = (np.take_along_axis(steps, at, axis=1) == pairs.against) & np.isfinite(error)
    return Singles(
        np.where(own, best, fall / root),
        np.where(own, error, sigma),
        np.where(own, pairs.prompts - 1.0, freedom),
        own,
    )


def errors(pairs: PromptPairs) -> Matrix:
    """`noise.of_difference` of every eval: the standard deviation; NaN: it is not known."""
    n = np.where((pairs.prompts >= 2) & (pairs.prompts <= noise.MOST_PROMPTS), pairs.prompts, np.nan)
    variance = np.where(pairs.variance >= 0.0, pairs.variance, np.nan)
    wide = pairs.ranges > 0.0
    variance = np.where(wide, (n * variance + np.square(pairs.ranges)) / (n + 1.0), variance)
    known = np.isfinite(variance) & (variance > 0.0)
    found: Matrix = np.where(known, np.sqrt(np.where(known, variance, 1.0) / n), np.nan)
    return found


def excess(scores: Matrix, guessed: Flags) -> Matrix:
    """Return what the best before an eval lies above the second highest: 0 where more than the scores say
    how noisy they are."""
    best, second, _ = _highest_before(scores)
    with np.errstate(invalid="ignore"):
        found = np.where(np.isfinite(second), best - second, 0.0)
    return np.where(guessed, found, 0.0)


def doubted(known: NoiseLevels, excess: Matrix, guessed: Flags) -> NoiseLevels:
    """`scan._doubted` of every eval."""
    differences = np.maximum(1.0, known.freedom / noise.FREEDOM_PER_DIFFERENCE)
    sigma = np.where(excess > 0.0, np.hypot(known.sigma, excess / np.sqrt(differences)), known.sigma)
    return NoiseLevels(sigma, known.freedom + np.where(guessed, noise.FAR_OUT, 0.0))


def ties(scores: Matrix) -> Matrix:
    """`ties.fall` after every eval: how far a tie lies below everything before it; -inf: that is none."""
    runs, count = scores.shape
    lowest, largest = np.full(runs, np.inf), np.zeros(runs)
    before, fell, level = np.zeros(runs), np.zeros(runs), np.ones(runs)
    found = np.full((runs, count), -np.inf)
    for t in range(1, count):
        x, last = scores[:, t], scores[:, t - 1]
        tied = x == last
        seen = np.where((level > 1.0) | (largest < 0.0), of_ties.TIED, np.maximum(largest, fell))
        largest = np.where(tied, largest, seen)
        before = np.where(tied, before, before + level)
        lowest = np.where(tied, lowest, np.fmin(lowest, last))
        fell = np.where(tied, fell, np.maximum(0.0, last - x))
        level = np.where(tied, level + 1.0, 1.0)
        with np.errstate(invalid="ignore"):
            below = lowest - x
        evidence = (
            (level >= of_ties.LEAST_TIED)
            & (before >= of_ties.LEAST_BEFORE)
            & (largest >= 0.0)
            & (below > largest)
        )
        found[:, t] = np.where(evidence, below, -np.inf)
    return found


def _highest_before(scores: Matrix) -> tuple[Matrix, Matrix, npt.NDArray[np.int64]]:
    """Return each eval's fall below the best before it and below the second highest (-inf where there is
    none), and the best one's column."""
    largest = float(np.finfo(np.float32).max)
    x = np.clip(scores - scores[:, :1], -largest, largest).astype(np.float32).astype(np.float64)
    highest, at = running_best(x)
    before = np.column_stack([np.zeros(len(x), dtype=np.int64), at[:, :-1]])
    fall = np.column_stack([np.full(len(x), -np.inf), highest[:, :-1] - x[:, 1:]])
    beaten = np.full(x.shape, -np.inf)  # at each eval, what was not the best of it and all before
    beaten[:, 1:] = np.minimum(highest[:, :-1], x[:, 1:])
    second = np.maximum.accumulate(beaten, axis=1)
    return fall, np.column_stack([np.full(len(x), -np.inf), second[:, :-1] - x[:, 1:]]), before


def looks(known: npt.NDArray[np.bool_], steps: Matrix, progress: Matrix, horizon: int) -> Matrix:
    """Return the share of the budget that each look may spend; 0 where the noise is not ``known``."""
    runs, count = known.shape
    spent, found = np.zeros(runs), np.zeros((runs, count))
    longest = vector_gate.longest(steps, progress)
    for t in range(1, count):
        most = longest[:, t]
        evals = np.where(most > 0.0, most, horizon)
        weighed = np.where(
            most > 0.0, spending.part(t + 1, np.maximum(evals, t + 1.0)), 1.0 / np.maximum(1.0, evals - t)
        )
        within = np.maximum(0.0, spending.WITHIN - spent) * weighed
        beyond = (1.0 - spent) / np.maximum(1.0, t + 3 - evals)
        found[:, t] = np.where(known[:, t], np.where(t + 1 <= evals, within, beyond), 0.0)
        spent = spent + found[:, t]
    return found


def levels(
    single: Matrix,
    wide: Matrix,
    look: Matrix,
    shared: Flags,
    paired: Flags | None,
    told: Flags,
    window: int,
    share: float,
) -> Matrix:
    """Return minus the log of the smallest alpha that would have stopped here, of z of singles and of windows
    (NaN, -inf: none).

    ``shared``: windows have their part of the look; ``paired``: singles are judged by the prompts of both;
    ``told``: the noise is not guessed from the scores.
    """
    count = single.shape[1]
    level = np.full(single.shape, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for t in range(1, count):
            pairs = windows.comparisons(t + 1, window, share, False)
            least = scan.SINGLES if paired is None else np.where(paired[:, t], scan.PAIRED, scan.SINGLES)
            part = np.where(shared[:, t] & (pairs > 0), least, 1.0)
            spent = np.log(look[:, t] * part) - log_ndtr(-single[:, t]) - np.log(t)
            if pairs:
                z = wide[:, t]
                chance = log_ndtr(-z) + np.log(pairs)
                fewer = np.where(told[:, t], spending.stretches(t + 1), 1.0)
                rate = np.log(spending.RATE * fewer) + 4.0 * np.log(np.maximum(z, 1.0)) - z * z / 2.0
                rate = np.fmax(
                    rate - np.log(t + 1 + spending.LATER), np.log((t + 1) / spending.ALIKE) + log_ndtr(-z)
                )
                rate = np.where(z >= spending.LEAST_Z, rate, np.inf)
                spent = np.fmax(spent, np.log(look[:, t] * (1.0 - part)) - np.fmin(chance, rate))
            level[:, t] = np.where(np.isnan(spent), -np.inf, spent)
    return level
