"""The task: prompts, responses, the initial policy's taste, and the gold reward nobody trains on.

A prompt is two topic tokens, a response is ten tokens of an eight-token vocabulary. A response is good (gold)
when it uses useful tokens and the prompt's topics, with diminishing returns, and does not repeat itself: more
than four copies of a token cost the square of the excess. The initial policy rarely repeats a token that
often, so a reward model trained on a few comparisons of its responses never learns that repetition is bad.
That gap is what a policy without a KL penalty finds and exploits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

VOCABULARY = 8
LENGTH = 10  # tokens per response
PROMPTS = VOCABULARY * VOCABULARY  # two topic tokens each

_SATURATION = 0.6  # per copy; 1 - exp(-0.6 c) of a token's worth is earned by c copies
_FREE_COPIES = 4
_REPETITION_COST = 0.3  # per squared excess copy
_TOPIC_WORTH = (1.0, 0.5)  # what a copy of the first, second topic token is worth beyond its own utility

# The world is fixed; a run's seed never changes it.
_world = np.random.default_rng(20251)
_raw = _world.normal(0.0, 1.0, VOCABULARY)
UTILITY: Floats = np.sort(_raw - _raw.mean())  # (V,): what a token is worth to the gold reward
INITIAL_TRANSITION: Floats = _world.normal(0.0, 0.6, (LENGTH, VOCABULARY, VOCABULARY))  # (L, V, V) logits
INITIAL_TOPIC: Floats = _world.normal(0.0, 0.3, (2, VOCABULARY, VOCABULARY))  # (2, V, V) logits
_order = _world.permutation(PROMPTS)
HELD_OUT: Ints = np.sort(_order[: PROMPTS // 4])  # prompts for evals only
TRAINING: Ints = np.sort(_order[PROMPTS // 4 :])  # prompts for comparisons and policy gradient

TOPICS: Ints = np.stack(np.divmod(np.arange(PROMPTS), VOCABULARY), axis=-1)  # (P, 2)
_ONE_HOT: Floats = np.eye(VOCABULARY)
_WORTH: Floats = (  # (P, V)
    UTILITY + _TOPIC_WORTH[0] * _ONE_HOT[TOPICS[:, 0]] + _TOPIC_WORTH[1] * _ONE_HOT[TOPICS[:, 1]]
)
_COPIES = np.arange(LENGTH + 1, dtype=np.float64)
_EARNED: Floats = 1.0 - np.exp(-_SATURATION * _COPIES)
_EXCESS: Floats = np.maximum(_COPIES - _FREE_COPIES, 0.0)
_COST: Floats = _REPETITION_COST * _EXCESS**2

FEATURES = 2 * VOCABULARY + 2


def copies(responses: Ints) -> Ints:
    """Return how often each token occurs. (..., L) tokens -> (..., V)."""
    flat = responses.reshape(-1, responses.shape[-1])
    cells = flat + VOCABULARY * np.arange(len(flat))[:, None]
    counts = np.bincount(cells.ravel(), minlength=VOCABULARY * len(flat))
    return counts.reshape(*responses.shape[:-1], VOCABULARY)


def gold_reward(prompts: Ints, responses: Ints) -> Floats:
    """Return the true quality: fixed, non-linear, never differentiated. (...) and (..., L) -> (...)."""
    counts = copies(responses)
    reward: Floats = (_WORTH[prompts] * _EARNED[counts] - _COST[counts]).sum(axis=-1)
    return reward


def features(prompts: Ints, responses: Ints) -> Floats:
    """Return what the reward model sees. (...) and (..., L) -> (..., FEATURES).

    Copies of each token, copies of each topic token, copies of each token beyond four. The last group can
    express that repetition is bad, but only comparisons that show repetition can teach it.
    """
    counts = copies(responses)
    topics = np.take_along_axis(counts, TOPICS[prompts], axis=-1)
    return np.concatenate([counts.astype(np.float64), topics.astype(np.float64), _EXCESS[counts]], axis=-1)
