"""eProcess and divergence over matrices decide as the streaming forms do, eval for eval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom  # type: ignore[import-untyped, unused-ignore]
from typer.testing import CliRunner

from controller.cli.rules import app
from controller.policy.types import EvalPoint, Paired, PolicySpec, Verb
from sim.foresight import RuleSpec
from sim.rules import families, vector
from sim.rules.evaluate import Judged, first_stops, judge
from sim.rules.history import Series, read
from sim.rules.truth import Truth

WARM = PolicySpec("warmUp", {"min_evals": 12})
DROP = PolicySpec("drawdown", {"max_drop": 0.05, "window": 2})


def gate(**params: float | bool) -> PolicySpec:
    return PolicySpec("divergence", params)


NEEDY = [
    RuleSpec(PolicySpec("eProcess")),
    RuleSpec(PolicySpec("eProcess", {"alpha": 0.4, "horizon": 5, "min_drop": 0.02})),
    RuleSpec(PolicySpec("eProcess", {"bound": 0.33, "alpha": 0.2})),  # some evals exceed it
    RuleSpec(PolicySpec("eProcess", {"alpha": 0.3}), (WARM, gate(level=0.3, strict=True))),
    RuleSpec(DROP, (gate(level=0.3, strict=True),)),
    RuleSpec(DROP, (gate(level=0.4, strict=True), WARM)),
    RuleSpec(DROP, (gate(level=0.45, collapse=False, strict=True),)),
]
# What stops without the evidence, too.
SPECS = [
    *NEEDY,
    RuleSpec(DROP, (gate(level=0.3),)),
    RuleSpec(DROP, (gate(level=0.1, collapse=False), WARM)),
]


def runs_of(seed: int, evals: int, reported: str) -> list[Series]:
    """Runs that rise and fall, with proxies and differences to the best before, some of them missing."""
    draw = np.random.default_rng(seed)
    out = []
    for number, length in enumerate(draw.integers(3, evals + 1, 6)):
        mean = 0.6 + draw.normal(0.0, 0.03) * np.maximum(0, np.arange(length) - length // 2)
        scores = mean + draw.normal(0.0, 0.04, length) * (number != 0) + draw.choice([0.0, 1e3])
        proxies = draw.normal(0.0, 0.1) * np.arange(length) + draw.normal(0.0, 0.1, length) * (number != 1)
        seen = (
            np.ones(length)
            if reported == "all"
            else draw.random(length) < {"none": -1.0, "some": 0.7}[reported]
        )
        paired: list[Paired | None] = [None]
        for t in range(1, length):
            best = int(scores[:t].argmax())
            there = reported == "all" or (reported == "some" and draw.random() < 0.7)
            difference = float(mean[t] - mean[best] + draw.normal(0.0, 0.04))
            paired.append(Paired(best + 1, int(draw.integers(2, 400)), difference, 0.1) if there else None)
        out.append(
            Series(
                str(number),
                str(number),
                "any",
                None,
                tuple(range(1, length + 1)),
                tuple(scores.tolist()),
                (None,) * int(length),
                proxies=tuple(p if s else None for p, s in zip(proxies.tolist(), seen, strict=True)),
                paired=tuple(paired),
            )
        )
    return out


def streaming(spec: RuleSpec, series: Series) -> int:
    rule = spec.make()
    state = rule.initial()
    for i, score in enumerate(series.scores):
        point = EvalPoint(i + 1, score, proxy=series.proxies[i], paired=series.paired[i])
        state, verdict = rule.observe(state, point)
        if verdict.verb is Verb.STOP:
            return i
    return -1


def vectorised(spec: RuleSpec, runs: list[Series]) -> list[int]:
    assert vector.covers(spec)
    return first_stops(spec, [Judged(s, Truth("healthy", 0, 0.0)) for s in runs]).tolist()


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.rule.name}-{len(s.modifiers)}")
@given(st.integers(0, 2**32 - 1), st.integers(3, 50), st.sampled_from(["none", "all", "some"]))
@settings(max_examples=20, deadline=None)
def test_vectorised_equals_streaming(spec: RuleSpec, seed: int, evals: int, reported: str) -> None:
    runs = runs_of(seed, evals, reported)
    assert vectorised(spec, runs) == [streaming(spec, s) for s in runs]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.rule.name}-{len(s.modifiers)}")
def test_the_examples_do_stop_sometimes(spec: RuleSpec) -> None:
    """Else the comparison above would compare nothing."""
    stops = [stop for seed in range(12) for stop in vectorised(spec, runs_of(seed, 50, "all"))]
    assert sum(stop >= 0 for stop in stops) >= 5
    assert sum(stop < 0 for stop in stops) >= 5


def test_histories_without_the_evidence_stop_nobody() -> None:
    bare = [replace(s, proxies=(), paired=()) for s in runs_of(1, 40, "all")]
    for spec in NEEDY:
        assert vectorised(spec, bare) == [-1] * len(bare)
    assert vectorised(RuleSpec(DROP, (gate(),)), bare) == vectorised(RuleSpec(DROP), bare)


def test_a_generated_history_with_differences_is_read_again(tmp_path: Path) -> None:
    runner, file, plain = CliRunner(), tmp_path / "h.csv", tmp_path / "plain.csv"
    arguments = ["generate", "--runs", "3", "--evals", "8", "--noise", "0.05"]
    assert runner.invoke(app, [*arguments, str(file), "--prompts", "64"]).exit_code == 0
    assert runner.invoke(app, [*arguments, str(plain)]).exit_code == 0
    wanted = families.draw("linear", evals=8, noise=0.05, runs=3, seed=0, prompts=64).series
    assert [s.paired for s in read(file)] == [s.paired for s in wanted]
    assert [s.scores for s in read(file)] == [s.scores for s in read(plain)]
    refused = runner.invoke(app, [*arguments, str(file), "--prompts", "1"])
    assert refused.exit_code == 2
    assert "--prompts: 1 has no variance" in refused.output


def test_differences_keep_the_bound_on_generated_runs_and_find_the_falls() -> None:
    """Flat and rising runs of 50 evals at alpha .1, references chosen by luck; 100 prompts an eval."""
    drawn = families.draw("linear", evals=50, noise=0.05, runs=300, seed=1, prompts=100)
    judged = judge(drawn.series)
    stops = first_stops(RuleSpec(PolicySpec("eProcess", {"alpha": 0.1})), judged)
    label = np.array([j.truth.label for j in judged])
    for kind in ("healthy", "plateau"):
        assert (stops[label == kind] >= 0).sum() <= binom.ppf(1.0 - 1e-6, 300, 0.1)
    peaks = np.array([j.truth.peak for j in judged])
    assert (stops >= peaks)[label == "declining"].mean() >= 0.95
