"""Figures that are compared, job by job, and how sure the difference is.

Jobs are the units: both arms have the same jobs, so that each is its own control. Jobs that were submitted
near each other share the queue and are not independent, so whole blocks of consecutive ones are drawn, in a
circle (Politis and Romano 1992), of about n^(1/3) jobs (Hall, Horowitz and Jing 1995). The interval says how
much a difference hangs on which jobs happened to come; what nobody saw of them is not in it, but in the
scenarios (`sim.what_if.futures`), over which it is widened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, isfinite, nan

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from controller.policy.stopping import noise
from controller.policy.types import EvalPoint
from sim.engine import Result
from sim.experiments.estimate import Estimate
from sim.experiments.measures import best_at
from sim.traces.past import BY_ITSELF
from sim.what_if.arms import Row, Setting
from sim.workload import Evals

RESAMPLES = 2000
_CELLS = 2_000_000  # of the picks that are there at once
_TAIL = 0.025
_DIGITS = 9

Column = npt.NDArray[np.float64]
Columns = dict[str, Column]  # by name, one value for each job


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a comparison, computed from a column.

    Attributes:
        form: as in `findings.Column`.
        of: from a matrix (resamples, jobs) of the column's values.
        less: whether less is better; None: neither.
    """

    key: str
    title: str
    form: str
    column: str
    of: Callable[[Column], Column]
    less: bool | None = True


def _mean(values: Column) -> Column:
    return np.asarray(values.mean(axis=-1), dtype=np.float64)


def _sum(values: Column) -> Column:
    return np.asarray(values.sum(axis=-1), dtype=np.float64)


def _quantile(share: float) -> Callable[[Column], Column]:
    return lambda values: np.asarray(np.quantile(values, share, axis=-1), dtype=np.float64)


FIGURES = (
    Figure("mean_jct", "JCT, mean", "seconds", "jct", _mean),
    Figure("median_jct", "JCT, median", "seconds", "jct", _quantile(0.5)),
    Figure("p95_jct", "JCT, 95 %", "seconds", "jct", _quantile(0.95)),
    Figure("mean_wait", "waiting, mean", "seconds", "wait", _mean),
    Figure("gpu_hours", "GPU-hours used", "number", "gpu_hours", _sum),
    Figure("gpu_hours_wasted", "GPU-hours wasted", "number", "wasted", _sum),
    Figure("stops", "stops", "count", "stopped", _sum, None),
    Figure("stops_lost", "… that lost quality", "count", "lost_quality", _sum),
    Figure("stops_unknown", "… not known", "count", "quality_unknown", _sum, None),
    Figure("past_best", "ended below their best", "count", "below_best", _sum),
    Figure("preemptions", "preemptions", "count", "preempted", _sum, None),
)


def columns(given: Setting, rows: Sequence[Row], result: Result, *, unseen_wasted: bool) -> Columns:
    """Return one arm, job by job. Times in s, ``lost_quality`` and the like 0 or 1."""
    jct = np.asarray(result.jct, dtype=np.float64)
    service = np.asarray(result.service, dtype=np.float64)
    gpus = np.asarray(result.gpus, dtype=np.float64)
    held = np.divide(service, gpus, out=np.zeros_like(service), where=gpus > 0)
    made: Columns = {
        "jct": jct,
        "wait": np.maximum(0.0, jct - held),
        "gpu_hours": service / 3600.0,
        "stopped": np.zeros(len(jct)),
        "lost_quality": np.zeros(len(jct)),
        "quality_unknown": np.zeros(len(jct)),
        "below_best": np.zeros(len(jct)),
        "wasted": np.zeros(len(jct)),
        "preempted": np.array([result.preempted.get(row, 0) for row in range(len(jct))], dtype=np.float64),
    }
    for number, row in enumerate(rows):
        stop = stopped_at(row, result, number)
        trained = result.useful[number]
        evals = row.evals
        overhead = service[number] - trained * gpus[number]
        share = trained / row.work if row.work else 1.0
        late = _past_best(row, share, unseen_wasted) * row.work if evals is not None else 0.0
        made["wasted"][number] = (late * gpus[number] + max(0.0, overhead)) / 3600.0
        if evals is None:
            continue
        past = given.jobs[number].past
        whole = row.invented or past is None or (past.end in BY_ITSELF and not past.ended_unseen)
        if stop is None:
            made["below_best"][number] = float(whole and bool(_below_best(evals)))
            continue
        made["stopped"][number] = 1.0
        lost = lost_quality(evals, stop, whole=whole)
        made["lost_quality"][number] = float(lost is True)
        made["quality_unknown"][number] = float(lost is None)
    return made


