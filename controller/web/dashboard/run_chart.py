"""A run's chart: score, statistic, proxy and KL on one step axis, as SVG with its text as text.

The one drawing of a run for the page, the report and print. Series differ in marker and dash, events carry
words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from controller.frozen import dataclass
from controller.policy.job import NEW_BASELINE, RESUMED, STOPPED, Course, CurveMark, CurvePoint
from controller.policy.wording import counted
from controller.web.dashboard.axes import Axis, robust_limits
from controller.web.dashboard.svg_elements import (
    BOLD_LETTER,
    FOOT,
    LEFT,
    LETTER,
    NARROW,
    RIGHT,
    ROW,
    WIDE,
    EventWords,
    chart,
    frame,
    line,
    markers,
    step_axis,
    stroke,
    words,
)

_CACHED = 512  # charts remembered
_GAP = 24.0  # px, between panels
_SMALL = 74.0  # px, height of the lower panels


class View(NamedTuple):
    """The steps that are shown."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RunChart:
    """Data of a run's chart. Steps are the trainer's own; None: the event did not happen."""

    metric: str
    course: Course
    best: tuple[int, float] | None = None
    retained_step: int | None = None  # of the checkpoint that was copied
    warned: int | None = None
    stopped: int | None = None
    stop_word: str = "stop"
    other_stop: int | None = None  # where another rule would have stopped it
    total: int | None = None
    proxy_name: str = "reward model"
    marks: tuple[CurveMark, ...] = ()
    view: View | None = None  # None: all of it

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The points that are shown, by rising steps."""
        points, view = self.course.points, self.view
        return points if view is None else tuple(p for p in points if view.first <= p.step <= view.last)

    @property
    def has_proxy(self) -> bool:
        return any(p.proxy is not None for p in self.course.points)

    @property
    def kls(self) -> tuple[tuple[int, float], ...]:
        """(step, KL divergence) that are shown, by rising steps."""
        return _within(self.view, self.course.kls)

    def kl_at(self, step: int) -> float | None:
        """Return the KL divergence that is known of a step, or of the steps kept with it; None: none is."""
        width = self.course.width
        return next((kl for at, kl in self.course.kls if at // width == step // width), None)

    def sentence(self) -> str:
        """Return the chart in words."""
        points = self.points
        if not points:
            return "No eval lies within these steps." if self.course.points else "No eval has been read yet."
        first, last = points[0], points[-1]
        text = f"{self.metric} from step {first.step} to {last.step}, the newest {last.score:.4g}."
        if buckets := [p.step for p in points if p.bucket]:
            width = self.course.width
            text += f" Up to step {buckets[-1]} each point stands for up to {counted(width, 'step')}."
        if self.best is not None:
            text += f" Best {self.best[1]:.4g} at step {self.best[0]}."
        if self.warned is not None:
            text += f" Warned at step {self.warned}."
        if self.stopped is not None:
            text += f" {self.stop_word.capitalize()} at step {self.stopped}."
        if self.other_stop is not None:
            text += f" The other rule stops it at step {self.other_stop}."
        if begun := sum(mark.kind == RESUMED for mark in self.marks):
            text += f" Went on from a checkpoint {counted(begun, 'time')}."
        proxies = [p.proxy for p in points if p.proxy is not None]
        if len(proxies) > 1:
            text += f" The {self.proxy_name} went from {proxies[0]:.4g} to {proxies[-1]:.4g}."
        if len(kls := self.kls) > 1:
            text += f" The KL divergence went from {kls[0][1]:.3g} to {kls[-1][1]:.3g}."
        return text

    def cut(self) -> tuple[CurvePoint, ...]:
        """Return the points that lie so far beyond the others that they are drawn as arrows at the edge."""
        low, high = robust_limits(spread(self.points))
        return tuple(p for p in self.points if min(_values(p)) < low or max(_values(p)) > high)


def spread(points: Sequence[CurvePoint]) -> list[float]:
    """Return the values that an axis of scores is to show."""
    return [value for p in points for value in _values(p)]


def _values(point: CurvePoint) -> tuple[float, ...]:
    return (point.low, point.high) if point.bucket else (point.score,)


def ends(curve: RunChart) -> tuple[int, int]:
    """Return the first and the last step of a chart's axis."""
    if curve.view is not None:
        return curve.view
    every = [p.step for part in (curve.course.points, *curve.course.left) for p in part] or [0]
    first, last = min(every), max(every)
    last = max(last, curve.total or 0, curve.stopped or 0, curve.other_stop or 0)
    return (first, last) if last > first else (max(0, first - 1), last + 1)


