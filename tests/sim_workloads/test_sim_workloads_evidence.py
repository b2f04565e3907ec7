"""Proxies and paired differences of generated runs, and the rules that live on them in the simulator."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest  # type: ignore[import-untyped, unused-ignore]

from controller.policy.queueing import make_policy
from controller.policy.queueing.evalstop import EvalStop
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.first_stops import foresee
from sim.foresight import RuleSpec, point
from sim.workload import Evals
from sim.workloads import CurveSettings, MixSettings, curves_for, generate
from sim.workloads.kinds import Kind
from sim.workloads.paired_differences import binomial, differences

EVIDENCE = {"proxy": True, "paired_prompts": 200, "eval_interval": 0.02, "noise": 0.05}
E_PROCESS = RuleSpec(PolicySpec("eProcess"))


def test_they_are_there_only_if_asked_for_and_change_nothing_else() -> None:
    base, more = generate(MixSettings(), 7), generate(MixSettings(proxy=True, paired_prompts=100), 7)
    assert more.truth == base.truth
    assert more.workload.submitted == base.workload.submitted
    for bare, full in zip(base.workload.evals, more.workload.evals, strict=True):
        assert bare is not None
        assert full is not None
        assert (bare.scores, bare.losses) == (full.scores, full.losses)
        assert (bare.proxies, bare.paired) == ([], [])
        assert len(full.proxies) == len(full.paired) == len(full.at)
        assert full.paired[0] is None
        assert full.proxies[-1] > full.proxies[0]


def test_standard_errors_are_the_noise_and_reach_the_rule() -> None:
    base, more = generate(MixSettings(noise=0.03), 7), generate(MixSettings(noise=0.03, stderr=True), 7)
    for bare, full in zip(base.workload.evals, more.workload.evals, strict=True):
        assert bare is not None
        assert full is not None
        assert (bare.scores, bare.stderrs) == (full.scores, ())
        assert list(full.stderrs) == [0.03] * len(full.at)
        assert point(full, 2, context=False).stderr == point(full, 2, context=True).stderr == 0.03
        assert point(bare, 2, context=True).stderr is None


SCORES = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.one_of(st.floats(0.0, 1.0), st.just(float("nan")))), max_size=20
)


@given(SCORES, st.integers(2, 300), st.floats(0.001, 1.0), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_differences_are_to_the_best_before_and_lie_within_one(
    evals: list[tuple[float, float]], prompts: int, discordant: float, seed: int
) -> None:
    truth, scores = [t for t, _ in evals], [s for _, s in evals]
    found = differences(binomial(Random(seed)), prompts, discordant, truth, scores)
    for number, pair in enumerate(found):
        before = [(s, -i) for i, s in enumerate(scores[:number]) if s == s]
        if not before:
            assert pair is None
            continue
        assert pair is not None
        assert pair.reference_step == 1 - max(before)[1]  # the first of equals, numbered from 1
        squares = (prompts - 1) * pair.variance + prompts * pair.mean**2  # sum of d^2, d in -1, 0, 1
        assert abs(pair.mean) <= 1.0
        assert -1e-9 <= squares <= prompts * (1.0 + 1e-9)
        assert squares == pytest.approx(round(squares))


@pytest.mark.parametrize(("trials", "chance"), [(40, 0.02), (40, 0.5), (300, 0.1), (7, 0.97)])
def test_binomial_draws_are_binomial(trials: int, chance: float) -> None:
    draw, runs = binomial(Random(1)), 4000
    counts = [draw(trials, chance) for _ in range(runs)]
    for limit in range(trials + 1):
        share = float(binom.cdf(limit, trials, chance))
        assert binomtest(sum(c <= limit for c in counts), runs, share).pvalue > 1e-5
    assert (draw(5, 0.0), draw(5, 1.0)) == (0, 5)


def test_differences_are_right_on_average() -> None:
    found = differences(binomial(Random(2)), 50, 0.2, [0.7] + [0.6] * 4000, [1.0] + [0.0] * 4000)[1:]
    mean = sum(p.mean for p in found if p is not None) / len(found)
    assert mean == pytest.approx(-0.1, abs=0.004)  # five standard errors


def test_the_e_process_tells_hacking_runs_from_healthy_ones() -> None:
    evals, truth = curves_for([Kind.RLHF] * 200, CurveSettings(**EVIDENCE), 3)
    stops = foresee(E_PROCESS, evals)
    caught = [s is not None for s, hacks in zip(stops, truth.hacks, strict=True) if hacks]
    false = [s is not None for s, hacks in zip(stops, truth.hacks, strict=True) if not hacks]
    assert sum(caught) >= 0.9 * len(caught)
    assert sum(false) <= binom.ppf(1.0 - 1e-6, len(false), 0.025)
    assert all(s.verdict.e_value >= 40.0 for s in stops if s is not None and s.verdict.e_value is not None)


def test_without_differences_it_stops_nobody() -> None:
    evals, _ = curves_for([Kind.RLHF] * 40, CurveSettings(eval_interval=0.02), 3)
    assert foresee(E_PROCESS, evals) == [None] * 40


def test_divergence_takes_stops_away_and_adds_none() -> None:
    evals, truth = curves_for([Kind.RLHF] * 300, CurveSettings(**EVIDENCE), 4)
    bare = RuleSpec(PolicySpec("drawdown", {"max_drop": 0.12, "window": 3}))
    plain, gated = foresee(bare, evals), foresee(bare._replace(modifiers=(PolicySpec("divergence"),)), evals)
    assert all(p is not None and g.eval >= p.eval for p, g in zip(plain, gated, strict=True) if g is not None)
    assert {g.verdict.reason for g in gated if g is not None} <= {"RewardHacking", "Collapse", "Unclear"}
    hacking = [
        g
        for g, hacks in zip(gated, truth.hacks, strict=True)
        if hacks and g is not None and g.verdict.reason == "RewardHacking"
    ]
    assert len(hacking) > 0.5 * sum(truth.hacks)


@pytest.mark.parametrize("modifiers", [(), (PolicySpec("divergence", {"level": 0.2}),)])
def test_streamed_or_foreseen_is_the_same_run(modifiers: tuple[PolicySpec, ...]) -> None:
    workload = generate(MixSettings(jobs=60).but(**EVIDENCE), 5).workload
    rule = E_PROCESS._replace(modifiers=modifiers)
    one, other = (
        simulate(
            workload,
            Cluster.slots(64),
            EvalStop(make_policy(PolicySpec("fifo"))),
            rule=rule,
            foresight=foresight,
        )
        for foresight in (True, False)
    )
    assert one.stops == other.stops
    assert one.stops
    assert one.ended == other.ended


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"evals\.paired: 1 for 2 evals, expected one for each or none"):
        Evals([0.5, 1.0], [1.0, 2.0], paired=[None])
    with pytest.raises(ValueError, match=r"evals\.proxies: 3 for 2 evals"):
        Evals([0.5, 1.0], [1.0, 2.0], proxies=[1.0, 2.0, 3.0])
