"""How often a rule stops a run that stays flat, by the run's length: what it can promise of any healthy run.

For rules whose statistic compares later means with earlier ones by fixed weights (scan, GLR, drawdown in
sigmas, CUSUM) and independent noise of known size, no run whose true score never falls is stopped oftener
than the flat one: at each eval the rise can only lower the statistic (`controller.policy.stopping.windows`).
So what is measured on flat runs bounds all of them.

Noise is reported with every eval, alike or not (``uneven``), or estimated. Uneven is the bad case of evals on
fewer prompts from some eval on: a rule that took an average of the errors would take noise for a fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sim.foresight import RuleSpec
from sim.rules import vector
from sim.rules.evaluate import exact_interval, upper_bound

LENGTHS = (10, 20, 50, 100, 200, 500)
BATCH = 1000  # runs drawn at a time
QUIET, LOUDER = 25, 5.0  # uneven noise: evals before it grows, and how many times


@dataclass(frozen=True, slots=True)
class FlatRow:
    """How many flat runs of one kind a rule stops.

    Attributes:
        stopped: share of the runs stopped within ``evals``.
        bound: its one-sided 95 % upper bound.
    """

    rule: str
    noise: str  # reported | uneven | estimated
    evals: int
    runs: int
    stopped: float
    bound: float
    interval: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rates(
    name: str,
    spec: RuleSpec,
    *,
    runs: int,
    seed: int,
    lengths: Sequence[int] = LENGTHS,
    reported_times: float = 1.0,
) -> Iterator[FlatRow]:
    """Gaussian noise, known to the rule and not, the same runs for every length and rule.

    ``reported_times``: standard errors are reported as so many times what they are.

    Raises:
        ValueError: the rule has no vectorised form.
    """
    if not vector.covers(spec):
        raise ValueError(
            f"--rule: {name!r} has no vectorised form, expected one of {', '.join(vector.FORMS)}"
        )
    alike = np.ones(max(lengths))
    uneven = np.where(np.arange(max(lengths)) < QUIET, 1.0, LOUDER)
    for noise, errors in (("reported", alike), ("uneven", uneven), ("estimated", None)):
        random = np.random.default_rng(seed)
        stops = []
        for start in range(0, runs, BATCH):
            scores = random.standard_normal((min(BATCH, runs - start), max(lengths)))
            stderrs = np.full(scores.shape, np.nan)
            if errors is not None:
                scores, stderrs = scores * errors, np.broadcast_to(errors * reported_times, scores.shape)
            stops.append(vector.first_stops(spec, vector.Evals(scores, stderrs)))
        first = np.concatenate(stops)
        for evals in lengths:
            hits = int(((first >= 0) & (first < evals)).sum())
            yield FlatRow(
                name, noise, evals, runs, hits / runs, upper_bound(hits, runs), exact_interval(hits, runs)
            )
