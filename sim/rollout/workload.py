"""Batches of prompts with response lengths that differ by prompt, drift by epoch and vary between copies.

Mean lengths are log-normal over prompts. From one epoch to the next each prompt's moves by a Laplace step,
scaled so that the paper's figures hold where its mean length holds: about 70 % of prompts move by at most
50 tokens and 90 % by at most 100. Copies of a prompt spread log-normally around its mean. Everything is cut
at the cap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from sim.rollout.engine.work import Prompt

Lengths = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profile:
    """Lengths of responses. ``drift`` as a share of the mean; ``copies``: log-sd between copies."""

    name: str
    mean: float = 350.0
    variation: float = 1.1  # sd over mean, between prompts
    drift: float = 0.1
    copies: float = 0.15
    cap: int = 2048
    prompt: int = 160  # tokens
    first_guess: float = 0.3  # log-sd of the ground truth's length against the response's, in the first epoch


GSM8K = Profile("GSM8K")
GPQA = Profile("GPQA", mean=600.0, variation=0.55, prompt=300)
LIVECODEBENCH = Profile("LiveCodeBench", mean=800.0, variation=0.65, prompt=500)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's prompts: which of the dataset they are, the trainer's guesses, and true lengths."""

    epoch: int
    keys: tuple[int, ...]
    guesses: tuple[float, ...]
    lengths: tuple[tuple[int, ...], ...]  # by prompt, of each copy
    prompt_tokens: int

    def prompts(self, predicted: tuple[float, ...]) -> list[Prompt]:
        """Return them for the engine, with what was predicted of each."""
        return [
            Prompt(i, self.prompt_tokens, lengths, guess)
            for i, (lengths, guess) in enumerate(zip(self.lengths, predicted, strict=True))
        ]


def batches(
    profile: Profile,
    prompts: int,
    copies: int,
    *,
    per_epoch: int,
    epochs: int,
    seed: int,
    growth: float = 1.0,
) -> list[StepBatch]:
    """Return the steps of a run.

    Args:
        profile: of lengths.
        prompts: of a step.
        copies: of each prompt.
        per_epoch: steps.
        epochs: times that every prompt comes.
        seed: of all that is drawn.
        growth: by which mean lengths grow over the run, evenly step by step.
    """
    generator = np.random.Generator(np.random.PCG64([20_26, seed]))
    count = prompts * per_epoch
    sigma = float(np.sqrt(np.log1p(profile.variation**2)))
    mean: Lengths = profile.mean * np.exp(sigma * generator.standard_normal(count) - sigma**2 / 2)
    guesses = mean * np.exp(profile.first_guess * generator.standard_normal(count))
    steps, made = per_epoch * epochs, []
    for epoch in range(epochs):
        if epoch:
            mean = np.maximum(1.0, mean + generator.laplace(0.0, profile.drift * profile.mean, count))
        order = generator.permutation(count)
        for batch in range(per_epoch):
            keys = order[batch * prompts : (batch + 1) * prompts]
            grown = mean[keys] * growth ** ((epoch * per_epoch + batch) / max(1, steps - 1))
            spread = np.exp(
                profile.copies * generator.standard_normal((prompts, copies)) - profile.copies**2 / 2
            )
            lengths = np.clip(np.rint(grown[:, None] * spread), 1, profile.cap).astype(int)
            made.append(
                StepBatch(
                    epoch,
                    tuple(keys.tolist()),
                    tuple(guesses[keys].tolist()),
                    tuple(map(tuple, lengths.tolist())),
                    profile.prompt,
                )
            )
    return made
