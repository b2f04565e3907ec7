"""eProcess: the evidence is never more than a fair bettor's money, so its bound on false stops holds."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom  # type: ignore[import-untyped, unused-ignore]

from controller.policy.params import ParamError
from controller.policy.stopping import eprocess, make_rule
from controller.policy.stopping.base import StopRule
from controller.policy.types import EvalPoint, Paired, PolicySpec, Verb, Verdict

ALPHA = 0.1  # large, so that a few hundred runs can tell whether it is kept
EVALS = 40


def rule(**params: float) -> StopRule:
    return make_rule(PolicySpec("eProcess", params))


def verdicts(rule: StopRule, pairs: list[Paired | None]) -> list[Verdict]:
    state, out = rule.initial(), []
    for step, pair in enumerate(pairs, start=1):
        state, verdict = rule.observe(state, EvalPoint(step, 0.5, paired=pair))
        out.append(verdict)
    return out


def pair_of(differences: list[float]) -> Paired:
    variance = float(np.var(differences, ddof=1))
    return Paired(0, len(differences), float(np.mean(differences)), variance)


FALLEN = Paired(1, 400, -0.1, 0.2)
RISEN = Paired(1, 400, 0.1, 0.2)
LEVEL = Paired(1, 400, 0.0, 0.2)


@pytest.mark.parametrize(
    ("params", "pairs", "stops_at", "reason"),
    [
        ({}, [LEVEL] * 50, None, "NotClearlyWorse"),
        ({}, [RISEN] * 50, None, "NotClearlyWorse"),
        ({}, [FALLEN] * 4, 2, "WorseThanReference"),
        ({"alpha": 1e-9}, [FALLEN] * 8, 4, "WorseThanReference"),
        ({}, [RISEN] * 30 + [FALLEN] * 4, 32, "WorseThanReference"),  # money lost on the rise is not missed
        ({"min_drop": 0.1}, [FALLEN] * 50, None, "NotClearlyWorse"),
        ({"min_drop": 0.05}, [FALLEN] * 12, 4, "WorseThanReference"),
        ({}, [None] * 50, None, "NoPairedDifferences"),
        ({}, [FALLEN, FALLEN, None], 2, "NoPairedDifferences"),  # what stood does not ask again without data
        ({"bound": 0.25}, [Paired(1, 400, 0.3, 0.01)] * 50, None, "BoundExceeded"),
        ({"bound": 0.4}, [FALLEN] * 50, None, "BoundExceeded"),  # a variance of .2 takes differences of .46
        ({"bound": 0.47}, [FALLEN] * 50, 1, "WorseThanReference"),
        ({}, [Paired(1, 400, math.nan, 0.2)] * 50, None, "NoPairedDifferences"),
        ({}, [Paired(1, 400, -0.1, math.inf)] * 50, None, "NoPairedDifferences"),
        ({}, [Paired(1, 400, -0.1, -0.2)] * 50, None, "NoPairedDifferences"),
        ({}, [Paired(1, 1, -0.1, 0.0)] * 50, None, "NoPairedDifferences"),
        ({}, [Paired(1, 400, -1e300, 1e300)] * 50, None, "BoundExceeded"),
    ],
)
def test_table(
    params: dict[str, float], pairs: list[Paired | None], stops_at: int | None, reason: str
) -> None:
    found = verdicts(rule(**params), pairs)
    stops = [i for i, v in enumerate(found, start=1) if v.verb is Verb.STOP]
    assert (stops[0] if stops else None) == stops_at
    assert found[-1].reason == reason


def test_every_verdict_carries_the_e_value_and_what_it_is_compared_with() -> None:
    for verdict in verdicts(rule(alpha=0.05), [None, LEVEL, FALLEN, None, FALLEN, FALLEN]):
        assert verdict.e_value == verdict.statistic
        assert verdict.threshold == pytest.approx(20.0)
    first, *_ = verdicts(rule(), [None])
    assert first.e_value == pytest.approx(1.0)


def test_overwhelming_evidence_stays_a_number() -> None:
    last = verdicts(rule(), [Paired(1, 10**9, -0.9, 0.01)] * 3)[-1]
    assert last.e_value == eprocess.LARGEST
    assert json.loads(json.dumps(last.e_value)) == last.e_value


@pytest.mark.parametrize(
    "params", [{"alpha": 0.0}, {"alpha": 0.6}, {"bound": 0.0}, {"min_drop": -0.1}, {"horizon": 0}]
)
def test_a_parameter_out_of_its_bounds_is_refused_by_name(params: dict[str, float]) -> None:
    (name,) = params
    with pytest.raises(ParamError, match=rf"eProcess\.{name}"):
        rule(**params)


@given(st.integers(1, 1000), st.integers(1, 5000))
def test_what_is_staked_and_what_is_kept_aside_is_all_the_money(horizon: int, evals: int) -> None:
    weights = [eprocess.start_weight(j, horizon) for j in range(1, evals + 1)]
    assert sum(w > 0.0 for w in weights[:horizon]) <= eprocess.STARTS
    staked = math.fsum(weights)
    assert staked + eprocess.kept_aside(evals, horizon) == pytest.approx(1.0, rel=1e-9)


DIFFERENCES = st.lists(  # of a few evals
    st.lists(st.floats(-1.0, 1.0, allow_subnormal=False), min_size=2, max_size=8), min_size=1, max_size=12
)


@given(DIFFERENCES, st.floats(0.0, 0.5), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_it_never_claims_more_than_a_bettor_would_own(
    evals: list[list[float]], min_drop: float, horizon: int
) -> None:
    """The bettor puts the same stakes on every single prompt; he wins nothing on average under H."""
    at_stake = [0.0] * len(eprocess.BETS)
    claimed = verdicts(rule(min_drop=min_drop, horizon=horizon), [pair_of(d) for d in evals])
    for number, (differences, verdict) in enumerate(zip(evals, claimed, strict=True), start=1):
        for k, bet in enumerate(eprocess.BETS):
            at_stake[k] += eprocess.start_weight(number, horizon)
            for d in differences:
                at_stake[k] *= 1.0 - bet * (d + min_drop) / (1.0 + min_drop)
        owned = math.fsum(at_stake) / len(at_stake) + eprocess.kept_aside(number, horizon)
        assert verdict.e_value is not None
        assert verdict.e_value <= owned * (1.0 + 1e-7)


@given(rare=st.floats(0.01, 0.99), fall=st.floats(0.01, 3.0))
@settings(max_examples=60, deadline=None)
def test_its_mean_is_at_most_one_over_all_outcomes(rare: float, fall: float) -> None:
    """Three evals of two prompts, each difference a fall or a rise, zero on average: 64 outcomes."""
    rise = fall * rare / (1.0 - rare)  # of probability 1 - rare
    p = {-fall: rare, rise: 1.0 - rare}
    mean, reached = 0.0, 0.0
    judge = rule(alpha=0.5, bound=max(rise, fall), horizon=2)
    for outcome in itertools.product(p, repeat=6):
        chance = math.prod(p[d] for d in outcome)
        found = verdicts(judge, [pair_of([a, b]) for a, b in zip(outcome[::2], outcome[1::2], strict=True)])
        assert found[-1].e_value is not None
        mean += chance * found[-1].e_value
        reached += chance * any(v.verb is Verb.STOP for v in found)
    assert mean <= 1.0 + 1e-6
    assert reached <= 0.5


def binary(random: np.random.Generator, quality: np.ndarray, prompts: int) -> np.ndarray:
    """(runs, prompts) scores, right or wrong, of policies of that quality (runs,)."""
    return (random.random((len(quality), prompts)) < quality[:, None]).astype(float)


def heavy(random: np.random.Generator, quality: np.ndarray, prompts: int) -> np.ndarray:
    """Nearly always near nothing, seldom one: a mean that a normal approximation gets wrong."""
    seldom = random.random((len(quality), prompts)) < 0.02 * quality[:, None]
    return np.where(seldom, 1.0, 0.001 * random.random((len(quality), prompts)))


def paired_runs(
    quality: np.ndarray, scores: object, runs: int, seed: int, prompts: int = 60, *, fresh: bool = True
) -> Iterator[list[Paired | None]]:
    """Runs whose true quality at each eval is given; the reference is the eval that looked best so far.

    Not ``fresh``: all evals use one set of prompts, and the reference keeps the scores it was chosen for.
    """
    draw = scores
    assert callable(draw)
    random = np.random.default_rng(seed)
    best = np.full(runs, -np.inf)
    reference = np.zeros(runs, dtype=int)
    kept = np.zeros((runs, prompts))
    columns: list[list[Paired | None]] = []
    for t, q in enumerate(quality):
        now = draw(random, np.full(runs, q), prompts)
        before = draw(random, quality[reference], prompts) if fresh else kept
        d = now - before
        mean, variance = d.mean(axis=1), d.var(axis=1, ddof=1)
        columns.append(
            [
                Paired(int(r), prompts, float(m), float(v)) if t else None
                for r, m, v in zip(reference, mean, variance, strict=True)
            ]
        )
        seen = draw(random, np.full(runs, q), prompts) if fresh else now  # what the best is chosen by
        better = seen.mean(axis=1) > best
        best = np.where(better, seen.mean(axis=1), best)
        reference = np.where(better, t, reference)
        kept[better] = now[better]
    return (list(row) for row in zip(*columns, strict=True))


def stopped(judge: StopRule, pairs: list[Paired | None]) -> int | None:
    return next((i for i, v in enumerate(verdicts(judge, pairs)) if v.verb is Verb.STOP), None)


RUNS = 400
MOST = int(binom.ppf(1.0 - 1e-6, RUNS, ALPHA))  # false stops that a rate of alpha gives once in a million
HEALTHY = {
    "flat": np.full(EVALS, 0.7),
    "rising": np.linspace(0.4, 0.8, EVALS),
    "rising then flat": np.minimum(np.linspace(0.4, 1.2, EVALS), 0.8),
    "one jump": np.where(np.arange(EVALS) < 20, 0.5, 0.6),
}


@pytest.mark.parametrize("scores", [binary, heavy])
@pytest.mark.parametrize("shape", HEALTHY)
def test_runs_that_do_not_fall_are_stopped_no_more_often_than_alpha(shape: str, scores: object) -> None:
    judge = rule(alpha=ALPHA, horizon=EVALS)
    false = sum(stopped(judge, p) is not None for p in paired_runs(HEALTHY[shape], scores, RUNS, seed=1))
    assert false <= MOST


def test_that_count_would_show_a_broken_bound() -> None:
    """On prompts that are not fresh the reference's luck is taken for quality; the counts above see it."""
    judge = rule(alpha=ALPHA, horizon=EVALS)
    runs = paired_runs(HEALTHY["flat"], binary, RUNS, seed=1, fresh=False)
    assert sum(stopped(judge, p) is not None for p in runs) > MOST


def test_a_fall_is_found_soon() -> None:
    """From .7 down by .3 over the last 14 of 40 evals, 200 prompts an eval."""
    quality = np.concatenate([np.linspace(0.4, 0.7, 26), np.linspace(0.68, 0.4, 14)])
    judge = rule(horizon=EVALS)
    stops = [stopped(judge, p) for p in paired_runs(quality, binary, 200, seed=2, prompts=200)]
    found = [s for s in stops if s is not None and s >= 26]
    assert len(found) >= 0.95 * 200
    assert np.median(found) <= 33


def test_the_state_is_small_and_one_eval_more_does_not_make_it_larger() -> None:
    judge, state = rule(), ()
    state = judge.initial()
    sizes = []
    for step, pair in enumerate(itertools.islice(itertools.cycle([RISEN, FALLEN, LEVEL]), 3000)):
        state, _ = judge.observe(state, EvalPoint(step, 0.5, paired=pair))
        sizes.append(len(json.dumps(state)))
    assert max(sizes) < 200
