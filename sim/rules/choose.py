"""The stop rule that is worth most on the twin: by what it gives back less what it takes from rising runs.

A stop gives back the GPU time that was still to come. A run that would still have got better by two errors
(its true curve above all it had reached, an error being the standard deviation of one eval's score at that
level) is stopped wrongly, and what was given back by it is charged ``weight`` times. Values are per 100 runs
in the shares of `twin.SHARES`, in whole runs' GPU time.

By that alone the rule that stops most would win: a stop of a flat run costs no quality and gives back much.
But whose run it is was promised that chance stops it seldom. So only rules are chosen from of whose flat runs
at most a share is stopped, by its one-sided 95 % bound and whatever they are told.

The rule is chosen on one seed and its figures come from another: else the luckiest of many would be shown
with its luck.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sim import twin
from sim.foresight import RuleSpec
from sim.rules import evaluate, twin_series

Vector = npt.NDArray[np.float64]

WEIGHT = 3.0  # of a wrong stop's GPU time, in the choice
WEIGHTS = (1.0, WEIGHT, 10.0)  # that are shown
ERRORS = 2.0  # by which a run has to get better still, to be stopped wrongly
FLAT = 0.05  # of flat runs, the most that a rule may stop
TIE = 1.96  # standard errors of a difference of values within which two rules are a tie


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule on runs of which it was told one thing.

    Attributes:
        known: what the rule was told besides scores: pairs and prompts, prompts, or nothing.
        value: per 100 runs, by weight of a wrong stop, in runs' GPU time.
        error: standard error of the value at `WEIGHT`.
        caught: share of declining runs that are stopped after their peak.
        flat, rising: share of these runs that is stopped.
        wrong: of 100 runs, how many are stopped that would still have got better.
        ahead: mean score that stopped rising runs still had to gain; NaN: none was stopped.
        right: share of the stops that are of a declining run after its peak; NaN: nothing was stopped.
    """

    rule: str
    known: str
    value: dict[float, float]
    error: float
    caught: float
    flat: float
    rising: float
    wrong: float
    ahead: float
    right: float

    def as_dict(self) -> dict[str, Any]:
        """JSON values; what is not defined is null."""
        found = {k: None if v != v else v for k, v in asdict(self).items()}
        return found | {"value": {f"{weight:g}": value for weight, value in self.value.items()}}


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule of the greatest value, and those that cannot be told from it.

    Attributes:
        rule: of the greatest value on the first seed, of those that keep the bound there.
        ties: others whose value differs from its by no more than `TIE` standard errors, best first.
        rows: of each rule and of what it was told, on the second seed.
    """

    rule: str
    ties: tuple[str, ...]
    rows: tuple[Judged, ...]
    bound: float  # on flat runs
    weight: float = WEIGHT  # at which it was chosen


def choose(named: Mapping[str, RuleSpec], runs: int, seed: int, flat: float = FLAT) -> Choice:
    """Choose among rules on ``runs`` runs of each kind of ``seed``; judge them on as many of ``seed + 1``.

    The choice weighs what rules are told alike: with pairs, with prompts, with scores only.

    Args:
        named: the rules.
        runs: of each kind.
        seed: of the choice.
        flat: the most that a rule may stop of flat runs, by the one-sided 95 % bound, 0 to 1.

    Raises:
        ValueError: no rule was given, or none keeps the bound.
    """
    if not named:
        raise ValueError("rules: none was given, expected at least one")
    drawn = list(twin.draw(runs, seed))
    stops = _stops(named, drawn)
    least = {name: max(_flat_bound(drawn, by_rule[name]) for by_rule in stops.values()) for name in named}
    seen = {name: _values(drawn, stops, name) for name in named if least[name] <= flat}
    if not seen:
        lowest = min(least, key=lambda name: least[name])
        raise ValueError(
            f"flat: {flat:g}, expected {least[lowest]:.3g} or more: of {runs} flat runs no rule's stops "
            f"have a lower 95 % bound ({lowest} has this one); more runs narrow it"
        )
    means = {name: _stratified(value)[0] for name, value in seen.items()}
    order = sorted(seen, key=lambda name: -means[name])
    best = order[0]
    ties = []
    for name in order[1:]:
        mean, error = _stratified({k: seen[best][k] - seen[name][k] for k in seen[best]})
        if mean <= TIE * error:
            ties.append(name)
    return Choice(best, tuple(ties), tuple(_rows(named, list(twin.draw(runs, seed + 1)))), flat)


def still_to_gain(run: twin.Run, stop: int) -> float:
    """Return by how much the true curve rises after a stop above all it had reached, at least 0."""
    later = run.means[stop + 1 :]
    return max(0.0, float(later.max() - run.means[: stop + 1].max())) if len(later) else 0.0


def is_wrong(run: twin.Run, stop: int) -> bool:
    """Return whether a run stopped at ``stop`` would still have got better by `ERRORS` errors of one eval."""
    reached = float(run.means[: stop + 1].max())
    return still_to_gain(run, stop) > ERRORS * math.sqrt(max(reached * (1.0 - reached), 0.0) / run.prompts)


def given_back(run: twin.Run, stop: int) -> float:
    """Return the share of the run's time that a stop at ``stop`` saves; 0: it is not stopped (-1)."""
    return 1.0 - (stop + 1) / len(run.scores) if stop >= 0 else 0.0


