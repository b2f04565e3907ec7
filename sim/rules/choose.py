"""The stop rule that is worth most on the twin: by what it gives back less what it takes from rising runs.

A stop gives back the GPU time that was still to come. A run that would still have got better by two errors
(its true curve above all it had reached, an error being the standard deviation of one eval's score at that
level) is stopped wrongly, and what was given back by it is charged ``weight`` times. Values are per 100 runs
in the shares of `twin.SHARES`, in whole runs' GPU time.

By that alone the rule that stops most would win: a stop of a flat run costs no quality and gives back much.
But whose run it is was promised that chance stops it seldom, and one bad eval too. So only rules are chosen
from that keep two limits, by one-sided 95 % bounds:

- of flat runs, on the twin whatever the rule is told of them, and on long and short Gaussian ones (`flat`);
- of healthy runs of the twin one of whose evals is that of a collapse: a scorer that was down.

The more a rule of one kind may stop, the more it gives back: so the choice is the one that comes nearest to a
limit, and two seeds may differ in which that is. Hence those are named that are worth more and miss a limit
by no more than chance explains, and those whose value cannot be told from its: by the interval of the
difference on the same runs.

The rule is chosen on one seed and its figures come from another: else the luckiest of many would be shown
with its luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from controller.policy.wording import counted
from sim import twin
from sim.foresight import RuleSpec
from sim.rules import evaluate, twin_series
from sim.rules import flat as flats

Vector = npt.NDArray[np.float64]

WEIGHT = 3.0  # of a wrong stop's GPU time, in the choice
WEIGHTS = (1.0, WEIGHT, 10.0)  # that are shown
ERRORS = 2.0  # by which a run has to get better still, to be stopped wrongly
FLAT = 0.05  # of flat runs, the most that a rule may stop
DIPS = 0.05  # of healthy runs with one bad eval
GAUSSIAN = 4000  # flat Gaussian runs of each length
LENGTHS = (5, 10, 20, 50, 200)  # of these, in evals
TIE = 1.96  # standard errors of a difference of values within which two rules are a tie
SLIGHT = 0.01  # runs of GPU time per 100 runs: a difference that is smaller for sure is none


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule on runs of which it was told one thing.

    Attributes:
        known: what the rule was told besides scores: pairs and prompts, prompts, or nothing.
        value: per 100 runs, by weight of a wrong stop, in runs' GPU time.
        error: standard error of the value at `WEIGHT`.
        caught: share of declining runs that are stopped after their peak.
        flat, rising: share of these runs that is stopped.
        dips: share that is stopped of healthy runs with one bad eval.
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
    dips: float
    wrong: float
    ahead: float
    right: float

    def as_dict(self) -> dict[str, Any]:
        """JSON values; what is not defined is null."""
        found = {k: None if v != v else v for k, v in asdict(self).items()}
        return found | {"value": {f"{weight:g}": value for weight, value in self.value.items()}}


@dataclass(frozen=True, slots=True)
class Rival:
    """A rule that may be as good as the chosen one.

    Attributes:
        more: by which it is worth more on the first seed (negative: less), per 100 runs.
        interval: of that, 95 %, by the differences on the same runs.
    """

    rule: str
    more: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule of the greatest value, and those that tie with it: these runs do not decide between them.

    Attributes:
        rule: of the greatest value on the first seed, of those that keep the limits there.
        ties: others whose interval of the difference comes within `SLIGHT` of 0, best first.
        doubtful: rules of greater value that miss a limit by no more than chance explains, best first.
        rows: of each rule and of what it was told, on the second seed.
        flat, dips: the limits.
    """

    rule: str
    ties: tuple[Rival, ...]
    doubtful: tuple[Rival, ...]
    rows: tuple[Judged, ...]
    flat: float
    dips: float
    weight: float = WEIGHT  # at which it was chosen


class Limits:
    """Limits on stops of runs that chance or a bad eval makes fall; Gaussian runs are drawn when asked for.

    Args:
        named: the rules.
        runs: of the twin, of each kind.
        stops: in these, by what is told, and by rule.
        seed: of what is drawn besides.
        flat, dips: the limits, 0 to 1.
        gaussian: flat Gaussian runs of each length.
    """

    def __init__(
        self,
        named: Mapping[str, RuleSpec],
        runs: Sequence[twin.Run],
        stops: Mapping[str, Mapping[str, Sequence[int]]],
        seed: int,
        flat: float,
        dips: float,
        gaussian: int,
    ) -> None:
        self._named, self._seed, self._gaussian = named, seed, gaussian
        self._flat, self._dips = flat, dips
        kinds = np.array([run.kind for run in runs])
        dipped = _stops(named, list(twin.dipping(sum(run.kind == twin.FLAT for run in runs), 1, seed)))
        self._found: dict[str, list[tuple[float, int, int]]] = {}  # limit, stopped, runs
        for name in named:
            held = [np.array(by_rule[name])[kinds == twin.FLAT] for by_rule in stops.values()]
            self._found[name] = [(flat, int((one >= 0).sum()), len(one)) for one in held]
            bad = [np.array(by_rule[name]) for by_rule in dipped.values()]
            self._found[name] += [(dips, int((one >= 0).sum()), len(one)) for one in bad]
        self._long: dict[str, list[tuple[float, int, int]]] = {}

    def kept(self, name: str) -> bool:
        """Return whether no limit is missed, by the upper bounds of what is stopped."""
        return all(evaluate.upper_bound(stopped, of) <= limit for limit, stopped, of in self._all(name))

    def missed(self, name: str) -> bool:
        """Return whether a limit is missed by more than chance explains."""
        return any(evaluate.exact_interval(stopped, of)[0] > limit for limit, stopped, of in self._all(name))

    def least(self, name: str) -> float:
        """Return what the limit on flat runs would have to be."""
        return max(
            evaluate.upper_bound(stopped, of) for limit, stopped, of in self._all(name) if limit == self._flat
        )

    def _all(self, name: str) -> Iterator[tuple[float, int, int]]:
        yield from self._found[name]
        if self._flat >= 1.0 or not self._gaussian:
            return
        if name not in self._long:
            self._long[name] = [
                (self._flat, round(row.stopped * row.runs), row.runs)
                for total in (flats.Total.UNKNOWN, flats.Total.KNOWN)
                for row in flats.rates(
                    name,
                    self._named[name],
                    runs=self._gaussian,
                    seed=self._seed,
                    lengths=LENGTHS,
                    total=total,
                )
            ]
        yield from self._long[name]


