"""The learner of responses of any length: it learns, it resumes, and its gradient is one."""

from __future__ import annotations

import numpy as np
import pytest

from examples.engine.model import Weights
from examples.rollouts import learner
from examples.rollouts.learner import SequenceRecipe, SequenceTraining, generate_here
from examples.rollouts.task import HELD_OUT, INITIAL, TRAINING, rewards

RECIPE = SequenceRecipe(prompts=16, copies=4, most=64)


def test_it_learns_and_lengths_drift() -> None:
    training = SequenceTraining(RECIPE, 3)
    first = training.evaluate()
    lengths = []
    for _ in range(40):
        before = training.tokens
        training.advance()
        lengths.append((training.tokens - before) / 64)
    last = training.evaluate()
    assert last.proxy[0] > first.proxy[0] + 5 * first.stderr[0]
    assert np.mean(lengths[-5:]) > 1.2 * np.mean(lengths[:5]), (
        "a proxy that does not see length makes it grow"
    )


def test_a_resumed_run_takes_the_same_steps() -> None:
    whole, first = SequenceTraining(RECIPE, 1), SequenceTraining(RECIPE, 1)
    for _ in range(4):
        whole.advance()
    first.advance()
    first.extra["lengths"] = {"means": [[3, 4.5]]}
    second = SequenceTraining(RECIPE, 1)
    second.load(first.state(), 1)
    assert second.extra == first.extra
    for _ in range(3):
        second.advance()
    assert second.sha256 == whole.sha256
    assert SequenceTraining(RECIPE, 2).sha256 == SequenceTraining(RECIPE, 1).sha256
    with pytest.raises(ValueError, match="transition"):
        second.load({"transition": np.zeros(3)}, 1)


def test_an_epoch_has_every_prompt_once() -> None:
    training = SequenceTraining(RECIPE, 5)
    assert sorted(p for step in (1, 2, 3) for p in training.prompts(step)) == TRAINING.tolist()
    assert training.prompts(4) != training.prompts(1)
    assert not set(TRAINING.tolist()) & set(HELD_OUT.tolist())


def test_the_gradient_is_that_of_the_log_probability() -> None:
    asked = np.array([1, 1, 9])
    responses = [r for row in generate_here(INITIAL, 0, 1, [1], 2, 40) for r in row] + generate_here(
        INITIAL, 0, 1, [9], 1, 40
    )[0]
    batch = learner._Batch.of(asked, responses)
    _, chances = batch.log_probability(INITIAL)
    weight = np.array([0.7, -1.0, 0.4])
    found = batch.gradient(INITIAL, chances, weight)
    for name, slope in zip(("transition", "topic", "patience"), found, strict=True):
        place = np.unravel_index(np.argmax(np.abs(slope)), slope.shape)
        values = []
        for nudge in (1e-6, -1e-6):
            arrays = {key: value.copy() for key, value in INITIAL.arrays().items()}
            arrays[name][place] += nudge
            values.append(float((batch.log_probability(Weights(**arrays))[0] * weight).sum()))
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(slope[place]), rel=1e-5), name


def test_gold_dislikes_length_and_proxy_does_not_see_it() -> None:
    proxy, gold = rewards(np.array([0, 0]), [[1, 2, 8], [1, 2, 8, 8, 8, 8]])
    assert proxy[0] == proxy[1]
    assert gold[0] > gold[1]


@pytest.mark.parametrize("wrong", [{"prompts": 0}, {"prompts": 49}, {"copies": 1}, {"most": 1}])
def test_a_recipe_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SequenceRecipe(**wrong)
