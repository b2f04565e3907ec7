"""Tables as kubectl prints them: aligned, no borders, one line a row; columns give way where it is narrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.cli.terminal import Terminal, clean, length
from controller.frozen import dataclass

GAP = "   "
SHORTEST = 12  # columns that are left of a text before another column gives way
CUT_TO = 6  # columns that are left of anything where nothing else helps


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        gives_way: dropped on a narrow terminal, the highest first; 0: never.
        text: its cells are sentences, cut on a narrow terminal.
        name: its cells are names, cut in the middle where nothing else helps.
        style: returns a cell's style.
    """

    title: str
    right: bool = False
    gives_way: int = 0
    text: bool = False
    name: bool = False
    style: Callable[[str], str] = lambda _: ""


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], screen: Terminal, header: bool = True
) -> list[str]:
    """Return the lines of a table. On a screen none is longer than it is wide, as far as columns give way."""
    cells = [[clean(cell) for cell in row] for row in rows]
    kept = _fitting(columns, cells, screen)
    widths = {i: _width(columns, cells, i) for i in kept}
    if screen.width is not None:
        _shrink(columns, kept, widths, screen.width)
    lines = []
    if header:
        lines.append(_line(columns, kept, widths, [c.title for c in columns], screen, "bold"))
    lines += [_line(columns, kept, widths, row, screen) for row in cells]
    return lines


def _width(columns: Sequence[Column], cells: Sequence[Sequence[str]], i: int) -> int:
    return (
        max(length(columns[i].title), *(length(row[i]) for row in cells)) if cells else len(columns[i].title)
    )


def _fitting(columns: Sequence[Column], cells: Sequence[Sequence[str]], screen: Terminal) -> list[int]:
    kept = list(range(len(columns)))
    if screen.width is None:
        return kept
    widths = [
        min(_width(columns, cells, i), max(SHORTEST, len(columns[i].title))) if columns[i].text
        else _width(columns, cells, i)
        for i in kept
    ]  # fmt: skip
    while sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1) > screen.width:
        droppable = [i for i in kept if columns[i].gives_way]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda i: (columns[i].gives_way, i)))
    return kept


def _shrink(columns: Sequence[Column], kept: Sequence[int], widths: dict[int, int], total: int) -> None:
    over = sum(widths.values()) + len(GAP) * (len(kept) - 1) - total
    # Sentences first, then names, the longest of them first; then whatever is furthest to the right.
    for i in reversed([i for i in kept if columns[i].text]):
        over -= _narrow(widths, i, over, SHORTEST)
    names = [i for i in kept if columns[i].name]
    while over > 0 and names and widths[longest := max(names, key=lambda i: widths[i])] > SHORTEST:
        over -= _narrow(widths, longest, 1, SHORTEST)
    for i in reversed(kept):
        over -= _narrow(widths, i, over, CUT_TO)


def _narrow(widths: dict[int, int], i: int, over: int, least: int) -> int:
    """Make a column narrower by at most ``over``, and leave ``least``; return by how much it was."""
    less = max(0, min(over, widths[i] - least))
    widths[i] -= less
    return less


def _line(
    columns: Sequence[Column],
    kept: Sequence[int],
    widths: dict[int, int],
    row: Sequence[str],
    screen: Terminal,
    style: str = "",
) -> str:
    parts = []
    for place, i in enumerate(kept):
        cut = screen.cut_middle if columns[i].name else screen.cut
        shown = cut(row[i], widths[i]) if widths[i] else ""
        padding = " " * (widths[i] - length(shown))
        painted = screen.paint(shown, style or columns[i].style(row[i]))
        last = place == len(kept) - 1
        parts.append(padding + painted if columns[i].right else painted + ("" if last else padding))
    return GAP.join(parts).rstrip()
