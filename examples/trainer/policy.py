"""The policy: an autoregressive softmax over a small vocabulary, with exact log-probabilities and gradients.

``logits(y_t | prompt, y_{t-1}, t) = transition[t, y_{t-1}] + topic[0, x_0] + topic[1, x_1]``, where y_{-1} is
the prompt's last token. Log-linear, so the gradient of a response's log-probability is one-hot minus
probabilities, summed over its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.trainer.task import (
    INITIAL_TOPIC,
    INITIAL_TRANSITION,
    LENGTH,
    TOPICS,
    VOCABULARY,
    Floats,
    Ints,
)

_ONE_HOT: Floats = np.eye(VOCABULARY)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Logits of R runs: ``transition`` (R, L, V, V), ``topic`` (R, 2, V, V). Also used for gradients."""

    transition: Floats
    topic: Floats

    @staticmethod
    def initial(runs: int) -> Parameters:
        """The initial policy, the same in every run."""
        return Parameters(
            np.repeat(INITIAL_TRANSITION[None], runs, axis=0), np.repeat(INITIAL_TOPIC[None], runs, axis=0)
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Sampled responses: ``prompts`` (R, N), ``responses`` and ``context`` (R, N, L); context is y_{t-1}."""

    prompts: Ints
    responses: Ints
    context: Ints


class Policy:
    """A policy's conditional distributions, tabulated once per parameter update.

    Tables have shape (R, P, L, V, V): run, prompt, position, previous token, next token.
    """

    def __init__(self, parameters: Parameters) -> None:
        topic = parameters.topic[:, 0, TOPICS[:, 0]] + parameters.topic[:, 1, TOPICS[:, 1]]  # (R, P, V)
        logits = parameters.transition[:, None] + topic[:, :, None, None, :]
        logits -= logits.max(axis=-1, keepdims=True)
        weights = np.exp(logits)
        total = weights.sum(axis=-1, keepdims=True)
        logits -= np.log(total)
        weights /= total
        self._log_probabilities = logits
        self._probabilities = weights
        self._cumulative = np.cumsum(weights, axis=-1)
        self._runs = np.arange(len(topic))

    def sample(self, prompts: Ints, uniforms: Floats) -> Batch:
        """Responses by inverse transform: (R, N) prompts and (R, N, L) uniforms on [0, 1)."""
        runs = self._runs[:, None]
        previous = TOPICS[prompts, 1]
        responses, context = [], []
        for position in range(LENGTH):
            context.append(previous)
            thresholds = self._cumulative[runs, prompts, position, previous]
            tokens = (uniforms[:, :, position, None] >= thresholds).sum(axis=-1)
            previous = np.minimum(tokens, VOCABULARY - 1)  # the last threshold may round to below 1
            responses.append(previous)
        return Batch(prompts, np.stack(responses, axis=-1), np.stack(context, axis=-1))

    def log_probability(self, batch: Batch) -> Floats:
        """(R, N): log-probability of each response given its prompt, nats."""
        runs = self._runs[:, None, None]
        position = np.arange(LENGTH)
        at = (runs, batch.prompts[:, :, None], position, batch.context, batch.responses)
        total: Floats = self._log_probabilities[at].sum(axis=-1)
        return total

    def score_gradient(self, batch: Batch, weight: Floats) -> Parameters:
        """Sum over the batch of ``weight`` (R, N) times the gradient of the response's log-probability."""
        runs = self._runs[:, None, None]
        position = np.arange(LENGTH)
        probabilities = self._probabilities[runs, batch.prompts[:, :, None], position, batch.context]
        delta = (_ONE_HOT[batch.responses] - probabilities) * weight[:, :, None, None]  # (R, N, L, V)
        context = _ONE_HOT[batch.context]
        transition = np.matmul(context.transpose(0, 2, 3, 1), delta.transpose(0, 2, 1, 3))
        per_response = delta.sum(axis=2)
        topics = _ONE_HOT[TOPICS[batch.prompts]]  # (R, N, 2, V)
        topic = np.matmul(topics.transpose(0, 2, 3, 1), per_response[:, None])
        return Parameters(transition, topic)
