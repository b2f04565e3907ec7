"""The twin of public runs is what its description says, and rules do on it what they are to do."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.policy.stopping import noise
from controller.policy.types import EvalInContext, EvalPoint, Verb
from sim import specs, twin
from sim.rules import evaluate, history, twin_series, vector
from sim.rules.evaluate import upper_bound
from sim.rules.vector_spending import PromptPairs
from sim.twin import Prompts

SPENDING = specs.rule("scan:alpha=0.04")
RUNS = 300


def answered(
    means: twin.Vector, prompts: int, how: Prompts, wander: float, random: np.random.Generator
) -> np.ndarray:
    """Which prompt is answered at which eval."""
    chance = twin.chances(means, prompts, how, wander, random)
    return random.random(chance.shape) < chance


@pytest.fixture(scope="module")
def runs() -> list[twin.Run]:
    return list(twin.draw(RUNS, 3))


def test_who_knows_the_curve_imports_nothing_of_the_product() -> None:
    tree = ast.parse(Path(str(twin.__file__)).read_text(encoding="utf-8"))
    roots = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    roots |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not roots & {"controller", "sim"}


@pytest.mark.parametrize("mean", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("how", list(Prompts))
def test_the_mean_over_the_prompts_is_that_of_the_curve(how: Prompts, mean: float) -> None:
    random = np.random.default_rng(0)
    results = answered(np.full(12, mean), 40_000, how, 0.6, random)
    assert results.mean(axis=1) == pytest.approx(np.full(12, mean), abs=0.012)


def test_a_prompt_is_as_hard_as_before_only_on_a_fixed_set() -> None:
    random = np.random.default_rng(0)

    def agree(how: Prompts) -> float:
        results = answered(np.full(20, 0.5), 20_000, how, 0.6, random)
        return float((results[0] == results[-1]).mean())

    fresh, wandering, fixed = agree(Prompts.FRESH), agree(Prompts.WANDERING), agree(Prompts.FIXED)
    assert fresh == pytest.approx(0.5, abs=0.02)
    assert fresh + 0.02 < wandering + 0.02 < fixed


def test_a_curve_of_0_answers_nothing() -> None:
    assert not answered(np.zeros(3), 100, Prompts.FIXED, 0.0, np.random.default_rng(0)).any()


def test_what_is_drawn_is_what_was_described(runs: list[twin.Run]) -> None:
    for run in runs:
        assert len(run.scores) in twin.EVALS
        assert run.prompts in twin.PROMPTS
        falls = np.flatnonzero(np.diff(run.means) < 0)
        if run.kind != twin.DECLINING:
            assert run.peak == -1
            assert not len(falls)
        else:
            assert falls[0] == run.peak == run.means.argmax()
            if run.shape == "late":
                assert run.peak == len(run.scores) - 3
            if run.shape == "slow":
                assert 0.15 <= 1 - run.means[-1] / run.means[run.peak] <= 0.3


def test_differences_on_the_same_prompts_add_up_to_that_of_the_scores(runs: list[twin.Run]) -> None:
    for run in runs[:50]:
        for t, pair in enumerate(run.best):
            if pair is not None:
                assert pair.mean == pytest.approx(run.scores[t] - run.scores[pair.earlier])
                assert run.scores[pair.earlier] == run.scores[:t].max()


def test_variance_of_differences_is_that_of_the_prompts() -> None:
    one, other = np.array([True, True, False, False]), np.array([True, False, True, True])
    found = twin.pair(one, other, 0)
    differences = one.astype(int) - other.astype(int)
    assert (found.mean, found.variance) == (differences.mean(), pytest.approx(differences.var(ddof=1)))


def test_who_knows_the_curve_reaches_what_the_issue_says(runs: list[twin.Run]) -> None:
    """96 % and .63 there; the twin's description leaves open how long a slide takes."""
    falling = [run for run in runs if run.kind == twin.DECLINING]
    stops = [twin.ceiling(run) for run in falling]
    assert np.mean([stop >= 0 for stop in stops]) == pytest.approx(0.96, abs=0.03)
    assert np.mean([twin.saved(r, s) for r, s in zip(falling, stops, strict=True)]) == pytest.approx(
        0.62, abs=0.05
    )


def test_knowing_the_prompts_and_spending_a_budget_catches_most(runs: list[twin.Run]) -> None:
    rows = {(r.rule, r.known): r for r in twin_series.rows({"scan": SPENDING}, runs)}
    row, blind = rows["scan", "prompts"], rows["scan", "scores only"]
    assert row.caught >= 0.87
    assert row.saved >= 0.52
    assert row.flat <= 0.01
    assert row.rising <= 0.003
    assert row.saved > 1.5 * blind.saved
    assert blind.caught >= 0.45
    assert rows["scan", "pairs"].saved > row.saved


