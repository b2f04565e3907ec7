"""The trainer over-optimises for real, over twenty seeds, and EvalStop tells those runs from healthy ones.

Peak: the best of a run's 41 evals. SE: the standard error that the trainer itself reports with an eval (1,024
fresh responses to held-out prompts); differences are measured in the SE of the difference. 5 of them are
exceeded by chance once in 3.5 million comparisons. The criteria and the recipes were chosen on other seeds.

Over-optimising, every run: the peak lies inside the run; the mean of the last five evals lies more than 5 SE
below it; from the peak to the end the reward model's score rises by more than 0.3 (standard deviations of the
initial policy) and goes against gold (correlation below -0.5). At least 18 of 20 first gain more than 5 SE: a
reward model from forty comparisons is now and then too bad to gain from at all.
Healthy, every run: gold ends higher than it began by more than 20 SE, and no eval lies more than 5 SE below
the best one before it.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from trainer_curves import COLUMNS, HEALTHY, OVER_OPTIMISING, Curves, curves, history, report, stops

from examples.trainer.task import Floats
from examples.trainer.training import Recipe, Training
from sim.rules.history import read

SEEDS = range(400, 420)


@pytest.fixture(scope="module")
def over() -> Curves:
    return curves(OVER_OPTIMISING, SEEDS)


@pytest.fixture(scope="module")
def healthy() -> Curves:
    return curves(HEALTHY, SEEDS)


def last_five(found: Curves) -> tuple[Floats, Floats]:
    """(R,) mean gold of the last five evals, and its standard error."""
    return found.gold[-5:].mean(axis=0), np.sqrt((found.stderr[-5:] ** 2).sum(axis=0)) / 5


def test_few_preferences_without_a_kl_penalty_over_optimise(over: Curves) -> None:
    peak, evals = over.peak, len(over.steps)
    end, end_se = last_five(over)
    best, best_se = over.at(over.gold, peak), over.at(over.stderr, peak)
    fall, gain = best - end, best - over.gold[0]
    print(report("over-optimising", over, SEEDS, detail=True))

    assert np.all((peak > 0) & (peak < evals - 10)), f"peaks at evals {peak} of {evals}"
    assert np.all(fall > 5 * np.hypot(best_se, end_se)), f"fall in gold: {fall.round(2)}"
    rise = over.proxy[-5:].mean(axis=0) - over.at(over.proxy, peak)
    assert np.all(rise > 0.3), f"rise of the proxy after the peak: {rise.round(2)}"
    gained = gain > 5 * np.hypot(best_se, over.stderr[0])
    assert gained.sum() >= 18, f"gain up to the peak: {gain.round(2)}"
    for run, start in enumerate(peak):
        together = np.corrcoef(over.gold[start:, run], over.proxy[start:, run])[0, 1]
        assert together < -0.5, f"seed {SEEDS[run]}: gold and proxy correlate {together:.2f} after the peak"


def test_many_preferences_with_a_kl_penalty_stay_healthy(healthy: Curves) -> None:
    end, end_se = last_five(healthy)
    print(report("healthy", healthy, SEEDS, detail=True))

    assert np.all(end - healthy.gold[0] > 20 * np.hypot(end_se, healthy.stderr[0]))
    best = np.maximum.accumulate(healthy.gold, axis=0)
    evals = range(len(best))
    at_best = np.array([healthy.gold[: e + 1].argmax(axis=0) for e in evals])
    best_se = np.take_along_axis(healthy.stderr, at_best, axis=0)
    drawdown = (best - healthy.gold) / np.hypot(best_se, healthy.stderr)
    assert drawdown.max() < 5, f"largest drawdown {drawdown.max():.1f} SE"


def test_the_penalty_keeps_the_policy_near_the_initial_one(over: Curves, healthy: Curves) -> None:
    assert over.kl[-1].mean() > 1.5 * healthy.kl[-1].mean()
    assert np.all(np.diff(healthy.kl.mean(axis=1))[-10:] < 0.2)  # nats per ten steps: it has settled


def test_evalstop_stops_the_one_and_leaves_the_other(over: Curves, healthy: Curves) -> None:
    """With the parameters of the sample manifests: k = 3, minDelta 0.02, warm-up 5."""
    stopped = stops(over)
    caught = [(run, stop) for run, stop in enumerate(stopped) if stop is not None]
    assert len(caught) >= 19, f"stopped at evals {stopped}"
    for run, stop in caught:
        assert stop > over.peak[run], (
            f"seed {SEEDS[run]} stopped at eval {stop}, its best is {over.peak[run]}"
        )
    assert np.median([stop - over.peak[run] for run, stop in caught]) <= 5
    assert stops(healthy) == [None] * len(SEEDS)


def test_a_stop_saves_most_of_what_would_have_been_wasted(over: Curves) -> None:
    left = [len(over.steps) - 1 - stop for stop in stops(over) if stop is not None]
    assert np.mean(left) / (len(over.steps) - 1) > 0.5


def test_a_history_carries_each_evals_differences_to_the_best_before(tmp_path: Path) -> None:
    recipe = Recipe(preferences=40, kl=0.0, batch=8, eval_samples=32)
    found = curves(recipe, [3, 4], steps=30, eval_every=5, paired=True)
    plain = curves(recipe, [3, 4], steps=30, eval_every=5)
    assert np.array_equal(found.gold, plain.gold)
    file = tmp_path / "history.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([COLUMNS, *history("tiny", found, [3, 4], recipe.eval_samples)])
    for series, gold in zip(read(file), found.gold.T, strict=True):
        assert (series.family, series.scores) == ("tiny", tuple(gold.tolist()))
        assert series.paired[0] is None
        for e, pair in enumerate(series.paired[1:], start=1):
            assert pair is not None
            assert (pair.reference_step, pair.prompts) == (found.steps[int(gold[:e].argmax())], 32)
            assert pair.variance > 0.0
    alone = Training(recipe, [4])
    best = int(found.gold[:6, 1].argmax())
    policies = {0: alone.parameters}
    for step in range(1, 31):
        alone.advance()
        policies[step] = alone.parameters
    wanted = alone.evaluate(policies[5 * best]).difference
    assert wanted is not None
    assert found.difference[6, 1] == pytest.approx(float(wanted.mean()))
    assert found.variance[6, 1] == pytest.approx(float(wanted.var(ddof=1)))
