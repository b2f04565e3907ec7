"""Explain a queue policy's ranking of a job, in numbers for people."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from controller.policy.queueing.base import QueueJob, QueuePolicy, Ranking
from controller.policy.types import JobState, namespace_of


def ranked_by(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
    """Return the quantities by which a policy orders a job, most important first.

    The time of submission, by which every policy breaks ties, comes last.

    Args:
        policy: the pool's policy.
        job: the job.
        jobs: the pool's others; only the running ones of the job's namespace count.
    """
    mine = namespace_of(job.key)
    running = [j for j in jobs if namespace_of(j.key) == mine and j.state is JobState.ADMITTED]
    key = policy.ranking(job, running) | {"submitted": job.submitted}
    return {name: _finite(value) for name, value in key.items()}


def _finite(value: float | int | str | None) -> float | int | str | None:
    return None if isinstance(value, float) and not isfinite(value) else value
