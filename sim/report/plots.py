"""Plots of one run: curves with stops, completion times, occupancy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import NullFormatter

from sim.report.runs import Example, Shown
from sim.report.style import BASE, HEALTHY, ORACLE, OURS, WARN, drawing
from sim.workload import Evals

_CURVES = 12  # of each sort
_HOUR = 3600.0


def curves_with_stops(example: Example) -> str:
    """Scores over progress of some runs, each up to its stop; what was not trained dotted."""
    result = example.evalstop.result
    rows = [
        row for row, evals in enumerate(example.workload.evals) if evals is not None and len(evals.at) > 1
    ]
    truth = example.truth
    if truth is None:
        stopped = [row for row in rows if row in result.stopped]
        groups = {"runs that were stopped": stopped, "that were let run": sorted(set(rows) - set(stopped))}
    else:
        healthy = [r for r in rows if not truth.hacks[r]]
        groups = {
            "runs that hack": [r for r in rows if truth.hacks[r]],
            "runs that do not": sorted(healthy, key=lambda r: truth.kind[r] != "RLHF"),
        }
    with drawing(2, height=3.4) as made:
        for axes, (title, members) in zip(made.axes, groups.items(), strict=True):
            for row in members[:_CURVES]:
                evals = example.workload.evals[row]
                assert evals is not None
                stop = result.stops[row].eval if row in result.stops else None
                axes.plot(*_part(evals, 0, stop), color=HEALTHY if stop is None else OURS, alpha=0.75, lw=1.2)
                if stop is not None:
                    axes.plot(*_part(evals, stop, None), color=OURS, alpha=0.35, lw=1.0, ls=":")
                    best = result.stops[row].best
                    axes.plot(evals.at[best], evals.scores[best], "o", color=ORACLE, ms=4, zorder=4)
                    axes.plot(evals.at[stop], evals.scores[stop], "X", color=WARN, ms=6, zorder=5)
            shown = min(len(members), _CURVES)
            axes.set(title=f"{shown} {title}", xlabel="progress", ylabel="eval score", xlim=(0, 1.02))
        made.axes[1].sharey(made.axes[0])
        axes = made.axes[0]
        axes.plot([], [], "o", color=ORACLE, ms=4, label="best, kept")
        axes.plot([], [], "X", color=WARN, ms=6, label="STOP")
        axes.legend(loc="lower right")
    return made.svg


def _part(evals: Evals, first: int, last: int | None) -> tuple[Sequence[float], Sequence[float]]:
    end = len(evals.at) if last is None else last + 1
    return evals.at[first:end], evals.scores[first:end]


def completion_times(example: Example) -> str:
    """Distribution of completion times: of all jobs, and of those that EvalStop never stopped."""
    kept = [row for row in range(len(example.workload)) if row not in example.evalstop.result.stopped]
    with drawing(2) as made:
        for axes, rows, title in (
            (made.axes[0], list(range(len(example.workload))), "All jobs"),
            (made.axes[1], kept, "Jobs that were never stopped"),
        ):
            for run, colour in _runs(example):
                if run.name == "oracle" and rows is kept:
                    continue
                jct = np.sort(np.asarray(run.result.jct)[rows]) / _HOUR
                share = np.arange(1, len(jct) + 1) / max(1, len(jct))
                axes.step(jct, share, where="post", color=colour, label=run.name)
            axes.set(title=title, xlabel="completion time, h", ylabel="share of jobs", ylim=(0, 1.02))
            if rows and min(example.base.result.jct) > 0:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
                axes.xaxis.set_minor_formatter(NullFormatter())
        made.axes[0].legend(loc="lower right")
    return made.svg


def occupancy(example: Example) -> str:
    """Return GPUs held over time."""
    with drawing(1, height=2.8) as made:
        axes = made.axes[0]
        for run, colour in _runs(example):
            times, held = zip(*run.occupancy, strict=True)
            hours = np.asarray(times) / _HOUR
            if run.name == "oracle":
                continue
            axes.step(hours, held, where="post", color=colour, lw=1.1, alpha=0.9, label=run.name)
            if run is example.base:
                axes.fill_between(hours, held, step="post", color=colour, alpha=0.12, lw=0)
        axes.axhline(example.gpus, color=WARN, lw=0.9, ls="--")
        axes.set(title=f"GPUs held, of {example.gpus}", xlabel="time, h", ylabel="GPUs", ylim=(0, None))
        axes.margins(x=0.01)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made.svg


def _runs(example: Example) -> list[tuple[Shown, str]]:
    runs = [(example.base, BASE), (example.evalstop, OURS)]
    return [*runs, (example.oracle, ORACLE)] if example.oracle is not None else runs
