"""Each job's stays on GPUs as a timeline, of one form for simulator and cluster.

Times are seconds since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import fsum, nan
from typing import NamedTuple

from controller.frozen import dataclass


class How(StrEnum):
    """End of a stay."""

    END = "end"  # the training was done
    STOP = "stop"  # the stop rule
    PREEMPT = "preempt"  # the queue policy


@dataclass(frozen=True, slots=True)
class Stay:
    """One admission of a job.

    Attributes:
        freed: when its GPUs were free again.
        decided: when the stop or the preemption was decided; None: it ended by itself.
        nodes: where its members ran; () where that was not recorded.
        began: number of its start, the same in this run and another (`controller.parity.pairing`); 0: its
            place among the job's stays.
        left: number of its preemption, likewise.
    """

    admitted: float
    freed: float
    how: How
    decided: float | None = None
    nodes: tuple[str, ...] = ()
    began: int = 0
    left: int = 0

    @property
    def end(self) -> float:
        """Return when its end was decided, or came by itself."""
        return self.freed if self.decided is None else self.decided


@dataclass(frozen=True, slots=True)
class Lived:
    """A job, from its submission to its last free GPU."""

    key: str
    gpus: int
    submitted: float
    stays: tuple[Stay, ...]

    @property
    def jct(self) -> float:
        """Seconds from submission to free GPUs; NaN for a job that never ran."""
        return self.stays[-1].freed - self.submitted if self.stays else nan

    @property
    def stopped(self) -> bool:
        return bool(self.stays) and self.stays[-1].how is How.STOP


class Event(NamedTuple):
    """A decision, or the end of a run. ``nth``: number of a start or a preemption, from 1; else 1."""

    time: float
    kind: str  # start | preempt | stop | end
    key: str
    nth: int

    @property
    def name(self) -> tuple[str, str, int]:
        return self.kind, self.key, self.nth

    def __str__(self) -> str:
        again = f" (number {self.nth})" if self.nth > 1 else ""
        return f"{self.kind} of {self.key}{again}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run of all jobs, in the order of the trace."""

    jobs: tuple[Lived, ...]

    @property
    def mean_jct(self) -> float:
        """Seconds; NaN without jobs."""
        return fsum(job.jct for job in self.jobs) / len(self.jobs) if self.jobs else nan

    @property
    def stops(self) -> int:
        return sum(job.stopped for job in self.jobs)

    @property
    def preemptions(self) -> int:
        return sum(stay.how is How.PREEMPT for job in self.jobs for stay in job.stays)

    @property
    def makespan(self) -> float:
        """Return when the last GPU came free, s."""
        return max((stay.freed for job in self.jobs for stay in job.stays), default=0.0)

    def events(self) -> list[Event]:
        """Everything that was decided, and the ends, in the order of time; at one time in the trace's."""
        found: list[tuple[float, int, int, Event]] = []
        for row, job in enumerate(self.jobs):
            for number, stay in enumerate(job.stays, start=1):
                pairs: Iterable[Event] = (
                    Event(stay.admitted, "start", job.key, stay.began or number),
                    Event(
                        stay.end,
                        str(stay.how),
                        job.key,
                        (stay.left or number) if stay.how is How.PREEMPT else 1,
                    ),
                )
                found += [(event.time, row, place, event) for place, event in enumerate(pairs)]
        return [event for *_, event in sorted(found)]


def as_dict(timeline: Timeline) -> list[dict[str, object]]:
    """As JSON values; `of_dict` reads them back."""
    return [
        {
            "job": job.key,
            "gpus": job.gpus,
            "submitted": job.submitted,
            "stays": [[s.admitted, s.decided, s.freed, str(s.how), list(s.nodes)] for s in job.stays],
        }
        for job in timeline.jobs
    ]


def of_dict(jobs: Sequence[dict[str, object]]) -> Timeline:
    """Return the inverse of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
    return Timeline(
        tuple(
            Lived(
                str(job["job"]),
                int(job["gpus"]),  # type: ignore[call-overload]
                float(job["submitted"]),  # type: ignore[arg-type]
                tuple(_stay(*stay) for stay in job["stays"]),  # type: ignore[attr-defined]
            )
            for job in jobs
        )
    )


def _stay(admitted: float, decided: float | None, freed: float, how: str, nodes: Sequence[str] = ()) -> Stay:
    """Of its values in the order in which they are written; older recordings do not name nodes."""
    return Stay(admitted, freed, How(how), decided, tuple(nodes))
