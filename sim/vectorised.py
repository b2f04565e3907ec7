"""Stop rules over whole matrices of scores: the one decision that exists twice.

It is here for speed alone, and a property test holds it equal to the streaming form
(`sim.foresight.first_stop`), which is the one that counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from controller.policy.params import build
from controller.policy.stopping.kdeclines import KDeclines, KDeclinesParams
from controller.policy.stopping.warmup import WarmUp, WarmUpParams
from controller.policy.types import Verb, Verdict
from sim.foresight import Foreseen, RuleSpec, first_stop
from sim.workload import Evals

Scores = npt.NDArray[np.float64]


def covers(spec: RuleSpec) -> bool:
    """Return whether this rule has a vectorised form: k declines by score, with or without a warm-up."""
    return (
        spec.rule.name == KDeclines.name
        and not spec.guardrails
        and spec.rule.params.keys() <= {"k", "min_delta"}
        and all(m.name == WarmUp.name for m in spec.modifiers)
    )


def foresee(spec: RuleSpec, evals: Sequence[Evals | None]) -> list[Foreseen | None]:
    """Return the first STOP of every job, jobs with as many evals taken together.

    Jobs of which an eval is missing (its score is not finite) go through the streaming form.
    """
    by_length: dict[int, list[int]] = {}
    for row, e in enumerate(evals):
        if e is not None and len(e.scores):
            by_length.setdefault(len(e.scores), []).append(row)
    found: list[Foreseen | None] = [None] * len(evals)
    k, min_delta, warm_up = _params(spec)
    shortest = Verdict(Verb.STOP, "ConsecutiveDeclines", k, k)
    for rows in by_length.values():
        picked = [e.scores for row in rows if (e := evals[row]) is not None]
        scores = _matrix(picked)
        stops = first_stops(spec, scores)
        hit = np.flatnonzero(stops >= 0)
        bests = _bests(scores[hit], stops[hit])
        for at, stop, best in zip(hit.tolist(), stops[hit].tolist(), bests, strict=True):
            verdict = shortest
            if warm_up > k:  # only a warm-up lets a streak grow longer than k before it counts
                streak = _streak(picked[at], stop, min_delta)
                verdict = Verdict(Verb.STOP, "ConsecutiveDeclines", streak, k)
            found[rows[at]] = Foreseen(stop, verdict, best)
        for at in np.flatnonzero(~np.isfinite(scores).all(axis=1)).tolist():
            e = evals[rows[at]]
            assert e is not None
            found[rows[at]] = first_stop(spec.make(), e, context=False)
    return found


def _matrix(rows: Sequence[Sequence[float]]) -> Scores:
    """Return rows of equal length as a matrix; arrays of doubles are copied as they lie in memory."""
    count = len(rows[0])
    if all(type(row) is array and row.typecode == "d" for row in rows):
        return np.frombuffer(b"".join(cast("list[array[float]]", rows))).reshape(-1, count)
    return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * count).reshape(-1, count)


def first_stops(spec: RuleSpec, scores: Scores) -> npt.NDArray[np.int64]:
    """First STOP of each row of (jobs, evals) scores, -1 where there is none."""
    k, min_delta, min_evals = _params(spec)
    jobs, evals = scores.shape
    falls = scores[:, :-1] - scores[:, 1:] > min_delta
    # A streak of k ends at eval i where the k falls before it are all there; a streak that was long enough
    # during the warm-up stops at the first eval after it if it still goes on.
    streaks = np.ones((jobs, max(0, evals - k)), dtype=bool)
    for back in range(k):
        streaks &= falls[:, back : back + streaks.shape[1]]
    first = max(k, min_evals - 1)  # index of the first eval at which a stop may be
    streaks = streaks[:, first - k :]
    if not streaks.shape[1]:
        return np.full(jobs, -1, dtype=np.int64)
    return np.where(streaks.any(axis=1), streaks.argmax(axis=1) + first, -1)


def _streak(scores: Sequence[float], stop: int, min_delta: float) -> int:
    """Consecutive falls that end at eval ``stop``."""
    streak = 0
    while streak < stop and scores[stop - streak - 1] - scores[stop - streak] > min_delta:
        streak += 1
    return streak


def _bests(scores: Scores, stops: npt.NDArray[np.int64]) -> list[int]:
    """Return the first highest score up to the stop, in each row."""
    seen = np.arange(scores.shape[1])[None, :] <= stops[:, None]
    best: list[int] = np.where(seen, scores, -np.inf).argmax(axis=1).tolist()
    return best


def _params(spec: RuleSpec) -> tuple[int, float, int]:
    """(k, min_delta, evals before which nothing stops)."""
    rule = build(KDeclinesParams, spec.rule.params, spec.rule.name)
    warm_ups = [build(WarmUpParams, m.params, m.name).min_evals for m in spec.modifiers]
    return rule.k, rule.min_delta, max(warm_ups, default=1)
