"""RLHF from comparisons to policy: reward model first, then policy gradient on it, KL penalty optional.

Randomness is drawn from ``(seed, stream, step)`` and nothing else: a resumed run takes the very steps the
uninterrupted one would have taken, and evaluating more or less often does not change the training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum

import numpy as np

from examples.trainer.policy import Batch, Parameters, Policy
from examples.trainer.reward_model import LABEL_TEMPERATURE, RewardModel, fit, sigmoid
from examples.trainer.task import HELD_OUT, LENGTH, TRAINING, Floats, Ints, features, gold_reward
from examples.trainer.updates import OwnUpdates, Phase, Updates, nothing, uncounted, zeros

_NORMALISATION_SAMPLES = 4096


class _Stream(IntEnum):
    """Independent random streams of one seed."""

    COMPARISONS = 0
    NORMALISATION = 1
    ROLLOUT = 2
    EVALUATION = 3


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a run: everything but the seed.

    preferences: labelled comparisons the reward model is trained on.
    kl: coefficient of the KL penalty to the initial policy, proxy reward per nat; 0: none.
    lr: Adam's learning rate, logits per step.
    batch: responses per policy-gradient step.
    eval_samples: fresh responses to held-out prompts per eval.
    """

    preferences: int = 5000
    kl: float = 0.1
    lr: float = 0.006
    batch: int = 128
    eval_samples: int = 1024

    def __post_init__(self) -> None:
        for name, low in (("preferences", 1), ("kl", 0.0), ("lr", 0.0), ("batch", 2), ("eval_samples", 2)):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= low):
                raise ValueError(f"{name}: expected a number >= {low}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out evaluation of R runs at one step; every field but the first two is (R,)."""

    step: int
    samples: int
    gold: Floats  # mean gold reward
    stderr: Floats  # of gold
    proxy: Floats  # mean reward-model score of the same responses
    kl: Floats  # KL to the initial policy on them, nats per response
    difference: Floats | None = None  # (R, samples): gold less the reference's on the same prompts


@dataclass(frozen=True, slots=True)
class Progress:
    """Readings of one policy-gradient step from its own batch; (R,) each."""

    proxy: Floats
    kl: Floats


class Training:
    """R independent runs of one recipe, one per seed, advanced together.

    Args:
        recipe: of the runs.
        seeds: of the runs.
        updates: who makes the steps of the optimizer; None: this process.
    """

    def __init__(self, recipe: Recipe, seeds: Sequence[int], updates: Updates | None = None) -> None:
        if not seeds or any(seed < 0 for seed in seeds):
            raise ValueError(f"seeds: expected one or more integers >= 0, got {list(seeds)}")
        self.recipe = recipe
        self.seeds = tuple(seeds)
        self.step = 0
        self._initial = Policy(Parameters.initial(len(seeds)))
        self.reward_model = self._train_reward_model()
        self._parameters = Parameters.initial(len(seeds))
        self._updates = updates or OwnUpdates()
        self._updates.begin(self._parameters, zeros(self._parameters))
        self._policy = self._initial

    def advance(self, phase: Phase = uncounted, rolled_out: Callable[[], object] = nothing) -> Progress:
        """Return one policy-gradient step: REINFORCE on proxy reward minus KL penalty, batch mean as
        baseline.

        Args:
            phase: counts how long each phase takes.
            rolled_out: called when the responses are there, within that phase.
        """
        recipe, step = self.recipe, self.step + 1
        with phase("rollout", False):
            batch = self._rollout(self._policy, _Stream.ROLLOUT, step, recipe.batch, TRAINING)
            rolled_out()
        with phase("reward", False):
            proxy = self.reward_model.score(batch.prompts, batch.responses)
            ratio = batch.log_probability - self._initial.log_probability(batch)
            reward = proxy - recipe.kl * ratio
            advantage = reward - reward.mean(axis=1, keepdims=True)
        self._parameters = self._updates.update(batch, advantage / (recipe.batch - 1), recipe.lr, step, phase)
        self._policy = Policy(self._parameters)
        self.step = step
        return Progress(proxy.mean(axis=1), ratio.mean(axis=1))

    def evaluate(self, reference: Parameters | None = None) -> Evaluation:
        """Fresh responses to held-out prompts drawn for this step, scored by the gold reward.

        ``reference``: a policy to answer the same prompts, from the same random numbers: what luck does to
        both answers alike does not enter their difference.
        """
        count = self.recipe.eval_samples
        prompts, uniforms, _ = self._draw(_Stream.EVALUATION, self.step, count, HELD_OUT)
        batch = self._policy.sample(prompts, uniforms)
        gold = gold_reward(batch.prompts, batch.responses)
        proxy = self.reward_model.score(batch.prompts, batch.responses)
        ratio = batch.log_probability - self._initial.log_probability(batch)
        stderr = gold.std(axis=1, ddof=1) / np.sqrt(count)
        difference = None
        if reference is not None:
            other = Policy(reference).sample(prompts, uniforms)
            difference = gold - gold_reward(prompts, other.responses)
        return Evaluation(
            self.step, count, gold.mean(axis=1), stderr, proxy.mean(axis=1), ratio.mean(axis=1), difference
        )

    @property
    def parameters(self) -> Parameters:
        """The policy's logits now; never changed in place."""
        return self._parameters

    def state(self) -> dict[str, Floats]:
        """Everything a later process needs to go on from here, as arrays by name."""
        model = self.reward_model
        named = {
            "transition": self._parameters.transition,
            "topic": self._parameters.topic,
            "reward_weights": model.weights,
            "reward_mean": model.mean,
            "reward_scale": model.scale,
        }
        return named | {f"adam_{i}": moment for i, moment in enumerate(self._updates.moments())}

    def load(self, state: Mapping[str, Floats], step: int) -> None:
        """Go on from `state` of a run of the same recipe and seeds at ``step``.

        Raises:
            ValueError: an array is missing or of another shape.
        """
        for name, mine in self.state().items():
            if name not in state or state[name].shape != mine.shape:
                found = state[name].shape if name in state else "nothing"
                raise ValueError(f"checkpoint array {name}: expected shape {mine.shape}, got {found}")
        self._parameters = Parameters(np.array(state["transition"]), np.array(state["topic"]))
        self.reward_model = RewardModel(
            np.array(state["reward_weights"]), np.array(state["reward_mean"]), np.array(state["reward_scale"])
        )
        moments = [np.array(state[f"adam_{i}"]) for i in range(len(zeros(self._parameters)))]
        self._updates.begin(self._parameters, moments)
        self._policy = Policy(self._parameters)
        self.step = step

    @staticmethod
    def policy_of(state: Mapping[str, Floats]) -> Parameters:
        """Return the policy in a checkpoint's arrays."""
        return Parameters(state["transition"], state["topic"])

    def identity(self) -> dict[str, object]:
        """Return what makes this run this run; checkpoints carry it."""
        return {"seeds": list(self.seeds), **asdict(self.recipe)}

    def _train_reward_model(self) -> RewardModel:
        count = self.recipe.preferences
        # both responses of a pair answer the same prompt
        prompts, uniforms, labels = self._draw(_Stream.COMPARISONS, 0, count, TRAINING, extra=LENGTH + 1)
        first = self._initial.sample(prompts, uniforms)
        second = self._initial.sample(prompts, labels[:, :, 1:])
        margin = gold_reward(prompts, first.responses) - gold_reward(prompts, second.responses)
        preferred = (labels[:, :, 0] < sigmoid(margin / LABEL_TEMPERATURE)).astype(np.float64)
        weights = fit(features(prompts, first.responses), features(prompts, second.responses), preferred)
        plain = RewardModel(weights, np.zeros(len(weights)), np.ones(len(weights)))
        sample = self._rollout(self._initial, _Stream.NORMALISATION, 0, _NORMALISATION_SAMPLES, TRAINING)
        scores = plain.score(sample.prompts, sample.responses)
        return RewardModel(weights, scores.mean(axis=1), np.maximum(scores.std(axis=1), 1e-9))

    def _rollout(self, policy: Policy, stream: _Stream, step: int, count: int, prompts: Ints) -> Batch:
        chosen, uniforms, _ = self._draw(stream, step, count, prompts)
        return policy.sample(chosen, uniforms)

    def _draw(
        self, stream: _Stream, step: int, count: int, prompts: Ints, extra: int = 0
    ) -> tuple[Ints, Floats, Floats]:
        """(R, count) prompts, (R, count, L) uniforms and (R, count, extra) more of them."""
        chosen, uniforms = [], []
        for seed in self.seeds:
            generator = np.random.default_rng((seed, stream, step))
            chosen.append(prompts[generator.integers(0, len(prompts), count)])
            uniforms.append(generator.random((count, LENGTH + extra)))
        drawn = np.stack(uniforms)
        return np.stack(chosen), drawn[:, :, :LENGTH], drawn[:, :, LENGTH:]