@lru_cache(maxsize=_CACHED)
def curve_svg(curve: RunChart, prefix: str, narrow: bool) -> str:
    """Return a chart as an ``<svg>`` element. ``prefix`` makes its ids its own on the page."""
    width = NARROW if narrow else WIDE
    first, last = ends(curve)
    across = Axis(float(first), float(last), LEFT, width - RIGHT)
    events = EventWords(across, width)
    for event in _events(curve):
        events.add(*event)
    top = 32.0 + events.rows * ROW  # the panel's title is above it, and the events' words above that
    upper, lower = top, top + (190.0 if narrow else 210.0)
    body = [*_scores(curve, across, Axis(*_limits(curve), lower, upper), prefix)]
    if shares := _shares(curve):
        upper, lower = lower + _GAP, lower + _GAP + _SMALL
        body += _statistic(shares, across, upper, lower, prefix)
    if curve.has_proxy:
        upper, lower = lower + _GAP, lower + _GAP + _SMALL
        body += _proxies(curve, across, upper, lower, prefix)
    if kls := curve.kls:
        upper, lower = lower + _GAP, lower + _GAP + _SMALL
        body += _divergence(kls, across, upper, lower, prefix)
    body = [*_planned(curve, across, top, lower, prefix), *body]
    body += [*events.drawn(26.0, lower), *step_axis(across, lower, width, narrow)]
    title = f"{curve.metric} by training step"
    return chart(width, lower + FOOT, across, prefix, title, curve.sentence(), "".join(body))


def _limits(curve: RunChart) -> tuple[float, float]:
    return robust_limits(spread(curve.points))


def _events(curve: RunChart) -> Iterable[tuple[int, str, str, str]]:
    """Yield (step, word, colour, dash) of each event."""
    for step, word, colour, dash in (
        (curve.warned, "warned", "--c-warn", "1 2"),
        (curve.stopped, curve.stop_word, "--c-stop", ""),
        (curve.other_stop, "other rule stops", "--c-other", "7 3"),
    ):
        if step is not None:
            yield step, f"{word} {step}", colour, dash
    for mark in reversed(curve.marks):  # the newest first: they have words for sure
        if mark.kind == RESUMED:
            yield mark.step, f"attempt {mark.attempt} from {mark.step}", "--muted", "2 4"
        elif mark.kind == NEW_BASELINE:
            yield mark.step, f"new evaluator {mark.step}", "--muted", "2 4"
        elif mark.step != curve.stopped:
            word = "stopped" if mark.kind == STOPPED else "would stop"
            yield mark.step, f"{word} {mark.step}", "--c-stop", "4 2"


def _planned(curve: RunChart, across: Axis, top: float, bottom: float, prefix: str) -> Iterable[str]:
    """Yield the hatched part of the run that is planned and has not been run."""
    points = curve.course.points
    if curve.total is None or not points or curve.total <= points[-1].step:
        return
    begin, end = across.place(points[-1].step), across.place(curve.total)
    if end - begin < 2.0:
        return
    yield (
        f'<rect class="planned" x="{begin:.1f}" y="{top:.1f}" width="{end - begin:.1f}" '
        f'height="{bottom - top:.1f}" fill="url(#{prefix}-hatch)" fill-opacity=".6"/>'
    )
    word = f"planned to {curve.total}"
    if end - begin > LETTER * len(word) + 8:
        yield words((begin + end) / 2, bottom - 6, word, "--muted", anchor="middle")


def _scores(curve: RunChart, across: Axis, axis: Axis, prefix: str) -> Iterable[str]:
    points = curve.points
    yield from frame(axis, across, curve.metric, "--c-score", 5)
    if any(p.low < p.high for p in points):
        over = [(across.place(p.step), axis.place(p.high)) for p in points]
        under = [(across.place(p.step), axis.place(p.low)) for p in reversed(points)]
        yield f'<path class="band" d="{line(over + under)}Z" fill="var(--c-score)" fill-opacity=".16"/>'
    for part in curve.course.left:
        if shown := [(across.place(p.step), axis.place(p.score)) for p in part if across.holds(p.step)]:
            yield stroke(line(shown), "--muted", 1.4, "3 3", "left")
    yield f'<g id="{prefix}-pts-score" fill="var(--c-score)">'
    placed = [(across.place(p.step), axis.place(p.score)) for p in points]
    if placed:
        yield stroke(line(placed), "--c-score", 2)
    yield markers(prefix, "dot", placed)
    yield "</g>"
    yield from _cut(points, across, axis, prefix)
    yield from _best(curve, across, axis, prefix)


