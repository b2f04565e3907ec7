"""Paired differences as a trainer would report them: two policies' scores of the same fresh prompts, right or
wrong, and how often one is right where the other is not.
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
    """Return one eval's differences to the best eval before it, by the scores seen; None at the first.

    The two policies differ on the share ``discordant`` of the prompts, more where their true scores lie
    further apart; of ``n`` prompts the current policy is better on n+ and worse on n-, both binomial, so the
    mean (n+ - n-) / n is right on average and every difference lies in -1 to 1.

    Args:
        binomial: draws, from the caller's random numbers.
        prompts: how many prompts each difference is about, ``n``.
        discordant: share of the prompts on which equally good policies differ.
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
            apart = max(discordant, abs(gap))
            better = binomial(prompts, (apart + gap) / 2.0)
            left = prompts - better
            worse = binomial(left, (apart - gap) / (2.0 - apart - gap)) if left else 0
            mean = (better - worse) / prompts
            variance = (better + worse - prompts * mean * mean) / (prompts - 1)
            found.append(Paired(best + 1, prompts, mean, variance))
        if best is None or score > scores[best]:
            best = number if score == score else best
    return found


def binomial(random: Random) -> Binomial:
    """Successes counted by the gaps between them: as many steps as successes."""

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
