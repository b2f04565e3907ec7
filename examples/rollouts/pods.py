"""Responses from actor pods, through the trainers' client."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalstop_client.rollouts import Prompt, Rollouts, Source, Weights
from examples.engine import model
from examples.rollouts.learner import Responses, SequenceTraining
from examples.rollouts.task import INITIAL, TOKENS


class PodGenerator:
    """Generates a run's responses in actor pods; between two steps it announces the next one.

    Args:
        source: where actors come from.
        record: file that gets a JSON line for each step, for ``evalstop sim rollout replay``; None: none.
        starve: s without any actor after which the run gives up.
        between: s that training is thought to take between two generations, until that was seen once.
        shared: folder on a volume that actors have, for each step's weights; None: they are pushed.
    """

    def __init__(
        self,
        source: Source,
        record: Path | None = None,
        starve: float = 60.0,
        between: float = 0.0,
        shared: Path | None = None,
    ) -> None:
        self.rollouts = Rollouts(source, starve=starve)
        self._record, self._between, self._shared = record, between, shared
        self._training: SequenceTraining | None = None
        self._ended: float | None = None
        self._loaded = False

    def serve(self, training: SequenceTraining) -> None:
        """Generate for this run from now on."""
        self._training = training

    def __call__(self, step: int, prompts: Sequence[int], weights: model.Weights) -> Responses:
        training = self._training
        assert training is not None
        if not self._loaded:  # after a resume: lengths of earlier epochs
            known = training.extra.get("lengths")
            self.rollouts.load(known if isinstance(known, dict) else None)
            self._loaded = True
        recipe, content = training.recipe, weights.dump()
        begun = time.monotonic()
        between = begun - self._ended if self._ended is not None else 0.0
        if self._ended is None:  # later steps were announced when the one before had ended
            self._announce(step, 0.0)
        found = self.rollouts.generate(
            step, self._prompts(prompts), copies=recipe.copies, most=recipe.most,
            weights=self._weights(step, content), end=model.END, vocabulary=model.END + 1, seed=training.seed,
        )  # fmt: skip
        self._ended = time.monotonic()
        training.extra["lengths"] = self.rollouts.state()
        self.rollouts.end(step, {"generate": self._ended - begun, "train": between})
        self._announce(step + 1, between or self._between)
        if self._record is not None:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            with self._record.open("a") as file:
                file.write(json.dumps(self.rollouts.record) + "\n")
        return found

    def _weights(self, step: int, content: bytes) -> Weights:
        """Return a step's weights as actors are to load them: pushed, or the name of a shared file."""
        weights = Weights.of(content)
        if self._shared is None:
            return weights
        path = self._shared / f"step-{step}.bin"
        half = path.with_suffix(".half")
        half.write_bytes(content)
        half.replace(path)  # nobody reads half of it
        (self._shared / f"step-{step - 1}.bin").unlink(missing_ok=True)
        return Weights(weights.digest, path=path.name)

    def _announce(self, step: int, begins_in: float) -> None:
        training = self._training
        assert training is not None
        prompts = self._prompts(training.prompts(step))
        self.rollouts.announce(
            step, prompts, copies=training.recipe.copies, most=training.recipe.most, begins_in=begins_in
        )

    @staticmethod
    def _prompts(prompts: Sequence[int]) -> list[Prompt]:
        guesses = np.exp(INITIAL.patience)  # what the trainer says of prompts that nobody has answered yet
        return [
            Prompt(int(prompt), [int(t) for t in TOKENS[prompt]], float(guesses[tuple(TOKENS[prompt])]))
            for prompt in prompts
        ]

    @property
    def counts(self) -> dict[str, Any]:
        return dict(self.rollouts.counts)
