"""`controller.policy.stopping.spending` over whole matrices: the budget that `scan` with ``alpha`` spends."""

from __future__ import annotations

from typing import Any, NamedTuple

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
    scores: Matrix,
    steps: Matrix,
    sigma: Matrix,
    freedom: Matrix,
    noise_known: Flags,
    pairs: PromptPairs | None,
) -> Singles:
    """Return what single evals are judged by: of the prompts that both scored, else the noise of any eval.

    Where nothing but the scores says how noisy that is (not ``noise_known``, finite ``freedom``), the second
    highest stands for the best.
    """
    best, second, at = _highest_before(scores)
    fall, root = np.where(np.isinf(freedom) | noise_known, best, second), np.sqrt(2.0)
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
        lowest = np.where(tied, lowest, np.fmin(lowest, single(last)))
        fell = np.where(tied, fell, single(np.maximum(0.0, last - x)))
        level = np.where(tied, level + 1.0, 1.0)
        with np.errstate(invalid="ignore"):
            below = lowest - x
        evidence = (
            (level >= of_ties.LEAST_TIED)
            & (before >= of_ties.LEAST_BEFORE)
            & (largest >= 0.0)
            & (below > largest + of_ties.ALIKE * np.maximum(np.abs(lowest), np.abs(x)))
        )
        found[:, t] = np.where(evidence, below, -np.inf)
    return found


def single(values: Matrix) -> Matrix:
    """As `windows.single`."""
    largest = float(np.finfo(np.float32).max)
    found: Matrix = np.clip(values, -largest, largest).astype(np.float32).astype(np.float64)
    return found


def _highest_before(scores: Matrix) -> tuple[Matrix, Matrix, npt.NDArray[np.int64]]:
    """Return each eval's fall below the best before it and below the second highest (-inf where there is
    none), and the best one's column."""
    x = single(scores - scores[:, :1])
    highest, at = running_best(x)
    before = np.column_stack([np.zeros(len(x), dtype=np.int64), at[:, :-1]])
    fall = np.column_stack([np.full(len(x), -np.inf), highest[:, :-1] - x[:, 1:]])
    beaten = np.full(x.shape, -np.inf)  # at each eval, what was not the best of it and all before
    beaten[:, 1:] = np.minimum(highest[:, :-1], x[:, 1:])
    second = np.maximum.accumulate(beaten, axis=1)
    return fall, np.column_stack([np.full(len(x), -np.inf), second[:, :-1] - x[:, 1:]]), before


class Looks(NamedTuple):
    """`spending.Look` of every eval."""

    share: Matrix
    more: Matrix


def looks(
    known: npt.NDArray[np.bool_], steps: Matrix, progress: Matrix, horizon: int, paired: Flags | None
) -> Looks:
    """Return what each look may spend: nothing where the noise is not ``known``, all alike where they are
    ``paired``."""
    runs, count = known.shape
    spent, found, more = np.zeros(runs), np.zeros((runs, count)), np.zeros((runs, count))
    longest = vector_gate.longest(steps, progress)
    for t in range(1, count):
        most = longest[:, t]
        evals = np.where(most > 0.0, most, horizon)
        length = np.maximum(evals, t + 1.0)
        weight = spending.weight(t + 1, length)
        late = (most > 0.0) & (True if paired is None else ~paired[:, t])
        weighed = np.where(late, weight / spending.left(t + 1, length), 1.0 / (length - t))
        within = np.maximum(0.0, spending.WITHIN - spent) * weighed
        planned = np.where(late, weight / spending.left(spending.SECOND, length), 1.0 / (length - 1.0))
        grown = np.where(late, 1.0 - spending.weight(t, length) / weight, 0.0)
        grown = np.where(within > spending.AS_PLANNED * spending.WITHIN * planned, 1.0, grown)
        beyond = (1.0 - spent) / np.maximum(1.0, t + 3 - evals)
        found[:, t] = np.where(known[:, t], np.where(t + 1 <= evals, within, beyond), 0.0)
        more[:, t] = np.where(t + 1 <= evals, grown, 0.0)
        spent = spent + found[:, t]
    return Looks(found, more)


def best_before(scores: Matrix) -> npt.NDArray[np.int64]:
    """Return the column of the best before each eval."""
    return _highest_before(scores)[2]


def levels(
    single: Matrix,
    wide: Matrix,
    around: Matrix | None,
    look: Looks,
    shared: Flags,
    paired: Flags | None,
    noise_known: Flags,
    p: Any,
) -> Matrix:
    """Return minus the log of the smallest alpha that would have stopped here, shared out as ``p.alpha`` is.

    Of z of singles, of windows and of those around the best by what pairs tell (NaN, -inf: none).

    ``shared``: windows have their part of the look; ``paired``: singles are judged by the prompts of both;
    ``noise_known``: the noise is not guessed from the scores; ``p``: parameters of the rule.
    """
    if paired is not None:
        shared = shared | paired
    count, wide_part = single.shape[1], spending.of_windows(p.alpha)
    level = np.full(single.shape, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for t in range(1, count):
            pairs = windows.comparisons(t + 1, p.window, p.share, False)
            least = np.full(len(level), scan.part_of_singles(t + 1, False))
            if paired is not None:
                least = np.where(paired[:, t], scan.part_of_singles(t + 1, True), least)
            part = np.where(shared[:, t] & (pairs > 0), least, 1.0)
            if paired is not None:
                part = np.where(paired[:, t], least, part)
            of_singles = part + (1.0 - wide_part) * (1.0 - part)
            spent = np.log(look.share[:, t] * of_singles) - log_ndtr(-single[:, t]) - np.log(t)
            left, more = np.log(look.share[:, t] * wide_part * (1.0 - part)), look.more[:, t]
            if pairs:
                fewer = np.where(noise_known[:, t], spending.stretches(t + 1), 1.0)
                spent = np.fmax(spent, left - _log_rate(wide[:, t], more, t + 1, pairs, fewer))
            if pairs and around is not None:
                fewer = np.full(len(left), spending.stretches(t + 1))
                around_left = np.log(look.share[:, t] * wide_part * scan.AROUND)
                pairs += windows.comparisons(t + 1, p.window, scan.SHORTER * p.share, False)
                spent = np.fmax(spent, around_left - _log_rate(around[:, t], more, t + 1, pairs, fewer))
            level[:, t] = np.where(np.isnan(spent), -np.inf, spent)
    return level


def _log_rate(z: Matrix, more: Matrix, seen: int, pairs: int, fewer: Matrix) -> Matrix:
    """Return the log of what bounds longer windows' passing of z at this look: `spending.windows_limit`."""
    rate = np.log(spending.RATE * fewer) + 4.0 * np.log(np.maximum(z, 1.0)) - z * z / 2.0
    worth = np.maximum(1.0, np.minimum(spending.worth(z), spending.of_few(seen)))
    alone = np.log(worth) + log_ndtr(-z)
    rate = np.fmin(alone, np.logaddexp(np.log(more) + alone, rate - np.log(seen + spending.LATER)))
    rate = np.where(z >= spending.LEAST_Z, rate, np.inf)
    found: Matrix = np.fmin(log_ndtr(-z) + np.log(pairs), rate)
    return found
