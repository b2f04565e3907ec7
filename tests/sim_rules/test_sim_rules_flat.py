"""`evalstop rules flat` on few prompts and with lengths that are told: against what can be counted."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.policy.types import EvalInContext, EvalPoint, Verb
from sim import specs, twin
from sim.rules import flat, short_runs, vector
from sim.rules.flat import Total

PROMPTS, EVALS, MOST = 20, 5, 5  # of .02 more than MOST right come in one of 100,000 runs


def stops(text: str, right: tuple[int, ...], total: Total) -> bool:
    """By the rule itself, eval by eval: not by the form that `rules flat` counts with."""
    rule = specs.rule(text).make()
    state = rule.initial()
    shown = flat.progress(total, len(right))
    for n, k in enumerate(right):
        plain = EvalPoint(n + 1, k / PROMPTS, prompts=PROMPTS)
        done = None if shown is None else float(shown[n])
        state, verdict = rule.observe(state, EvalInContext.of(plain, progress=done, range=(0.0, 1.0)))
        if verdict.verb is Verb.STOP:
            return True
    return False


@pytest.mark.parametrize("text", ["scan:alpha=0.05", "scan:alpha=0.5", "drawdown:max_drop=0.08"])
def test_the_share_of_stops_is_that_of_all_outcomes_weighed_by_their_chance(text: str) -> None:
    chance = [comb(PROMPTS, k) * 0.02**k * 0.98 ** (PROMPTS - k) for k in range(MOST + 1)]
    outcomes = product(range(MOST + 1), repeat=EVALS)
    exact = sum(float(np.prod([chance[k] for k in one])) for one in outcomes if stops(text, one, Total.KNOWN))
    (row,) = flat.rates(
        text,
        specs.rule(text),
        runs=20_000,
        seed=1,
        lengths=(EVALS,),
        total=Total.KNOWN,
        prompts=PROMPTS,
        score=0.02,
    )
    assert (row.noise, row.total, row.evals) == ("prompts", "known", EVALS)
    assert row.interval[0] <= exact + 2e-5
    assert exact <= row.interval[1]


@pytest.mark.parametrize(
    ("total", "shown"),
    [
        (Total.KNOWN, [0.25, 0.5, 0.75, 1.0]),
        (Total.TOO_SMALL, [1.25, 2.5, 3.75, 5.0]),
        (Total.TOO_LARGE, [0.05, 0.1, 0.15, 0.2]),
        (Total.CHANGING, [1.25, 0.5, 0.15, 5.0]),
    ],
)
def test_what_a_trainer_says_of_its_length(total: Total, shown: list[float]) -> None:
    found = flat.progress(total, 4)
    assert found is not None
    assert found == pytest.approx(np.array(shown))
    assert flat.progress(Total.UNKNOWN, 4) is None


def test_no_total_makes_the_budget_larger() -> None:
    text = "scan:alpha=0.05"
    for total in Total:
        for row in flat.rates(text, specs.rule(text), runs=2000, seed=3, lengths=(10, 40), total=total):
            if row.noise == "reported":
                assert row.interval[0] <= 0.05, f"{total}, {row.evals} evals: {row.stopped}"
                assert row.stopped > 0.0, f"{total}, {row.evals} evals: nothing was tried"


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_a_large_budget_is_not_passed_either(alpha: float) -> None:
    text, random = f"scan:alpha={alpha}", np.random.default_rng(7)
    for total in (Total.KNOWN, Total.UNKNOWN):
        for row in flat.rates(text, specs.rule(text), runs=1000, seed=3, lengths=(20, 80), total=total):
            assert row.interval[0] <= alpha, f"{total}, {row.noise}, {row.evals} evals: {row.stopped}"
    for evals in (8, 10, 12):  # with pairs of evals that err as if their prompts were others
        shown = short_runs.paired(random.standard_normal((2000, evals)), 1.0, 2.0**0.5)
        assert (vector.first_stops(specs.rule(text), shown) >= 0).mean() <= alpha


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--total", "long"], "--total: 'long', expected one of unknown, known, too-small"),
        (["--evals", "1"], "--evals: 1, expected 2 to"),
        (["--prompts", "1000000"], "--prompts: 1000000, expected 0 to"),
        (
            ["--prompts", "50", "--pairs"],
            "--pairs: prompts that stay have them, expected --prompts and --how",
        ),
        (["--pairs"], "--pairs: prompts that stay have them"),
    ],
)
def test_what_cannot_be_is_named(options: list[str], said: str) -> None:
    found = CliRunner().invoke(app, ["rules", "flat", "--runs", "10", *options])
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())


def test_the_command_counts_for_each_length_asked_for() -> None:
    asked = ["rules", "flat", "--rule", "scan", "--runs", "50", "--evals", "8", "--evals", "6"]
    found = CliRunner().invoke(app, [*asked, "--prompts", "50", "--score", "0.3", "--total", "changing"])
    assert found.exit_code == 0, found.output
    rows = [line.split()[:5] for line in found.output.splitlines()[1:]]
    assert rows == [["scan", "prompts", "changing", n, "50"] for n in ("6", "8")]


def test_differences_by_prompt_are_those_that_a_client_would_tell() -> None:
    results = np.random.default_rng(4).random((9, 30)) < 0.4
    earlier = np.array([0, 0, 1, 3, 2, 5, 0, 4])
    found = flat.variances(results, earlier)
    told = [twin.pair(results[t + 1], results[at], at).variance for t, at in enumerate(earlier.tolist())]
    assert found == pytest.approx(np.array(told))


@pytest.mark.parametrize("how", [twin.Prompts.FIXED, twin.Prompts.WANDERING])
def test_pairs_of_flat_runs_are_told_and_stop_no_more_than_promised(how: twin.Prompts) -> None:
    text = "scan:alpha=0.3"  # few runs are enough for a budget that large
    rows = {
        pairs: next(
            flat.rates(
                text,
                specs.rule(text),
                runs=300,
                seed=1,
                lengths=(12,),
                total=Total.KNOWN,
                prompts=40,
                how=how,
                wander=0.6,
                pairs=pairs,
            )
        )
        for pairs in (True, False)
    }
    assert rows[True].noise.endswith(", pairs")
    assert rows[True].stopped != rows[False].stopped, "the pairs were not told"
    assert rows[True].interval[0] <= 0.3
