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
        """Return the initial policy, the same in every run."""
        return Parameters(
            np.repeat(INITIAL_TRANSITION[None], runs, axis=0), np.repeat(INITIAL_TOPIC[None], runs, axis=0)
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Responses sampled from a policy, with what sampling computed on the way.

    ``prompts`` (R, N); ``responses`` and ``context`` (R, N, L), where context is y_{t-1};
    ``log_probability`` (R, N) of each response under the policy it came from, nats; ``probabilities``
    (L, V, R, N) of every next token in the contexts met.
    """

    prompts: Ints
    responses: Ints
    context: Ints
    log_probability: Floats
    probabilities: Floats


class Policy:
    """The policies of R runs. Next-token axes come first: NumPy is slowest at sums over a short last axis."""

    def __init__(self, parameters: Parameters) -> None:
        self._transition = np.ascontiguousarray(np.moveaxis(parameters.transition, -1, 0))  # (V, R, L, V)
        self._topic = np.ascontiguousarray(np.moveaxis(parameters.topic, -1, 0))  # (V, R, 2, V)
        self._runs = np.arange(len(parameters.topic))[:, None]

    def sample(self, prompts: Ints, uniforms: Floats) -> Batch:
        """Responses by inverse transform: (R, N) prompts and (R, N, L) uniforms on [0, 1)."""
        topic = self._topic_logits(prompts)
        previous = TOPICS[prompts, 1]
        log_probability = np.zeros(prompts.shape)
        responses, context, distributions = [], [], []
        for position in range(LENGTH):
            context.append(previous)
            probabilities = self._next(position, previous, topic)
            below = uniforms[:, :, position] >= np.cumsum(probabilities, axis=0)
            previous = np.minimum(below.sum(axis=0), VOCABULARY - 1)  # the last sum may round to below 1
            log_probability += np.log(np.take_along_axis(probabilities, previous[None], axis=0)[0])
            responses.append(previous)
            distributions.append(probabilities)
        return Batch(
            prompts,
            np.stack(responses, axis=-1),
            np.stack(context, axis=-1),
            log_probability,
            np.stack(distributions),
        )

    def replay(self, prompts: Ints, responses: Ints) -> Batch:
        """Return the batch that sampling would have made of these responses, equal to the last bit."""
        topic = self._topic_logits(prompts)
        previous = TOPICS[prompts, 1]
        log_probability = np.zeros(prompts.shape)
        context, distributions = [], []
        for position in range(LENGTH):
            context.append(previous)
            probabilities = self._next(position, previous, topic)
            previous = responses[:, :, position]
            log_probability += np.log(np.take_along_axis(probabilities, previous[None], axis=0)[0])
            distributions.append(probabilities)
        return Batch(prompts, responses, np.stack(context, axis=-1), log_probability, np.stack(distributions))

    def log_probability(self, batch: Batch) -> Floats:
        """(R, N): log-probability under this policy of responses sampled from another, nats."""
        topic = self._topic_logits(batch.prompts)
        total = np.zeros(batch.prompts.shape)
        for position in range(LENGTH):
            probabilities = self._next(position, batch.context[:, :, position], topic)
            token = batch.responses[:, :, position]
            total += np.log(np.take_along_axis(probabilities, token[None], axis=0)[0])
        return total

    def _topic_logits(self, prompts: Ints) -> Floats:
        first, second = TOPICS[prompts, 0], TOPICS[prompts, 1]
        logits: Floats = self._topic[:, self._runs, 0, first] + self._topic[:, self._runs, 1, second]
        return logits

    def _next(self, position: int, previous: Ints, topic: Floats) -> Floats:
        """(V, R, N): softmax over the next token."""
        logits = self._transition[:, self._runs, position, previous] + topic
        logits -= logits.max(axis=0)
        weights: Floats = np.exp(logits, out=logits)
        weights /= weights.sum(axis=0)
        return weights


def score_gradient(batch: Batch, weight: Floats) -> Parameters:
    """Sum over the batch of ``weight`` (R, N) times the gradient of the response's log-probability.

    The gradient is at the parameters the batch was sampled from.
    """
    transitions = []
    per_response = np.zeros((*weight.shape, VOCABULARY))
    for position in range(LENGTH):
        token, previous = batch.responses[:, :, position], batch.context[:, :, position]
        expected = np.moveaxis(batch.probabilities[position], 0, -1)  # (R, N, V)
        delta = (_ONE_HOT[token] - expected) * weight[:, :, None]
        transitions.append(np.matmul(_ONE_HOT[previous].swapaxes(1, 2), delta))
        per_response += delta
    topics = _ONE_HOT[TOPICS[batch.prompts]]  # (R, N, 2, V)
    topic = np.matmul(topics.transpose(0, 2, 3, 1), per_response[:, None])
    return Parameters(np.stack(transitions, axis=1), topic)
