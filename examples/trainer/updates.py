"""Updates of the policy: by this process, or by a shared worker group (`group_updates`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np

from examples.trainer.policy import Batch, Parameters, score_gradient
from examples.trainer.task import Floats

_MOMENTUM, _VARIANCE_DECAY, _EPSILON = 0.9, 0.99, 1e-6  # Adam

Phase = Callable[[str, bool], AbstractContextManager[None]]  # its name, whether it needs the training GPUs


def uncounted(name: str, training: bool) -> AbstractContextManager[None]:
    """Count no phase."""
    return nullcontext()


def nothing() -> None:
    """Do nothing."""


def zeros(parameters: Parameters) -> list[Floats]:
    """Return Adam's moments before the first step: first and second of each array."""
    return [np.zeros_like(a) for a in (parameters.transition, parameters.topic) for _ in range(2)]


def adam(
    parameters: Parameters, moments: Sequence[Floats], gradient: Parameters, lr: float, step: int
) -> tuple[Parameters, list[Floats]]:
    """Return parameters and moments after a step up the gradient (Kingma and Ba 2015). ``step``: 1, 2, …"""
    updated, new = [], list(moments)
    pairs = ((parameters.transition, gradient.transition), (parameters.topic, gradient.topic))
    for i, (value, slope) in enumerate(pairs):
        first, second = moments[2 * i : 2 * i + 2]
        first = _MOMENTUM * first + (1.0 - _MOMENTUM) * slope
        second = _VARIANCE_DECAY * second + (1.0 - _VARIANCE_DECAY) * slope**2
        new[2 * i : 2 * i + 2] = [first, second]
        unbiased = first / (1.0 - _MOMENTUM**step)
        spread = np.sqrt(second / (1.0 - _VARIANCE_DECAY**step))
        updated.append(value + lr * unbiased / (spread + _EPSILON))
    return Parameters(updated[0], updated[1]), new


class Updates(Protocol):
    """The optimizer's state, and steps with it."""

    def begin(self, parameters: Parameters, moments: Sequence[Floats]) -> None:
        """Go on from here."""

    def update(self, batch: Batch, weight: Floats, lr: float, step: int, phase: Phase) -> Parameters:
        """Return the policy after a step. ``weight`` (R, N): of each response's log-probability."""

    def moments(self) -> list[Floats]:
        """Return Adam's moments, as `zeros` has them."""


class OwnUpdates:
    """This process computes them."""

    def __init__(self) -> None:
        self._parameters: Parameters
        self._moments: list[Floats] = []

    def begin(self, parameters: Parameters, moments: Sequence[Floats]) -> None:
        self._parameters, self._moments = parameters, list(moments)

    def update(self, batch: Batch, weight: Floats, lr: float, step: int, phase: Phase) -> Parameters:
        with phase("train", True):
            gradient = score_gradient(batch, weight)
            self._parameters, self._moments = adam(self._parameters, self._moments, gradient, lr, step)
        return self._parameters

    def moments(self) -> list[Floats]:
        return self._moments