@pytest.mark.parametrize("spec", ["scan:alpha=0.045", "scan:alpha=0.2+gate:evals=1"])
def test_pairs_are_judged_alike_eval_by_eval_and_at_once(spec: str, runs: list[twin.Run]) -> None:
    rule = specs.rule(spec)
    some = [
        replace(s, range=None, prompts=()) if i % 3 == 0 else s
        for i, s in enumerate(twin_series.series(runs))
    ]
    judged = evaluate.judge(some[::5])
    wanted = []
    for one in judged:
        made = rule.make()
        state, stop = made.initial(), -1
        for number, point in enumerate(one.series.points()):
            state, verdict = made.observe(state, point)
            if verdict.verb is Verb.STOP:
                stop = number
                break
        wanted.append(stop)
    assert evaluate.first_stops(rule, judged).tolist() == wanted
    assert sum(stop >= 0 for stop in wanted) >= 10


def test_a_history_of_the_twin_is_read_as_it_was_written(runs: list[twin.Run], tmp_path: Path) -> None:
    series = [replace(s, prompt_pairs=(), last_pairs=()) for s in twin_series.series(runs[:5])]
    history.write(tmp_path / "twin.csv", series)
    again = history.read(tmp_path / "twin.csv")
    assert [list(s.points()) for s in again] == [list(s.points()) for s in series]
    assert [(p.range, p.progress) for s in again for p in s.points()] == [
        (p.range, p.progress) for s in series for p in s.points()
    ]


def test_as_text_and_as_json() -> None:
    options = ["rules", "twin", "--rule", "scan:alpha=0.045", "--rule", "glr", "--runs", "10"]
    text = CliRunner().invoke(app, options)
    assert text.exit_code == 0, text.output
    head, line, *rows = text.stdout.splitlines()
    assert len(rows) == 1 + 4 * 2
    assert {row.count("|") for row in (head, line, *rows)} == {head.count("|")}
    found = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert len(found["rows"]) == len(rows)
    assert found["rows"][0]["flat"] is None
    assert CliRunner().invoke(app, ["rules", "twin", "--rule", "guess"]).exit_code == 2


def test_the_twin_is_a_family_of_histories(tmp_path: Path) -> None:
    out = tmp_path / "twin.csv"
    made = CliRunner().invoke(app, ["rules", "generate", str(out), "--family", "twin", "--runs", "5"])
    assert made.exit_code == 0, made.output
    assert "who knows the curve" in made.output
    assert {s.label for s in history.read(out)} == {"declining", "healthy", "plateau"}


def test_false_stops_of_few_prompts_enumerated() -> None:
    """20 prompts, each answered with .02, five evals: every run there is, by its probability."""
    n, p, evals, most = 20, 0.02, 5, 6  # 7 or more answers: less than 1e-6 an eval
    chance = [float(_binomial(n, k, p)) for k in range(most + 1)]
    counts = np.array(list(product(range(most + 1), repeat=evals)))
    weights = np.prod(np.array(chance)[counts], axis=1)
    exact = float(weights @ (_stops(counts / n, n) >= 0))
    drawn = np.random.default_rng(1).binomial(n, p, (20_000, evals))
    hits = int((_stops(drawn / n, n) >= 0).sum())
    assert exact <= 0.05
    assert hits / 20_000 == pytest.approx(exact, abs=4 * (exact / 20_000) ** 0.5 + 1e-4)


def _binomial(n: int, k: int, p: float) -> float:

    return comb(n, k) * p**k * (1 - p) ** (n - k)


def _stops(scores: np.ndarray, n: int) -> np.ndarray:
    mean = (n * scores + 1) / (n + 2)
    progress = np.broadcast_to(np.arange(1, 6) / 5, scores.shape)
    stderrs = np.sqrt(mean * (1 - mean) / n)
    assert stderrs[0, 0] == noise.error(_point(scores[0, 0], n))
    return vector.first_stops(SPENDING, vector.Evals(scores, stderrs, progress=progress))


def _point(score: float, n: int) -> EvalPoint:

    return EvalInContext.of(EvalPoint(1, float(score), prompts=n), range=(0.0, 1.0))


