"""The paper's figures, by the experiments that print them (docs/reports/reproduction.md), by seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sim.experiments.estimate import Estimate
from sim.experiments.executor import Serial
from sim.experiments.findings import Findings
from sim.experiments.paper import NOISE_LIMIT, PRECISION_OVER_SHARES, PRECISION_UNDER_NOISE
from sim.experiments.registry import EXPERIMENTS, run_experiment
from sim.experiments.setting import Setting
from sim.report import reproduction

SETTING = Setting()
FEWER = replace(SETTING, seeds=8)


@pytest.fixture(scope="module")
def headline() -> Findings:
    return run_experiment("headline", SETTING, Serial())


def estimate(findings: Findings, key: str) -> Estimate:
    found = findings.headline[key]
    assert isinstance(found, Estimate)
    return found


def of(row: dict[str, object], key: str) -> Estimate:
    found = row[key]
    assert isinstance(found, Estimate)
    return found


def test_the_headline(headline: Findings) -> None:
    assert estimate(headline, "precision").value >= 0.98
    assert estimate(headline, "recall").value >= 0.99
    assert estimate(headline, "fpr").value <= 0.015
    assert estimate(headline, "jct_gain").low >= 0.09
    assert estimate(headline, "waste_gain").low >= 0.22
    for key in ("p_jct", "p_waste", "p_jct_kept", "p_waste_wide"):
        p = headline.headline[key]
        assert isinstance(p, float)
        assert p < 0.05


def test_what_the_paper_does_not_say_is_beside_it(headline: Findings) -> None:
    """A firing at the very end saves nothing, and a part of the gain is mechanical."""
    assert SETTING.mix.load == 1.0
    assert 0.7 < estimate(headline, "recall_before_end").value < 0.8
    assert estimate(headline, "jct_gain_kept").low > 0.0
    gain, mechanical = estimate(headline, "jct_gain"), estimate(headline, "jct_gain_mechanical")
    assert 0.0 < mechanical.value < gain.value
    assert estimate(headline, "oracle_jct_gain").value > gain.value
    assert estimate(headline, "oracle_waste_gain").value > estimate(headline, "waste_gain").value
    assert estimate(headline, "premature").value < 0.005


def test_the_reproduction_page_prints_what_the_command_does(headline: Findings) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports" / "reproduction.md").read_text()
    assert "| recall_before_end | " in page
    assert reproduction.fill(page, {"headline": headline}) == page


def test_a_page_cannot_ask_for_what_an_experiment_does_not_have(headline: Findings) -> None:
    page = "a\n<!-- table headline: figure colour -->\nold\n<!-- end -->\nz\n"
    with pytest.raises(ValueError, match="table headline: 'colour' is not allowed, expected one of figure"):
        reproduction.fill(page, {"headline": headline})
    assert reproduction.fill(page, {}) == page


def test_competitors_are_as_poor_as_the_paper_says() -> None:
    rows = {row["rule"]: row for row in run_experiment("competitors", FEWER, Serial()).rows}
    fixed, plateau = rows["StopAt-0.65"], rows["LossPlateau"]
    assert of(fixed, "precision").value == pytest.approx(0.571, abs=0.05)
    assert of(fixed, "fpr").value == pytest.approx(0.645, abs=0.06)
    assert of(fixed, "fpr_healthy_rlhf").value == 1.0
    assert of(fixed, "recall").value == 1.0
    assert of(plateau, "precision").value == pytest.approx(0.570, abs=0.05)
    assert of(plateau, "recall").value == pytest.approx(0.383, abs=0.05)
    assert of(plateau, "fpr").value == pytest.approx(0.248, abs=0.04)
    assert of(rows["oracle"], "precision").value == of(rows["oracle"], "recall").value == 1.0


def test_precision_holds_under_noise_and_recall_does_not() -> None:
    rows = run_experiment("noise", FEWER, Serial()).rows
    for row in rows:
        noise = row["noise"]
        assert isinstance(noise, float)
        if noise <= NOISE_LIMIT:
            assert of(row, "precision").value >= PRECISION_UNDER_NOISE
    by_noise = {row["noise"]: row for row in rows}
    assert of(by_noise[0.05], "recall").value < 0.85


def test_precision_holds_over_hacking_shares() -> None:
    rows = run_experiment("base-rate", FEWER, Serial()).rows
    assert [row["hacking_share"] for row in rows] == [0.2, 0.4, 0.6, 0.8]
    assert all(of(row, "precision").value >= PRECISION_OVER_SHARES for row in rows)


def test_every_base_policy_gains() -> None:
    rows = run_experiment("bases", FEWER, Serial()).rows
    everyone = {"fifo", "fifo:backfill=true", "srtf", "srtfEst", "las", "slaq", "fairShare"}
    assert {row["base"] for row in rows} == everyone
    for row in rows:
        assert of(row, "jct_gain").low > 0.0
        assert of(row, "jct_gain_kept").value > 0.0


@pytest.mark.parametrize("name", ["k", "eval-interval", "load", "families", "grid"])
def test_sweeps_have_a_row_for_each_value_and_start_from_the_headlines_seeds(name: str) -> None:
    tiny = replace(SETTING.but(jobs=30), seeds=2)
    findings = run_experiment(name, tiny, Serial())
    plan = EXPERIMENTS[name].plan(tiny)
    assert len(findings.rows) * 2 == sum(len(t.arms) if name == "grid" else 1 for t in plan)
    assert {trial.seed for trial in plan} == {0, 1}
    header, rows = findings.tidy()
    assert len(rows) == len(findings.rows)
    assert {"experiment", "precision", "precision_low", "precision_high"} <= set(header)


def test_more_declines_find_less_and_accuse_less() -> None:
    rows = run_experiment("k", replace(SETTING, seeds=6), Serial()).rows
    recalls = [of(row, "recall").value for row in rows]
    alarms = [of(row, "fpr").value for row in rows]
    assert recalls == sorted(recalls, reverse=True)
    assert alarms == sorted(alarms, reverse=True)


def test_rules_that_ask_for_the_noise_find_runs_sooner_where_evals_say_it() -> None:
    rows = run_experiment("standard-errors", replace(SETTING, seeds=4), Serial()).rows
    by = {(row["rule"], row["noise"]): row for row in rows}
    assert {rule for rule, _ in by} == {"drawdown", "scan", "glr", "cusum"}
    for rule in ("scan", "glr"):
        guessed, said = (by[rule, noise] for noise in ("from the scores", "reported"))
        assert of(said, "recall_before_end").value > 0.9 > 0.5 > of(guessed, "recall_before_end").value
        assert of(said, "fpr").value < 0.01
