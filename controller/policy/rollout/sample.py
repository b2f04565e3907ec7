"""A forecast as a sample of responses, longest first, small enough to be played through for every count.

Copies differ by quantiles of their spread, dealt out along a Weyl sequence: the same for the same forecast,
without randomness, and as even over long prompts as over short ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from controller.policy.params import ParamError
from controller.policy.rollout.types import Forecast

MOST_OF_A_SLOT = 16_384  # responses of a step for each slot of an actor: more would be played one by one
MOST = 1024  # responses in a sample that is played through once for each count
MOST_RANKED = 512  # in one that is played through group by group, with moves
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_QUANTILES = tuple(NormalDist().inv_cdf((i + 0.5) / 1024) for i in range(1024))


@dataclass(frozen=True, slots=True)
class Sample:
    """Responses that stand for all of a step.

    Attributes:
        lengths: tokens of sampled responses, in the order of their prompts' predictions, longest first.
        thinned: number of responses that each stands for; slots are thinned alike.
        longest: tokens of the longest of all responses.
        prompts: number of prompts.
        tokens: of all responses.
        grown: half the sum of squares of all lengths: tokens that live responses had so far, summed over
            iterations.
    """

    lengths: tuple[int, ...]
    thinned: float
    longest: int
    prompts: int
    tokens: float
    grown: float


def check_size(forecast: Forecast, slots: int) -> None:
    """Refuse a forecast that takes a planner seconds: a sample is thinned by an actor's slots at most.

    Raises:
        ParamError: it has too many responses for actors of so few slots.
    """
    most = MOST_OF_A_SLOT * slots
    if forecast.responses > most:
        raise ParamError(
            "forecast.bins",
            forecast.prompts,
            f"at most {most // forecast.copies} prompts in all bins together"
            f" ({most} responses, {forecast.copies} of each prompt, where an actor has {slots} slots)",
        )


def sample(forecast: Forecast, slots: int, most: int = MOST) -> tuple[Sample, int]:
    """Return a sample of at most about ``most`` responses, and the slots that an actor has in it.

    Slots stay whole numbers: an actor of 64 slots is thinned by 1, 2, 4 …, one of 3 slots by 1 or 3.
    """
    responses = forecast.responses
    factor = max(1, min(slots, -(-responses // most)))
    thin = next(f for f in range(factor, slots + 1) if slots % f == 0)
    lengths: list[int] = []
    longest, tokens, grown, position = 0, 0.0, 0.0, 0
    shift, cap, spread = forecast.spread**2 / 2.0, float(forecast.cap), forecast.spread
    for mean, prompts in forecast.bins:
        for _ in range(prompts * forecast.copies):
            if position % thin == 0 or not lengths:
                z = _QUANTILES[int(1024 * (position // thin * _GOLDEN % 1.0))]
                length = max(1.0, min(cap, mean * math.exp(spread * z - shift)))
                lengths.append(round(length))
                tokens += length
                grown += length * length
            position += 1
    # The longest of n: about the 1 - 1/(n + 1) quantile among the responses of the first prompts.
    if forecast.bins:
        longest = max(lengths)
        ahead = forecast.bins[0][1] * forecast.copies
        z = NormalDist().inv_cdf(1.0 - 0.5 / (ahead + 1.0))
        longest = max(longest, round(min(cap, forecast.bins[0][0] * math.exp(spread * z - shift))))
    scale = responses / len(lengths) if lengths else 1.0
    return Sample(
        tuple(lengths), scale, longest, forecast.prompts, tokens * scale, grown * scale / 2.0
    ), slots // thin
