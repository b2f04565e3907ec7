"""Prompts, the initial policy and two rewards: what one trains on (proxy), and what one wants (gold).

Gold likes useful words and those of the prompt, with diminishing returns, and dislikes length. The proxy
does not see length, so a policy without a KL penalty grows longer and longer, as policies do.
"""

from __future__ import annotations

import numpy as np

from examples.engine.model import END, WORDS, Floats, Ints, Weights

PROMPTS = WORDS * WORDS
_SATURATION = 0.15  # per copy of a word
_TOPIC_WORTH = (1.0, 0.5)
_LENGTH_COST = 0.02  # per token, of gold
_USUAL, _SPREAD = 16.0, 0.5  # tokens of a response, and log-sd between prompts, of the initial policy

_world = np.random.default_rng(20252)
_raw = _world.normal(0.0, 1.0, WORDS)
_UTILITY: Floats = _raw - _raw.mean()
_order = _world.permutation(PROMPTS)
HELD_OUT: Ints = np.sort(_order[: PROMPTS // 4])
TRAINING: Ints = np.sort(_order[PROMPTS // 4 :])
TOKENS: Ints = np.stack(np.divmod(np.arange(PROMPTS), WORDS), axis=-1)  # (P, 2)
_WORTH: Floats = (
    _UTILITY + _TOPIC_WORTH[0] * np.eye(WORDS)[TOKENS[:, 0]] + _TOPIC_WORTH[1] * np.eye(WORDS)[TOKENS[:, 1]]
)


def _padded(values: Floats) -> Floats:
    """Return logits with a column for the end token."""
    return np.concatenate([values, np.zeros((*values.shape[:-1], 1))], axis=-1)


INITIAL = Weights(
    _padded(_world.normal(0.0, 0.6, (WORDS, WORDS))),
    _padded(_world.normal(0.0, 0.3, (2, WORDS, WORDS))),
    np.log(_USUAL) + _SPREAD * np.clip(_world.normal(0.0, 1.0, (WORDS, WORDS)), -2.0, 2.0),
)


def rewards(prompts: Ints, responses: list[list[int]]) -> tuple[Floats, Floats]:
    """Return proxy and gold rewards (N,) of responses to prompts (N,)."""
    counts = np.array([np.bincount(tokens, minlength=WORDS + 1) for tokens in responses])
    earned = (_WORTH[prompts] * (1.0 - np.exp(-_SATURATION * counts[:, :END]))).sum(axis=-1)
    return earned, earned - _LENGTH_COST * counts.sum(axis=-1)