def _stops(named: Mapping[str, RuleSpec], runs: Sequence[twin.Run]) -> dict[str, dict[str, list[int]]]:
    """By what is told, and by rule."""
    return {
        told: {n: evaluate.first_stops(spec, shown).tolist() for n, spec in named.items()}
        for told, shown in twin_series.told(runs)
    }


def _values(
    runs: Sequence[twin.Run], stops: Mapping[str, Mapping[str, Sequence[int]]], name: str
) -> dict[str, Vector]:
    """Of a rule, the values of the runs of each kind, each the mean over what the rule is told."""
    told = np.mean([_worth(runs, by_rule[name], WEIGHT) for by_rule in stops.values()], axis=0)
    return _by_kind(runs, told)


def _flat_bound(runs: Sequence[twin.Run], stops: Sequence[int]) -> float:
    stopped = [stop >= 0 for run, stop in zip(runs, stops, strict=True) if run.kind == twin.FLAT]
    return evaluate.upper_bound(sum(stopped), len(stopped))


def _worth(runs: Sequence[twin.Run], stops: Sequence[int], weight: float) -> Vector:
    """Of each run, what its stop gives back less ``weight`` times that if the stop is wrong."""
    found = []
    for run, stop in zip(runs, stops, strict=True):
        back = given_back(run, stop)
        found.append(back - weight * back if stop >= 0 and is_wrong(run, stop) else back)
    return np.array(found)


def _by_kind(runs: Sequence[twin.Run], values: Vector) -> dict[str, Vector]:
    return {k: values[[i for i, run in enumerate(runs) if run.kind == k]] for k in twin.SHARES}


def _stratified(values: Mapping[str, Vector]) -> tuple[float, float]:
    """Return the sum per 100 runs of values by kind, and its standard error."""
    mean = sum(share * float(values[k].mean()) for k, share in twin.SHARES.items())
    variance = sum(share**2 * float(values[k].var()) / len(values[k]) for k, share in twin.SHARES.items())
    return mean, math.sqrt(variance)


def _rows(named: Mapping[str, RuleSpec], runs: Sequence[twin.Run]) -> list[Judged]:
    stops = _stops(named, runs)
    found = []
    for name in named:
        for told, by_rule in stops.items():
            found.append(_row(name, told, runs, by_rule[name]))
    return found


def _row(name: str, told: str, runs: Sequence[twin.Run], stops: Sequence[int]) -> Judged:
    def share(kind: str, holds: Sequence[bool]) -> float:
        return float(np.mean([h for run, h in zip(runs, holds, strict=True) if run.kind == kind]))

    value = {w: _stratified(_by_kind(runs, _worth(runs, stops, w)))[0] for w in WEIGHTS}
    stopped = [stop >= 0 for stop in stops]
    caught = [stop > run.peak >= 0 for run, stop in zip(runs, stops, strict=True)]
    wrong = [stop >= 0 and is_wrong(run, stop) for run, stop in zip(runs, stops, strict=True)]
    ahead = [
        still_to_gain(run, stop)
        for run, stop in zip(runs, stops, strict=True)
        if run.kind == twin.RISING and stop >= 0
    ]
    stopped_of_100 = sum(n * share(kind, stopped) for kind, n in twin.SHARES.items())
    right = twin.SHARES[twin.DECLINING] * share(twin.DECLINING, caught)
    return Judged(
        name,
        told,
        value,
        _stratified(_by_kind(runs, _worth(runs, stops, WEIGHT)))[1],
        share(twin.DECLINING, caught),
        share(twin.FLAT, stopped),
        share(twin.RISING, stopped),
        sum(n * share(kind, wrong) for kind, n in twin.SHARES.items()),
        float(np.mean(ahead)) if ahead else math.nan,
        right / stopped_of_100 if stopped_of_100 else math.nan,
    )
