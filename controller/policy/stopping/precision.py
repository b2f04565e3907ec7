"""Evals too imprecise to count: a smoke test of four prompts among evals of thousands, a judge that answered
six of them.

Rules measure every fall by the largest standard error among the evals that they compare (`noise`). So one
eval whose error is many times the others' would hide each later fall, and it tells next to nothing itself:
an eval with ``times`` the error weighs 1 / ``times`` squared of another.

An error is no such sign where as many samples were scored: that of a share is smaller near 0 and near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from controller.policy.stopping import noise
from controller.policy.types import EvalPoint

TIMES = 3.0  # as large as the others' an error is too large to count: a ninth of their samples
LEAST = 4  # evals with an error, from which on the others' is known to whoever tells of one


class Precision(NamedTuple):
    """Standard error and size of an eval.

    Attributes:
        error: its standard error (score units); 0: not known.
        samples: how many were scored; 0: not known.
    """

    error: float = 0.0
    samples: int = 0

    @staticmethod
    def of(point: EvalPoint) -> Precision:
        """Return that of an eval, its error as rules know it (`noise.error`)."""
        return Precision(noise.error(point) or 0.0, point.samples or point.prompts or 0)

    def coarser(self, than: Precision, times: float = TIMES) -> bool:
        """Return whether this error is more than ``times`` the other, and not of as many samples."""
        if not than.error or self.error <= times * than.error:
            return False
        return not self.samples or not than.samples or times * self.samples < than.samples


def usual(points: Sequence[EvalPoint]) -> Precision:
    """Return the precision that most of these evals have: medians of their errors and of their samples; of
    fewer than `LEAST` evals with an error it is not known."""
    known = [one for one in map(Precision.of, points) if one.error]
    if len(known) < LEAST:
        return Precision()
    samples = [one.samples for one in known if one.samples]
    return Precision(median(one.error for one in known), int(median(samples)) if samples else 0)
