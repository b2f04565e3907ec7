"""A Primary metric that is no eval is told, a real one is not, whatever becomes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job import no_eval
from controller.policy.types import EvalPoint, EvalScale

DECLARED = EvalScale(prompts=500, range=(0.0, 1.0))


def points(scores: list[float], proxies: list[float] | None = None) -> list[EvalPoint]:
    return [
        EvalPoint(10 * n, score, proxy=None if proxies is None else proxies[n])
        for n, score in enumerate(scores)
    ]


def test_the_reward_of_training_batches_scatters_by_more_than_prompts_allow() -> None:
    random = np.random.default_rng(1)
    batches = points((0.5 + random.normal(0.0, 0.15, 12)).tolist())
    said = no_eval.suspicion("reward", batches, DECLARED)
    assert said is not None
    assert "'reward' scatters by 0." in said
    assert "prompts" in said
    assert no_eval.suspicion("reward", batches[:7], DECLARED) is None, "too few to tell"
    assert no_eval.suspicion("reward", batches, EvalScale()) is None, "nothing says how noisy an eval may be"
    assert no_eval.suspicion("reward", batches, EvalScale(8, (0.0, 1.0))) is None, "so noisy are 8 prompts"


def test_scores_of_any_size_are_judged_without_an_error() -> None:
    huge = EvalScale(prompts=2, range=(-1.5e308, 1.5e308))
    scores = [1.2e308 if n % 2 else -1.2e308 for n in range(12)]
    no_eval.suspicion("reward", points(scores), huge)
    no_eval.suspicion("reward", points([1.2e200 * (n % 2) for n in range(12)]), EvalScale(2, (0.0, 1.3e200)))


@pytest.mark.parametrize("shape", ["rising", "collapse", "late", "dip"])
def test_evals_on_the_prompts_that_are_named_are_evals_whatever_becomes_of_the_run(shape: str) -> None:
    told = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        curve = 0.2 + 0.5 * -np.expm1(-np.arange(14) / 4.0)
        if shape == "collapse":
            curve[7:] = 0.0
        elif shape == "late":
            curve[12:] = 0.1
        elif shape == "dip":
            curve[6] = 0.0
        scores = (random.binomial(500, curve) / 500).tolist()
        told += no_eval.suspicion("gold", points(scores), DECLARED) is not None
    assert told <= 12, f"{told} of 300"


def test_a_metric_that_is_its_own_proxy_is_named() -> None:
    scores = [0.1, 0.2, 0.25, 0.3]
    said = no_eval.suspicion("reward", points(scores, scores), EvalScale())
    assert said is not None
    assert "equal to its proxy in all of 4 evals" in said
    assert no_eval.suspicion("reward", points(scores, [*scores[:3], 0.31]), EvalScale()) is None
    assert no_eval.suspicion("reward", points(scores[:3], scores[:3]), EvalScale()) is None, "too few to tell"
    assert no_eval.suspicion("reward", points([0.5] * 6, [0.5] * 6), EvalScale()) is None, "both may be stuck"


@given(st.integers(2, 1024), st.lists(st.integers(1, 1023), min_size=6, max_size=20, unique=True))
def test_the_prompts_that_are_proposed_fit_all_scores(prompts: int, right: list[int]) -> None:
    scores = [k / prompts for k in right if k < prompts]
    found = no_eval.prompts_fitting(points(scores))
    if found is None:
        assert len(set(scores)) < no_eval.LEAST_EQUAL
    else:
        assert found <= prompts
        assert all(abs(score * found - round(score * found)) < 1e-5 for score in scores)


@pytest.mark.parametrize(
    "scores", [[0.0, 1.0, 0.0, 1.0], [0.5, 0.25, 0.5], [0.1234567, 0.7654321, 0.3141593, 0.2718282], []]
)
def test_no_number_of_prompts_is_proposed_where_the_scores_show_none(scores: list[float]) -> None:
    assert no_eval.prompts_fitting(points(scores)) is None