def stopped_at(row: Row, result: Result, number: int) -> int | None:
    """Return the eval (from 0) at which job ``number`` was stopped; None: it was not."""
    if number not in result.stopped:
        return None
    return row.stop if row.stop is not None else result.stops[number].eval


def lost_quality(evals: Evals, stop: int, *, whole: bool) -> bool | None:
    """Return whether the run was later better than what was kept, by more than noise; None: nobody saw.

    ``whole``: the evals go to the run's end, so that none after the stop means that nothing was lost.
    """
    points = [
        EvalPoint(n + 1, score, stderr=evals.stderrs[n] if len(evals.stderrs) else None)
        for n, score in enumerate(evals.scores)
        if isfinite(score)
    ]
    kept = [point for point in points if point.step <= stop + 1]
    later = [point for point in points if point.step > stop + 1]
    if not later:
        return False if whole else None
    if not kept:
        return None
    one, other = max(kept, key=lambda p: p.score), max(later, key=lambda p: p.score)
    found = noise.beyond(points, one, other)
    return found if whole or found else None


def _below_best(evals: Evals) -> bool | None:
    """Return whether its last eval lies below its best by more than noise."""
    points = [
        EvalPoint(n + 1, score, stderr=evals.stderrs[n] if len(evals.stderrs) else None)
        for n, score in enumerate(evals.scores)
        if isfinite(score)
    ]
    if len(points) < 2:
        return None
    return noise.beyond(points, points[-1], max(points, key=lambda p: p.score))


def _past_best(row: Row, share: float, unseen_wasted: bool) -> float:
    """Share of its work that it trained, up to ``share``, after the best eval it had made by then."""
    evals = row.evals
    assert evals is not None
    until = share if unseen_wasted or row.invented else min(share, max(row.seen, 0.0))
    made = sum(1 for at in evals.at if at <= until + 1e-9)
    return max(0.0, until - best_at(evals, made))


def picks(jobs: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of the jobs of each resample, in blocks of rows; none for fewer than two jobs."""
    if jobs < 2:
        return
    length = ceil(jobs ** (1.0 / 3.0))
    random = np.random.default_rng(seed)
    rows = max(1, _CELLS // jobs)
    for done in range(0, RESAMPLES, rows):
        starts = random.integers(0, jobs, size=(min(rows, RESAMPLES - done), ceil(jobs / length)))
        numbers = (starts[:, :, None] + np.arange(length)) % jobs
        yield numbers.reshape(len(starts), -1)[:, :jobs]


def differences(
    base: Sequence[Columns],
    other: Sequence[Columns],
    chosen: npt.NDArray[np.int64],
    *,
    seed: int,
    pooled: bool,
) -> dict[str, list[Estimate]]:
    """Return every figure's difference, other less base, over the jobs ``chosen``; fewer than two: no
    interval.

    One for each scenario; ``pooled``: the scenarios are draws of the same thing, and one for all of them, its
    interval of draws and resamples together.
    """
    pairs = [
        ({f.key: a[f.column][chosen] for f in FIGURES}, {f.key: b[f.column][chosen] for f in FIGURES})
        for a, b in zip(base, other, strict=True)
    ]
    every = len(pairs) if pooled else 1
    drawn: dict[str, list[list[Column]]] = {f.key: [[] for _ in pairs] for f in FIGURES}
    for block in picks(len(chosen), seed):
        for number, (one, two) in enumerate(pairs):
            mine = block[number % every :: every]
            for f in FIGURES:
                drawn[f.key][number].append(f.of(two[f.key][mine]) - f.of(one[f.key][mine]))
    found = {}
    for f in FIGURES:
        values = [float(f.of(two[f.key]) - f.of(one[f.key])) for one, two in pairs]
        resampled = [np.concatenate(parts) if parts else np.empty(0) for parts in drawn[f.key]]
        if pooled:
            values, resampled = [float(np.mean(values))], [np.concatenate(resampled)]
        found[f.key] = [_estimate(value, part) for value, part in zip(values, resampled, strict=True)]
    return found


def _estimate(value: float, resampled: Column) -> Estimate:
    """Return the estimate with its 95 % interval, rounded so that the noise of summing does not show."""
    value = round(value, _DIGITS) + 0.0
    if not len(resampled):
        return Estimate(value, nan, nan)
    low, high = np.quantile(resampled, (_TAIL, 1.0 - _TAIL))
    return Estimate(value, round(float(low), _DIGITS) + 0.0, round(float(high), _DIGITS) + 0.0)
