"""Demands of short runs on a rule besides the twin: shallow falls, delay, dips, cost, shuffled plateaus.

Each is a row of "Must be reached" of the issue "Stop rules where RLHF really lives", whose figures are its.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from json import dumps
from typing import NamedTuple

import numpy as np

from controller.policy.types import EvalInContext, EvalPoint
from controller.policy.wording import counted
from sim import twin
from sim.foresight import RuleSpec
from sim.rules import evaluate, families, twin_series, vector
from sim.rules.evaluate import Judged
from sim.rules.history import Series
from sim.rules.vector_spending import PromptPairs

EVALS, PEAK, LEVEL, FALL = (
    16,
    4,
    2.79,
    0.2,
)  # shape (f): evals, index of the best, score there, fall to the end
PAIRED_ERROR, OWN_ERROR, PROMPTS = 0.014, 0.05, 1000
LONG, LATE_PEAK = 41, 10  # evals of the runs whose delay is measured, and the index of their peak
SLOPE = 0.5  # of their fall, own errors an eval
CORRELATIONS = (0.65, 0.4)  # of two evals on the same prompts
DIPS = (1, 2)  # evals
LEAST_PLATEAU = 8  # evals of a plateau that is shuffled
PAGE_DIGITS = 5  # of a pair's numbers, on a page
STRAIGHT = 50  # evals of the runs that fall straight
BATCH = 4000  # orders judged at a time


class Figure(NamedTuple):
    """One number about one rule."""

    what: str
    rule: str
    evidence: str
    measure: str
    value: float


def rows(named: Mapping[str, RuleSpec], runs: int, seed: int) -> Iterator[Figure]:
    """Yield what every rule does, over ``runs`` runs of each kind."""
    for name, spec in named.items():
        yield from _shallow(name, spec, runs, seed)
    for name, spec in named.items():
        yield from _delay(name, spec, runs, seed)
    dips = {length: list(twin.dipping(runs, length, seed)) for length in DIPS}
    for name, spec in named.items():
        for length, dipped in dips.items():
            what = f"dip of {counted(length, 'eval')}"
            for evidence, shown in twin_series.by_evidence(dipped):
                stops = evaluate.first_stops(spec, shown)
                yield Figure(what, name, evidence, "stopped", float((stops >= 0).mean()))
    drawn = families.draw("linear", evals=STRAIGHT, noise=0.05, runs=runs, seed=seed, reported=True)
    straight = [one for one in drawn.series if one.label == "declining"]
    for name, spec in named.items():
        yield from _straight(name, spec, straight)
    for name, spec in named.items():
        yield from _cost(name, spec, seed)


def over_optimised(fall: float, runs: int, seed: int) -> vector.Evals:
    """Return runs of shape (f): best at the 5th of 16 evals, then straight down; 0: flat all along.

    The error of the difference of two evals on the same prompts is `PAIRED_ERROR`, that reported of one
    `OWN_ERROR`, most of which is that of the prompts.
    """
    random = np.random.default_rng([seed, int(1000 * fall)])
    at = np.arange(EVALS)
    mean = (
        LEVEL - 0.3 * np.maximum(0, PEAK - at) / PEAK - fall * np.maximum(0, at - PEAK) / (EVALS - 1 - PEAK)
    )
    if not fall:
        mean = np.full(EVALS, LEVEL)
    scores = mean + random.normal(0.0, PAIRED_ERROR / 2.0**0.5, (runs, EVALS))
    return paired(scores, OWN_ERROR, PAIRED_ERROR)


def paired(scores: vector.Matrix, error: float, difference: float) -> vector.Evals:
    """Return evals with these errors, of one and of the difference to the best before, and a known total."""
    steps = np.broadcast_to(np.arange(1.0, scores.shape[1] + 1.0), scores.shape)
    highest = np.maximum.accumulate(scores, axis=1)
    new = np.column_stack([np.ones(len(scores), dtype=bool), scores[:, 1:] > highest[:, :-1]])
    at = np.maximum.accumulate(np.where(new, steps, 0.0), axis=1)
    best = np.column_stack([np.ones(len(scores)), at[:, :-1]])
    like = np.ones(scores.shape)
    pairs = PromptPairs(best, PROMPTS * like, PROMPTS * difference**2 * like, np.nan * like)
    progress = steps / scores.shape[1]
    named = np.ones(scores.shape, dtype=bool)
    return vector.Evals(scores, error * like, None, None, steps, progress, None, pairs, named)


def _shallow(name: str, spec: RuleSpec, runs: int, seed: int) -> Iterator[Figure]:
    last = EVALS - 1
    for what, fall in (("shape (f)", FALL), ("shape (f), half the fall", FALL / 2.0)):
        drawn = over_optimised(fall, runs, seed)
        for evidence, shown in (("pairs", drawn), ("prompts", drawn._replace(prompt_pairs=None))):
            stops = vector.first_stops(spec, shown)
            after = stops > PEAK
            saved = np.where(after, (last - stops) / (last - PEAK), 0.0)
            yield Figure(what, name, evidence, "caught", float(after.mean()))
            yield Figure(what, name, evidence, "saved", float(saved.mean()))
    flat = vector.first_stops(spec, over_optimised(0.0, 4 * runs, seed))
    yield Figure("shape (f), flat", name, "pairs", "stopped", float((flat >= 0).mean()))


def _delay(name: str, spec: RuleSpec, runs: int, seed: int) -> Iterator[Figure]:
    """Evals from the peak to the stop with pairs, over those without; a run not stopped counts to its end."""
    for correlation in CORRELATIONS:
        random = np.random.default_rng([seed, int(100 * correlation)])
        at = np.arange(LONG)
        mean = -np.maximum(0, LATE_PEAK - at) * 0.5 - SLOPE * np.maximum(0, at - LATE_PEAK)
        same = random.normal(0.0, correlation**0.5, (runs, 1))
        scores = mean + same + random.normal(0.0, (1.0 - correlation) ** 0.5, (runs, LONG))
        shown = paired(scores, 1.0, (2.0 * (1.0 - correlation)) ** 0.5)
        delays = []
        for evals in (shown, shown._replace(prompt_pairs=None)):
            stops = vector.first_stops(spec, evals)
            delays.append(float(np.mean(np.where(stops > LATE_PEAK, stops, LONG) - LATE_PEAK)))
        what = f"delay, correlation {correlation:g}"
        yield Figure(what, name, "pairs", "evals", delays[0])
        yield Figure(what, name, "prompts", "evals", delays[1])
        yield Figure(what, name, "pairs", "of that without", delays[0] / delays[1])


def _straight(name: str, spec: RuleSpec, series: Sequence[Series]) -> Iterator[Figure]:
    """Yield what is saved of long Gaussian runs that fall straight, with their length known and without."""
    for total, shown in (
        ("known", [replace(one, total=one.steps[-1]) for one in series]),
        ("unknown", series),
    ):
        judged = evaluate.judge(shown)
        (row,) = evaluate.rows(name, judged, evaluate.first_stops(spec, judged))
        yield Figure(f"linear, {STRAIGHT} evals", name, f"standard errors, total {total}", "saved", row.saved)


def _cost(name: str, spec: RuleSpec, seed: int) -> Iterator[Figure]:
    """Yield microseconds of a pass and the most bytes of a state, over runs of the twin with pairs."""
    random = np.random.default_rng(seed)
    drawn = [twin.run(twin.RISING, random, evals=200, prompts=200) for _ in range(5)]
    points = [list(one.points()) for one in twin_series.series(drawn)]
    rule, most, passes = spec.make(), 0, 0
    began = time.process_time()
    for evals in points:
        state = rule.initial()
        for point in evals:
            state, _ = rule.observe(state, point)
            passes += 1
    spent = time.process_time() - began
    for evals in points:
        state = rule.initial()
        for point in evals:
            state, _ = rule.observe(state, _third(point))
            most = max(most, len(dumps(state, separators=(",", ":"))))
    yield Figure("cost of a pass", name, "pairs", "microseconds", 1e6 * spent / passes)
    yield Figure("state of a rule", name, "pairs", "bytes at most", float(most))


def _third(point: EvalPoint) -> EvalPoint:
    """Return the eval with a score of as many digits as there are, and pairs of as many as a page has."""
    pairs = tuple(
        p._replace(
            mean=float(f"{p.mean / 3.0:.{PAGE_DIGITS}g}"), variance=float(f"{p.variance:.{PAGE_DIGITS}g}")
        )
        for p in point.prompt_pairs
    )
    plain = point._replace(score=point.score / 3.0, prompt_pairs=pairs)
    return EvalInContext.of(plain, progress=point.progress, range=point.range)


def shuffled(
    named: Mapping[str, RuleSpec], judged: Sequence[Judged], times: int, seed: int
) -> Iterator[Figure]:
    """Yield how often rules stop plateaus of a history in another order: evals that depend on nothing.

    A plateau is the second half of a healthy series, of `LEAST_PLATEAU` evals or more, whose own line
    does not rise or fall by two standard errors.

    Raises:
        ValueError: there is none, or a rule has no vectorised form.
    """
    for name, spec in named.items():
        if not vector.covers(spec):
            raise ValueError(
                f"--rule: {name!r} has no vectorised form, expected one of {', '.join(vector.FORMS)}"
            )
    plateaus = [p for one in judged if one.truth.label != "declining" and (p := _plateau(one.series))]
    if not plateaus:
        raise ValueError(f"history: no plateau of {LEAST_PLATEAU} evals or more in it")
    counts = dict.fromkeys(named, 0)
    for shown in _orders(plateaus, times, np.random.default_rng(seed)):
        for name, spec in named.items():
            counts[name] += int((vector.first_stops(spec, shown) >= 0).sum())
    what = f"{counted(len(plateaus), 'plateau')}, {counted(times, 'order')}"
    for name, stopped in counts.items():
        share = stopped / (times * len(plateaus))
        yield Figure(what, name, twin_series.SCORES_ONLY, "stopped", share)


def _orders(plateaus: Sequence[Series], times: int, random: np.random.Generator) -> Iterator[vector.Evals]:
    """Yield every plateau in so many orders, those of about one length together."""
    ready = sorted(plateaus, key=lambda one: len(one.scores))
    rows = max(1, BATCH // times)
    for start in range(0, len(ready), rows):
        some = ready[start : start + rows]
        longest = len(some[-1].scores)
        scores = np.full((len(some) * times, longest), np.nan)
        for number, one in enumerate(some):
            drawn = random.permuted(np.tile(one.scores, (times, 1)), axis=1)
            scores[number * times : (number + 1) * times, : len(one.scores)] = drawn
        yield vector.Evals(scores, np.full(scores.shape, np.nan))


def _plateau(series: Series) -> Series | None:
    half = len(series.scores) // 2
    scores = np.array(series.scores[half:])
    count = len(scores)
    if count < LEAST_PLATEAU or not scores.std() > 0.0:
        return None
    at = np.arange(count) - (count - 1) / 2.0
    slope = float(at @ scores) / float(at @ at)
    left = scores - scores.mean() - slope * at
    error = (float(left @ left) / (count - 2) / float(at @ at)) ** 0.5
    if abs(slope) > 2.0 * error:
        return None
    steps = tuple(float(n + 1) for n in range(count))
    return Series(
        series.id, series.run, series.family, "plateau", steps, tuple(scores.tolist()), (None,) * count
    )
