"""What bad evals do to the default rule: the bounds of docs/use/stop-rules.md, on runs of another seed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from controller.cli import rules
from controller.cli.main import app
from sim import specs
from sim.rules import evaluate, families, outliers, tables
from sim.rules.tables import DEFAULT


def test_the_commands_default_is_that_of_the_api() -> None:
    assert rules.DEFAULT == DEFAULT


# row 7
def test_one_bad_eval_in_a_hundred_costs_the_default_rule_next_to_nothing() -> None:
    """Bare `scan` stops 37 % of the rising and 43 % of the flat runs of which 1 % of the evals are bad."""
    rows = list(outliers.rows({DEFAULT: specs.rule(DEFAULT)}, runs=400, seed=2))
    assert [(r.share, r.score) for r in rows] == [(0.0, 0), (0.01, 0), (0.01, 2), (0.05, 0), (0.05, 2)]
    without = rows[0]
    assert (without.rising, without.missed) == (0.0, pytest.approx(0.0, abs=0.005))
    assert without.flat <= 0.05
    assert without.collapse <= 2.5
    for row in rows[1:3]:
        assert row.rising <= 0.01
        assert row.flat <= 0.05
        assert row.saved >= 0.97 * without.saved
    for row in rows[3:]:
        assert row.rising <= 0.08
        assert row.flat <= 0.08


@pytest.mark.parametrize("error", [0.0, None])
def test_a_first_eval_far_above_without_a_standard_error_stops_no_more_runs(error: float | None) -> None:
    """A scorer that gives every answer the same score says that its standard error is 0."""
    drawn = families.draw("linear", evals=50, noise=0.05, runs=200, seed=4, reported=True).series
    bad = [replace(x, scores=(2.0, *x.scores[1:]), stderrs=(error, *x.stderrs[1:])) for x in drawn]
    found = {}
    for name, series in (("good", drawn), ("bad", bad)):
        judged = evaluate.judge(series)
        spec = specs.rule(DEFAULT)
        (found[name],) = evaluate.rows(DEFAULT, judged, evaluate.first_stops(spec, judged))
    assert found["bad"].false_stops <= found["good"].false_stops + 0.01
    assert found["bad"].plateau_stops <= 0.05
    assert found["bad"].saved >= 0.97 * found["good"].saved


def test_bad_evals_change_nothing_but_themselves() -> None:
    drawn = families.draw("linear", evals=20, noise=0.05, runs=50, seed=3, reported=True).series
    bad = outliers.spoiled(drawn, 0.1, 2.0, 3)
    pairs = [(a, b) for x, y in zip(drawn, bad, strict=True) for a, b in zip(x.scores, y.scores, strict=True)]
    assert 0.07 < sum(a != b for a, b in pairs) / len(pairs) < 0.13
    assert {b for a, b in pairs if a != b} == {2.0}
    assert [x.stderrs for x in drawn] == [y.stderrs for y in bad]
    for one in outliers.collapsed(drawn):
        after = [s for step, s in zip(one.steps, one.scores, strict=True) if step > (one.peak_step or 0)]
        assert after
        assert set(after) == {0.0}


def test_as_text_and_as_json() -> None:
    options = ["rules", "outliers", "--rule", DEFAULT, "--rule", "scan", "--runs", "10"]
    text = CliRunner().invoke(app, options)
    assert text.exit_code == 0, text.output
    head, line, *rows = text.stdout.splitlines()
    assert len(rows) == 2 * 5 * 2
    assert {row.count("|") for row in (head, line, *rows)} == {head.count("|")}
    found = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert len(found["rows"]) == len(rows)
    assert CliRunner().invoke(app, ["rules", "outliers", "--rule", "guess"]).exit_code == 2


def test_the_default_is_named_alike_everywhere() -> None:
    from controller.cli import rules

    assert rules.DEFAULT == tables.DEFAULT == DEFAULT
