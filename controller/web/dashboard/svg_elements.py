"""Elements of our own SVG drawings: text as text, colours as variables of what shows them, no style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from controller.web.dashboard.axes import Axis, tick_texts, ticks

WIDE, NARROW = 860, 340  # px that a chart is made for
LEFT, RIGHT, FOOT = 58.0, 14.0, 38.0  # px, around the panels
LETTER = 6.4  # px, of a letter of 11 px
BOLD_LETTER = 7.4  # px, of a bold one
DIGIT = 0.58  # of its size, the width of a digit
ROW = 15.0  # px, of a row of words
ROWS = 5  # of words above a chart, at most
COLOURS = (
    *("--ink", "--muted", "--line", "--surface"),
    *("--c-score", "--c-proxy", "--c-best", "--c-stop", "--c-warn", "--c-other"),
)


def clean(text: str) -> str:
    """Return a text as XML can hold it, escaped."""
    kept = (c if c in "\t\n" or (ord(c) >= 32 and not 0xD800 <= ord(c) <= 0xDFFF) else "?" for c in text)
    return escape("".join(kept))


def words(
    x: float, y: float, text: str, colour: str, *, anchor: str = "start", size: int = 11, weight: int = 400
) -> str:
    """Return a text at a place (px); ``anchor``: start, middle or end of it lies there."""
    more = f' text-anchor="{anchor}"' if anchor != "start" else ""
    more += f' font-size="{size}"' if size != 11 else ""
    more += f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="var({colour})"{more}>{clean(text)}</text>'


def stroke(d: str, colour: str, width: float = 1.0, dash: str = "", name: str = "") -> str:
    """Return a line along a path; ``name``: its class."""
    more = f' stroke-dasharray="{dash}"' if dash else ""
    more += f' class="{name}"' if name else ""
    return f'<path d="{d}" fill="none" stroke="var({colour})" stroke-width="{width:g}"{more}/>'


def line(points: Sequence[tuple[float, float]]) -> str:
    """Return the path through points (px)."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def markers(prefix: str, shape: str, places: Iterable[tuple[float, float]]) -> str:
    return "".join(f'<use href="#{prefix}-{shape}" x="{x:.1f}" y="{y:.1f}"/>' for x, y in places)


def chart(
    width: int, height: float, across: Axis, prefix: str, title: str, description: str, body: str
) -> str:
    """Return an ``<svg>`` that tells what it shows to those who do not see it, and its steps to the page."""
    shapes = {
        "dot": '<circle id="{}" r="2.6"/>',
        "box": '<rect id="{}" x="-2.2" y="-2.2" width="4.4" height="4.4"/>',
        "up": '<path id="{}" d="M0 -4 4 4 -4 4Z"/>',
        "down": '<path id="{}" d="M0 4 4 -4 -4 -4Z"/>',
        "star": '<path id="{}" d="M0 -8 2 -2.6 8 -2.6 3.2 1 5 6.8 0 3.3 -5 6.8 -3.2 1 -8 -2.6 -2 -2.6Z"/>',
        "hatch": '<pattern id="{}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform='
        '"rotate(45)"><path d="M0 0V7" stroke="var(--line)" stroke-width="3"/></pattern>',
    }
    defined = "".join(text.format(f"{prefix}-{name}") for name, text in shapes.items())
    steps = f'data-first="{across.low:.0f}" data-last="{across.high:.0f}"'
    sides = f'data-left="{across.start / width:.5f}" data-right="{across.end / width:.5f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'class="chart" aria-labelledby="{prefix}-t {prefix}-d" {steps} {sides} font-size="11">'
        f'<title id="{prefix}-t">{clean(title)}</title><desc id="{prefix}-d">{clean(description)}</desc>'
        f"<defs>{defined}</defs>{body}</svg>"
    )


def frame(axis: Axis, across: Axis, title: str, colour: str, about: int) -> Iterable[str]:
    """Yield a panel's title, its ticks and the lines through them."""
    room = int((across.end - LEFT) / BOLD_LETTER)
    yield words(LEFT, axis.end - 7, shortened(title, room), colour, weight=700)
    marks = ticks(axis.low, axis.high, about)
    for value, text in zip(marks, tick_texts(marks), strict=True):
        y = axis.place(value)
        yield stroke(f"M{across.start:.0f} {y:.1f}H{across.end:.0f}", "--line", 0.8)
        size = min(10, int((LEFT - 8) / (DIGIT * len(text))))
        yield words(LEFT - 6, y + 3.5, text, "--muted", anchor="end", size=size)


def shortened(name: str, most: int) -> str:
    """Return a name cut in the middle to so many characters: its ends are what tells it from others."""
    if len(name) <= most:
        return name
    ahead = max(1, (most - 1) // 2)
    return f"{name[:ahead]}…{name[len(name) - max(1, most - 1 - ahead) :]}"


def step_axis(across: Axis, bottom: float, width: int, narrow: bool) -> Iterable[str]:
    """Yield the axis of training steps below a chart."""
    yield stroke(f"M{across.start:.0f} {bottom:.1f}H{across.end:.0f}", "--muted")
    for value in ticks(across.low, across.high, 4 if narrow else 7):
        if value == round(value):
            text = f"{value:.0f}"
            x = min(across.place(value), width - LETTER * len(text) / 2 - 1)
            yield words(x, bottom + 15, text, "--muted", anchor="middle", size=10)
    middle = (across.start + across.end) / 2
    yield words(middle, bottom + 31, "training step", "--muted", anchor="middle")


class EventWords:
    """Words over vertical lines, in rows in which none overprints another.

    At most `ROWS` rows: a line whose words find no room there tells them to whoever points at it. So what
    is added first has words for sure.
    """

    def __init__(self, across: Axis, width: int) -> None:
        self._across, self._width = across, width
        self._placed: list[tuple[int, float, float, str, str, str]] = []
        self._bare: list[tuple[float, str, str, str]] = []
        self.rows = 0

    def add(self, step: int, word: str, colour: str, dash: str) -> None:
        if not self._across.holds(step):
            return
        at, long = self._across.place(step), LETTER * len(word)
        begin = at + 4 if at + long + 6 <= self._width else max(2.0, at - 4 - long)
        row = 0
        while self._taken(row, begin - 8, begin + long + 8):
            row += 1
        if row == ROWS:
            self._bare.append((at, word, colour, dash))
            return
        self._placed.append((row, at, begin, word, colour, dash))
        self.rows = max(self.rows, row + 1)

    def _taken(self, row: int, start: float, end: float) -> bool:
        return any(
            r == row and begin < end and begin + LETTER * len(word) > start
            for r, _, begin, word, *_ in self._placed
        )

    def drawn(self, top: float, bottom: float) -> Iterable[str]:
        for at, word, colour, dash in self._bare:
            begin = top + (self.rows - 1) * ROW + 4
            yield f"<g><title>{clean(word)}</title>"
            yield stroke(f"M{at:.1f} {begin:.1f}V{bottom:.1f}", colour, 1.6, dash) + "</g>"
        for row, at, begin, word, colour, dash in self._placed:
            y = top + row * ROW
            yield stroke(f"M{at:.1f} {y - 9:.1f}V{bottom:.1f}", colour, 1.6, dash)
            if begin > at:
                yield words(begin, y, word, colour, weight=600)
            elif begin > 2.0:
                yield words(at - 4, y, word, colour, anchor="end", weight=600)
            else:
                yield words(2.0, y, word, colour, weight=600)
