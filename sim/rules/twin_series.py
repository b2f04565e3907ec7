"""Runs of the twin as series that rules are shown, and how rules do on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from controller.frozen import dataclass
from controller.policy.stopping import gate
from controller.policy.stopping.gate import Gate
from controller.policy.types import EvalInContext, EvalPoint, FleetNoise, PromptPair, Verb
from sim import twin
from sim.foresight import RuleSpec
from sim.rules import evaluate
from sim.rules.evaluate import upper_bound
from sim.rules.history import Series

SCORES_ONLY, POOL = "scores only", "scores, pool"
POOL_WITHIN = 0.3  # by which the pool's noise is wrong, at most
POOL_FREEDOM = 16.0  # degrees of freedom that it is known with, as a pool of some runs learns it
POOL_STREAM = 11
LABELS = {twin.DECLINING: "declining", twin.RISING: "healthy", twin.FLAT: "plateau"}


@dataclass(frozen=True, slots=True)
class TwinRow:
    """A rule's figures on the twin; shares of the runs of each kind, bounds one-sided, 95 %.

    Attributes:
        known: what the rule is told besides scores: how many prompts, pairs too, nothing, or by its pool how
            noisy an eval is; "asked": and the trainer makes an eval at once where the gate holds one back
            (`asked_stops`).
        caught: of declining runs, stopped after their peak.
        saved: of the evals after the peak, the mean share that is saved, 0 for a run not caught.
        flat, rising: share that is stopped; NaN: no such runs.
    """

    rule: str
    known: str
    runs: int  # of each kind
    caught: float
    saved: float
    flat: float
    flat_bound: float
    rising: float
    rising_bound: float
    shapes: dict[str, float]  # saved, by shape of the decline

    def as_dict(self) -> dict[str, Any]:
        """JSON values; what is not defined is null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def series(runs: Iterable[twin.Run]) -> list[Series]:
    """Return the runs as series with all that is known of them; family: the shape, or the kind."""
    found = []
    for number, run in enumerate(runs):
        steps = tuple(float(i + 1) for i in range(len(run.scores)))
        name = f"{run.shape or run.kind}/{number}"
        found.append(
            Series(
                name,
                name,
                run.shape or run.kind,
                LABELS[run.kind],
                steps,
                tuple(run.scores.tolist()),
                (None,) * len(steps),
                steps[run.peak] if run.peak >= 0 else None,
                prompts=(run.prompts,) * len(steps),
                range=(0.0, 1.0),
                total=steps[-1],
                prompt_pairs=_pairs(run.best, run.prompts),
                last_pairs=_pairs(run.last, run.prompts),
            )
        )
    return found


def _pairs(found: Sequence[twin.PairSeen | None], prompts: int) -> tuple[PromptPair | None, ...]:
    return tuple(p and PromptPair(p.earlier + 1, prompts, p.mean, p.variance) for p in found)


def rows(named: dict[str, RuleSpec], runs: Sequence[twin.Run], seed: int = 0) -> Iterator[TwinRow]:
    """Yield what who knows the curve reaches, then every rule: with pairs, prompts, scores only, and a pool.

    ``seed``: of what the pool knows."""
    falling = [run for run in runs if run.kind == twin.DECLINING]
    yield _row("(who knows the curve)", "all", falling, [twin.ceiling(run) for run in falling])
    for known, judged in (*by_evidence(runs), (POOL, with_pool(runs, seed))):
        for name, spec in named.items():
            yield _row(name, known, runs, evaluate.first_stops(spec, judged).tolist())
            if any(modifier.name == Gate.name for modifier in spec.modifiers):
                yield _row(name, f"{known}, asked", runs, asked_stops(spec, runs, judged))


def by_evidence(runs: Iterable[twin.Run]) -> Iterator[tuple[str, list[evaluate.Judged]]]:
    """Yield the runs as a rule sees them that is told pairs and prompts, prompts only, scores only."""
    known = series(runs)
    unpaired = [replace(one, prompt_pairs=(), last_pairs=()) for one in known]
    bare = [replace(one, prompts=(), range=None) for one in unpaired]
    for name, shown in (("pairs", known), ("prompts", unpaired), (SCORES_ONLY, bare)):
        yield name, evaluate.judge(shown)


def with_pool(runs: Sequence[twin.Run], seed: int) -> list[evaluate.Judged]:
    """Return the runs as a rule sees them that is told nothing but scores, and whose pool knows the noise
    within a share of `POOL_WITHIN`, as that of one eval at the level before the fall."""
    random = np.random.default_rng([seed, POOL_STREAM])
    known = []
    for run, one in zip(runs, series(runs), strict=True):
        level = float(run.means[run.peak] if run.peak >= 0 else np.median(run.means))
        wrong = math.exp(random.uniform(-1.0, 1.0) * math.log1p(POOL_WITHIN))
        usual = FleetNoise(wrong * math.sqrt(level * (1.0 - level) / run.prompts), POOL_FREEDOM)
        known.append(replace(one, prompts=(), range=None, prompt_pairs=(), last_pairs=(), usual=usual))
    return evaluate.judge(known)


def asked_stops(spec: RuleSpec, runs: Sequence[twin.Run], judged: Sequence[evaluate.Judged]) -> list[int]:
    """Return the first STOP of each run (-1: none) where the trainer makes an eval for each that the gate
    holds back.

    What is asked for is an eval of the same policy on the same prompts, and takes no time; what the client
    would compare prompt by prompt is not told. At most `twin.AGAIN` for each regular eval.
    """
    found = []
    for run, one in zip(runs, judged, strict=True):
        rule = spec.make()
        state, at = rule.initial(), -1
        for number, point in enumerate(one.series.points()):
            state, verdict = rule.observe(state, point)
            for score in run.again[number].tolist():
                if not gate.could_bear_out(state):
                    break
                state, verdict = rule.observe(state, _again(point, score))
            if verdict.verb is Verb.STOP:
                at = number
                break
        found.append(at)
    return found


def _again(point: EvalPoint, score: float) -> EvalPoint:
    plain = point._replace(score=score, prompt_pairs=())
    return EvalInContext.of(plain, progress=point.progress, range=point.range, fleet_noise=point.fleet_noise)


def _row(name: str, known: str, runs: Sequence[twin.Run], stops: Sequence[int]) -> TwinRow:
    caught: list[bool] = []
    saved: dict[str, list[float]] = {}
    stopped: dict[str, list[bool]] = {twin.FLAT: [], twin.RISING: []}
    for run, stop in zip(runs, stops, strict=True):
        if run.kind == twin.DECLINING:
            caught.append(stop > run.peak)
            saved.setdefault(run.shape, []).append(twin.saved(run, stop))
        else:
            stopped[run.kind].append(stop >= 0)
    return TwinRow(
        name,
        known,
        len(caught),
        float(np.mean(caught)),
        float(np.mean([s for one in saved.values() for s in one])),
        *_share(stopped[twin.FLAT]),
        *_share(stopped[twin.RISING]),
        {shape: float(np.mean(saved[shape])) for shape in sorted(saved)},
    )


def _share(stopped: Sequence[bool]) -> tuple[float, float]:
    if not stopped:
        return math.nan, math.nan
    return sum(stopped) / len(stopped), upper_bound(sum(stopped), len(stopped))
