"""Rules judged on a history: false stops, declines caught, what that saved, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta  # type: ignore[import-untyped, unused-ignore]

from controller.frozen import dataclass
from controller.policy.stopping import noise
from controller.policy.types import FleetNoise, PromptPair, Verb
from sim.foresight import RuleSpec
from sim.rules import vector
from sim.rules.history import Series
from sim.rules.truth import Truth, truth
from sim.rules.vector_eprocess import Pairs
from sim.rules.vector_spending import PromptPairs

RESAMPLES = 1000
ALL = "all"


@dataclass(frozen=True, slots=True)
class Judged:
    """A series with its truth, ready to be shown to rules."""

    series: Series
    truth: Truth


@dataclass(frozen=True, slots=True)
class Row:
    """One rule on one family. Shares are of the series they are about; intervals are 95 %.

    Several series may be of one run (several metrics, several seeds): ``runs`` counts those, all other counts
    are of series.
    """

    rule: str
    family: str
    runs: int
    series: int
    healthy: int
    plateaus: int
    declining: int
    ambiguous: int
    false_stops: float  # of healthy runs
    plateau_stops: float  # of runs labelled plateau
    caught: float  # of declining runs, stopped at their peak or later
    premature: float  # of declining runs, stopped before it
    saved: float  # mean share of the time after the peak, 0 for a run not caught
    delay: float  # mean evals from peak to stop, of those caught
    false_stops_bound: float  # one-sided 95 % upper bound of ``false_stops``
    intervals: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values; what is not defined (no such runs) is null."""
        out: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, float) and math.isnan(value):
                value = None
            out[name] = value
        out["intervals"] = {
            k: [None if math.isnan(x) else x for x in pair] for k, pair in self.intervals.items()
        }
        return out


def judge(series: Iterable[Series]) -> list[Judged]:
    """Return the series that have evals, each with its truth."""
    return [Judged(s, truth(s)) for s in series if s.scores]


def matrices(judged: Sequence[Judged]) -> list[tuple[npt.NDArray[np.int64], vector.Evals]]:
    """Return the series as matrices, of similar lengths together: (rows, evals) pairs."""
    order = sorted(range(len(judged)), key=lambda i: len(judged[i].series.scores))
    chunks: list[list[int]] = []
    for i in order:
        length = len(judged[i].series.scores)
        if chunks and length <= 1.3 * len(judged[chunks[-1][0]].series.scores) and len(chunks[-1]) < 4096:
            chunks[-1].append(i)
        else:
            chunks.append([i])
    out = []
    for chunk in chunks:
        longest = max(len(judged[i].series.scores) for i in chunk)
        series = [judged[i].series for i in chunk]
        out.append((np.asarray(chunk), _matrices(series, longest)))
    return out


def _matrices(series: Sequence[Series], evals: int) -> vector.Evals:
    def matrix(rows: Iterable[Sequence[float | None]]) -> vector.Matrix:
        out = np.full((len(series), evals), np.nan)
        for row, values in enumerate(rows):
            out[row, : len(values)] = [math.nan if value is None else value for value in values]
        return out

    pairs = None
    if any(s.paired for s in series):
        pairs = Pairs(
            matrix([[p and p.prompts for p in s.paired] for s in series]),
            matrix([[p and p.mean for p in s.paired] for s in series]),
            matrix([[p and p.variance for p in s.paired] for s in series]),
        )
    proxies = matrix(s.proxies for s in series) if any(s.proxies for s in series) else None
    stderrs = matrix([noise.error(point) for point in s.points()] for s in series)
    progress = matrix(s.progress() for s in series) if any(s.total for s in series) else None
    steps = matrix([int(step) for step in s.steps] for s in series)
    ranges = [[s.range and s.range[1] - s.range[0]] * len(s.steps) for s in series]

    def shared(known: Sequence[Sequence[PromptPair | None]]) -> PromptPairs | None:
        if not any(known):
            return None
        return PromptPairs(
            matrix([[p and p.step for p in row] for row in known]),
            matrix([[p and p.prompts for p in row] for row in known]),
            matrix([[p and p.variance for p in row] for row in known]),
            matrix(ranges),
        )

    scores = matrix(s.scores for s in series)
    prompts = None
    if any(s.prompts for s in series):
        prompts = matrix(s.prompts or (None,) * len(s.steps) for s in series) > 0.0
    usual = None
    if any(s.usual for s in series):
        known = [s.usual or FleetNoise(0.0, 0.0) for s in series]
        usual = (np.array([n.sigma for n in known]), np.array([n.freedom for n in known]))
    best, last = shared([s.prompt_pairs for s in series]), shared([s.last_pairs for s in series])
    samples = matrix([p.samples or p.prompts for p in s.points()] for s in series)
    return vector.Evals(
        scores, stderrs, proxies, pairs, steps, progress, None, best, prompts, usual, last, samples
    )


