"""Trust in predictions: are they good enough to plan by, in ranks of prompts and in time of steps?

Two errors, each smoothed over the last steps. Ranks: Spearman's correlation of predicted and actual lengths
over the prompts of a step (1: perfect, 0: they say nothing); dispatch lives by it. Time: the logarithm of
measured over planned seconds, these with starts as they came (`late`); the count lives by it. While one is
poor a step gets `static` actors and one queue, which needs neither. Planning goes on beside it, so it is
taken up again when both are good, at other limits than it was left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from controller.frozen import dataclass

LOW_RANK, GOOD_RANK = 0.25, 0.35  # correlation: given up below, taken up again above
HIGH_TIME, GOOD_TIME = 0.30, 0.20  # mean |log ratio|: given up above, taken up again below
NEWEST = 0.5  # weight of the newest step


@dataclass(frozen=True, slots=True)
class Trust:
    """Errors of predictions so far. A step makes a new one of it; None: not seen yet."""

    rank: float | None = None
    time_error: float | None = None
    ranks_poor: bool = False
    times_poor: bool = False

    @property
    def poor(self) -> bool:
        return self.ranks_poor or self.times_poor

    def seen(self, rank: float | None, planned: float | None, measured: float) -> Trust:
        """Return the trust after a step.

        Args:
            rank: correlation of predicted and actual lengths; None or NaN: too few prompts to say.
            planned: s that its generation was planned to take, with its actors' starts as they came; None: it
                was not planned.
            measured: s that it took.
        """
        smooth = self.rank
        if rank is not None and -1.0 <= rank <= 1.0:
            smooth = rank if smooth is None else smooth + NEWEST * (rank - smooth)
        error = self.time_error
        if planned is not None and 0.0 < planned < math.inf and 0.0 < measured < math.inf:
            newest = abs(math.log(measured / planned))
            error = newest if error is None else error + NEWEST * (newest - error)
        ranks_poor = smooth is not None and smooth < (GOOD_RANK if self.ranks_poor else LOW_RANK)
        times_poor = error is not None and error > (GOOD_TIME if self.times_poor else HIGH_TIME)
        return Trust(smooth, error, ranks_poor, times_poor)


def rank_correlation(predicted: Sequence[float], actual: Sequence[float]) -> float | None:
    """Return Spearman's correlation, ties at their mean rank; None for fewer than 8 pairs or all alike."""
    if len(predicted) != len(actual) or len(predicted) < 8:
        return None
    a, b = _ranks(predicted), _ranks(actual)
    middle = (len(a) + 1) / 2.0
    above = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    below = math.sqrt(sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b))
    return above / below if below > 0.0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + 1 + end) / 2.0
        begin = end
    return ranks
