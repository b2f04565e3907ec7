"""The scatter of a mean JCT by chance: one trial simulated again and again, each time with other delays.

Which of two jobs ends first, and by that who gets which GPUs, is often a matter of less than the delays
scatter by; in a queue of gangs one such moment moves what comes after it by minutes. A cluster's run is one
draw of all of them, and so is to be held against many.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import TypeVar

import numpy as np

from controller.frozen import dataclass
from controller.parity.calibration import Calibration
from controller.parity.compressed_trace import TraceOnCluster
from controller.parity.simulated import simulated
from controller.policy.types import PolicySpec
from sim.workload import Evals, Workload

REPLAYS = 100
_WORK_LEAST = 0.5  # s
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Scatter:
    """Of the mean JCTs (s) of so many replays: their mean, and between which nine tenths of them lie."""

    replays: int
    mean: float
    low: float
    high: float


def scatter(
    trial: TraceOnCluster, policy: PolicySpec, calibration: Calibration, replays: int = REPLAYS, seed: int = 0
) -> Scatter:
    """Simulate a trial under a (compressed) policy ``replays`` times, its jobs shaken anew each time, and
    every stop, preemption and hand-over with delays of its own.

    Nothing of the cluster's run goes into it but what the calibration measured before. Raises like
    `simulated`.
    """
    rng = random.Random(seed)
    draw = partial(drawn, calibration, rng)
    found = [
        simulated(shaken(trial, calibration, rng), policy, calibration.latencies, draw).mean_jct
        for _ in range(replays)
    ]
    low, high = (float(bound) for bound in np.quantile(found, (0.05, 0.95)))
    return Scatter(replays, fsum(found) / replays, low, high)


def drawn(calibration: Calibration, rng: random.Random, latency: str) -> float:
    """Return how much longer than usual (s) something takes once: it has the calibration's mean and standard
    deviation, and a gamma distribution, as it never takes less than nothing."""
    mean, deviation = calibration.mean(latency), calibration.deviation(latency)
    if not mean or not deviation:
        return 0.0
    return rng.gammavariate((mean / deviation) ** 2, deviation**2 / mean) - mean


def shaken(trial: TraceOnCluster, calibration: Calibration, rng: random.Random) -> TraceOnCluster:
    """Return the trial with each job's moments moved by draws of what the delays scatter by.

    A job comes earlier or later by one of ``queue_delay``, trains longer or shorter by one of
    ``start_delay`` and one of ``end_delay``, and its evals are heard earlier or later by one of
    ``eval_delay``.
    """

    draw = partial(drawn, calibration, rng)
    given = trial.workload
    submitted = [max(0.0, at + draw("queue_delay")) for at in given.submitted]
    work = [max(_WORK_LEAST, work + draw("start_delay") + draw("end_delay")) for work in given.work]
    evals = [
        None if made is None else moved(made, draw("eval_delay") / lasts)
        for made, lasts in zip(given.evals or [None] * len(given), work, strict=True)
    ]
    order = sorted(range(len(given)), key=submitted.__getitem__)

    def sorted_(column: Sequence[_T]) -> list[_T]:
        return [column[row] for row in order] if column else []

    made = Workload(
        sorted_(submitted),
        sorted_(given.gpus),
        sorted_(work),
        keys=[given.key(row) for row in order],
        gpus_per_replica=sorted_(given.gpus_per_replica),
        priority=sorted_(given.priority),
        weight=sorted_(given.weight),
        estimate=sorted_(given.estimate),
        group=sorted_(given.group),
        evals=sorted_(evals),
    )
    gangs = tuple(trial.gangs[row] for row in order)
    return replace(trial, workload=made, gangs=gangs, names=tuple(trial.names[row] for row in order))


def moved(evals: Evals, by: float) -> Evals:
    """Return the same evals, all by so large a share of the training later; one that would come after its
    end, or before its beginning, is left out."""
    kept = [n for n, at in enumerate(evals.at) if 0.0 < at + by <= 1.0]

    def of(column: Sequence[_T]) -> list[_T]:
        return [column[n] for n in kept] if len(column) else []

    return Evals(
        [evals.at[n] + by for n in kept],
        of(evals.scores),
        of(evals.losses),
        of(evals.proxies),
        of(evals.paired),
        {name: of(column) for name, column in evals.others.items()},
        of(evals.stderrs),
    )
