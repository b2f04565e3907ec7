"""Several runs on one axis, and one run in a line of a table."""

from __future__ import annotations

from functools import lru_cache
from xml.sax.saxutils import quoteattr

from controller.policy.job import Course
from controller.policy.wording import counted
from controller.web.dashboard.axes import Axis, robust_limits
from controller.web.dashboard.run_chart import RunChart, ends, spread
from controller.web.dashboard.svg_elements import (
    FOOT,
    LEFT,
    LETTER,
    NARROW,
    RIGHT,
    ROW,
    WIDE,
    chart,
    frame,
    line,
    markers,
    shortened,
    step_axis,
    stroke,
    words,
)

RUNS_MAX = 6  # compared at once
# Each run is told apart by each of the three alone, or by two of them together.
DASHES = ("", "8 3", "2 3", "8 3 2 3", "12 4", "4 4")
SERIES = ("--c-score", "--c-proxy", "--c-best", "--c-stop", "--c-warn", "--c-other")
SHAPES = ("dot", "box", "up", "down", "dot", "box")
_FEW = 32  # points of a small line


@lru_cache(maxsize=64)
def compare_svg(runs: tuple[RunChart, ...], names: tuple[str, ...], prefix: str, narrow: bool) -> str:
    """Return the score curves of up to six runs on one step axis, told apart by colour, dash and marker."""
    width = NARROW if narrow else WIDE
    every = [ends(run) for run in runs]
    first, last = min(e[0] for e in every), max(e[1] for e in every)
    across = Axis(float(first), float(last), LEFT, width - RIGHT)
    top = 10.0 + len(runs) * ROW + 26
    limits = robust_limits([value for run in runs for value in spread(run.points)])
    axis = Axis(*limits, top + (240.0 if narrow else 300.0), top)
    body = [*frame(axis, across, _named(runs), "--muted", 6)]
    room = int((width - LEFT - 50) / LETTER)
    for at, (run, name) in enumerate(zip(runs, names, strict=True)):
        colour, dash = SERIES[at], DASHES[at]
        placed = [(across.place(p.step), axis.place(p.score)) for p in run.points]
        y = 14.0 + at * ROW
        drawn = stroke(line(placed), colour, 2, dash) if placed else ""
        drawn += stroke(f"M{LEFT:.0f} {y - 4:.1f}h34", colour, 2, dash)
        drawn += markers(prefix, SHAPES[at], [*placed[:: max(1, len(placed) // 12)], (LEFT + 17, y - 4)])
        drawn += words(LEFT + 40, y, shortened(name, room), colour)
        body.append(f'<g id="{prefix}-run-{at}" fill="var({colour})">{drawn}</g>')
    body += step_axis(across, axis.start, width, narrow)
    description = "; ".join(f"{name}: {run.sentence()}" for run, name in zip(runs, names, strict=True))
    title = f"Scores of {counted(len(runs), 'run')} by training step"
    return chart(width, axis.start + FOOT, across, prefix, title, description, "".join(body))


def _named(runs: tuple[RunChart, ...]) -> str:
    """Return what the one axis of several runs shows: their metric, or that it is not the same one."""
    return runs[0].metric if len({run.metric for run in runs}) == 1 else "scores, each of its own metric"


def sparkline(course: Course, best: tuple[int, float] | None, maximize: bool) -> str:
    """Return a small line of a run's scores for a table's row; "": there are no two of them."""
    points = course.points
    if len(points) < 2:
        return ""
    few = points[:: -(-len(points) // _FEW)]
    few = few if few[-1] is points[-1] else (*few, points[-1])
    across = Axis(few[0].step, few[-1].step, 2.0, 94.0)
    axis = Axis(*robust_limits([p.score for p in few]), 20.0, 2.0)
    drawn = stroke(line([(across.place(p.step), axis.place(p.score)) for p in few]), "--c-score", 1.6)
    if best is not None and across.holds(best[0]):
        x, y = across.place(best[0]), axis.place(best[1])
        drawn += f'<circle cx="{x:.0f}" cy="{y:.0f}" r="2.4" fill="var(--c-best)"/>'
    change = points[-1].score - points[0].score
    word = "as" if change == 0 else "better than" if (change > 0) is maximize else "worse than"
    label = quoteattr(f"{counted(len(points), 'point')}, now {word} at first")
    size = 'viewBox="0 0 96 22" width="96" height="22"'
    return f'<svg class="spark" {size} role="img" aria-label={label}>{drawn}</svg>'