def first_stops(spec: RuleSpec, judged: Sequence[Judged]) -> npt.NDArray[np.int64]:
    """Return the index of the first STOP of each series, -1: none. Vectorised where the rule has a form."""
    stops = np.full(len(judged), -1, dtype=np.int64)
    if vector.covers(spec):
        for rows, evals in matrices(judged):
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # scores of any size: rules bound them themselves
                stops[rows] = vector.first_stops(spec, evals)
        return stops
    for i, one in enumerate(judged):
        rule = spec.make()
        state = rule.initial()
        for number, point in enumerate(one.series.points()):
            state, verdict = rule.observe(state, point)
            if verdict.verb is Verb.STOP:
                stops[i] = number
                break
    return stops


def rows(name: str, judged: Sequence[Judged], stops: npt.NDArray[np.int64], seed: int = 0) -> list[Row]:
    """Return a row for each family, and one for all if there are several."""
    families = list(dict.fromkeys(j.series.family for j in judged))
    out = []
    for family in [*families, *([ALL] if len(families) > 1 else [])]:
        chosen = [i for i, j in enumerate(judged) if family in (ALL, j.series.family)]
        out.append(_row(name, family, [judged[i] for i in chosen], stops[chosen], seed))
    return out


def _row(name: str, family: str, judged: Sequence[Judged], stops: npt.NDArray[np.int64], seed: int) -> Row:
    label = np.array([j.truth.label for j in judged])
    peak = np.array([j.truth.peak for j in judged])
    healthy, plateau, declining = label == "healthy", label == "plateau", label == "declining"
    stopped = stops >= 0
    caught = declining & stopped & (stops >= peak)
    premature = declining & stopped & (stops < peak)
    saved = np.array([_saved(j, s) for j, s in zip(judged, stops, strict=True)]) * caught
    delay = np.where(caught, stops - peak, 0)
    parts = {
        "false_stops": (healthy & stopped, healthy),
        "plateau_stops": (plateau & stopped, plateau),
        "caught": (caught, declining),
        "premature": (premature, declining),
        "saved": (saved, declining),
        "delay": (delay, caught),
    }
    values = {k: _share(float(np.sum(a)), float(np.sum(b))) for k, (a, b) in parts.items()}
    runs = [j.series.run for j in judged]
    _, group = np.unique(np.asarray(runs), return_inverse=True)
    return Row(
        rule=name,
        family=family,
        runs=len(set(runs)),
        series=len(judged),
        healthy=int(healthy.sum()),
        plateaus=int(plateau.sum()),
        declining=int(declining.sum()),
        ambiguous=int((label == "ambiguous").sum()),
        false_stops_bound=upper_bound(*_counted(*parts["false_stops"], group)),
        intervals=_intervals(parts, group, seed),
        **values,
    )


def _saved(one: Judged, stop: int) -> float:
    steps = one.series.steps
    left = steps[-1] - steps[one.truth.peak]
    return (steps[-1] - steps[stop]) / left if left > 0 and stop >= 0 else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _intervals(
    parts: dict[str, tuple[Any, Any]], group: npt.NDArray[np.int64], seed: int
) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals, bootstrapped by run; those of shares are at least as wide as the exact ones."""
    count = int(group.max()) + 1 if len(group) else 0
    random = np.random.default_rng(seed)
    weights = random.multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES) if count else None
    out = {}
    for name, (part, whole) in parts.items():
        if weights is None or not np.sum(whole):
            out[name] = (math.nan, math.nan)
            continue
        top = weights @ np.bincount(group, np.asarray(part, dtype=float), count)
        bottom = weights @ np.bincount(group, np.asarray(whole, dtype=float), count)
        ratio = top[bottom > 0] / bottom[bottom > 0]
        low, high = (float(x) for x in np.quantile(ratio, (0.025, 0.975)))
        if name not in ("saved", "delay"):
            exact = exact_interval(*_counted(part, whole, group))
            low, high = min(low, exact[0]), max(high, exact[1])
        out[name] = (low, high)
    return out


def _counted(part: Any, whole: Any, group: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return hits and trials for a binomial interval: one trial per run, whose series are no new evidence."""
    trials = float(len(np.unique(group[np.asarray(whole, dtype=bool)])))
    total = float(np.sum(whole))
    return (trials * float(np.sum(part)) / total if total else 0.0), trials


def exact_interval(hits: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share; hits need not be whole."""
    tail = (1.0 - level) / 2.0
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1.0 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def upper_bound(hits: float, trials: float, level: float = 0.95) -> float:
    """Return the one-sided exact upper bound of a share; 1 without trials."""
    return float(beta.ppf(level, hits + 1, trials - hits)) if hits < trials else 1.0