def _best(curve: RunChart, across: Axis, axis: Axis, prefix: str) -> Iterable[str]:
    if curve.best is None or not across.holds(curve.best[0]):
        return
    x, y = across.place(curve.best[0]), axis.place(curve.best[1])
    star = f'<use href="#{prefix}-star" x="{x:.1f}" y="{y:.1f}"/>'
    yield f'<g fill="var(--c-best)" stroke="var(--surface)">{star}</g>'
    text = f"best {curve.best[1]:.4g}"
    half = LETTER * len(text) / 2
    x = min(max(x, across.start + half), across.end - half)
    beside = x - half > LEFT + BOLD_LETTER * len(curve.metric)  # then the panel's title is not in its way
    y = y - 11 if y - 20 > axis.end or beside else y + 20
    label = words(x, y, text, "--ink", anchor="middle", weight=600)
    yield f'<g stroke="var(--surface)" stroke-width="3" paint-order="stroke">{label}</g>'


def _cut(points: Sequence[CurvePoint], across: Axis, axis: Axis, prefix: str) -> Iterable[str]:
    """Yield arrows at the edge for what lies beyond it, and how many points that is and how far."""
    above = [p for p in points if max(_values(p)) > axis.high]
    below = [p for p in points if min(_values(p)) < axis.low]
    up = markers(prefix, "up", [(across.place(p.step), axis.end) for p in above])
    down = markers(prefix, "down", [(across.place(p.step), axis.start) for p in below])
    yield f'<g class="cut" fill="var(--c-score)">{up}{down}</g>'
    if above:
        most = max(max(_values(p)) for p in above)
        yield words(LEFT + 6, axis.end + 12, f"{len(above)} above, to {most:.4g}", "--muted")
    if below:
        least = min(min(_values(p)) for p in below)
        yield words(LEFT + 6, axis.start - 5, f"{len(below)} below, to {least:.4g}", "--muted")


def _within(view: View | None, found: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    return tuple(one for one in found if view is None or view.first <= one[0] <= view.last)


def _shares(curve: RunChart) -> tuple[tuple[int, float], ...]:
    return _within(curve.view, curve.course.shares)


def _statistic(
    shares: Sequence[tuple[int, float]], across: Axis, upper: float, lower: float, prefix: str
) -> Iterable[str]:
    axis = Axis(0.0, min(2.0, max(1.15, 1.1 * max(s for _, s in shares))), lower, upper)
    yield words(LEFT, upper - 7, "statistic, in percent of its threshold", "--c-stop", weight=700)
    for value in (0.0, 0.5, 1.0):
        y, limit = axis.place(value), value == 1.0
        across_it = f"M{across.start:.0f} {y:.1f}H{across.end:.0f}"
        yield stroke(across_it, "--c-stop" if limit else "--line", 1, "6 3" if limit else "")
        yield words(LEFT - 6, y + 3.5, f"{100 * value:.0f} %", "--muted", anchor="end", size=10)
    placed = [(across.place(step), axis.place(share)) for step, share in shares]
    yield f'<g id="{prefix}-pts-share">{stroke(line(placed), "--c-stop", 1.6, "4 1.5")}</g>'


def _proxies(curve: RunChart, across: Axis, upper: float, lower: float, prefix: str) -> Iterable[str]:
    known = [(p.step, p.proxy) for p in curve.points if p.proxy is not None]
    axis = Axis(*robust_limits([value for _, value in known]), lower, upper)
    yield from frame(axis, across, curve.proxy_name, "--c-proxy", 3)
    placed = [(across.place(step), axis.place(value)) for step, value in known]
    drawn = stroke(line(placed), "--c-proxy", 1.8, "5 2") if placed else ""
    yield f'<g id="{prefix}-pts-proxy" fill="var(--c-proxy)">{drawn}{markers(prefix, "box", placed)}</g>'


def _divergence(
    kls: Sequence[tuple[int, float]], across: Axis, upper: float, lower: float, prefix: str
) -> Iterable[str]:
    axis = Axis(*robust_limits([value for _, value in kls]), lower, upper)
    yield from frame(axis, across, "KL to the initial policy (nats)", "--c-other", 3)
    placed = [(across.place(step), axis.place(value)) for step, value in kls]
    yield f'<g id="{prefix}-pts-kl">{stroke(line(placed), "--c-other", 1.6, "8 2 2 2")}</g>'


__all__ = ["RunChart", "View", "curve_svg", "ends", "spread"]
