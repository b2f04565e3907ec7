"""The usual noise of one eval, learned from a namespace's running jobs, and how much it counts.

Runs that are scored by one metric are mostly about equally noisy, and a run of five evals knows nothing of
its own noise. Guardrail metrics are learned like Primary ones and together with them: a metric that is
Primary in one run and a guardrail in another is one metric. So of each namespace's runs of one metric and
evaluator the pool takes the median of what they show by themselves, and how much they differ tells how far it
can be trusted: the empirical Bayes of variances (Smyth 2004, Statistical Applications in Genetics and
Molecular Biology 3(1), art. 3, section 6.2). With s_j^2 the estimate of run j with d_j degrees of freedom and
true variances that scatter as the prior's d0 degrees of freedom say,

    Var(log s_j^2) = trigamma(d_j / 2) + trigamma(d0 / 2)

is solved for d0. A rule shrinks to it by (d0 s0^2 + d s^2) / (d0 + d), `stopping.noise`. The median is
divided by that of chi-squared over its degrees of freedom, (1 - 2 / (9 d))^3 (Wilson and Hilferty), so that
short runs do not pull it down.

A job's own estimate never contains the pool's: nothing is learned twice.

**Other namespaces.** Their runs may report whatever they like, so a run is never judged by less noise on
their account. Where the pool's scope is `FleetScope.POOL`, each of them has one vote, the median of its runs.
What `VOTES` of them show at least is a floor: what a run and its namespace show is raised to it, at most to
`stopping.noise.RAISED_MOST` times as much, and is not taken to be better known for it. So no vote, however
many there are, lowers the floor that the others make: of a middle one, ten namespaces that report next to
no noise would leave nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from controller.policy.fleet.tables import fair
from controller.policy.types import FleetNoise, FleetScope, GuardrailNoise, JobView, MetricNoise, ScoredBy

FEWEST = 3  # jobs that a noise is learned from
VOTES = 3  # other namespaces whose votes make a floor
LEAST, MOST = 1.0, 64.0  # degrees of freedom that the fleet may count for
METRICS_KEPT = 16  # of a namespace
NOISE_KEPT = 256  # of all namespaces
SAME = 0.1  # relative change of the noise below which what is known stays: each change is told to every job


def learn(
    known: Sequence[MetricNoise], jobs: Iterable[JobView], scope: FleetScope = FleetScope.NAMESPACE
) -> tuple[MetricNoise, ...]:
    """Return what the pool knows of the noise of each namespace's metrics, in order; bounded by `fair`.

    A metric that no longer has jobs enough keeps what was learned; where a namespace has too many metrics,
    those without jobs go first.
    """
    by: dict[ScoredBy, list[FleetNoise]] = {}
    for job in jobs:
        for key, noise in _shown(job):
            if noise.sigma > 0.0:
                by.setdefault(key, []).append(noise)
    votes = scope is FleetScope.POOL
    before = {n.scored_by: n for n in known if votes or n.noise.freedom > 0.0}
    now = {
        key: MetricNoise(*key, pooled(found), len(found))
        for key, found in by.items()
        if votes or len(found) >= FEWEST
    }
    merged = {key: _steady(before.get(key), now.get(key)) for key in before.keys() | now.keys()}
    order = sorted(merged, key=lambda key: (key.namespace, key not in now, key))
    counts: dict[str, int] = {}
    mine = []
    for key in order:
        counts[key.namespace] = counts.get(key.namespace, 0) + 1
        if counts[key.namespace] <= METRICS_KEPT:
            mine.append(key)
    return tuple(merged[key] for key in sorted(fair(mine, lambda key: key.namespace, NOISE_KEPT)))


def _shown(job: JobView) -> Iterator[tuple[ScoredBy, FleetNoise]]:
    """Yield what a run shows of the noise of each metric that it is judged by."""
    if job.noise is not None:
        yield job.scored_by, job.noise
    for metric, noise in job.guardrail_noise or ():
        yield job.scored_by._replace(metric=metric), noise


def usual(known: Sequence[MetricNoise], scored_by: ScoredBy, scope: FleetScope) -> FleetNoise | None:
    """Return what the pool tells a run of its noise; None: nothing."""
    own = next((n.noise for n in known if n.scored_by == scored_by and n.noise.freedom > 0.0), None)
    floor = 0.0
    if scope is FleetScope.POOL:
        votes = [n.noise.sigma for n in known if _others(n.scored_by, scored_by)]
        floor = _rounded(sorted(votes)[-VOTES]) if len(votes) >= VOTES else 0.0
    if own is None:
        return FleetNoise(0.0, 0.0, floor) if floor else None
    return own._replace(floor=floor)


def usual_of_guardrails(
    known: Sequence[MetricNoise], scored_by: ScoredBy, scope: FleetScope, metrics: Iterable[str]
) -> tuple[GuardrailNoise, ...]:
    """Return what the pool tells a run, whose Primary metric is so scored, of its guardrail ``metrics``, of
    those that it knows."""
    found = ((metric, usual(known, scored_by._replace(metric=metric), scope)) for metric in metrics)
    return tuple(GuardrailNoise(metric, one) for metric, one in found if one is not None)


def _others(one: ScoredBy, mine: ScoredBy) -> bool:
    """Return whether these are another namespace's runs, scored as mine are."""
    return one.namespace != mine.namespace and one[1:] == mine[1:]


def pooled(found: Sequence[FleetNoise]) -> FleetNoise:
    """Return one noise for all of these, with the degrees of freedom that their scatter leaves; 0: they are
    too few to tell anybody of their own namespace."""
    middle = median(n.sigma**2 / (1.0 - 2.0 / (9.0 * n.freedom)) ** 3 for n in found)
    if len(found) < FEWEST:
        return FleetNoise(_rounded(math.sqrt(middle)), 0.0)
    scatter = _variance([math.log(n.sigma**2) for n in found])
    by_chance = sum(_trigamma(n.freedom / 2.0) for n in found) / len(found)
    return FleetNoise(_rounded(math.sqrt(middle)), _rounded(_freedom(scatter - by_chance)))


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance of two or more numbers, in two passes.

    The one of `statistics` reckons in fractions, which takes ten times as long for the same three digits.
    """
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _steady(before: MetricNoise | None, now: MetricNoise | None) -> MetricNoise:
    if before is None or now is None:
        entry = now if now is not None else before
        assert entry is not None
        return entry
    if before.noise.freedom > 0.0 and now.noise.freedom == 0.0:
        return before
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
