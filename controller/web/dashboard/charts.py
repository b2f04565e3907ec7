"""The charts, drawn by matplotlib: a run's eval and proxy curves, a pool's GPUs, savings over time.

Nothing is told by colour alone: series differ in marker and dash, events carry a word, areas a hatch.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from controller.policy.types import EvalPoint
from controller.web.dashboard import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 860, 340  # px that a chart is made for
_CACHED = 512  # charts remembered


@dataclass(frozen=True, slots=True)
class RunChart:
    """Data of a run's chart. Steps are the trainer's own; None: the event did not happen."""

    metric: str
    points: tuple[EvalPoint, ...]
    best: tuple[int, float] | None = None
    retained_step: int | None = None  # of the checkpoint that was copied
    warned: int | None = None
    stopped: int | None = None
    stop_word: str = "stop"
    other_stop: int | None = None  # where another rule would have stopped it
    total: int | None = None
    proxy_name: str = "reward model"

    @property
    def has_proxy(self) -> bool:
        return any(p.proxy is not None and math.isfinite(p.proxy) for p in self.points)

    def sentence(self) -> str:
        """Return the chart in words."""
        if not self.points:
            return "No eval has been read yet."
        first, last = self.points[0], self.points[-1]
        text = f"{len(self.points)} evals of {self.metric} from step {first.step} to {last.step}, "
        text += f"the newest {last.score:.4g}."
        if self.best is not None:
            text += f" Best {self.best[1]:.4g} at step {self.best[0]}."
        if self.warned is not None:
            text += f" Warned at step {self.warned}."
        if self.stopped is not None:
            text += f" {self.stop_word.capitalize()} at step {self.stopped}."
        if self.other_stop is not None:
            text += f" The other rule stops it at step {self.other_stop}."
        if self.has_proxy:
            proxies = [p.proxy for p in self.points if p.proxy is not None]
            text += f" The {self.proxy_name} went from {proxies[0]:.4g} to {proxies[-1]:.4g}."
        return text


@lru_cache(maxsize=_CACHED)
def curve_svg(curve: RunChart, prefix: str, narrow: bool) -> str:
    """Return a chart of the eval scores with their standard errors and, below, of the proxy."""
    panels = 2 if curve.has_proxy else 1
    with drawing() as make:
        figure = make(narrow, (300 if narrow else 290) + (130 if panels == 2 else 0))
        ratios = [2.2, 1.0][:panels]
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        _scores(axes[0], curve, narrow)
        if panels == 2:
            known = [p for p in curve.points if p.proxy is not None]
            steps, values = [p.step for p in known], [p.proxy for p in known]
            axes[1].plot(
                steps, values, color=svg.PROXY, lw=2, ls=(0, (5, 2)), marker="s", ms=4.5, gid="pts-proxy"
            )
            axes[1].set_title(curve.proxy_name, loc="left", fontsize=11, color=svg.PROXY, weight="bold")
        if any(step is not None for step in (curve.warned, curve.stopped, curve.other_stop)):
            low, high = axes[0].get_ylim()
            axes[0].set_ylim(low, high + 0.2 * (high - low))  # room for their words above the curve
        for axis in axes:
            _event_lines(axis, curve, words=axis is axes[0])
        axes[-1].set_xlabel("training step")
        _steps(axes[-1], curve)
        return svg.page_svg(figure, prefix, f"{curve.metric} by training step", curve.sentence())


def _scores(axis: Axes, curve: RunChart, narrow: bool) -> None:
    steps = [p.step for p in curve.points]
    scores = [p.score for p in curve.points]
    errors = [p.stderr if p.stderr is not None and math.isfinite(p.stderr) else 0.0 for p in curve.points]
    if any(errors):
        low = [s - e for s, e in zip(scores, errors, strict=True)]
        high = [s + e for s, e in zip(scores, errors, strict=True)]
        axis.fill_between(steps, low, high, color=svg.SCORE, alpha=0.16, lw=0)
    size = 4 if narrow else 5.5
    axis.plot(steps, scores, color=svg.SCORE, lw=2.2, marker="o", ms=size, gid="pts-score")
    if curve.best is not None:
        axis.plot(
            [curve.best[0]],
            [curve.best[1]],
            marker="*",
            ms=17,
            color=svg.BEST,
            mec=svg.SURFACE,
            mew=1.2,
            ls="none",
            zorder=5,
        )
        axis.annotate(
            f"best {curve.best[1]:.4g}",
            curve.best,
            xytext=(0, 11),
            textcoords="offset points",
            ha="center",
            color=svg.INK,
            weight="bold",
        )
    axis.set_title(curve.metric[:60], loc="left", fontsize=11, color=svg.SCORE, weight="bold")
    axis.margins(y=0.18)


def _event_lines(axis: Axes, curve: RunChart, words: bool) -> None:
    """Draw a vertical line for each event, with its own dash and, in the first panel, its word."""
    lines: list[tuple[int | None, str, str, Any, float]] = [
        (curve.warned, "warned", svg.WARN, (0, (1, 2)), 0.89),
        (curve.stopped, curve.stop_word, svg.STOP, "-", 0.98),
        (curve.other_stop, "other rule stops", svg.OTHER, (0, (7, 3)), 0.89),
    ]
    for step, word, colour, dash, height in lines:
        if step is None:
            continue
        axis.axvline(step, color=colour, lw=2, ls=dash)
        if words:
            middle = sum(axis.get_xlim()) / 2
            axis.annotate(
                f"{word} {step}",
                (step, height),
                xycoords=("data", "axes fraction"),
                xytext=(-5 if step > middle else 5, 0),
                textcoords="offset points",
                ha="right" if step > middle else "left",
                va="top",
                color=colour,
                weight="bold",
                bbox={"facecolor": svg.SURFACE, "edgecolor": "none", "pad": 1.5},  # over the other lines
            )


def _steps(axis: Axes, curve: RunChart) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.margins(x=0.03)


@lru_cache(maxsize=_CACHED)
def gpus_svg(used: int, reserved: int, unmanaged: int, free: int, prefix: str, narrow: bool) -> str:
    """Return a pool's GPUs as one bar: used, reserved, used by unmanaged pods, free."""
    parts = [
        ("used", used, svg.SCORE, ""),
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
        words = ", ".join(f"{count} {name}" for name, count, _, _ in parts)
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
        text = f"{total:.4g} GPU-hours saved by {len(known)} stops."
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


__all__: Sequence[str] = ["RunChart", "curve_svg", "drawing", "gpus_svg", "narrow_for", "saved_svg"]
