"""Input of `controller.policy.job.estimates` from the cluster: kinds of jobs, and runs that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.operator.reconcile.planned_job import PlannedJob
from controller.policy.job import (
    History,
    Kind,
    Times,
    Wrong,
    by_pace,
    by_word,
    correction,
    how_wrong,
    past_run,
    seconds,
)
from controller.policy.queueing import Srtf, SrtfEst
from controller.policy.types import JobState, JobView, namespace_of

TIMED = frozenset({Srtf.name, SrtfEst.name})  # queue policies that go by running times
ALMOST = 0.999  # share that is done at most of a run that goes on


def kind_of(obj: Mapping[str, Any], actor_gpus: int = 0) -> Kind:
    """Return the kind of an RLHFJob: namespace, images of its template's containers, gang, labels, GPUs of
    its base actors.

    A job that refers to a workload has no images of its own: its labels tell it apart.
    """
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    gang = spec.get("gang") or {}
    template = (spec.get("workload") or {}).get("template") or {}
    pod = ((template.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = pod.get("containers") or ()
    return Kind(
        namespace=str(metadata.get("namespace", "")),
        images=tuple(sorted(str(c.get("image", "")) for c in containers if isinstance(c, Mapping))),
        replicas=int(gang.get("replicas") or 1),
        gpus_per_replica=int(gang.get("gpusPerReplica") or 0),
        labels=tuple(sorted((metadata.get("labels") or {}).items())),
        actor_gpus=actor_gpus,
    )


def _kind(planned_job: PlannedJob) -> Kind:
    gang = planned_job.desired.replicas * planned_job.desired.gpus_per_replica
    return kind_of(planned_job.obj, planned_job.gpus - gang)


def history(planned_jobs: Iterable[PlannedJob], now: float) -> History:
    """Return what a pool's jobs tell of how long runs take; those whose RLHFJob was deleted are forgotten."""
    runs, wrong = [], dict[str, list[Wrong]]()
    for planned_job in planned_jobs:
        run = past_run(planned_job.record, planned_job.gpus)
        if run is not None:
            runs.append((_kind(planned_job), run))
        found = how_wrong(
            planned_job.record, planned_job.gpus, seconds(planned_job.desired, planned_job.record, now)
        )
        if found is not None:
            wrong.setdefault(namespace_of(planned_job.key), []).append(found)
    return History(runs, {name: correction(found) for name, found in wrong.items()})


def timed(
    view: JobView, planned_job: PlannedJob, past: History, policy: str, now: float
) -> tuple[JobView, float | None]:
    """Return the view with the running time that is left by what its pool knows, for a policy that goes by
    it.

    And when (s) a run that goes on has lost its place by having run for too long; None: it has, or waits.
    """
    worked, stated = (
        seconds(planned_job.desired, planned_job.record, now),
        planned_job.desired.expected_seconds,
    )
    if policy == Srtf.name:
        trust = past.correction(namespace_of(planned_job.key))
        found = by_word(planned_job.record, stated, worked, planned_job.gpus, trust)
        return replace(view, remaining=None if found is None else found.left), _overdue(view, found, now)
    found = by_pace(_kind(planned_job), planned_job.record, past, stated, worked)
    if found is None:
        return replace(view, estimate=None, progress=None), None
    # What is done is told by the time it ran, never by the share that it reports.
    done = min(ALMOST, 1.0 - found.left / found.whole)
    return replace(view, estimate=found.whole, progress=done), _overdue(view, found, now)


def _overdue(view: JobView, found: Times | None, now: float) -> float | None:
    goes_on = found is not None and view.state is JobState.ADMITTED
    return now + found.overdue_in if found is not None and goes_on else None
