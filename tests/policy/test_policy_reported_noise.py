"""The trainer's standard errors as the noise of an eval: all of them or none, and the largest of those."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.stopping import make_rule, noise
from controller.policy.types import EvalPoint, PolicySpec, Verdict

IN_NOISE = [
    ("scan", {}),
    ("glr", {"alpha": 0.3}),
    ("cusum", {"window": 4}),
    ("drawdown", {"max_drop": 0.0, "sigmas": 2.0}),
    ("kDeclines", {"k": 1, "min_delta_sigmas": 1.0}),
]
SCORES = [0.5, 0.61, 0.42, 0.53, 0.38, 0.55, 0.47, 0.6, 0.44, 0.52]
UNREPORTED = [None] * len(SCORES)


def points(stderrs: Sequence[float | None], scores: Sequence[float] = SCORES) -> list[EvalPoint]:
    return [EvalPoint(i, s, stderr=e) for i, (s, e) in enumerate(zip(scores, stderrs, strict=True))]


def estimate(stderrs: Sequence[float | None]) -> noise.Noise | None:
    state = noise.initial()
    for point in points(stderrs, SCORES[: len(stderrs)]):
        state = noise.observe(state, point)
    return noise.estimate(state, 0.0, 1.0)


@pytest.mark.parametrize(
    ("stderrs", "sigma"),
    [
        ([0.02], 0.02),
        ([0.02, 0.02], 0.02),
        ([0.02, 0.1], 0.1),
        ([0.02, 0.02, 0.1], 0.1),
        ([0.1, *[0.02] * 9], 0.1),
        ([*[0.02] * 9, 0.1], 0.1),
    ],
)
def test_of_all_standard_errors_the_largest_counts(stderrs: list[float], sigma: float) -> None:
    assert estimate(stderrs) == noise.Noise(sigma, math.inf)


@pytest.mark.parametrize("at", [0, 1, 2, 9])
def test_a_reported_0_takes_nothing_from_what_the_others_report(at: int) -> None:
    stderrs: list[float | None] = [0.02] * len(SCORES)
    stderrs[at] = 0.0
    assert estimate(stderrs) == noise.Noise(0.02, math.inf)


def test_reported_0s_alone_are_none() -> None:
    assert estimate([0.0] * len(SCORES)) == estimate(UNREPORTED)


@pytest.mark.parametrize("at", [0, 1, 2, 9])
def test_one_eval_without_a_standard_error_leaves_the_noise_to_the_trajectory(at: int) -> None:
    stderrs: list[float | None] = [0.02] * len(SCORES)
    stderrs[at] = None
    assert estimate(stderrs) == estimate(UNREPORTED)
    assert noise.own(points(stderrs)) == noise.own(points(UNREPORTED))


def test_a_young_run_with_a_gap_says_nothing_of_its_noise() -> None:
    assert estimate([None]) is None
    assert estimate([0.02, None]) is None
    assert noise.own(points([0.02, None], SCORES[:2])) is None


def test_the_pool_learns_what_is_usual_and_not_the_largest() -> None:
    learned = noise.own(points([0.02] * 5 + [0.1] * 5))
    assert learned is not None
    assert learned.sigma == pytest.approx(math.sqrt((0.02**2 + 0.1**2) / 2.0))
    assert learned.freedom == noise.MOST_FREEDOM


def verdicts(name: str, params: dict, stderrs: Sequence[float | None], scores: list[float]) -> list[Verdict]:
    rule = make_rule(PolicySpec(name, params))
    state, found = rule.initial(), []
    for point in points(stderrs, scores):
        state, verdict = rule.observe(state, point)
        found.append(verdict)
    return found


@pytest.mark.parametrize(("name", "params"), IN_NOISE, ids=[n for n, _ in IN_NOISE])
@given(seed=st.integers(0, 2**32 - 1), at=st.integers(1, 29), error=st.floats(1e-6, 10.0))
@settings(max_examples=20, deadline=None)
def test_a_single_standard_error_among_evals_without_changes_no_verdict(
    name: str, params: dict, seed: int, at: int, error: float
) -> None:
    draw = random.Random(seed)
    scores = [draw.gauss(0.0, 0.05) - 0.03 * max(0, i - 15) for i in range(30)]
    one: list[float | None] = [None] * 30
    one[at] = error
    assert verdicts(name, params, one, scores) == verdicts(name, params, [None] * 30, scores)


@pytest.mark.parametrize(("name", "params"), IN_NOISE, ids=[n for n, _ in IN_NOISE])
@given(
    seed=st.integers(0, 2**32 - 1),
    errors=st.lists(st.floats(0.01, 0.2), min_size=30, max_size=30),
)
@settings(max_examples=20, deadline=None)
def test_smaller_standard_errors_than_the_largest_change_no_verdict(
    name: str, params: dict, seed: int, errors: list[float]
) -> None:
    """Once the largest was reported, the verdicts are those of a run as noisy throughout."""
    draw = random.Random(seed)
    scores = [draw.gauss(0.0, 0.05) - 0.03 * max(0, i - 15) for i in range(30)]
    largest = max(errors)
    mixed = verdicts(name, params, [largest, *errors[1:]], scores)
    assert mixed == verdicts(name, params, [largest] * 30, scores)


def evals(scores: Sequence[float], stderr: float) -> list[EvalPoint]:
    return points([stderr] * len(scores), scores)


def noisy(seed: int, count: int, sd: float) -> list[float]:
    draw = random.Random(seed)
    return [1.0 + draw.gauss(0.0, sd) for _ in range(count)]


def test_right_standard_errors_are_hardly_ever_contradicted() -> None:
    runs = [noisy(seed, 32, 0.02) for seed in range(500)]
    looks = [run[:n] for run in runs for n in range(3, 33)]
    assert sum(noise.doubtful(evals(look, 0.02)) is not None for look in looks) <= 2


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0], ids=["half", "right", "double"])
def test_nor_those_that_are_wrong_by_a_factor_of_two(times: float) -> None:
    found = [noise.doubtful(evals(noisy(seed, 32, 0.02), 0.02 * times)) for seed in range(200)]
    assert sum(one is not None for one in found) <= 2


@pytest.mark.parametrize("times", [1 / 22.4, 22.4], ids=["sd / n", "sd"])
def test_the_sd_and_sd_over_n_are_contradicted(times: float) -> None:
    found = [noise.doubtful(evals(noisy(seed, 20, 0.02), 0.02 * times)) for seed in range(100)]
    told = [one for one in found if one is not None]
    assert len(told) > 90
    assert all(one.too_small is (times < 1.0) and 0.008 < one.scatter < 0.04 for one in told)


def test_a_collapse_contradicts_no_standard_errors() -> None:
    falls = [0.5, 0.52, 0.51, 0.53, 0.52, 0.1, 0.09, 0.11, 0.1, 0.12]
    assert noise.doubtful(evals(falls, 0.01)) is None
    assert noise.doubtful(evals([0.1 * i for i in range(20)], 0.45)) is None, "a straight line shows no noise"
