"""Curves with the stops on them: of each label the runs most rules stopped, a mark for each rule's stop.

Where the proxy reward or the KL divergence is known, it is drawn dashed (dotted), on an axis of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from sim.rules.evaluate import Judged
from sim.rules.history import Series

PER_LABEL = 4
LABELS = ("declining", "healthy", "plateau", "ambiguous")
MARKS = "ovs^DPX*"


def _most_stopped(label: str, judged: Sequence[Judged], stops: Mapping[str, Any]) -> list[int]:
    """Return the runs of a label, those that more rules stopped first: of healthy ones, the false stops."""
    rows = [i for i, j in enumerate(judged) if j.truth.label == label]
    return sorted(rows, key=lambda row: -sum(int(first[row]) >= 0 for first in stops.values()))


def _beside(axes: Any, series: Series) -> None:
    for values, line in ((series.proxies, "--"), (series.kls, ":")):
        known = [(step, v) for step, v in zip(series.steps, values, strict=False) if v is not None]
        if known:
            other = axes.twinx()
            other.set_yticks([])
            other.plot(*zip(*known, strict=True), line, color="0.8", linewidth=1.0, zorder=0)


def draw(path: Path, judged: Sequence[Judged], stops: Mapping[str, Any]) -> None:
    """Write the picture; the suffix of ``path`` chooses the format."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [(label, _most_stopped(label, judged, stops)) for label in LABELS]
    shown = [(label, rows[:PER_LABEL]) for label, rows in found if rows]
    figure, grid = pyplot.subplots(
        len(shown), PER_LABEL, figsize=(4 * PER_LABEL, 2.6 * len(shown)), squeeze=False, layout="constrained"
    )
    for line, (label, rows) in zip(grid, shown, strict=True):
        for axes in line[len(rows) :]:
            axes.set_visible(False)
        for axes, row in zip(line, rows, strict=False):
            one = judged[row]
            axes.plot(one.series.steps, one.series.scores, color="0.55", linewidth=1.0)
            _beside(axes, one.series)
            axes.set_title(f"{label}: {one.series.id[-44:]}", fontsize=8)
            axes.tick_params(labelsize=7)
            if label == "declining":
                axes.axvline(one.series.steps[one.truth.peak], color="0.3", linestyle=":", linewidth=1.0)
            for number, (rule, first) in enumerate(stops.items()):
                at = int(first[row])
                if at >= 0:
                    axes.plot(
                        one.series.steps[at],
                        one.series.scores[at],
                        MARKS[number % len(MARKS)],
                        color=f"C{number}",
                        markersize=7,
                        label=rule if len(rule) <= 40 else rule[:39] + "…",
                    )
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, fontsize=8)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("eval (vertical: the peak)", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
