"""The usual noise of one eval in a pool, learned from its running jobs, and how much that knowledge is worth.

Runs that are scored by one metric are mostly about equally noisy, and a run of five evals knows nothing of
its own noise. So the pool takes the median of what its runs show by themselves, and how much they differ
tells how far it can be trusted: the empirical Bayes of variances (Smyth 2004, Statistical Applications in
Genetics and Molecular Biology 3(1), art. 3, section 6.2). With s_j^2 the estimate of run j with d_j degrees
of freedom and true variances that scatter as the prior's d0 degrees of freedom say,

    Var(log s_j^2) = trigamma(d_j / 2) + trigamma(d0 / 2)

is solved for d0. A rule shrinks to it by (d0 s0^2 + d s^2) / (d0 + d), `stopping.noise`. The median is
divided by that of chi-squared over its degrees of freedom, (1 - 2 / (9 d))^3 (Wilson and Hilferty), so that
short runs do not pull it down.

A job's own estimate never contains the pool's: nothing is learned twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median, variance

from controller.policy.types import FleetNoise, JobView, MetricNoise

FEWEST = 3  # jobs that a noise is learned from
LEAST, MOST = 1.0, 64.0  # degrees of freedom that the fleet may count for
METRICS_KEPT = 16
SAME = 0.1  # relative change of the noise below which what is known stays: each change is told to every job


def learn(known: Sequence[MetricNoise], jobs: Iterable[JobView]) -> tuple[MetricNoise, ...]:
    """What the pool knows of the noise of each metric, by name; at most `METRICS_KEPT`.

    A metric that no longer has jobs enough keeps what was learned; where there are too many metrics, those
    without jobs go first.
    """
    by_metric: dict[str, list[FleetNoise]] = {}
    for job in jobs:
        if job.noise is not None and job.noise.sigma > 0.0:
            by_metric.setdefault(job.metric, []).append(job.noise)
    before = {entry.metric: entry for entry in known}
    now = {
        m: MetricNoise(m, pooled(found), len(found)) for m, found in by_metric.items() if len(found) >= FEWEST
    }
    merged = {m: _steady(before.get(m), now.get(m)) for m in before.keys() | now.keys()}
    order = sorted(merged, key=lambda m: (m not in now, m))[:METRICS_KEPT]
    return tuple(merged[m] for m in sorted(order))


def pooled(found: Sequence[FleetNoise]) -> FleetNoise:
    """One noise for all of these (at least two), with the degrees of freedom that their scatter leaves."""
    middle = median(n.sigma**2 / (1.0 - 2.0 / (9.0 * n.freedom)) ** 3 for n in found)
    scatter = variance([math.log(n.sigma**2) for n in found])
    by_chance = sum(_trigamma(n.freedom / 2.0) for n in found) / len(found)
    return FleetNoise(_rounded(math.sqrt(middle)), _rounded(_freedom(scatter - by_chance)))


def _steady(before: MetricNoise | None, now: MetricNoise | None) -> MetricNoise:
    if before is None or now is None:
        entry = now if now is not None else before
        assert entry is not None
        return entry
    close = abs(now.noise.sigma - before.noise.sigma) <= SAME * before.noise.sigma
    # The weight matters less than the noise does: it may halve or double before anybody is told.
    about = before.noise.freedom / 2.0 <= now.noise.freedom <= before.noise.freedom * 2.0
    return before if close and about else now


def _freedom(excess: float) -> float:
    """d0 with trigamma(d0 / 2) = excess, within `LEAST` and `MOST`: the more they differ, the fewer."""
    low, high = LEAST, MOST
    if excess <= _trigamma(high / 2.0):
        return high
    if excess >= _trigamma(low / 2.0):
        return low
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _trigamma(middle / 2.0) > excess else (low, middle)
    return high


def _trigamma(x: float) -> float:
    """Second derivative of log gamma at x > 0, to 1e-9: recurrence, then the asymptotic series
    (Abramowitz and Stegun 6.4.6 and 6.4.12)."""
    total = 0.0
    while x < 10.0:
        total += 1.0 / (x * x)
        x += 1.0
    square = 1.0 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    return total + 1.0 / x + square / 2.0 + series / x


def _rounded(value: float) -> float:
    """To three digits: more would be no knowledge, and a change with every eval."""
    return float(f"{value:.3g}")
