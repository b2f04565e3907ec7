"""Lanes over time, drawn by matplotlib: a job's learner and actors, or the turns of a worker group. Kinds
differ in hatch, as a legend says."""

from __future__ import annotations

import datetime
from functools import lru_cache
from typing import Any

from controller.frozen import dataclass
from controller.web.dashboard import charts, svg


@dataclass(frozen=True, slots=True)
class Bar:
    """A time in a lane, ``begin`` to ``end`` (s). ``kind``: a word of `KINDS`. ``text``: what is written."""

    begin: float
    end: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: the learner, the actors of each step, one actor, or one resident of a group."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes, the first above."""

    lanes: tuple[Lane, ...]
    title: str = "Learner and rollout actors over time"

    def sentence(self) -> str:
        """Return the chart in words."""
        parts = []
        for lane in self.lanes:
            kinds = list(dict.fromkeys(bar.kind for bar in lane.bars))
            parts.append(f"{lane.name}: {', '.join(kinds)}")
        return "; ".join(parts) + "."


# Kind -> colour and hatch.
KINDS = {
    "generates": (svg.SCORE, ""),
    "trains": (svg.MUTED, ".."),
    "base": (svg.BEST, ""),
    "spare": (svg.PROXY, "//"),
    "leaves": (svg.STOP, "xx"),
    "switches": (svg.MUTED, ".."),
    "has the turn": (svg.SCORE, ""),
    "lost its turn": (svg.STOP, "xx"),
    "does not answer": (svg.MUTED, "//"),
}


@lru_cache(maxsize=128)
def lanes_svg(found: Lanes, prefix: str, narrow: bool) -> str:
    """Return the chart of the lanes over time."""
    with charts.drawing() as make:
        from matplotlib import dates
        from matplotlib.patches import Patch

        figure = make(narrow, (110 if narrow else 90) + 26 * len(found.lanes))
        axis = figure.subplots()
        made: Any = dates  # its classes are not typed
        for place, lane in enumerate(found.lanes):
            for bar in lane.bars:
                colour, hatch = KINDS[bar.kind]
                begin = made.date2num(datetime.datetime.fromtimestamp(bar.begin, datetime.UTC))
                width = max(bar.end - bar.begin, 0.0) / 86400.0
                axis.barh(
                    place, width, left=begin, height=0.7, color=colour, hatch=hatch, edgecolor=svg.SURFACE
                )
                if bar.text and not narrow:
                    axis.annotate(
                        bar.text, (begin + width / 2, place), ha="center", va="center", fontsize=8,
                        color=svg.INK, bbox={"facecolor": svg.SURFACE, "edgecolor": "none", "pad": 1},
                    )  # fmt: skip
        axis.set_yticks(range(len(found.lanes)), [lane.name for lane in found.lanes])
        axis.invert_yaxis()
        axis.xaxis_date()
        locator = made.AutoDateLocator(minticks=1 if narrow else 5, maxticks=4 if narrow else 8)
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(made.ConciseDateFormatter(locator))
        used = {bar.kind for lane in found.lanes for bar in lane.bars}
        patches = [
            Patch(facecolor=colour, hatch=hatch, edgecolor=svg.SURFACE, label=kind)
            for kind, (colour, hatch) in KINDS.items()
            if kind in used
        ]
        columns = 3 if narrow else len(patches)  # on a phone in two rows: "leaves" stood beside the page
        figure.legend(handles=patches, loc="outside lower left", ncols=columns, frameon=False)
        return svg.page_svg(figure, prefix, found.title, found.sentence())
