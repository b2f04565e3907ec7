"""`evalstop rules short`, prompts that wander in `rules flat`, and short evals of workloads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from sim import specs, twin
from sim.rules import evaluate, flat, history, short_runs, twin_series
from sim.rules.evaluate import upper_bound
from sim.rules.history import Series
from sim.workloads import MixSettings, generate

BUDGET = "scan:alpha=0.04"


def test_every_row_is_there_for_every_rule_as_text_and_as_json(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    plateau = tuple(float(x) for x in 0.5 + 0.02 * draw.standard_normal(30))
    steps = tuple(float(n + 1) for n in range(30))
    history.write(tmp_path / "h.csv", [Series("a/1", "a", "a", None, steps, plateau, (None,) * 30)])
    options = ["rules", "short", "--rule", BUDGET, "--rule", "glr", "--runs", "20"]
    options += ["--history", str(tmp_path / "h.csv"), "--times", "5"]
    text = CliRunner().invoke(app, options)
    assert text.exit_code == 0, text.output
    found = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)["rows"]
    assert len(text.stdout.splitlines()) == 2 + len(found)
    for rule in (BUDGET, "glr"):
        told = {(r["what"], r["measure"]) for r in found if r["rule"] == rule}
        assert {what for what, _ in told} == {
            "shape (f)",
            "shape (f), half the fall",
            "shape (f), flat",
            "delay, correlation 0.65",
            "delay, correlation 0.4",
            "dip of 1 eval",
            "dip of 2 evals",
            "linear, 50 evals",
            "cost of a pass",
            "state of a rule",
            "1 plateau, 5 orders",
        }
    bytes_of = {r["rule"]: r["value"] for r in found if r["what"] == "state of a rule"}
    assert bytes_of[BUDGET] <= 600


def test_pairs_find_a_shallow_fall_and_the_gate_forgives_one_dip() -> None:
    rows = {(r.what, r.evidence, r.measure): r.value for r in short_runs.rows(named(BUDGET), 150, 1)}
    assert rows["shape (f)", "pairs", "caught"] >= 0.95
    assert rows["shape (f)", "pairs", "saved"] >= 0.65
    assert rows["shape (f), half the fall", "pairs", "saved"] >= 0.45
    assert rows["delay, correlation 0.65", "pairs", "of that without"] < 0.9
    gated = short_runs.rows(named(f"{BUDGET}+gate"), 150, 1)
    dips = {(r.what, r.evidence): r.value for r in gated if r.what.startswith("dip")}
    assert dips["dip of 1 eval", "prompts"] <= 0.04
    assert dips["dip of 1 eval", "pairs"] <= 0.04
    assert dips["dip of 2 evals", "prompts"] >= 0.5
    assert rows["dip of 1 eval", "prompts", "stopped"] >= 0.5


def named(*texts: str) -> dict[str, specs.RuleSpec]:
    return {text: specs.rule(text) for text in texts}


def test_shuffled_evals_stop_no_oftener_than_promised() -> None:
    """Evals in any order depend on nothing: a plateau's own noise, with its ties and its outliers."""
    draw = np.random.default_rng(2)
    plateaus = []
    for number in range(30):
        scores = draw.binomial(100, draw.uniform(0.02, 0.9), 40) / 100
        plateaus.append(
            Series(f"p/{number}", "p", "p", None, tuple(range(1, 41)), tuple(scores.tolist()), (None,) * 40)
        )
    (row,) = short_runs.shuffled(named(BUDGET), evaluate.judge(plateaus), 40, 0)
    assert row.value <= 0.05
    with pytest.raises(ValueError, match="no plateau"):
        list(short_runs.shuffled(named(BUDGET), [], 40, 0))


@pytest.mark.parametrize("wander", [0.3, 1.2])
def test_prompts_that_wander_stop_no_more_flat_runs_than_promised(wander: float) -> None:
    (row,) = flat.rates(
        BUDGET,
        specs.rule(BUDGET),
        runs=400,
        seed=1,
        lengths=(41,),
        total=flat.Total.KNOWN,
        prompts=50,
        how=twin.Prompts.WANDERING,
        wander=wander,
    )
    assert row.noise == f"wandering {wander:g}"
    assert row.interval[0] <= 0.05


def test_how_prompts_are_chosen_is_checked() -> None:
    for options, said in (
        (["--how", "new"], "--how: 'new', expected one of fresh, fixed, wandering"),
        (["--how", "fixed"], "--how: Gaussian noise is of no prompts, expected --prompts beside it"),
    ):
        found = CliRunner().invoke(app, ["rules", "flat", "--runs", "10", *options])
        assert found.exit_code == 2
        assert said in " ".join(found.output.split())


def test_a_pool_that_knows_the_noise_is_worth_much() -> None:
    runs = list(twin.draw(150, 4))
    rows = {r.known: r for r in twin_series.rows(named(BUDGET), runs)}
    assert rows[twin_series.POOL].saved > 1.3 * rows[twin_series.SCORES_ONLY].saved
    assert rows[twin_series.POOL].caught >= 0.75
    assert upper_bound(0, 10) > rows[twin_series.POOL].flat


def test_short_evals_of_a_workload_are_those_of_the_twin() -> None:
    settings = MixSettings(evals="short", stderr=True, jobs=150, hacking_share=0.5)
    found = generate(settings, 3)
    kinds = zip(found.workload.evals, found.truth.hacks, found.truth.peak, strict=True)
    falls = 0
    for evals, hacks, peak in kinds:
        assert evals is not None
        assert len(evals.scores) in twin.EVALS
        assert evals.at[-1] == 1.0
        assert len(evals.stderrs) == len(evals.losses) == len(evals.scores)
        assert hacks == (peak < 1.0)
        falls += hacks
    assert 30 <= falls <= 90
    assert [e.scores for e in generate(settings, 3).workload.evals] == [
        e.scores for e in found.workload.evals
    ]
    bare = generate(settings.but(stderr=False), 3).workload.evals[0]
    assert bare is not None
    assert not len(bare.stderrs)
