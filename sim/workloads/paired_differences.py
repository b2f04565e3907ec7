"""Draws simulated paired differences (`Paired`): two checkpoints of the trained model, scored right or wrong
on the same prompts. Read by the rule eProcess and the modifiers confirm and gate.

The order of draws is part of reproducibility. Tests: tests/sim_workloads/test_sim_workloads_evidence.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from random import Random

from controller.policy.types import Paired

Binomial = Callable[[int, float], int]  # (trials, chance) -> successes


def differences(
    binomial: Binomial, prompts: int, discordant: float, truth: Sequence[float], scores: Sequence[float]
) -> list[Paired | None]:
    """Return each eval's difference, relative to the best reported score so far; None for the first eval, and
    as long as no earlier eval has a finite score.

    The two checkpoints differ on the share ``discordant`` of the prompts, more where their true scores lie
    further apart. Of ``n`` prompts the current checkpoint is better on n+ and worse on n-, both binomial, so
    the mean (n+ - n-) / n is unbiased and every difference lies in -1 to 1.

    Args:
        binomial: draws, from the caller's random numbers.
        prompts: how many prompts each pair of checkpoints is scored on, ``n``.
        discordant: share of the prompts on which equally good checkpoints differ.
        truth: true scores in [0, 1].
        scores: reported scores, not finite where an eval is missing.
    """
    found: list[Paired | None] = []
    best: int | None = None
    for number, score in enumerate(scores):
        if best is None:
            found.append(None)
        else:
            gap = truth[number] - truth[best]
            disagreement = max(discordant, abs(gap))
            better = binomial(prompts, (disagreement + gap) / 2.0)
            remaining = prompts - better
            worse = 0
            if remaining:
                worse = binomial(remaining, (disagreement - gap) / (2.0 - disagreement - gap))
            mean = (better - worse) / prompts
            variance = (better + worse - prompts * mean * mean) / (prompts - 1)
            found.append(Paired(best + 1, prompts, mean, variance))
        if best is None or score > scores[best]:
            best = number if score == score else best
    return found


def binomial(random: Random) -> Binomial:
    """Sample a binomial by geometric gaps; cost is proportional to the number of successes."""

    def draw(trials: int, chance: float) -> int:
        if chance >= 1.0:
            return trials
        if chance <= 0.0:
            return 0
        failure, count, position = log(1.0 - chance), 0, 0
        while True:
            position += 1 + int(log(1.0 - random.random()) / failure)
            if position > trials:
                return count
            count += 1

    return draw
