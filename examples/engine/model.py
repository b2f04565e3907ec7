"""The model that is served: a softmax over eight words and an end token, whose end comes by the prompt's
patience.

``logits(y_t | prompt, y_{t-1}, t) = transition[y_{t-1}] + topic[0, x_0] + topic[1, x_1]``, and for the end
token ``+ STEEP (t exp(-patience[x_0, x_1]) - 1)``: it is unlikely long before ``exp(patience)`` tokens and
likely after. Everything is computed element by element, so a token does not depend on who else is in the
batch.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.engine.draws import uniforms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WORDS = 8
END = WORDS  # the end token
PROMPT_TOKENS = 2
STEEP = 6.0
MOST_BYTES = 1 << 20  # of weights
_SHAPES = {"transition": (WORDS, WORDS + 1), "topic": (2, WORDS, WORDS + 1), "patience": (WORDS, WORDS)}


class WeightsError(ValueError):
    """Weights that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Logits: ``transition`` (V, V + 1), ``topic`` (2, V, V + 1), and ``patience`` (V, V), log of a usual
    length."""

    transition: Floats
    topic: Floats
    patience: Floats

    def arrays(self) -> dict[str, Floats]:
        return {"transition": self.transition, "topic": self.topic, "patience": self.patience}

    def dump(self) -> bytes:
        """Return the weights as they travel: the arrays one after another, little-endian float64."""
        return b"".join(np.ascontiguousarray(a, "<f8").tobytes() for a in self.arrays().values())


def read(content: bytes) -> Weights:
    """Return the weights in `dump`'s form.

    Raises:
        WeightsError: they have another size, or a number that is none.
    """
    found: dict[str, Floats] = {}
    stream = io.BytesIO(content)
    for name, shape in _SHAPES.items():
        size = 8 * int(np.prod(shape))
        part = stream.read(size)
        if len(part) != size:
            raise WeightsError(f"weights: {len(content)} bytes, expected {expected_bytes()}")
        found[name] = np.frombuffer(part, "<f8").reshape(shape).astype(np.float64)
    if stream.read(1):
        raise WeightsError(f"weights: {len(content)} bytes, expected {expected_bytes()}")
    return of_arrays(found)


def of_arrays(arrays: Mapping[str, Floats]) -> Weights:
    """Return the weights with these arrays.

    Raises:
        WeightsError: one is missing, of another shape, or not finite.
    """
    for name, shape in _SHAPES.items():
        if name not in arrays or arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise WeightsError(f"weights: {name}: expected finite numbers of shape {shape}")
    return Weights(*(np.array(arrays[name]) for name in _SHAPES))


def expected_bytes() -> int:
    return 8 * sum(int(np.prod(shape)) for shape in _SHAPES.values())


def digest(content: bytes) -> str:
    """Return the SHA-256 of weights as they travel, in hex."""
    return hashlib.sha256(content).hexdigest()


def logits(weights: Weights, prompts: Ints, previous: Ints, position: Ints) -> Floats:
    """Return (b, V + 1) logits of the next token, of prompts (b, 2), the token before (b,) and its position
    (b,)."""
    first, second = prompts[:, 0], prompts[:, 1]
    found: Floats = weights.transition[previous] + weights.topic[0, first] + weights.topic[1, second]
    found[:, END] += STEEP * (position * np.exp(-weights.patience[first, second]) - 1.0)
    return found


def probabilities(values: Floats) -> Floats:
    """Return the softmax over the last axis."""
    raised: Floats = np.exp(values - values.max(axis=-1, keepdims=True))
    return raised / np.cumsum(raised, axis=-1)[..., -1:]


def sample(
    weights: Weights, prompts: Ints, previous: Ints, position: Ints, draws: Ints, temperature: float = 1.0
) -> Ints:
    """Return the next token (b,) of each response by inverse transform.

    Args:
        weights: of the model.
        prompts: (b, 2) tokens.
        previous: (b,) token before; at position 0 the prompt's last one.
        position: (b,) of the new token.
        draws: (b, 4): seed, step, prompt, copy.
        temperature: that logits are divided by.
    """
    chances = probabilities(logits(weights, prompts, previous, position) / temperature)
    u = uniforms(draws[:, 0], draws[:, 1], draws[:, 2], draws[:, 3], position)
    below = u[:, None] >= np.cumsum(chances, axis=-1)
    tokens: Ints = np.minimum(below.sum(axis=-1), END)
    return tokens
