"""`evalstop rules choose`: what a stop is worth, and which rule is worth most."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from controller.cli import rules_text
from controller.cli.main import app
from sim import specs, twin
from sim.rules import choose

ANYTHING_BUT_FLAT = (0.2, 1.0, 0)  # limits of flat runs of the twin, of bad evals, and no Gaussian ones


def a_run(kind: str, means: list[float], prompts: int = 100, peak: int = -1) -> twin.Run:
    curve = np.array(means)
    return twin.Run(
        kind, "", curve, curve, prompts, peak, (None,) * len(means), (None,) * len(means), curve[:, None]
    )


@pytest.mark.parametrize(
    ("means", "stop", "gain", "wrong"),
    [
        ([0.1, 0.3, 0.5, 0.6], 1, 0.3, True),  # two errors of .3 on 100 prompts are .092
        ([0.1, 0.5, 0.55, 0.58], 1, 0.08, False),  # of .5, .1
        ([0.1, 0.5, 0.2, 0.45], 2, 0.0, False),  # it comes back, not above what it had reached
        ([0.1, 0.5, 0.2, 0.9], 2, 0.4, True),
        ([0.1, 0.3, 0.5, 0.6], 3, 0.0, False),  # nothing was to come
        ([0.0, 0.0, 0.01], 1, 0.01, True),  # without noise every gain counts
    ],
)
def test_a_stop_is_wrong_if_two_errors_were_still_to_gain(
    means: list[float], stop: int, gain: float, wrong: bool
) -> None:
    run = a_run(twin.RISING, means)
    assert choose.still_to_gain(run, stop) == pytest.approx(gain)
    assert choose.is_wrong(run, stop) is wrong


def test_a_stop_gives_back_what_was_still_to_come() -> None:
    run = a_run(twin.FLAT, [0.5] * 10)
    assert [choose.given_back(run, stop) for stop in (-1, 0, 4, 9)] == pytest.approx([0.0, 0.9, 0.5, 0.0])


def test_values_and_shares_are_those_of_a_hundred_runs() -> None:
    runs = [
        a_run(twin.DECLINING, [0.5, 0.9, 0.1, 0.1], peak=1),
        a_run(twin.DECLINING, [0.5, 0.9, 0.1, 0.1], peak=1),
        a_run(twin.FLAT, [0.5] * 4),
        a_run(twin.RISING, [0.1, 0.2, 0.5, 0.9]),
    ]
    row = choose._row("x", "prompts", runs, [2, -1, 1, 1], 0.25)
    # 10 declining: half of them give back 1/4; 30 flat: 1/2 each; 60 rising: 1/2 each, wrongly.
    assert row.value == pytest.approx({w: 10 * 0.125 + 30 * 0.5 + 60 * 0.5 * (1 - w) for w in choose.WEIGHTS})
    assert (row.caught, row.flat, row.rising, row.dips) == (0.5, 1.0, 1.0, 0.25)
    assert row.wrong == 60.0
    assert row.ahead == pytest.approx(0.7)
    assert row.right == pytest.approx(5 / 95)


def test_the_rule_that_sees_most_is_chosen_and_its_double_is_a_tie() -> None:
    named = {"scan": specs.rule("scan"), "again": specs.rule("scan"), "blind": specs.rule("kDeclines:k=50")}
    found = choose.choose(named, 40, 3, *ANYTHING_BUT_FLAT)
    assert found.rule == "scan"
    assert found.ties == (choose.Rival("again", 0.0, (0.0, 0.0)),)
    assert not found.doubtful
    assert [row.value[3.0] for row in found.rows if row.rule == "blind"] == [0.0] * 3
    assert [row.known for row in found.rows] == ["pairs", "prompts", "scores only"] * 3


def test_the_figures_are_not_of_the_runs_on_which_it_was_chosen() -> None:
    named = {"scan": specs.rule("scan")}
    shown = choose.choose(named, 30, 3, *ANYTHING_BUT_FLAT).rows
    assert shown == choose.choose(named, 30, 3, *ANYTHING_BUT_FLAT).rows
    of = [tuple(choose._rows(named, list(twin.draw(30, s)), list(twin.dipping(30, 1, s)))) for s in (3, 4)]
    assert shown == of[1] != of[0]


def test_a_rule_that_stops_too_many_flat_runs_is_not_chosen_whatever_it_gives_back() -> None:
    named = {"scan": specs.rule("scan"), "eager": specs.rule("drawdown:max_drop=0.001")}
    assert choose.choose(named, 60, 3, 1.0, 1.0, 0).rule == "eager"
    assert choose.choose(named, 60, 3, 0.1, 1.0, 0).rule == "scan"
    with pytest.raises(ValueError, match=r"flat: 0\.01, dips: 1: .*of flat runs scan has the lowest, 0\.0\d"):
        choose.choose(named, 60, 3, 0.01, 1.0, 0)


def test_a_rule_that_one_bad_eval_stops_is_not_chosen_whatever_it_gives_back() -> None:
    named = {"bare": specs.rule("scan:alpha=0.04"), "gated": specs.rule("scan:alpha=0.04+gate")}
    assert choose.choose(named, 60, 3, 1.0, 1.0, 0).rule == "bare"
    found = choose.choose(named, 60, 3, 1.0, 0.2, 0)
    assert (found.rule, found.doubtful) == ("gated", ())
    dips = {(row.rule, row.known): row.dips for row in found.rows}
    assert dips["bare", "prompts"] > 0.8 > 0.1 > dips["gated", "prompts"]


def test_flat_runs_of_other_units_and_lengths_count_too() -> None:
    """The fall that is let pass is none of noise of .02, and nothing beside noise of 1."""
    named = {"units": specs.rule("drawdown:max_drop=0.5")}
    assert choose.choose(named, 40, 3, 0.2, 1.0, 0).rule == "units"
    with pytest.raises(ValueError, match="of flat runs units has the lowest, 1"):
        choose.choose(named, 40, 3, 0.2, 1.0, 40)


def test_a_limit_that_is_missed_by_no_more_than_chance_is_told() -> None:
    """The more of one kind may be stopped, the more is given back: seeds differ in which is still allowed."""
    eager = "drawdown:max_drop=0.001"
    named = {text: specs.rule(text) for text in ("scan:alpha=0.02", "scan:alpha=0.2", eager)}
    found = choose.choose(named, 60, 3, 0.1, 1.0, 0)
    assert found.rule == "scan:alpha=0.02"
    (doubtful,) = found.doubtful
    assert doubtful.rule == "scan:alpha=0.2"
    low, high = doubtful.interval
    assert low < doubtful.more < high
    assert doubtful.more > 0.0
    assert doubtful.more == pytest.approx((low + high) / 2.0)


def test_the_command_prints_the_table_and_the_choice() -> None:
    asked = ["rules", "choose", "--runs", "20", "--flat", "0.2", "--dips", "1", "--gaussian", "0"]
    asked += ["--rule", "scan", "--rule", "kDeclines:k=50"]
    table = CliRunner().invoke(app, asked)
    assert table.exit_code == 0, table.output
    assert len([line for line in table.output.splitlines() if line.startswith("| `")]) == 6
    assert "of flat runs and 100 % of healthy ones with one bad eval: `scan`; no tie" in table.output
    said = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    assert (said["rule"], set(said["rows"][0]["value"])) == ("scan", {"1", "3", "10"})
    assert (said["ties"], said["doubtful"]) == ([], [])
    # What nobody stopped has no share of right stops.
    assert said["rows"][-1]["right"] is None


@pytest.mark.parametrize(
    ("ties", "doubtful", "said"),
    [
        ((), (), ["`scan`; no tie"]),
        (
            (choose.Rival("glr", -0.01, (-0.02, 0.0)),),
            (),
            [
                "`scan`",
                "- a tie: `glr` (worth -0.01, 95 %: -0.02 to +0.00): its value cannot be told",
                "these runs do not decide between `scan`, `glr`;",
            ],
        ),
        (
            (),
            (choose.Rival("cusum", 0.02, (0.01, 0.03)),),
            [
                "`scan`",
                "- a tie: `cusum` (worth +0.02, 95 %: +0.01 to +0.03): worth more, and it cannot",
                "these runs do not decide between `scan`, `cusum`;",
            ],
        ),
    ],
)
def test_a_tie_is_told_as_one(ties: tuple, doubtful: tuple, said: list[str]) -> None:
    """Also with a rule that is worth more, of which chance alone may say that it misses a limit."""
    stopped = choose.choose({"scan": specs.rule("scan")}, 10, 3, 1.0, 1.0, 0)
    found = replace(stopped, ties=ties, doubtful=doubtful)
    lines = rules_text.chosen(found)[-len(said) :]
    assert lines[0].endswith(said[0])
    assert all(line.startswith(text) for line, text in zip(lines[1:], said[1:], strict=True))
    assert any("no tie" in line for line in lines) == (not ties and not doubtful)


def test_an_unknown_rule_is_named() -> None:
    found = CliRunner().invoke(app, ["rules", "choose", "--rule", "scam"])
    assert found.exit_code == 2
    assert "scam" in found.output
