"""The proxy: a reward model trained by Bradley-Terry on noisy comparisons of initial responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.trainer.task import FEATURES, Floats, Ints, features

LABEL_TEMPERATURE = 1.0  # in gold reward; P(a preferred) = sigmoid((gold(a) - gold(b)) / temperature)
RIDGE = 3.0  # Gaussian prior on the weights: what no comparison has shown weighs nothing
_NEWTON_STEPS = 25
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RewardModel:
    """``weights`` (R, FEATURES); ``mean`` and ``scale`` (R,) make scores 0 ± 1 on the initial policy."""

    weights: Floats
    mean: Floats
    scale: Floats

    def score(self, prompts: Ints, responses: Ints) -> Floats:
        """(R, N) proxy rewards, in standard deviations above the initial policy's mean."""
        raw = np.matmul(features(prompts, responses), self.weights[:, :, None])[..., 0]
        scores: Floats = (raw - self.mean[:, None]) / self.scale[:, None]
        return scores


def fit(first: Floats, second: Floats, first_preferred: Floats) -> Floats:
    """Maximum a posteriori Bradley-Terry weights (Bradley and Terry 1952), by Newton's method.

    Args:
        first: (R, n, FEATURES), the first response of each pair.
        second: (R, n, FEATURES), the second response of each pair.
        first_preferred: (R, n), 1.0 where the label prefers the first, else 0.0.

    Returns:
        (R, FEATURES).
    """
    difference = first - second
    transposed = difference.swapaxes(1, 2)
    weights = np.zeros((len(difference), FEATURES))
    prior = RIDGE * np.eye(FEATURES)
    for _ in range(_NEWTON_STEPS):
        preferred = sigmoid(np.matmul(difference, weights[:, :, None])[..., 0])
        gradient = np.matmul(transposed, (preferred - first_preferred)[:, :, None])[..., 0] + RIDGE * weights
        curvature = np.matmul(transposed * (preferred * (1.0 - preferred))[:, None, :], difference) + prior
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        weights = weights - step
        if np.abs(step).max() < _TOLERANCE:
            break
    return weights


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))