@pytest.mark.parametrize("evals", [5, 10, 20, 50, 200])
@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0, None, "changing"])
def test_flat_runs_keep_to_the_budget_whatever_total_is_stated(
    evals: int, factor: float | str | None
) -> None:
    count = 4000 if evals <= 50 else 2000
    random = np.random.default_rng(evals)
    scores = random.standard_normal((count, evals))
    progress = None
    if factor == "changing":
        total = evals * random.choice([0.2, 1.0, 5.0], scores.shape)
        progress = np.minimum(1.0, (np.arange(evals) + 1) / total)
    elif isinstance(factor, float):
        at = np.minimum(1.0, (np.arange(evals) + 1) / (evals * factor))
        progress = np.broadcast_to(at, scores.shape)
    shown = vector.Evals(scores, np.ones(scores.shape), progress=progress)
    stopped = int((vector.first_stops(SPENDING, shown) >= 0).sum())
    assert upper_bound(stopped, count) <= 0.05


def _over_optimised(fall: float, count: int, seed: int) -> vector.Evals:
    """16 evals, best at the 5th, then a straight fall; paired error .014, reported one .05."""
    random = np.random.default_rng(seed)
    at = np.arange(16)
    mean = 2.79 - 0.3 * np.maximum(0, 4 - at) / 4 - fall * np.maximum(0, at - 4) / 11
    if not fall:
        mean = np.full(16, 2.79)
    scores = mean + random.normal(0.0, 0.014 / 2**0.5, (count, 16))
    steps = np.broadcast_to(at + 1.0, scores.shape)
    best = np.array([[row[: max(1, t)].argmax() + 1.0 for t in at] for row in scores])
    like = np.ones(scores.shape)
    pairs = PromptPairs(best, 1000 * like, 1000 * 0.014**2 * like, np.nan * like)
    return vector.Evals(scores, 0.05 * like, steps=steps, progress=steps / 16, prompt_pairs=pairs)


def _caught_and_saved(evals: vector.Evals) -> tuple[float, float]:
    stops = vector.first_stops(SPENDING, evals)
    return float(np.mean(stops > 4)), float(np.mean(np.where(stops > 4, (15 - stops) / 11, 0.0)))


def test_a_shallow_fall_is_found_by_its_pairs() -> None:
    whole, half = _over_optimised(0.2, 400, 1), _over_optimised(0.1, 400, 1)
    caught, saved = _caught_and_saved(whole)
    assert caught >= 0.95
    assert saved >= 0.65
    assert _caught_and_saved(half)[1] >= 0.45
    assert _caught_and_saved(whole._replace(prompt_pairs=None))[1] <= 0.2
    assert _caught_and_saved(half._replace(prompt_pairs=None))[0] == 0.0
    flat = vector.first_stops(SPENDING, _over_optimised(0.0, 4000, 2))
    assert upper_bound(int((flat >= 0).sum()), len(flat)) <= 0.025


@pytest.mark.parametrize("how", [Prompts.FIXED, Prompts.WANDERING])
def test_flat_runs_with_pairs_keep_to_the_budget(how: Prompts) -> None:
    """Their best was lucky on these very prompts: what the union bound over the earlier evals is for."""
    random = np.random.default_rng(4)
    flat = [twin.run(twin.FLAT, random, evals=10, prompts=100, how=how) for _ in range(1500)]
    stops = evaluate.first_stops(SPENDING, evaluate.judge(twin_series.series(flat)))
    assert upper_bound(int((stops >= 0).sum()), len(flat)) <= 0.05


def test_who_is_asked_at_once_stops_a_collapse_in_the_same_eval(runs: list[twin.Run]) -> None:
    spec = specs.rule("scan:alpha=0.04+gate")
    prompts = dict(twin_series.by_evidence(runs))["prompts"]
    regular = evaluate.first_stops(spec, prompts).tolist()
    asked = twin_series.asked_stops(spec, runs, prompts)
    zero = [
        (run.peak + 1, at, later)
        for run, at, later in zip(runs, asked, regular, strict=True)
        if run.means[-1] == 0.0
    ]
    assert len(zero) > 50
    assert sum(at == first for first, at, _ in zero) > 0.8 * len(zero)
    assert sum(later == first for first, _, later in zero) < 0.2 * len(zero)
    flat = [a for r, a in zip(runs, asked, strict=True) if r.kind == twin.FLAT]
    assert sum(a >= 0 for a in flat) <= 0.02 * len(flat)


def test_nobody_is_asked_where_the_gate_holds_nothing_back(runs: list[twin.Run]) -> None:
    spec = specs.rule("scan:alpha=0.04+gate:sigmas_reported=1000,sigmas_below=1000,sigmas_estimated=1000")
    for _, judged in twin_series.by_evidence(runs[:100]):
        asked = twin_series.asked_stops(spec, runs[:100], judged)
        assert asked == evaluate.first_stops(spec, judged).tolist()
