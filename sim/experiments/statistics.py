"""Uncertainty of a figure: bootstrap intervals over seeds, paired tests, Holm's correction.

A seed is the unit: jobs of one run share a cluster and are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

import numpy as np
import numpy.typing as npt

from sim.experiments.estimate import Estimate

RESAMPLES = 10_000
LEVEL = 0.95

Sums = npt.NDArray[np.float64]  # (fields,) or (resamples, fields)


def ratio(above: Sequence[float], below: Sequence[float], *, gain: bool = False) -> Estimate:
    """Sum over seeds of ``above`` divided by that of ``below``; ``gain``: what is missing to 1.

    The interval is the percentile bootstrap over seeds, of both sums together (they are paired). Without
    anything below, NaN.
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if not b.sum() > 0.0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    value = _share(a.sum(), b.sum(), gain)
    if len(a) < 2:
        return Estimate(float(value), float("nan"), float("nan"))
    # Only the sums of a resample are kept: with a unit for each job of a log its picks would fill the memory.
    sums_a, sums_b = map(np.concatenate, zip(*((p @ a, p @ b) for p in _picks(len(a))), strict=True))
    usable = sums_b > 0.0
    resampled = _share(sums_a[usable], sums_b[usable], gain)
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(resampled, (tail, 1.0 - tail))
    return Estimate(float(value), float(low), float(high))


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return two-sided p that ours and theirs do not differ, by seed: the larger of paired t and Wilcoxon.

    On logarithms, so that seeds with long queues do not outweigh the rest. 1 where nothing differs.
    """
    stats = import_module("scipy.stats")  # slow to import, and without type hints
    difference = np.log(np.asarray(ours, dtype=np.float64)) - np.log(np.asarray(theirs, dtype=np.float64))
    if len(difference) < 2 or not np.any(difference):
        return 1.0
    if np.ptp(difference) == 0.0:
        return float(stats.wilcoxon(difference).pvalue)
    return float(max(stats.ttest_1samp(difference, 0.0).pvalue, stats.wilcoxon(difference).pvalue))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: p-values of a family of tests, each fit to be compared with one level."""
    corrected: dict[str, float] = {}
    before = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        before = max(before, min(1.0, p * (len(p_values) - place)))
        corrected[name] = before
    return {name: corrected[name] for name in p_values}


def _share(above: Sums, below: Sums, gain: bool) -> Sums:
    return 1.0 - above / below if gain else above / below


_CELLS = 4_000_000  # of the picks that are there at once, 32 MB; 400 seeds and fewer are drawn in one go
_PICKS: dict[int, Sums] = {}


def _picks(units: int) -> Iterator[Sums]:
    """Yield how often each unit is in each resample, in blocks of (resamples, units); the same for every
    figure.

    The blocks follow one stream of random numbers, so how large they are changes nothing.
    """
    if units in _PICKS:
        yield _PICKS[units]
        return
    generator, rows = np.random.Generator(np.random.PCG64(20_25)), max(1, _CELLS // units)
    for done in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - done)
        picks = generator.multinomial(units, [1.0 / units] * units, size=size).astype(np.float64)
        if size == RESAMPLES:
            _PICKS[units] = picks
        yield picks
