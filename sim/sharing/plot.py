"""Pictures of the comparisons: each row's figure with its interval, and beside it what was to be reached."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from sim.experiments.estimate import Estimate
from sim.experiments.findings import Findings
from sim.report.style import OURS, STYLE, WARN

# By comparison: the figure that is drawn, and the one beside it.
FIGURES = {
    "saving": ("saving", "paper"),
    "curve": ("hours", None),
    "arms": ("hours", None),
    "replay": ("makespan", None),
    "advise": ("saving", None),
}
FORMATS = (".svg", ".png", ".pdf")


def check_path(path: Path) -> None:
    """Raise `ValueError` unless the file's name says a format that can be drawn."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot: {str(path)!r} is not allowed, expected a name with {', '.join(FORMATS)}")


def draw(findings: Findings, path: Path) -> None:
    """Draw the findings' main figure into a file."""
    check_path(path)
    main, beside = FIGURES[findings.name]
    rows = [row for row in findings.rows if row.get(main) is not None]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 0.6 + 0.32 * max(2, len(rows))), layout="constrained")
        axes = figure.subplots()
        places = list(range(len(rows)))
        estimates = [_estimate(row[main]) for row in rows]
        axes.barh(places, [one.value for one in estimates], color=OURS, height=0.6)
        low = [max(0.0, one.value - one.low) for one in estimates]
        high = [max(0.0, one.high - one.value) for one in estimates]
        axes.errorbar(
            [one.value for one in estimates], places, xerr=[low, high], fmt="none", ecolor="black", lw=1
        )
        if beside is not None:
            points = [
                (row[beside], place) for row, place in zip(rows, places, strict=True) if row.get(beside)
            ]
            axes.plot(*zip(*points, strict=True), "D", color=WARN, ms=5, label=beside)
            axes.legend(frameon=False)
        axes.set_yticks(places, [_name(row) for row in rows], fontsize=8)
        axes.invert_yaxis()
        titles = {column.key: column.title for column in findings.columns}
        axes.set_xlabel(titles[main])
        axes.set_title(findings.title, fontsize=10, loc="left")
        figure.savefig(path)


def _name(row: Mapping[str, object]) -> str:
    more = [f"{row[key]:g}" for key in ("switch", "variation") if isinstance(row.get(key), float)]
    return ", ".join([str(row["what"]), *more])


def _estimate(value: object) -> Estimate:
    if isinstance(value, Estimate):
        if value.low == value.low:
            return value
        return Estimate(value.value, value.value, value.value)
    number = float(value)  # type: ignore[arg-type]
    return Estimate(number, number, number)
