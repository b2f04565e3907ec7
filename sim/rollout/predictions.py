"""Predictions of a step's lengths, good and bad ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.policy.rollout import LengthHistory
from sim.rollout.setting import Predictor
from sim.rollout.workload import StepBatch

# Log-sd of a noisy predictor that puts 44 % of prompts into the right fifth, as the one of the paper's does:
# the mean of 120 steps, with the spread of lengths of `workload.GSM8K`.
NOISE_44 = 0.8


def predict(predictor: Predictor, batch: StepBatch, history: LengthHistory, seed: int) -> tuple[float, ...]:
    """Return expected tokens of each prompt's responses."""
    if predictor.kind == "history":
        return tuple(history.predict(list(zip(batch.keys, batch.guesses, strict=True))))
    means = np.array([sum(lengths) / len(lengths) for lengths in batch.lengths])
    generator = np.random.Generator(np.random.PCG64([44, seed]))
    if predictor.kind == "noisy":
        means = means * np.exp(predictor.noise * generator.standard_normal(len(means)))
    elif predictor.kind == "random":
        means = generator.permutation(means)
    elif predictor.kind != "perfect":
        raise ValueError(
            f"predictor: {predictor.kind!r} is not allowed, expected history, noisy, random or perfect"
        )
    return tuple(means.tolist())


def right_fifths(predicted: Sequence[float], batch: StepBatch) -> float:
    """Return the share of prompts whose prediction is in the same fifth as their mean length."""
    means = [sum(lengths) / len(lengths) for lengths in batch.lengths]
    a, b = (np.argsort(np.argsort(np.asarray(v))) * 5 // len(means) for v in (predicted, means))
    return float(np.mean(a == b))
