"""Effects of single bad evals on a rule: generated runs of which a share of the evals is of another world.

A scorer that is down makes an eval of 0, one that is fed something else an eval far above all others; the
evals before and after are right. Where bad evals stand is drawn aside: the runs are the same without them.

The gate's own price is in `collapse`: runs whose score goes to exactly 0 within one eval, and stays there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from controller.frozen import dataclass
from sim.foresight import RuleSpec
from sim.rules import evaluate, families
from sim.rules.evaluate import Judged
from sim.rules.history import Series

EVALS, NOISE = 50, 0.05
SHARES = (0.0, 0.01, 0.05)
LOW, HIGH = 0.0, 2.0  # of bad evals; true scores lie between .4 and .8
STREAM = 7  # of the random numbers that say where bad evals stand


@dataclass(frozen=True, slots=True)
class OutlierRow:
    """Effects of single bad evals on a rule.

    Attributes:
        rising: share of the rising runs that are stopped.
        flat: share of the flat runs that are stopped.
        saved: share of the time after the peak that is saved, of the runs that fall.
        collapse: evals from the first of the collapsed ones to the stop, over runs that collapse (mean of
            those that are stopped); NaN: not asked for.
        missed: share of the runs that collapse and are not stopped; NaN: not asked for.
    """

    rule: str
    noise: str  # reported | estimated
    share: float
    score: float
    runs: int
    rising: float
    flat: float
    saved: float
    collapse: float
    missed: float

    def as_dict(self) -> dict[str, Any]:
        return {k: None if v != v else v for k, v in asdict(self).items()}


def spoiled(series: Iterable[Series], share: float, score: float, seed: int) -> list[Series]:
    """Return the series with a ``share`` of their evals replaced by ``score``; their standard errors stay."""
    random = np.random.default_rng([seed, STREAM])
    out = []
    for one in series:
        bad = random.random(len(one.scores)) < share
        scores = tuple(score if is_bad else s for s, is_bad in zip(one.scores, bad, strict=True))
        out.append(replace(one, scores=scores))
    return out


def collapsed(series: Iterable[Series]) -> list[Series]:
    """Return those that fall after a peak, with 0 at every eval after it."""
    out = []
    for one in series:
        if one.label == "declining" and one.peak_step is not None:
            at = zip(one.steps, one.scores, strict=True)
            out.append(replace(one, scores=tuple(s if step <= one.peak_step else 0.0 for step, s in at)))
    return out


def rows(
    named: dict[str, RuleSpec],
    *,
    runs: int,
    seed: int,
    shares: Sequence[float] = SHARES,
    reported: bool = True,
    evals: int = EVALS,
    noise: float = NOISE,
) -> Iterator[OutlierRow]:
    """Yield every rule on `linear` runs without bad evals, and at each share with low and with high ones."""
    drawn = families.draw("linear", evals=evals, noise=noise, runs=runs, seed=seed, reported=reported).series
    kind = "reported" if reported else "estimated"
    for share in shares:
        for score in (LOW, HIGH) if share else (LOW,):
            judged = evaluate.judge(spoiled(drawn, share, score, seed) if share else drawn)
            falling = evaluate.judge(collapsed(drawn)) if not share else []
            for name, spec in named.items():
                (row,) = evaluate.rows(name, judged, evaluate.first_stops(spec, judged))
                collapse, missed = _delays(spec, falling)
                yield OutlierRow(
                    name,
                    kind,
                    share,
                    score,
                    runs,
                    row.false_stops,
                    row.plateau_stops,
                    row.saved,
                    collapse,
                    missed,
                )


def _delays(spec: RuleSpec, judged: Sequence[Judged]) -> tuple[float, float]:
    """Evals from the first collapsed one to the stop, and the share of runs that are not stopped after it."""
    if not judged:
        return math.nan, math.nan
    stops = evaluate.first_stops(spec, judged)
    first = np.array([j.series.scores.index(0.0) for j in judged])
    caught = stops >= first
    delay = float((stops - first)[caught].mean()) if caught.any() else math.nan
    return delay, float(1.0 - caught.mean())
