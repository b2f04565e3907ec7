"""Jobs as the policy sees them when they arrive, made from the workload one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.engine.training import Training
from sim.engine.virtual_job import DetailedJob, JudgedJob, VirtualJob
from sim.workload import Workload


def views(
    workload: Workload,
    training: Training,
    gangs: list[tuple[int, int]] | None,
    *,
    judged: bool,
    detailed: bool,
    progresses: bool,
) -> Iterator[VirtualJob]:
    """Return the view of each job by row, made when it is asked for, so that few are there at once.

    Args:
        workload: the jobs.
        training: how far each has come.
        gangs: (replicas, GPUs of each) by row; None where only the number of GPUs matters.
        judged: whether jobs can be proposed for a stop.
        detailed: whether jobs change as they run.
        progresses: whether the policy is shown how far a run is.
    """
    rows = range(len(workload))
    # Jobs that can be told apart by more than time and size, or change as they run, have larger views.
    if (
        detailed
        or gangs is not None
        or any(map(len, (workload.priority, workload.weight, workload.estimate)))
    ):
        return (_detailed(workload, training, gangs, progresses, row) for row in rows)
    keys: Iterable[str] = workload.keys or map("sim/".__add__, map(str, rows))
    view = JudgedJob if judged else VirtualJob
    return map(view, keys, workload.submitted, rows, workload.gpus, workload.work)


def _detailed(
    workload: Workload, training: Training, gangs: list[tuple[int, int]] | None, progresses: bool, row: int
) -> DetailedJob:
    left = training.left(row, False)
    job = DetailedJob(workload.key(row), workload.submitted[row], row, workload.gpus[row], left)
    if gangs is not None:
        job.replicas, job.gpus_each = gangs[row]
        job.base_actors = workload.actors[row] if workload.actors else None
    if len(workload.priority):
        job.priority = workload.priority[row]
    if len(workload.weight):
        job.weight = workload.weight[row]
    if len(workload.estimate):
        job.estimate = workload.estimate[row]
    if progresses:
        job.progress = 0.0
    return job
