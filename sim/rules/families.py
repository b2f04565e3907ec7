"""Histories drawn from the simulator's curve families, whose truth is known."""

from __future__ import annotations

import math

import numpy as np

from controller.frozen import dataclass
from sim.rules.history import Series
from sim.workloads.curves import FAMILIES, rise
from sim.workloads.paired_differences import differences

FLOOR, GAIN, CURVATURE = 0.4, 0.4, 3.0  # true score before training, rise to the best, rate of the rise
PEAKS = (0.55, 0.75)  # share of the training (the paper's range)
PROXY_NOISE = 0.02  # standard deviation of the proxy reward's error; it rises from 0 to 1 in every run


@dataclass(frozen=True, slots=True)
class Drawn:
    """Series with what nobody who judges them may know."""

    series: list[Series]
    means: list[tuple[float, ...]]  # the true scores


def draw(
    family: str,
    *,
    evals: int,
    noise: float,
    runs: int,
    seed: int,
    depth: float = 0.3,
    reported: bool = False,
    proxy: bool = False,
    prompts: int = 0,
    discordant: float = 0.2,
) -> Drawn:
    """Draw ``runs`` declining, as many healthy and as many flat runs of a family.

    Args:
        family: name in `FAMILIES`.
        evals: of each run.
        noise: standard deviation of an eval's score.
        runs: of each kind.
        seed: of the random numbers.
        depth: fall (score) over .35 of the training, where the family has a straight fall.
        reported: whether the series carry the true noise as standard errors.
        proxy: whether they carry the proxy reward.
        prompts: on which each eval is compared with the best before it (`sim.workloads.paired_differences`);
            0: no differences. Proxies and differences are drawn aside: scores are the same with and without.
        discordant: share of the prompts on which two equally good policies differ.
    """
    chosen = FAMILIES[family]
    proxies_of = np.random.default_rng([seed, evals, 0])
    pairing = np.random.default_rng([seed, evals, prompts])
    random = np.random.default_rng([seed, evals, round(noise * 1e6), list(FAMILIES).index(family)])
    at = [(i + 1) / evals for i in range(evals)]
    steps = tuple(float(i + 1) for i in range(evals))
    fall = depth / GAIN / 0.35
    series, means = [], []
    for kind in ("declining", "healthy", "plateau"):
        for number in range(runs):
            peak = float(random.uniform(*PEAKS))
            if kind == "plateau":
                shares = [1.0] * evals
            else:
                shape = chosen.hacking if kind == "declining" else chosen.healthy
                shares = [shape(p, peak, fall, CURVATURE) for p in at]
            mean = tuple(FLOOR + GAIN * share for share in shares)
            scores = tuple((np.asarray(mean) + noise * random.standard_normal(evals)).tolist())
            label = "plateau" if kind == "healthy" and family == "plateau" else kind
            errors = (noise if reported and noise > 0 else None,) * evals
            name = f"{family}/{kind}/{number}"
            best = steps[int(np.argmax(mean))] if kind == "declining" else None
            pairs = differences(pairing.binomial, prompts, discordant, mean, scores) if prompts else ()
            proxies = [rise(p, CURVATURE) + PROXY_NOISE * proxies_of.standard_normal() for p in at if proxy]
            series.append(
                Series(
                    name,
                    name,
                    family,
                    label,
                    steps,
                    scores,
                    errors,
                    best,
                    proxies=tuple(proxies),
                    paired=tuple(pairs),
                )
            )
            means.append(mean)
    return Drawn(series, means)


def oracle(drawn: Drawn, noise: float) -> float:
    """Share of declines that the best test at level .025 finds which knows peak, level, curve and noise.

    One look, at the end: the shortfalls after the peak below the peak's level, weighted by the true shortfall
    (the most powerful test of that curve against a flat one).
    """
    found = total = 0
    for series, mean in zip(drawn.series, drawn.means, strict=True):
        if series.label != "declining":
            continue
        total += 1
        best = max(mean)
        after = range(mean.index(best) + 1, len(mean))
        weights = [best - mean[i] for i in after]
        norm = noise * math.sqrt(sum(w * w for w in weights))
        shortfall = sum(w * (best - series.scores[i]) for w, i in zip(weights, after, strict=True))
        found += norm > 0 and shortfall / norm > 1.959964
    return found / total if total else math.nan
