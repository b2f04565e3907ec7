"""Result of a run, in columns like the workload's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, nan
from typing import NamedTuple


class Stop(NamedTuple):
    """A rule's first STOP on a job: at which eval (from 0), when its score was known, and the best eval."""

    eval: int
    at: float
    best: int


@dataclass(slots=True)
class Result:
    """One row per job of the workload; times in s, service in GPU-seconds.

    Attributes:
        started: first admission.
        ended: when the GPUs were free again, after the end or the stop.
        useful: seconds of training that count.
        lost: seconds trained, then undone by going back to a checkpoint.
        evals_made: evals made until the end or the stop.
        stops: by row, jobs whose rule said STOP.
        stopped: rows that were stopped by it (a STOP at the very end, or late, finds the job done).
    """

    submitted: Sequence[float]
    gpus: Sequence[int]
    started: list[float]
    ended: list[float]
    service: list[float]
    useful: list[float]
    lost: list[float]
    evals_made: list[int]
    preempted: dict[int, int]  # row -> times
    stops: dict[int, Stop]
    stopped: set[int]
    events: int

    @property
    def jct(self) -> list[float]:
        """Seconds from submission to the end of each job."""
        return [end - start for end, start in zip(self.ended, self.submitted, strict=True)]

    @property
    def mean_jct(self) -> float:
        """NaN without jobs."""
        return fsum(self.jct) / len(self.ended) if self.ended else nan

    @property
    def makespan(self) -> float:
        """Return when the last job ended, s; 0 without jobs."""
        return max(self.ended, default=0)

    @property
    def preemptions(self) -> int:
        return sum(self.preempted.values())
