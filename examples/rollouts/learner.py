"""Policy gradient on responses of any length: one process learns, somebody else may generate.

The learner sees tokens only. It computes their probabilities itself, in one order, so its parameters depend
on the tokens and not on who generated them, when, or where.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from examples.engine.model import END, STEEP, Floats, Ints, Weights, logits, of_arrays, probabilities, sample
from examples.rollouts.task import HELD_OUT, INITIAL, TOKENS, TRAINING, rewards
from examples.trainer.training import Evaluation, Progress
from examples.trainer.updates import Phase, uncounted

_MOMENTUM, _VARIANCE_DECAY, _EPSILON = 0.9, 0.99, 1e-6  # Adam
_EVALUATION = 1 << 20  # added to a step: evals have random numbers of their own

Responses = list[list[list[int]]]  # by prompt, by copy: token ids
Generate = Callable[[int, Sequence[int], Weights], Responses]


@dataclass(frozen=True, slots=True)
class SequenceRecipe:
    """Recipe of a run with responses of any length.

    prompts, copies: of a step.
    most: tokens of a response.
    kl: coefficient of the penalty, proxy reward per nat.
    lr: Adam's learning rate.
    eval_copies: responses to each held-out prompt in an eval.
    """

    prompts: int = 16
    copies: int = 4
    most: int = 96
    kl: float = 0.01
    lr: float = 0.02
    eval_copies: int = 16

    def __post_init__(self) -> None:
        for name, low, high in (
            ("prompts", 1, len(TRAINING)),
            ("copies", 2, 1024),
            ("most", 2, 4096),
            ("eval_copies", 2, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: expected {low} to {high}, got {value!r}")


def generate_here(
    weights: Weights, seed: int, step: int, prompts: Sequence[int], copies: int, most: int
) -> Responses:
    """Return the responses as an engine with these weights gives them, generated in this process."""
    draws = [(seed, step, prompt, copy) for prompt in prompts for copy in range(copies)]
    tokens = go_on(
        weights, [(tuple(TOKENS[prompt].tolist()), []) for prompt, _ in _pairs(prompts, copies)], draws, most
    )
    return [tokens[i * copies : (i + 1) * copies] for i in range(len(prompts))]


def _pairs(prompts: Sequence[int], copies: int) -> list[tuple[int, int]]:
    return [(prompt, copy) for prompt in prompts for copy in range(copies)]


def go_on(
    weights: Weights,
    begun: Sequence[tuple[Sequence[int], Sequence[int]]],
    draws: Sequence[tuple[int, ...]],
    most: int,
) -> list[list[int]]:
    """Return responses that were begun elsewhere (prompt tokens, tokens so far), to their ends."""
    found = [list(tokens) for _, tokens in begun]
    live = [i for i, tokens in enumerate(found) if len(tokens) < most and (not tokens or tokens[-1] != END)]
    while live:
        prompts = np.array([begun[i][0] for i in live])
        previous = np.array([found[i][-1] if found[i] else begun[i][0][-1] for i in live])
        position = np.array([len(found[i]) for i in live])
        new = sample(weights, prompts, previous, position, np.array([draws[i] for i in live]))
        for i, token in zip(live, new.tolist(), strict=True):
            found[i].append(token)
        live = [i for i in live if found[i][-1] != END and len(found[i]) < most]
    return found


class SequenceTraining:
    """One run, with the same calls as `Training`.

    Args:
        recipe: of the run.
        seed: of everything random.
        generate: gives the responses to a step's prompts; None: this process does.
    """

    def __init__(self, recipe: SequenceRecipe, seed: int, generate: Generate | None = None) -> None:
        self.recipe, self.seed, self.step = recipe, seed, 0
        self._generate = generate or self._here
        self._weights = INITIAL
        self._moments = [np.zeros_like(a) for a in INITIAL.arrays().values() for _ in range(2)]
        self.tokens = 0  # trained on, in this process
        self.generated = time.monotonic()  # when the newest step's responses were there
        self.extra: dict[str, object] = {}  # what a checkpoint keeps for whoever generates

    # -- a step --------------------------------------------------------------------------------------------

    def prompts(self, step: int) -> list[int]:
        """Return the prompts of a step: each epoch goes through all of them, in an order of its own."""
        per_epoch = len(TRAINING) // self.recipe.prompts
        epoch, place = divmod(step - 1, per_epoch)
        order = np.random.default_rng((self.seed, 7, epoch)).permutation(len(TRAINING))
        chosen = order[place * self.recipe.prompts : (place + 1) * self.recipe.prompts]
        return [int(prompt) for prompt in TRAINING[chosen]]

    def advance(self, phase: Phase = uncounted) -> Progress:
        """Return one policy-gradient step, each prompt's copies compared with each other (GRPO's
        baseline). ``phase`` counts how long each phase takes."""
        step = self.step + 1
        prompts = self.prompts(step)
        with phase("rollout", False):
            found = self._generate(step, prompts, self._weights)
        self.generated = time.monotonic()
        with phase("train", True):
            return self.learn(step, prompts, found)

    def learn(self, step: int, prompts: Sequence[int], responses: Responses) -> Progress:
        """Return what a step on these responses showed."""
        recipe, copies = self.recipe, self.recipe.copies
        asked = np.repeat(np.array(prompts), copies)
        flat = [tokens for row in responses for tokens in row]
        self.tokens += sum(map(len, flat))
        batch = _Batch.of(asked, flat)
        log_p, chances = batch.log_probability(self._weights)
        before, _ = batch.log_probability(INITIAL)
        proxy, _ = rewards(asked, flat)
        ratio = log_p - before
        reward = (proxy - recipe.kl * ratio).reshape(-1, copies)
        advantage = (reward - reward.mean(axis=1, keepdims=True)).ravel() / len(flat)
        self._adam(batch.gradient(self._weights, chances, advantage), step)
        self.step = step
        return Progress(np.array([proxy.mean()]), np.array([ratio.mean()]))

    def evaluate(self, reference: Weights | None = None) -> Evaluation:
        """Return fresh responses to all held-out prompts, scored by the gold reward."""
        copies, prompts = self.recipe.eval_copies, [int(p) for p in HELD_OUT]
        asked = np.repeat(HELD_OUT, copies)
        flat = self._answers(self._weights, prompts)
        proxy, gold = rewards(asked, flat)
        batch = _Batch.of(asked, flat)
        ratio = batch.log_probability(self._weights)[0] - batch.log_probability(INITIAL)[0]
        difference = None
        if reference is not None:
            difference = (gold - rewards(asked, self._answers(reference, prompts))[1])[None]
        stderr = gold.std(ddof=1) / np.sqrt(len(gold))
        return Evaluation(
            self.step,
            len(gold),
            gold.mean()[None],
            np.array([stderr]),
            proxy.mean()[None],
            ratio.mean()[None],
            difference,
        )

    def _answers(self, weights: Weights, prompts: Sequence[int]) -> list[list[int]]:
        recipe = self.recipe
        found = generate_here(
            weights, self.seed, _EVALUATION + self.step, prompts, recipe.eval_copies, recipe.most
        )
        return [tokens for row in found for tokens in row]

    def _here(self, step: int, prompts: Sequence[int], weights: Weights) -> Responses:
        return generate_here(weights, self.seed, step, prompts, self.recipe.copies, self.recipe.most)

    def _adam(self, gradient: list[Floats], step: int) -> None:
        updated = []
        for i, (value, slope) in enumerate(zip(self._weights.arrays().values(), gradient, strict=True)):
            first, second = self._moments[2 * i : 2 * i + 2]
            first = _MOMENTUM * first + (1.0 - _MOMENTUM) * slope
            second = _VARIANCE_DECAY * second + (1.0 - _VARIANCE_DECAY) * slope**2
            self._moments[2 * i : 2 * i + 2] = [first, second]
            unbiased, spread = (
                first / (1.0 - _MOMENTUM**step),
                np.sqrt(second / (1.0 - _VARIANCE_DECAY**step)),
            )
            updated.append(value + self.recipe.lr * unbiased / (spread + _EPSILON))
        self._weights = Weights(*updated)

    # -- checkpoints ---------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Weights:
        """The policy now; never changed in place."""
        return self._weights

    @property
    def sha256(self) -> str:
        """Of the parameters."""
        return hashlib.sha256(self._weights.dump()).hexdigest()

    def state(self) -> dict[str, Floats]:
        """Return everything a later process needs to go on from here, as arrays by name."""
        extra = np.frombuffer(json.dumps(self.extra).encode(), np.uint8).astype(np.float64)
        moments = {f"adam_{i}": moment for i, moment in enumerate(self._moments)}
        return self._weights.arrays() | moments | {"extra": extra}

    def load(self, state: Mapping[str, Floats], step: int) -> None:
        """Go on from `state` of a run of the same recipe and seed at ``step``.

        Raises:
            ValueError: an array is missing or of another shape.
        """
        weights = self.policy_of(state)
        for name, mine in self.state().items():
            if name not in state or (name != "extra" and state[name].shape != mine.shape):
                raise ValueError(f"checkpoint array {name}: expected shape {mine.shape}, found none of it")
        self._weights = weights
        self._moments = [np.array(state[f"adam_{i}"]) for i in range(len(self._moments))]
        self.extra = json.loads(state["extra"].astype(np.uint8).tobytes())
        self.step = step

    @staticmethod
    def policy_of(state: Mapping[str, Floats]) -> Weights:
        """Return the policy in a checkpoint's arrays.

        Raises:
            ValueError: they are of another kind of run.
        """
        return of_arrays(state)

    def identity(self) -> dict[str, object]:
        """Return what makes this run this run; checkpoints carry it."""
        return {"seeds": [self.seed], "rollouts": True, **asdict(self.recipe)}


@dataclass(frozen=True, slots=True)
class _Batch:
    """All tokens of all responses one after another (M,): whose response, its prompt, and the token
    before."""

    count: int
    row: Ints
    prompts: Ints  # (M, 2) tokens
    previous: Ints
    position: Ints
    token: Ints

    @staticmethod
    def of(asked: Ints, responses: list[list[int]]) -> _Batch:
        lengths = np.array([len(tokens) for tokens in responses])
        row = np.repeat(np.arange(len(responses)), lengths)
        token = np.array([t for tokens in responses for t in tokens])
        prompts = TOKENS[asked][row]
        position = np.concatenate([np.arange(n) for n in lengths])
        previous = np.where(position == 0, prompts[:, 1], np.roll(token, 1))
        return _Batch(len(responses), row, prompts, previous, position, token)

    def log_probability(self, weights: Weights) -> tuple[Floats, Floats]:
        """Return (N,) log-probabilities of responses in nats, and (M, V + 1) of every next token."""
        chances = probabilities(logits(weights, self.prompts, self.previous, self.position))
        taken = chances[np.arange(len(self.token)), self.token]
        total: Floats = np.bincount(self.row, np.log(taken), minlength=self.count).astype(np.float64)
        return total, chances

    def gradient(self, weights: Weights, chances: Floats, advantage: Floats) -> list[Floats]:
        """Return the gradient of the responses' log-probabilities, each times its advantage (N,)."""
        delta = -chances
        delta[np.arange(len(self.token)), self.token] += 1.0
        delta *= advantage[self.row][:, None]
        transition, topic = np.zeros_like(weights.transition), np.zeros_like(weights.topic)
        patience = np.zeros_like(weights.patience)
        first, second = self.prompts[:, 0], self.prompts[:, 1]
        np.add.at(transition, self.previous, delta)
        np.add.at(topic[0], first, delta)
        np.add.at(topic[1], second, delta)
        slope = -STEEP * self.position * np.exp(-weights.patience[first, second])
        np.add.at(patience, (first, second), delta[:, END] * slope)
        return [transition, topic, patience]
