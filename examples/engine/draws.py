"""Random numbers that depend on (seed, step, prompt, copy, position) and on nothing else.

An actor that is lost, a response that moves, another order of prompts: none of it changes a token. The
numbers are SplitMix64's output function (Steele, Lea, Flood 2014), applied to one coordinate after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(
    seed: ArrayLike, step: ArrayLike, prompt: ArrayLike, copy: ArrayLike, position: ArrayLike
) -> NDArray[np.float64]:
    """Return numbers on [0, 1) with 53 random bits, one for each element of the broadcast coordinates (>=
    0)."""
    state: NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in (seed, step, prompt, copy, position):
            state = _mixed((state ^ np.asarray(part).astype(np.uint64)) + _GOLDEN)
    found: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
