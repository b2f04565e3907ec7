"""A curve in the terminal: braille dots where the terminal shows them, else ASCII characters. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple

from controller.cli import formatting
from controller.cli.terminal import Terminal, length
from controller.frozen import dataclass

# Bit of each dot of a braille character, by column and row (Unicode, block U+2800).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Place = Callable[[float, float, int, int], tuple[int, int]]  # (x, y, columns, rows) -> cell


class Mark(NamedTuple):
    """A point that is shown for itself: where, its characters with and without Unicode, style and meaning."""

    x: float
    y: float
    symbol: str
    plain: str
    style: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising x, and those among them that mean something."""

    title: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[Mark] = field(default_factory=tuple)


def draw(curve: Curve, width: int, height: int, screen: Terminal) -> list[str]:
    """Return the curve in ``width`` columns: title, ``height`` lines of plot, axis, ticks, and what the marks
    mean.

    A single point is drawn as such; without points there is nothing but the title.
    """
    if not curve.points:
        return [curve.title]
    low, high = _bounds([y for _, y in curve.points] + [m.y for m in curve.marks])
    spread, steps = high - low, max(1, height - 1)
    small = math.isfinite(spread * steps)  # else the range itself is beyond all numbers
    values = [
        high - spread * row / steps if small else high * (1 - row / steps) + low * (row / steps)
        for row in range(height)
    ]
    labels = [formatting.number(value) for value in values]
    shown = {0, height // 2, height - 1}
    margin = max(length(labels[row]) for row in shown)
    columns = max(8, width - margin - 2)
    first, last = curve.points[0][0], curve.points[-1][0]

    def place(x: float, y: float, wide: int, tall: int) -> tuple[int, int]:
        right = (x - first) / (last - first) if last > first else 0.5
        down = (high - y) / spread if small else (high / 2 - y / 2) / (high / 2 - low / 2)
        return round(right * (wide - 1)), round(down * (tall - 1))

    cells = (_braille if screen.unicode else _ascii)(curve.points, place, columns, height)
    for mark in curve.marks:
        if first <= mark.x <= last:
            column, row = place(mark.x, mark.y, columns, height)
            cells[row][column] = screen.paint(mark.symbol if screen.unicode else mark.plain, mark.style)
    bar, corner, line = ("│", "└", "─") if screen.unicode else ("|", "+", "-")
    lines = [curve.title]
    for row in range(height):
        label = labels[row] if row in shown else ""
        lines.append(f"{label:>{margin}} {bar}{''.join(cells[row])}".rstrip())
    lines.append(f"{'':>{margin}} {corner}{line * columns}")
    lines.append(" " * (margin + 2) + _ticks(first, last, columns))
    if curve.marks:
        lines += _legend(curve.marks, width, screen)
    return lines


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    room = abs(high) * 0.01 or 1.0
    return max(-sys.float_info.max, low - room), min(sys.float_info.max, high + room)


def _braille(
    points: Sequence[tuple[float, float]], place: Place, columns: int, height: int
) -> list[list[str]]:
    bits = [[0] * columns for _ in range(height)]
    dots = [place(x, y, 2 * columns, 4 * height) for x, y in points]
    for start, end in zip(dots, dots[1:] or dots, strict=False):
        for x, y in _line(start, end):
            bits[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return [[chr(0x2800 + bit) if bit else " " for bit in row] for row in bits]


def _ascii(points: Sequence[tuple[float, float]], place: Place, columns: int, height: int) -> list[list[str]]:
    cells = [[" "] * columns for _ in range(height)]
    dots = [place(x, y, columns, height) for x, y in points]
    for start, end in zip(dots, dots[1:] or dots, strict=False):
        for x, y in _line(start, end):
            cells[y][x] = "."
    for x, y in dots:
        cells[y][x] = "*"
    return cells


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line, both ends with it."""
    (x0, y0), (x1, y1) = start, end
    count = max(abs(x1 - x0), abs(y1 - y0))
    if count == 0:
        return [start]
    return [(round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)) for i in range(count + 1)]


def _ticks(first: float, last: float, columns: int) -> str:
    """Return the steps under the axis: first, middle, last, as far as there is room."""
    left, right = f"{first:g}", f"{last:g}"
    middle = f"{(first + last) / 2:.0f}"
    if last <= first:
        return f"{left:^{columns}}".rstrip()
    if len(left) + len(right) + 2 > columns:
        return right
    room = columns - len(left) - len(right)
    if len(middle) + 4 > room:
        return left + " " * room + right
    return left + f"{middle:^{room}}" + right


def _legend(marks: Sequence[Mark], width: int, screen: Terminal) -> list[str]:
    lines, line = [], ""
    for mark in marks:
        symbol = mark.symbol if screen.unicode else mark.plain
        entry = f"{symbol} {mark.meaning}"
        if line and length(line) + 3 + length(entry) > width:
            lines.append(line)
            line = ""
        line += ("   " if line else "") + entry
    lines.append(line)
    return ["  " + one for one in lines]
