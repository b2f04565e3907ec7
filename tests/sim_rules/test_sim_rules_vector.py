"""The vectorised forms decide as the streaming rules do, eval for eval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.stopping import noise
from controller.policy.types import EvalInContext, EvalPoint, PolicySpec, Verb
from sim.foresight import RuleSpec
from sim.rules import vector

WARM = PolicySpec("warmUp", {"min_evals": 14})
SPECS = [
    RuleSpec(PolicySpec("kDeclines", {"k": 2})),
    RuleSpec(PolicySpec("kDeclines", {"k": 1, "min_delta_sigmas": 1.5, "min_delta": 0.02})),
    RuleSpec(PolicySpec("drawdown", {"max_drop": 0.1, "window": 3})),
    RuleSpec(PolicySpec("drawdown", {"max_drop": 0.0, "sigmas": 2.5, "window": 4})),
    RuleSpec(PolicySpec("drawdown", {"max_drop": 0.0, "sigmas": 2.5, "usual_noise": 0.06}), (WARM,)),
    RuleSpec(PolicySpec("scan", {"window": 5})),
    RuleSpec(PolicySpec("scan", {"window": 12, "threshold": 1.5, "min_drop": 0.05, "usual_noise": 0.04})),
    RuleSpec(PolicySpec("scan", {"window": 1, "threshold": 2.0}), (WARM,)),
    RuleSpec(PolicySpec("glr", {"window": 4, "alpha": 0.3, "horizon": 10})),
    RuleSpec(PolicySpec("glr", {"window": 8, "alpha": 0.5, "horizon": 50})),
    RuleSpec(PolicySpec("cusum", {"window": 4, "threshold": 2.0, "allowance": 0.5})),
    RuleSpec(PolicySpec("cusum", {"window": 8, "usual_noise": 0.05, "usual_noise_weight": 100.0})),
    RuleSpec(PolicySpec("scan", {"alpha": 0.3})),
    RuleSpec(PolicySpec("scan", {"alpha": 0.3, "usual_noise": 0.05, "usual_noise_weight": 2.0})),
    RuleSpec(PolicySpec("scan", {"alpha": 0.5, "horizon": 9, "min_drop": 0.05}), (WARM,)),
    RuleSpec(PolicySpec("scan", {"alpha": 0.3}), (PolicySpec("gate"),)),
    RuleSpec(PolicySpec("scan", {"threshold": 2.0}), (PolicySpec("patience"), PolicySpec("gate"))),
    RuleSpec(PolicySpec("glr", {"alpha": 0.5}), (PolicySpec("gate"), WARM)),
]
TIGHT = {"sigmas_reported": 1.5, "sigmas_estimated": 2.0}
GATES = [
    (PolicySpec("gate", TIGHT),),
    (PolicySpec("gate", {"sigmas_reported": 1.0, "sigmas_estimated": 1.0, "most": 1, "evals": 1}),),
    (
        PolicySpec("gate", {**TIGHT, "evals": 3, "borne_out": 0.9, "count_dropped": True}),
        PolicySpec("patience"),
    ),
    (PolicySpec("patience", {"evals": 3}), PolicySpec("gate", {**TIGHT, "evals": 1, "count_dropped": True})),
]


def streaming(
    spec: RuleSpec,
    scores: np.ndarray,
    stderrs: np.ndarray,
    progress: np.ndarray | None = None,
    prompts: np.ndarray | None = None,
) -> int:
    rule = spec.make()
    state = rule.initial()
    for i, (score, stderr) in enumerate(zip(scores, stderrs, strict=True)):
        named = 100 if prompts is not None and prompts[i] else None
        reported = None if np.isnan(stderr) else float(stderr)
        point = EvalPoint(i + 1, float(score), stderr=reported, prompts=named)
        if progress is not None and not np.isnan(progress[i]):
            point = EvalInContext.of(point, progress=float(progress[i]))
        state, verdict = rule.observe(state, point)
        if verdict.verb is Verb.STOP:
            return i
    return -1


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.rule.name}-{len(s.modifiers)}")
@given(
    seed=st.integers(0, 2**32 - 1),
    evals=st.integers(3, 60),
    reported=st.sampled_from(["none", "all", "some"]),
)
@settings(max_examples=15, deadline=None)
def test_vectorised_equals_streaming(spec: RuleSpec, seed: int, evals: int, reported: str) -> None:
    draw = np.random.default_rng(seed)
    runs = 6
    drift = draw.normal(0.0, 0.02, (runs, 1)) * np.maximum(0, np.arange(evals) - evals // 2)
    scores = drift + draw.normal(0.0, 0.06, (runs, evals)) + draw.choice([0.0, 1e3])
    if draw.random() < 0.2:
        scores[:, evals // 2 :] = np.round(scores[:, evals // 2 :], 1)  # ties
    stderrs = draw.uniform(0.03, 0.08, (runs, evals))
    if reported == "none":
        stderrs[:] = np.nan
    elif reported == "some":
        stderrs[draw.random((runs, evals)) < 0.5] = np.nan
    lengths = draw.integers(3, evals + 1, runs)
    for row, length in enumerate(lengths):
        scores[row, length:] = np.nan
        stderrs[row, length:] = np.nan
    # A total that is stated at some evals, and changes.
    total = evals * draw.choice([0.2, 1.0, 5.0], (runs, evals))
    progress = np.minimum(1.0, (np.arange(evals) + 1) / total)
    progress[draw.random((runs, evals)) < draw.choice([0.0, 0.3, 1.0])] = np.nan
    prompts = draw.random((runs, evals)) < draw.choice([0.0, 0.5, 1.0])
    found = vector.first_stops(spec, vector.Evals(scores, stderrs, progress=progress, prompts=prompts))
    wanted = [
        streaming(spec, scores[r, :n], stderrs[r, :n], progress[r], prompts[r]) for r, n in enumerate(lengths)
    ]
    assert found.tolist() == wanted


@pytest.mark.parametrize("modifiers", GATES, ids=range(len(GATES)))
@given(
    seed=st.integers(0, 2**32 - 1),
    rule=st.sampled_from(SPECS),
    reported=st.sampled_from(["none", "all", "some"]),
    bad=st.sampled_from([0.0, 0.02, 0.1, 0.4]),
)
@settings(max_examples=60, deadline=None)
def test_a_gate_lets_the_same_evals_through(
    modifiers: tuple[PolicySpec, ...], seed: int, rule: RuleSpec, reported: str, bad: float
) -> None:
    draw = np.random.default_rng(seed)
    runs, evals = 6, int(draw.integers(3, 60))
    drift = draw.normal(0.0, 0.02, (runs, 1)) * np.maximum(0, np.arange(evals) - evals // 2)
    scores = drift + draw.normal(0.0, 0.06, (runs, evals))
    jumps = draw.choice([-1.0, 1.0], (runs, evals)) * draw.uniform(0.2, 3.0, (runs, evals))
    scores = np.where(draw.random((runs, evals)) < bad, scores + jumps, scores)
    scores = np.round(scores, 1) if draw.random() < 0.2 else scores + draw.choice([0.0, 1e3])
    stderrs = draw.uniform(0.0, 0.08, (runs, evals))
    if reported != "all":
        stderrs[draw.random((runs, evals)) < (1.0 if reported == "none" else 0.5)] = np.nan
    stderrs[draw.random((runs, evals)) < bad] = 0.0
    lengths = draw.integers(3, evals + 1, runs)
    for row, length in enumerate(lengths):
        scores[row, length:] = np.nan
        stderrs[row, length:] = np.nan
    spec = RuleSpec(rule.rule, modifiers)
    progress = np.minimum(1.0, (np.arange(evals) + 1) / (evals * draw.choice([0.2, 1.0, 5.0], (runs, 1))))
    progress[draw.random((runs, evals)) < draw.choice([0.0, 0.3, 1.0])] = np.nan
    found = vector.first_stops(spec, vector.Evals(scores, stderrs, progress=progress))
    assert found.tolist() == [
        streaming(spec, scores[r, :n], stderrs[r, :n], progress[r]) for r, n in enumerate(lengths)
    ]


def test_the_examples_do_stop_sometimes() -> None:
    """Else the comparison above would compare nothing."""
    draw = np.random.default_rng(0)
    fall = -0.03 * np.maximum(0, np.arange(60) - 25)
    scores = fall + draw.normal(0, 0.05, (20, 60))
    evals = vector.Evals(scores, np.full(scores.shape, np.nan))
    for spec in SPECS:
        assert (vector.first_stops(spec, evals) >= 0).sum() >= 5, spec


@given(st.floats(0.01, 8.0), st.floats(3.0, 500.0))
def test_unwiden_undoes_widen(z: float, freedom: float) -> None:
    widened = np.array([[noise.widen(z, freedom)]])
    assert vector.unwiden(widened, np.array([[freedom]]))[0, 0] == pytest.approx(z, rel=1e-9)
