"""Style of all plots: one palette that colour-blind people can tell apart, no frames, light grids."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BASE, OURS, ORACLE, HEALTHY, WARN = "#5b6770", "#0072b2", "#009e73", "#9aa5ad", "#d55e00"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6770", "#8c6d31")
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a949b",
    "axes.labelcolor": "#38424a",
    "xtick.color": "#38424a",
    "ytick.color": "#38424a",
    "axes.grid": True,
    "grid.color": "#e4e8eb",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "evalstop",  # the same page gives the same bytes
}


def legend_below(axes: Axes, columns: int) -> None:
    """Put the legend below the axes, where it hides no line."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns, columnspacing=1.2)


class Drawing:
    """A figure being drawn; ``svg`` afterwards."""

    def __init__(self, figure: Figure, axes: list[Axes]) -> None:
        self.figure = figure
        self.axes = axes
        self.svg = ""


@contextmanager
def drawing(panels: int = 1, *, width: float = 10.4, height: float = 3.4) -> Iterator[Drawing]:
    """Open a row of panels; at the block's end `Drawing.svg` has the SVG for a page, without XML header."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)
        made = Drawing(figure, list(axes[0]))
        yield made
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
        made.svg = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)
