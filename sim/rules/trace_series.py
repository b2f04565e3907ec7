"""The evals of a trace as a history of evals, for `evalstop rules`: one series a job."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from sim.rules.history import Series
from sim.traces.trace import TraceJob


def series_of(jobs: Iterable[TraceJob]) -> list[Series]:
    """Return a series of each job that made evals, higher being better; its id is the job's key.

    A trace has an eval at a share of the job's work: its step is that share of the steps which that work made
    (`Past.span`), and so the trainer's own. Where those are not known, the evals are numbered.
    """
    found = []
    for job in jobs:
        if job.evals is None or not job.evals.at:
            continue
        evals, span = job.evals, job.past.span if job.past is not None else 0.0
        steps = [at * span if span else float(n) for n, at in enumerate(evals.at, 1)]
        nothing = (None,) * len(steps)
        rows: dict[int, tuple[float, float | None, float | None]] = {}
        for step, score, stderr, proxy in zip(
            steps, evals.scores, evals.stderrs or nothing, evals.proxies or nothing, strict=True
        ):
            if isfinite(score):
                rows.setdefault(round(step), (score, _known(stderr), _known(proxy)))
        kept = sorted(rows.items())
        if kept:
            found.append(
                Series(
                    id=job.key,
                    run=job.key,
                    family=job.key.partition("/")[0],
                    label=None,
                    steps=tuple(float(step) for step, _ in kept),
                    scores=tuple(row[0] for _, row in kept),
                    stderrs=tuple(row[1] for _, row in kept),
                    proxies=tuple(row[2] for _, row in kept),
                    total=float(job.past.total_steps) if job.past and job.past.total_steps else None,
                )
            )
    return found


def _known(number: float | None) -> float | None:
    return number if number is not None and isfinite(number) else None
