"""Prediction of response lengths: a moving average for each prompt, the spread of copies, a common drift.

RLHFless (arXiv 2602.22718, 4.3) keeps an exponentially weighted average of a prompt's lengths over epochs;
with window 1, the default, it is the mean of the last epoch. What it leaves out: copies of one prompt end
at different times, so that the last response of a step is longer than the longest average (the curve is 10
% too good at many actors without it), and all lengths of a run grow or shrink together, which a step behind
shows as a bias.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from statistics import median

from controller.frozen import dataclass
from controller.policy.params import ParamError
from controller.policy.rollout.types import MOST_BINS, Forecast

SPREAD = 0.2  # log-sd between copies while none was seen
PRIOR_PROMPTS = 8.0  # that this counts for
BIAS_STEP = 0.8  # weight of the newest step in a bias
MOST_BIAS = 8.0  # or one over it: so far a step is believed


@dataclass(frozen=True, slots=True)
class LengthHistory:
    """Statistics of lengths so far. A step makes new ones of them; they go into the trainer's checkpoint.

    Args:
        window: epochs that an average is over; 1: the last one.
        means: tokens of each prompt, averaged.
        squares, degrees: of log-lengths around their prompt's mean: their sum, and how many are free.
        bias: actual length over the average, the median of prompts, in the last steps; 1: none.
        guess_bias: the same over the trainer's guesses, for prompts that were not seen before.
    """

    window: int = 1
    means: Mapping[Hashable, float] = field(default_factory=dict)
    squares: float = 0.0
    degrees: float = 0.0
    bias: float = 1.0
    guess_bias: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 100:
            raise ParamError("window", self.window, "1 to 100 epochs")

    @property
    def spread(self) -> float:
        """Log-sd between copies, drawn to a usual one while few were seen."""
        degrees = self.degrees + PRIOR_PROMPTS
        return math.sqrt((self.squares + PRIOR_PROMPTS * SPREAD**2) / degrees)

    def predict(self, prompts: Sequence[tuple[Hashable, float | None]]) -> list[float]:
        """Return expected tokens of each prompt's responses.

        Args:
            prompts: each prompt's identity and the trainer's guess, such as the length of the right answer;
                None:
                it has none, and the average of all prompts stands for it.
        """
        usual = sum(self.means.values()) / len(self.means) if self.means else None
        found = []
        for key, guess in prompts:
            mean = self.means.get(key)
            if mean is not None:
                found.append(mean * self.bias)
            elif guess is not None and 0.0 < guess < math.inf:
                found.append(guess * self.guess_bias)
            else:
                found.append(1.0 if usual is None else usual * self.bias)
        return found

    def seen(self, step: Iterable[tuple[Hashable, float, Sequence[int]]]) -> LengthHistory:
        """Return the history after a step.

        Args:
            step: of each prompt its identity, what was predicted, and the tokens of its copies. A prompt
                without
                copies, or with one of no tokens, is left out.
        """
        means, squares, degrees = dict(self.means), 0.0, 0
        weight = 2.0 / (self.window + 1.0)
        known: list[float] = []  # actual over expected lengths
        new: list[float] = []
        for key, predicted, lengths in step:
            if not lengths or min(lengths) < 1:
                continue
            mean = sum(lengths) / len(lengths)
            before = means.get(key)
            if 0.0 < predicted < math.inf:
                ratios, bias = (new, self.guess_bias) if before is None else (known, self.bias)
                ratios.append(mean * bias / predicted)
            means[key] = mean if before is None else before + weight * (mean - before)
            if len(lengths) > 1:
                logs = [math.log(length) for length in lengths]
                middle = sum(logs) / len(logs)
                squares += sum((log - middle) ** 2 for log in logs)
                degrees += len(logs) - 1
        # What was seen long ago counts less: policies grow more certain, and copies more alike.
        return LengthHistory(
            self.window,
            means,
            0.7 * self.squares + squares,
            0.7 * self.degrees + degrees,
            _moved(self.bias, known),
            _moved(self.guess_bias, new),
        )


def _moved(bias: float, ratios: Sequence[float]) -> float:
    """Return a bias moved towards what a step showed; as it was, if it showed nothing.

    The median over prompts: those whose responses end at the cap do not grow, and would hide that others do.
    """
    if not ratios:
        return bias
    return bias + BIAS_STEP * (min(MOST_BIAS, max(1.0 / MOST_BIAS, median(ratios))) - bias)


def forecast(
    predicted: Sequence[float], copies: int, spread: float, cap: int, bins: int = MOST_BINS
) -> Forecast:
    """Return the histogram that is sent instead of prompts.

    Args:
        predicted: tokens of each prompt's responses.
        copies: responses of a prompt.
        spread: log-sd between them.
        cap: tokens that no response exceeds.
        bins: at most; each holds prompts next to each other in rank, and stands for their mean.
    """
    ordered = sorted((min(float(cap), max(1.0, tokens)) for tokens in predicted), reverse=True)
    count = min(bins, len(ordered))
    cuts = [i * len(ordered) // count for i in range(count + 1)] if count else [0]
    parts = [ordered[a:b] for a, b in pairwise(cuts)]
    return Forecast(tuple((sum(part) / len(part), len(part)) for part in parts), copies, spread, cap)