def choose(
    named: Mapping[str, RuleSpec],
    runs: int,
    seed: int,
    flat: float = FLAT,
    dips: float = DIPS,
    gaussian: int = GAUSSIAN,
) -> Choice:
    """Choose among rules on ``runs`` runs of each kind of ``seed``; judge them on as many of ``seed + 1``.

    The choice weighs what rules are told alike: with pairs, with prompts, with scores only.

    Args:
        named: the rules.
        runs: of each kind.
        seed: of the choice.
        flat: the most that a rule may stop of flat runs, by the one-sided 95 % bound, 0 to 1.
        dips: the same of healthy runs with one bad eval.
        gaussian: flat Gaussian runs of each length on which the first limit is to hold too; 0: none.

    Raises:
        ValueError: no rule was given, or none keeps the limits.
    """
    if not named:
        raise ValueError("rules: none was given, expected at least one")
    drawn = list(twin.draw(runs, seed))
    stops = _stops(named, drawn)
    limits = Limits(named, drawn, stops, seed, flat, dips, gaussian)
    seen = {name: _values(drawn, stops, name) for name in named}
    order = sorted(seen, key=lambda name: -_stratified(seen[name])[0])
    best = next((name for name in order if limits.kept(name)), None)
    if best is None:
        lowest = min(order, key=limits.least)
        raise ValueError(
            f"flat: {flat:g}, dips: {dips:g}: no rule's stops have 95 % bounds below both of "
            f"{counted(runs, 'run')}; of flat runs {lowest} has the lowest, {limits.least(lowest):.3g}; more "
            "runs narrow them"
        )
    at = order.index(best)
    return Choice(
        best,
        tuple(
            r
            for name in order[at + 1 :]
            if (r := _rival(seen, name, best)).interval[1] > -SLIGHT and limits.kept(name)
        ),
        tuple(_rival(seen, name, best) for name in order[:at] if not limits.missed(name)),
        tuple(_rows(named, list(twin.draw(runs, seed + 1)), list(twin.dipping(runs, 1, seed + 1)))),
        flat,
        dips,
    )


def _rival(seen: Mapping[str, Mapping[str, Vector]], name: str, best: str) -> Rival:
    more, error = _stratified({k: seen[name][k] - seen[best][k] for k in seen[best]})
    return Rival(name, more, (more - TIE * error, more + TIE * error))


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
        evidence: {n: evaluate.first_stops(spec, shown).tolist() for n, spec in named.items()}
        for evidence, shown in twin_series.by_evidence(runs)
    }


def _values(
    runs: Sequence[twin.Run], stops: Mapping[str, Mapping[str, Sequence[int]]], name: str
) -> dict[str, Vector]:
    """Of a rule, the values of the runs of each kind, each the mean over what the rule is told."""
    values = np.mean([_worth(runs, by_rule[name], WEIGHT) for by_rule in stops.values()], axis=0)
    return _by_kind(runs, values)


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


def _rows(
    named: Mapping[str, RuleSpec], runs: Sequence[twin.Run], dipping: Sequence[twin.Run]
) -> list[Judged]:
    stops, dipped = _stops(named, runs), _stops(named, dipping)
    found = []
    for name in named:
        for evidence, by_rule in stops.items():
            bad = float(np.mean([stop >= 0 for stop in dipped[evidence][name]]))
            found.append(_row(name, evidence, runs, by_rule[name], bad))
    return found


def _row(name: str, evidence: str, runs: Sequence[twin.Run], stops: Sequence[int], dips: float) -> Judged:
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
        evidence,
        value,
        _stratified(_by_kind(runs, _worth(runs, stops, WEIGHT)))[1],
        share(twin.DECLINING, caught),
        share(twin.FLAT, stopped),
        share(twin.RISING, stopped),
        dips,
        sum(n * share(kind, wrong) for kind, n in twin.SHARES.items()),
        float(np.mean(ahead)) if ahead else math.nan,
        right / stopped_of_100 if stopped_of_100 else math.nan,
    )
