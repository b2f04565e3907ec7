"""The facts of one job in a cluster's past, as its operator saw it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from controller.policy.job import Desired, JobRecord
from controller.policy.types import Attempt, EvalPoint, JobView

EvalKey = tuple[Attempt, int]  # of an eval: attempt and step


@dataclass(slots=True)
class JobFacts:
    """Facts known of one job so far. ``line``, ``file``: where it was first named."""

    file: Path
    line: int
    view: JobView | None = None
    at: float = 0.0  # when the view was given
    ended: float | None = None  # first plan of the pool without it
    held: float = 0.0  # GPU-seconds from plan to plan while it was admitted
    desired: Desired | None = None
    record: JobRecord | None = None
    points: list[EvalPoint] = field(default_factory=list)
    losses: dict[EvalKey, float] = field(default_factory=dict)  # training loss when the eval was first seen
    others: dict[str, dict[EvalKey, float]] = field(default_factory=dict)  # by metric, as the trainer reports
    step: int = 0
    total_steps: int = 0
    checkpoints: list[int] = field(default_factory=list)  # steps, in the order in which they were told of
    admitted: dict[int, float] = field(default_factory=dict)  # number of the admission -> when
    waits: dict[int, float] = field(default_factory=dict)  # number of the admission -> s waited for it
    early: bool = False  # had GPUs when the history began
    lives: list[Attempt] = field(default_factory=list)  # of its trainer, in the order seen

    @property
    def finished(self) -> str | None:
        return self.record.finished if self.record is not None else None

    def take(self, points: Iterable[EvalPoint]) -> None:
        """Evals, some of which may be known: a new life takes back what it does again.

        Lives come in the order in which they are first seen; an earlier one says nothing any more.
        """
        known = {(p.attempt, p.step) for p in self.points}
        for point in points:
            if point.attempt not in self.lives:
                self.lives.append(point.attempt)
                self.points = [p for p in self.points if p.step < point.step]
            if (point.attempt, point.step) in known or point.attempt != self.lives[-1]:
                continue
            if not self.points or point.step > self.points[-1].step:
                self.points.append(point)
