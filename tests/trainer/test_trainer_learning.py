"""The parts of the learning problem: distributions, gradients, the reward model, reproducibility."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.trainer import task
from examples.trainer.policy import Batch, Parameters, Policy, score_gradient
from examples.trainer.reward_model import fit, sigmoid
from examples.trainer.task import LENGTH, PROMPTS, VOCABULARY, features, gold_reward
from examples.trainer.training import Recipe, Training

SMALL = Recipe(preferences=50, batch=16, eval_samples=32)
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=LENGTH, max_size=LENGTH)


def random_policy(runs: int = 1, seed: int = 0) -> Parameters:
    generator = np.random.default_rng(seed)
    shape = (VOCABULARY, VOCABULARY)
    return Parameters(generator.normal(size=(runs, LENGTH, *shape)), generator.normal(size=(runs, 2, *shape)))


def distribution(parameters: Parameters, run: int, prompt: int) -> np.ndarray:
    """(L, V, V) next-token probabilities by position and previous token, straight from the definition."""
    first, second = task.TOPICS[prompt]
    topic = parameters.topic[run, 0, first] + parameters.topic[run, 1, second]
    weights = np.exp(parameters.transition[run] + topic)
    probabilities: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def draw(policy: Policy, prompts: np.ndarray, seed: int = 0) -> Batch:
    return policy.sample(prompts, np.random.default_rng(seed).random((*prompts.shape, LENGTH)))


# gold and features


@given(tokens, st.integers(0, PROMPTS - 1))
def test_gold_depends_on_what_is_said_not_on_its_order(text: list[int], prompt: int) -> None:
    a, b = np.array(text), np.array(sorted(text))
    assert gold_reward(np.array(prompt), a) == pytest.approx(gold_reward(np.array(prompt), b))


def test_gold_returns_diminish_and_repetition_costs() -> None:
    best = VOCABULARY - 1  # utilities are sorted
    filler = 0
    rewards = []
    for copies in range(LENGTH + 1):
        text = np.array([best] * copies + [filler] * (LENGTH - copies))
        alone = gold_reward(np.array(0), text) - gold_reward(np.array(0), np.array([filler] * LENGTH))
        excess = max(LENGTH - copies - 4, 0) ** 2 - 36  # the filler's own repetition, not looked at here
        filler_worth = task._WORTH[0, filler] * (task._EARNED[LENGTH - copies] - task._EARNED[LENGTH])
        rewards.append(alone + 0.3 * excess - filler_worth)
    gains = np.diff(rewards)
    assert np.all(gains[:4] > 0)
    assert np.all(np.diff(gains[:4]) < 0)
    assert np.all(gains[5:] < 0)


def test_prompts_for_evals_are_never_trained_on() -> None:
    assert set(task.HELD_OUT) & set(task.TRAINING) == set()
    assert sorted([*task.HELD_OUT, *task.TRAINING]) == list(range(PROMPTS))
    assert len(task.HELD_OUT) == 16


def test_features_count_tokens_topics_and_excess() -> None:
    prompt = np.array(3 * VOCABULARY + 5)  # topics 3 and 5
    text = np.array([3, 3, 3, 3, 3, 3, 5, 0, 0, 1])
    expected = [2, 1, 0, 6, 0, 1, 0, 0, 6, 1, 0, 0, 0, 2, 0, 0, 0, 0]
    assert features(prompt, text).tolist() == expected


# policy


def test_sampled_frequencies_are_the_probabilities() -> None:
    parameters = random_policy()
    batch = draw(Policy(parameters), np.full((1, 100_000), 13))
    expected = distribution(parameters, 0, 13)
    start = task.TOPICS[13, 1]
    assert_frequencies(batch.responses[0, :, 0], expected[0, start])
    for position in (1, LENGTH - 1):
        after_two = batch.responses[0, batch.responses[0, :, position - 1] == 2, position]
        assert_frequencies(after_two, expected[position, 2])


def assert_frequencies(tokens: np.ndarray, expected: np.ndarray) -> None:
    seen = np.bincount(tokens, minlength=VOCABULARY) / tokens.size
    spread = np.sqrt(expected * (1 - expected) / tokens.size)
    assert tokens.size > 200
    assert np.all(np.abs(seen - expected) < 5 * spread)


def test_log_probabilities_are_those_of_the_definition() -> None:
    mine, other = random_policy(2), random_policy(2, seed=8)
    batch = draw(Policy(mine), np.array([[5, 60], [7, 7]]))
    for parameters, found in (
        (mine, batch.log_probability),
        (other, Policy(other).log_probability(batch)),
    ):
        for run in range(2):
            for n in range(2):
                prompt = int(batch.prompts[run, n])
                table, previous, total = distribution(parameters, run, prompt), task.TOPICS[prompt, 1], 0.0
                for t, token in enumerate(batch.responses[run, n]):
                    total += np.log(table[t, previous, token])
                    previous = token
                assert found[run, n] == pytest.approx(total)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_score_gradient_is_the_derivative(seed: int) -> None:
    """Against central differences of sum(weight * log-probability), in random directions."""
    generator = np.random.default_rng(seed)
    at = random_policy(2, seed)
    batch = draw(Policy(at), generator.integers(0, PROMPTS, (2, 6)), seed)
    weight = generator.normal(size=(2, 6))
    direction = random_policy(2, seed + 1)
    gradient = score_gradient(batch, weight)

    def objective(step: float) -> float:
        moved = Parameters(at.transition + step * direction.transition, at.topic + step * direction.topic)
        return float((weight * Policy(moved).log_probability(batch)).sum())

    numeric = (objective(1e-5) - objective(-1e-5)) / 2e-5
    analytic = (gradient.transition * direction.transition).sum() + (gradient.topic * direction.topic).sum()
    assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-6)


# reward model


def test_bradley_terry_recovers_the_weights_that_made_the_labels() -> None:
    generator = np.random.default_rng(3)
    truth = generator.normal(size=task.FEATURES)
    first, second = generator.normal(size=(2, 1, 40_000, task.FEATURES))
    labels = (generator.random((1, 40_000)) < sigmoid((first - second) @ truth)).astype(float)
    assert fit(first, second, labels)[0] == pytest.approx(truth, abs=0.1)


def test_what_no_comparison_shows_weighs_nothing() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.normal(size=(2, 1, 200, task.FEATURES))
    first[..., 4] = second[..., 4] = 0.0
    weights = fit(first, second, np.ones((1, 200)))[0]
    assert weights[4] == pytest.approx(0.0, abs=1e-9)
    assert np.abs(weights).max() > 0.1


def test_more_comparisons_make_a_better_reward_model() -> None:
    seeds = range(6)

    def agreement(preferences: int) -> np.ndarray:
        training = Training(Recipe(preferences=preferences), seeds)
        batch = draw(training._initial, np.random.default_rng(0).integers(0, PROMPTS, (len(seeds), 4000)))
        proxy = training.reward_model.score(batch.prompts, batch.responses)
        gold = gold_reward(batch.prompts, batch.responses)
        return np.array([np.corrcoef(p, g)[0, 1] for p, g in zip(proxy, gold, strict=True)])

    few, many = agreement(40), agreement(5000)
    assert np.all(few > 0.3)
    assert np.all(many > 0.9)
    assert np.all(many > few)


def test_the_proxy_is_standardised_on_the_initial_policy() -> None:
    training = Training(Recipe(), range(3))
    batch = draw(training._initial, np.random.default_rng(9).choice(task.TRAINING, (3, 4000)))
    scores = training.reward_model.score(batch.prompts, batch.responses)
    assert scores.mean(axis=1) == pytest.approx(np.zeros(3), abs=0.1)
    assert scores.std(axis=1) == pytest.approx(np.ones(3), abs=0.1)


# training


def test_a_run_is_the_same_alone_and_among_others() -> None:
    together, alone = Training(SMALL, [4, 9, 2]), Training(SMALL, [9])
    for _ in range(8):
        together.advance()
        alone.advance()
    for name, array in alone.state().items():
        assert np.allclose(together.state()[name][1], array[0], rtol=1e-9, atol=1e-12), name
    assert together.evaluate().gold[1] == pytest.approx(alone.evaluate().gold[0])


def test_evaluating_does_not_change_the_training() -> None:
    often, never = Training(SMALL, [1]), Training(SMALL, [1])
    for _ in range(5):
        often.evaluate()
        often.advance()
        never.advance()
    assert all(np.array_equal(never.state()[n], a) for n, a in often.state().items())


def test_a_resumed_run_takes_the_steps_the_other_would_have_taken() -> None:
    whole = Training(SMALL, [5])
    for _ in range(6):
        whole.advance()
    state, step = {n: a.copy() for n, a in whole.state().items()}, whole.step
    resumed = Training(SMALL, [5])
    resumed.load(state, step)
    for _ in range(6):
        whole.advance()
        resumed.advance()
    assert resumed.step == 12
    assert all(np.array_equal(whole.state()[n], a) for n, a in resumed.state().items())
    assert resumed.evaluate().gold[0] == whole.evaluate().gold[0]


def test_seeds_differ() -> None:
    training = Training(SMALL, [0, 1])
    training.advance()
    assert not np.array_equal(training.state()["transition"][0], training.state()["transition"][1])
    assert not np.array_equal(training.reward_model.weights[0], training.reward_model.weights[1])


def test_kl_to_the_initial_policy_starts_at_nothing_and_grows() -> None:
    training = Training(Recipe(preferences=100, kl=0.0, lr=0.05, batch=64, eval_samples=2000), [0, 1])
    assert training.evaluate().kl == pytest.approx([0.0, 0.0], abs=1e-12)
    for _ in range(15):
        training.advance()
    assert np.all(training.evaluate().kl > 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preferences": 0}, "preferences: expected a number >= 1, got 0"),
        ({"kl": -0.1}, "kl: expected a number >= 0.0, got -0.1"),
        ({"kl": float("nan")}, "kl: expected a number >= 0.0, got nan"),
        ({"lr": float("inf")}, "lr: expected a number >= 0.0, got inf"),
        ({"batch": 1}, "batch: expected a number >= 2, got 1"),
        ({"eval_samples": 1}, "eval_samples: expected a number >= 2, got 1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", [[], [-1]])
def test_seeds_that_cannot_be_are_refused(seeds: list[int]) -> None:
    with pytest.raises(ValueError, match="seeds: expected one or more integers >= 0"):
        Training(SMALL, seeds)


def test_a_state_of_another_shape_is_refused() -> None:
    training = Training(SMALL, [0])
    state = training.state()
    with pytest.raises(ValueError, match=r"transition: expected shape .*, got nothing"):
        training.load({k: v for k, v in state.items() if k != "transition"}, 3)
    with pytest.raises(ValueError, match="topic: expected shape"):
        training.load(state | {"topic": np.zeros(3)}, 3)
