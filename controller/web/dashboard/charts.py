"""The charts that matplotlib draws: a pool's GPUs, and savings over time. A run's own: `run_chart`.

Nothing is told by colour alone: series differ in marker and dash, events carry a word, areas a hatch.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from controller.policy.wording import about, counted
from controller.web.dashboard import svg
from controller.web.dashboard.svg_elements import NARROW, WIDE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CACHED = 512  # charts remembered


@lru_cache(maxsize=_CACHED)
def gpus_svg(
    used: int, reserved: int, unmanaged: int, free: int, prefix: str, narrow: bool, shared: int | None = None
) -> str:
    """Return a pool's GPUs as one bar: used, worker groups' (None: it has none), reserved, others', free."""
    parts = [
        ("used", used, svg.SCORE, ""),
        *([] if shared is None else [("worker groups", shared, svg.PROXY, "xx")]),
        ("reserved", reserved, svg.BEST, "//"),
        ("others", unmanaged, svg.MUTED, ".."),
        ("free", free, svg.GRID, ""),
    ]
    with drawing() as make:
        figure = make(narrow, 22 if narrow else 30)
        figure.set_layout_engine("none")
        axis = figure.add_axes((0, 0, 1, 1))
        left = 0
        for _, count, colour, hatch in parts:
            if count > 0:
                axis.barh(0, count, left=left, color=colour, hatch=hatch, edgecolor=svg.SURFACE, height=1)
                left += count
        axis.set_xlim(0, max(1, left))
        axis.set_axis_off()
        words = ", ".join(f"{name} {count}" for name, count, _, _ in parts)
        return svg.page_svg(figure, prefix, "GPUs of the pool", words)


@lru_cache(maxsize=8)
def saved_svg(known: tuple[tuple[float, float], ...], prefix: str, narrow: bool) -> str:
    """Return a chart of the GPU-hours saved; ``known``: (time in s, GPU-hours) of each stop, oldest first."""
    with drawing() as make:
        from matplotlib import dates

        figure = make(narrow, 260)
        axis = figure.subplots()
        times = [datetime.datetime.fromtimestamp(at, datetime.UTC) for at, _ in known]
        total, sums = 0.0, []
        for _, hours in known:
            total += hours
            sums.append(total)
        axis.step(times, sums, where="post", color=svg.SCORE, lw=2.2, marker="o", ms=4)
        axis.fill_between(times, sums, step="post", color=svg.SCORE, alpha=0.14, lw=0)
        made: Any = dates  # its classes are not typed
        locator = made.AutoDateLocator(maxticks=4 if narrow else 8)
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(made.ConciseDateFormatter(locator))
        axis.set_ylim(bottom=0)
        axis.set_title("GPU-hours saved", loc="left", fontsize=11, color=svg.SCORE, weight="bold")
        saved = about(total, "GPU-hours")
        text = f"{saved[0].upper()}{saved[1:]} saved by {counted(len(known), 'stop')}."
        return svg.page_svg(figure, prefix, "GPU-hours saved, added up", text)


class drawing:
    """Holds matplotlib's settings for one drawing; gives a maker of figures of a size in px."""

    def __enter__(self) -> Any:
        svg.LOCK.acquire()
        import matplotlib

        self._context = matplotlib.rc_context(rc=svg.RC)
        self._context.__enter__()
        return self._figure

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)
        svg.LOCK.release()

    def _figure(self, narrow: bool, height: int) -> Figure:
        from matplotlib.figure import Figure

        width = NARROW if narrow else WIDE
        return Figure(figsize=(width / 72, height / 72), layout="constrained")


def narrow_for(width: str) -> bool:
    """Return whether a page that is ``width`` px wide gets narrow charts."""
    return width.isascii() and width.isdigit() and 0 < int(width[:6]) < 560


__all__: Sequence[str] = ["drawing", "gpus_svg", "narrow_for", "saved_svg"]
