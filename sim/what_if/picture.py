"""A what-if in one picture: when jobs were done, how many GPUs were used, how sure each difference is."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from sim.report.runs import Occupancy
from sim.report.style import BASE, HEALTHY, OURS, SERIES, STYLE, WARN
from sim.what_if.arms import Alternative, Row, run
from sim.what_if.compare import Compared, Comparison
from sim.what_if.notes import left_out

_DRAWN = ("mean_jct", "median_jct", "p95_jct", "mean_wait", "gpu_hours", "gpu_hours_wasted")
_LINES = 3  # scenarios that are drawn one by one


def draw(path: Path, made: Comparison) -> None:
    """Write the picture; the suffix of ``path`` chooses the format."""
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13.2, 4.4), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _completions(left, made)
        _occupancy(middle, made)
        _differences(right, [made.figure(key) for key in _DRAWN])
        figure.suptitle(made.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        handles, labels = left.get_legend_handles_labels()
        caption = " ".join(left_out(made.given)) or None
        figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=4,
            title=caption,
            title_fontsize=9,
            alignment="left",
        )
        figure.savefig(path, dpi=130, metadata=_metadata(path))


def _metadata(path: Path) -> dict[str, Any] | None:
    """So that the same picture is the same bytes."""
    return {"Date": None} if path.suffix == ".svg" else None


def _unit(seconds: float) -> tuple[float, str]:
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2.0 * size:
            return size, name
    return 1.0, "s"


def _shown(made: Comparison) -> list[tuple[str, Any, str, str]]:
    """(label, arm, colour, line) of what is drawn: the baseline and the first and last scenarios."""
    arms = made.arms if len(made.arms) < _LINES else [made.arms[0]]
    named = {"known": "alternative", "least": "alternative, at least", "most": "alternative, at most"}
    lines = ("-", "--")
    found = [("record, replayed", made.base, BASE, "-")]
    return found + [
        (named.get(arm.name, "alternative, one draw"), arm, OURS, lines[n]) for n, arm in enumerate(arms)
    ]


def _completions(axes: Axes, made: Comparison) -> None:
    shown = _shown(made)
    every = [arm.columns["jct"][made.chosen] for _, arm, _, _ in shown]
    size, unit = _unit(float(np.max(np.concatenate(every), initial=0.0)))
    for (label, _, colour, line), jct in zip(shown, every, strict=True):
        times = np.concatenate([[0.0], np.sort(jct) / size])
        axes.step(times, np.linspace(0.0, 1.0, len(times)), line, where="post", color=colour, label=label)
    axes.set_title("Jobs done within")
    axes.set_xlabel(unit)
    axes.set_ylabel("share of the jobs")


def _occupancy(axes: Axes, made: Comparison) -> None:
    given = made.given
    longest = max(arm.result.makespan for _, arm, _, _ in _shown(made))
    size, unit = _unit(float(longest))
    capacities = {given.cluster.gpus: BASE}
    if made.other.cluster is not None:
        capacities[made.other.cluster.gpus] = OURS
    for gpus, colour in capacities.items():
        axes.axhline(gpus, color=colour, linestyle=":", linewidth=1.0)
    for label, arm, colour, line in _shown(made):
        other = None if label.startswith("record") else made.other
        steps = _held(made, arm.rows, other)
        times, held = np.array([t for t, _ in steps]) / size, [gpus for _, gpus in steps]
        axes.step(times, held, line, where="post", color=colour, linewidth=1.4)
    axes.set_ylim(0.0, 1.08 * max(capacities))
    axes.set_title("GPUs in use (dotted: there are)")
    axes.set_xlabel(f"{unit} since the first submission")


def _held(made: Comparison, rows: Sequence[Row], other: Alternative | None) -> list[tuple[float, int]]:
    event_log = Occupancy(made.given.workload)
    run(made.given, rows, other, event_log)
    return event_log.steps


def _differences(axes: Axes, figures: Sequence[Compared]) -> None:
    """Each in per cent of the baseline: the interval thin, what lies between the scenarios thick."""
    names = []
    for place, one in enumerate(reversed(figures)):
        names.append(one.figure.title)
        if not one.baseline:
            continue
        values = [100.0 * d.value / one.baseline for d in one.difference]
        low, high = (100.0 * bound / one.baseline for bound in one.interval)
        colour = {True: SERIES[2], False: WARN, None: HEALTHY}[one.better]
        if isfinite(low):
            axes.plot([low, high], [place, place], color=colour, linewidth=1.4)
        axes.plot(
            [min(values), max(values)], [place, place], color=colour, linewidth=6.0, solid_capstyle="round"
        )
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=5)
    axes.axvline(0.0, color=BASE, linewidth=1.0)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("Difference, 95 % interval")
    axes.set_xlabel("% of the record, replayed (left: less)")
