"""A forecast as a sample of responses, longest first, small enough to be played through for every count.

Copies differ by quantiles of their spread, dealt out along a Weyl sequence: the same for the same forecast,
without randomness, and as even over long prompts as over short ones.

A sample is of bounded size, whatever the step: one planner serves all jobs. Where responses are many for the
slots of an actor, each that is sampled stands for as many as there are slots, and neighbours in rank are
chained: a slot takes a chain's responses one after the other, and what waits behind it waits as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import mul
from statistics import NormalDist

from controller.frozen import dataclass
from controller.policy.params import ParamError
from controller.policy.rollout.types import Forecast

MOST_OF_A_SLOT = 16_384  # responses of a step for each slot of an actor: more would be drawn one by one
MOST = 1024  # responses, or chains, in a sample that is played through once for each count
MOST_RANKED = 512  # in one that is played through group by group, with moves
LARGEST_CHAIN = 4.0  # times the mean of a sample's chains: those of one queue are no longer than that
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_QUANTILES = tuple(NormalDist().inv_cdf((i + 0.5) / 1024) for i in range(1024))


@dataclass(frozen=True, slots=True)
class Sample:
    """Responses that stand for all of a step.

    Attributes:
        lengths: tokens of sampled responses, in the order of their prompts' predictions, longest first; of
            chained ones those of the chain.
        squares: sums of squares of the same.
        thinned: number of responses that each sampled one stands for; slots are thinned alike.
        longest: tokens of the longest of all responses.
        prompts: number of prompts.
        tokens: of all responses.
        grown: half the sum of squares of all lengths: tokens that live responses had so far, summed over
            iterations.
        chained: sampled responses in a chain; 1: they are single.
    """

    lengths: tuple[int, ...]
    squares: tuple[int, ...]
    thinned: float
    longest: int
    prompts: int
    tokens: float
    grown: float
    chained: int = 1


def check_size(forecast: Forecast, slots: int) -> None:
    """Refuse a forecast that takes a planner long: a sample is drawn thinned by an actor's slots at most.

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


def sample(forecast: Forecast, slots: int, most: int = MOST, equal: bool = True) -> tuple[Sample, int]:
    """Return a sample of about ``most`` responses or chains, and the slots that an actor has in it.

    Slots stay whole numbers: an actor of 64 slots is thinned by 1, 2, 4 …, one of 3 slots by 1 or 3.

    Args:
        forecast: of the step.
        slots: of an actor.
        most: size of the sample.
        equal: all chains have as many responses, so groups of equal counts can be cut from them; else none
            is much longer than others, and there may be up to a half more of them.
    """
    responses = forecast.responses
    factor = max(1, min(slots, -(-responses // most)))
    thin = next(f for f in range(factor, slots + 1) if slots % f == 0)
    found = list(_drawn(forecast, thin))
    lengths = [round(length) for length in found]
    tokens = grown = 0.0
    for length in found:  # not `sum`, which rounds otherwise from Python 3.12 on: plans replay everywhere
        tokens += length
        grown += length * length
    # The longest of n: about the 1 - 1/(n + 1) quantile among the responses of the first prompts.
    longest = 0
    if forecast.bins:
        shift, cap, spread = forecast.spread**2 / 2.0, float(forecast.cap), forecast.spread
        ahead = forecast.bins[0][1] * forecast.copies
        z = NormalDist().inv_cdf(1.0 - 0.5 / (ahead + 1.0))
        longest = max(max(lengths), round(min(cap, forecast.bins[0][0] * math.exp(spread * z - shift))))
    scale = responses / len(lengths) if lengths else 1.0
    chained = -(-len(lengths) // most) if thin == slots else 1
    if chained <= 1:
        chained, items, squares = 1, tuple(lengths), tuple(map(mul, lengths, lengths))
    else:
        largest = math.inf if equal else LARGEST_CHAIN * sum(lengths) / most
        items, squares = _chains(lengths, chained, largest)
    return Sample(
        items, squares, scale, longest, forecast.prompts, tokens * scale, grown * scale / 2.0, chained
    ), slots // thin


def _drawn(forecast: Forecast, thin: int) -> Iterator[float]:
    """Yield tokens of every so many-th response."""
    shift, cap, spread = forecast.spread**2 / 2.0, float(forecast.cap), forecast.spread
    first = before = 0
    for mean, prompts in forecast.bins:
        before += prompts * forecast.copies
        after = -(-before // thin)
        for place in range(first, after):
            z = _QUANTILES[int(1024 * (place * _GOLDEN % 1.0))]
            yield max(1.0, min(cap, mean * math.exp(spread * z - shift)))
        first = after


def _chains(lengths: Sequence[int], most: int, largest: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return tokens, and sums of squares, of chains of at most so many responses and ``largest`` tokens; a
    longer response stays single."""
    items, squares, tokens, square, count = [], [], 0, 0, 0
    for length in lengths:
        if count == most or (count and tokens + length > largest):
            items.append(tokens)
            squares.append(square)
            tokens = square = count = 0
        tokens, square, count = tokens + length, square + length * length, count + 1
    return (*items, tokens), (*squares, square)
