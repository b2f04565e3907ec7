"""Counters of each job of a simulation, by row, for its result."""

from __future__ import annotations

from sim.engine.evaluations import Evaluations
from sim.engine.result import Result
from sim.engine.training import Training
from sim.workload import Workload


class JobColumns:
    """Columns of a `Result` while the run goes on; times in s, -1 where nothing has happened yet.

    ``counted``: until when a running job's service is in its view's ``attained``; while it starts, when its
    members will be ready, from which on it is counted. ``held``: since when it has had its GPUs.
    """

    __slots__ = (
        "_workload",
        "counted",
        "ended",
        "held",
        "lost",
        "preempted",
        "service",
        "started",
        "stopped",
    )

    def __init__(self, workload: Workload) -> None:
        rows = len(workload)
        self._workload = workload
        self.started: list[float] = [-1] * rows
        self.ended: list[float] = [-1] * rows
        self.service: list[float] = [0] * rows
        self.lost: list[float] = [0] * rows
        self.counted: list[float] = [0] * rows
        self.held: list[float] = [0] * rows
        self.preempted: dict[int, int] = {}
        self.stopped: set[int] = set()

    def result(self, training: Training, judged: Evaluations, events: int) -> Result:
        """Once every job has ended."""
        workload, stopped = self._workload, self.stopped
        useful = list(workload.work)
        for row in stopped:
            useful[row] = training.done[row]
        made = [0] * len(workload)
        if workload.evals:
            made = [len(evals.at) if evals is not None else 0 for evals in workload.evals]
        for row in stopped:
            made[row] = training.next[row]
        return Result(
            submitted=workload.submitted,
            gpus=workload.gpus,
            started=self.started,
            ended=self.ended,
            service=self.service,
            useful=useful,
            lost=self.lost,
            evals_made=made,
            preempted=self.preempted,
            stops=judged.stops,
            stopped=stopped,
            events=events,
        )
