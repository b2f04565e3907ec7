"""`evalstop what-if`: a history as it was, replayed, against the same with something changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import field
from datetime import UTC, datetime
from math import isfinite, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from sim import quotas
from sim.engine import Result
from sim.experiments.estimate import Estimate
from sim.latencies import Latencies
from sim.traces.own import cluster_entry, spec_entry
from sim.traces.past import End, rule_entry
from sim.traces.trace import Trace, TraceJob
from sim.what_if.arms import (
    Alternative,
    Row,
    Scenario,
    Setting,
    check_fits,
    recorded,
    run,
    scenarios,
    setting,
)
from sim.what_if.figures import FIGURES, Columns, Figure, columns, differences, stopped_at
from sim.what_if.notes import reader_notes

Progress = Callable[[int, int], None]  # runs done, runs in all
DRAWS = 20
_SHOWN = 10  # jobs that change most
_DATED = 3.0e8  # s: from here on a clock counts since 1970


@dataclass(frozen=True, slots=True)
class Window:
    """Jobs submitted from ``start`` on and before ``end`` (s on the log's clock) are compared; None: no
    limit. All others run, too: they were there."""

    start: float | None = None
    end: float | None = None

    def has(self, submitted: float) -> bool:
        return (self.start is None or submitted >= self.start) and (self.end is None or submitted < self.end)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure.

    ``alternative`` and ``difference`` have one entry for each scenario (of draws: one for all).
    ``recorded``: as it really was, over the jobs whose end the history has; NaN: not known.
    """

    figure: Figure
    recorded: float
    baseline: float
    alternative: tuple[float, ...]
    difference: tuple[Estimate, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference, over all scenarios: 95 % in each."""
        lows, highs = [d.low for d in self.difference], [d.high for d in self.difference]
        return (min(lows), max(highs)) if all(map(isfinite, lows + highs)) else (nan, nan)

    @property
    def better(self) -> bool | None:
        """Return whether the alternative is better, in every scenario and at both ends of the interval.

        False: it is worse; None: neither is shown.
        """
        low, high = self.interval
        if self.figure.less is None or low != low:
            return None
        if high < 0.0 or low > 0.0:
            return (high < 0.0) is self.figure.less
        return None

    def as_dict(self) -> dict[str, Any]:
        low, high = self.interval
        values = [d.value for d in self.difference]
        return {
            "figure": self.figure.key,
            "title": self.figure.title,
            "recorded": _finite(self.recorded),
            "baseline": _finite(self.baseline),
            "alternative": {"low": _finite(min(self.alternative)), "high": _finite(max(self.alternative))},
            "difference": {
                "low": _finite(min(values)),
                "high": _finite(max(values)),
                "interval": [_finite(low), _finite(high)],
            },
            "better": self.better,
        }


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: its rows, what came of it, and the columns made of that."""

    name: str
    rows: tuple[Row, ...]
    result: Result
    columns: Columns


@dataclasses.dataclass(slots=True)
class Comparison:
    """Result of a comparison; ``notes``: whatever a reader has to know to believe the figures."""

    title: str
    given: Setting
    other: Alternative
    base: Arm
    arms: list[Arm]  # one for each scenario
    chosen: npt.NDArray[np.int64]  # rows that are compared
    figures: list[Compared]
    jobs: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    future: str = "bounds"
    history: dict[str, Any] = field(default_factory=dict)  # pool and span, as the trace has them

    def figure(self, key: str) -> Compared:
        return next(one for one in self.figures if one.figure.key == key)

    def known_stop(self, row: int) -> bool:
        """Return whether the alternative stops this job at an eval that was seen."""
        past, arm = self.given.jobs[row].past, self.arms[-1]
        stop = stopped_at(arm.rows[row], arm.result, row)
        if stop is None or past is None:
            return stop is not None
        evals = self.given.jobs[row].evals
        return evals is not None and stop < len(evals.at)

    def document(self) -> dict[str, Any]:
        """As JSON values; what is not known is null."""
        given, other = self.given, self.other
        return {
            "command": "what-if",
            "title": self.title,
            "pool": self.history.get("pool"),
            "from": self.history.get("from"),
            "to": self.history.get("to"),
            "jobs_compared": len(self.chosen),
            "jobs": given.every,
            "jobs_left_out": len(given.left_out),
            "future": self.future,
            "scenarios": [arm.name for arm in self.arms],
            "baseline": {
                "cluster": cluster_entry(given.cluster),
                "policy": spec_entry(given.policy),
                "quotas": quotas.entry(given.quotas),
                "rule": rule_entry(given.rule) if given.rule is not None else None,
            },
            "alternative": {
                "cluster": cluster_entry(other.cluster or given.cluster),
                "policy": spec_entry(other.policy or given.policy),
                "quotas": quotas.entry(given.quotas if other.quotas is None else other.quotas),
                "rule": rule_entry(other.rule) if other.rule is not None else None,
                "stops": other.stops,
                "enforce": other.enforce,
            },
            "figures": [one.as_dict() for one in self.figures],
            "most_changed": self.jobs,
            "notes": self.notes,
        }


def compare(
    trace: Trace,
    other: Alternative,
    *,
    window: Window | None = None,
    future: str = "bounds",
    draws: int = DRAWS,
    seed: int = 0,
    latencies: Latencies | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Replay the history as it was and with the alternative, and compare them job by job.

    Args:
        trace: the history.
        other: what is to be different.
        window: times of submission to compare; default: all.
        future: what runs that were stopped would have done: one of `futures.MODES`.
        draws: how many futures to draw, for ``nearest``.
        seed: of these draws.
        latencies: how long things take; default: as the history shows it.
        progress: called with runs done and runs in all.

    Raises:
        ValueError: the history names no cluster, a job does not fit into the alternative's nodes, the window
            has no job, or ``future`` cannot be had.
    """
    window, advance = window or Window(), progress or (lambda done, total: None)
    given = setting(trace, latencies)
    if other.cluster is not None:
        check_fits(given, other.cluster)
    if other.quotas:
        quotas.check_fits(other.quotas, ((job.key, job.gpus) for job in given.jobs))
    chosen = np.array([n for n, job in enumerate(given.jobs) if window.has(job.submitted)], dtype=np.int64)
    if not len(chosen):
        first, last = given.jobs[0].submitted, given.jobs[-1].submitted
        raise ValueError(
            "--from, --to: no job was submitted then, expected a time between"
            f" {_moment(first)} and {_moment(last)}"
        )
    ways = scenarios(given, other, future, draws, seed)
    advance(0, 1 + len(ways))
    before = recorded(given)
    result = run(given, before)
    bases = {wasted: columns(given, before, result, unseen_wasted=wasted) for wasted in (True, False)}
    base = Arm("baseline", before, result, bases[True])
    arms: list[Arm] = []
    for way in ways:
        advance(1 + len(arms), 1 + len(ways))
        arms.append(_arm(given, other, way, arms))
    advance(1 + len(ways), 1 + len(ways))
    paired = [bases[way.unseen_wasted] for way in ways]
    pooled = ways[0].name.startswith("draw")
    truth = _truly(given.jobs, chosen)
    found = differences(paired, [arm.columns for arm in arms], chosen, seed=seed, pooled=pooled)
    figures = []
    for figure in FIGURES:
        values = [_value(figure, arm.columns, chosen) for arm in arms]
        if pooled:
            values = [float(np.mean(values))]
        baseline, known = _value(figure, paired[-1], chosen), truth.get(figure.key, nan)
        figures.append(Compared(figure, known, baseline, tuple(values), tuple(found[figure.key])))
    made = Comparison(
        f"{other.name}, against {_against(given)}",
        given,
        other,
        base,
        arms,
        chosen,
        figures,
        [],
        future=future,
        history=trace.history,
    )
    made.jobs = _most_changed(made)
    made.notes = reader_notes(made, trace)
    return made


def _against(given: Setting) -> str:
    """Return what the alternative is compared with: the record, where there is one of any job."""
    if any(job.past is not None for job in given.jobs):
        return "the record"
    return "the jobs of the file as they are"


def _arm(given: Setting, other: Alternative, way: Scenario, done: Sequence[Arm]) -> Arm:
    same = next((arm for arm in done if arm.rows == way.rows), None)
    result = same.result if same is not None else run(given, way.rows, other)
    return Arm(way.name, way.rows, result, columns(given, way.rows, result, unseen_wasted=way.unseen_wasted))


def _value(figure: Figure, made: Columns, chosen: npt.NDArray[np.int64]) -> float:
    return float(figure.of(made[figure.column][chosen]))


def _truly(jobs: Sequence[TraceJob], chosen: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return what really was, of the jobs whose end the history has."""
    ended = [
        (job, job.past, job.past.ended)
        for job in (jobs[n] for n in chosen)
        if job.past is not None and job.past.ended is not None
    ]
    if not ended:
        return {}
    jct = np.array([max(0.0, end - job.submitted) for job, _, end in ended])
    waits = [past.waited for _, past, _ in ended if past.waited is not None]
    return {
        "mean_jct": float(jct.mean()),
        "median_jct": float(np.quantile(jct, 0.5)),
        "p95_jct": float(np.quantile(jct, 0.95)),
        "mean_wait": float(np.mean(waits)) if waits else nan,
        "gpu_hours": sum(past.service for _, past, _ in ended) / 3600.0,
        "stops": float(sum(past.end is End.STOPPED for _, past, _ in ended)),
        "preemptions": float(sum(past.preempted for _, past, _ in ended)),
    }


def _most_changed(made: Comparison) -> list[dict[str, Any]]:
    """Return jobs whose stop differs first, then those whose completion time does."""
    arm = made.arms[-1]
    found: list[tuple[bool, float, dict[str, Any]]] = []
    for n in map(int, made.chosen):
        job, before, after = made.given.jobs[n], made.base, arm
        one, two = (stopped_at(a.rows[n], a.result, n) for a in (before, after))
        change = float(after.columns["jct"][n]) - float(before.columns["jct"][n])
        if one == two and not change:
            continue
        entry: dict[str, Any] = {
            "job": job.key,
            "jct_baseline": float(before.columns["jct"][n]),
            "jct_alternative": float(after.columns["jct"][n]),
            "change": change,
            "stopped_baseline": None if one is None else one + 1,
            "stopped_alternative": None if two is None else two + 1,
            "seen": before.rows[n].seen,
        }
        found.append((one == two, -abs(change), entry))
    found.sort(key=lambda one: (one[0], one[1]))
    return [entry for _, _, entry in found[:_SHOWN]]


def _moment(seconds: float) -> str:
    """As --from takes it: UTC; on a log's own clock, which begins at 0, seconds."""
    if seconds < _DATED:
        return f"{seconds:g}"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
