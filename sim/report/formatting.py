"""Format values of `Findings` columns as text.

Used by terminal, page, plain and reproduction of sim/report, and by sim/what_if.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from textwrap import wrap

from sim.experiments.estimate import Estimate
from sim.experiments.findings import Column, Value

NOTHING = "-"


def fitted(rows: Sequence[Sequence[str]], lines: Sequence[str], width: int | None) -> list[str]:
    """Return a table's lines; where one is wider than the screen, each row as a block of its own instead.

    Args:
        rows: its cells, the titles first.
        lines: the same in columns.
        width: of the screen, in characters; None: of any.
    """
    if width is None or max(map(len, lines)) <= width:
        return list(lines)
    titles = [title.strip() for title in rows[0]]
    room = max(map(len, titles[1:]))
    found: list[str] = []
    for row in rows[1:]:
        found += [row[0].strip()] if not found else ["", row[0].strip()]
        pairs = zip(titles[1:], (cell.strip() for cell in row[1:]), strict=True)
        found += [f"  {title:<{room}}  {cell}" for title, cell in pairs if cell]
    return found


def folded(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text in lines of at most ``width`` characters; None: in one. ``indent``: of all but the
    first."""
    if width is None:
        return [text]
    return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def format_cell(value: Value, form: str) -> str:
    """Return a value in its column's form (`Column.form`); an estimate with its interval."""
    if isinstance(value, Estimate):
        if not isfinite(value.value):
            return NOTHING
        text = number(value.value, form)
        if isfinite(value.low) and isfinite(value.high):
            unit = " %" if form == "share" else ""
            low, high = number(value.low, form), number(value.high, form)
            text = f"{text.removesuffix(unit)} [{low.removesuffix(unit)}, {high.removesuffix(unit)}]{unit}"
        return text
    return number(value, form)


def number(value: float | int | str | None, form: str) -> str:
    """Return a value in a form; a text as it is, `NOTHING` for what is missing or not finite.

    Forms: see `Column.form`.
    """
    if value is None or value == "":
        return NOTHING
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return NOTHING
    match form:
        case "share":
            return f"{round(100.0 * value, 1) + 0.0:.1f} %"  # no -0.0
        case "seconds":
            return duration(value)
        case "count":
            return f"{value:,.0f}"
        case "p":
            return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
        case _:
            whole = isinstance(value, int) or abs(value) >= 1000.0
            return f"{value:,.0f}" if whole else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a duration such as ``8 h 24 min``, ``3 min 20 s``, ``4 s``; from 48 h on in days, ``2.5 d``."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds >= 48 * 3600:
        return f"{sign}{seconds / 86400:.1f} d"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{sign}{hours} h {minutes:02d} min"
    return f"{sign}{minutes} min {rest:02d} s" if minutes else f"{sign}{seconds:.3g} s"


def format_row(columns: Sequence[Column], row: Mapping[str, Value]) -> list[str]:
    """Return a row's cells in the order of the columns."""
    return [format_cell(row.get(column.key), column.form) for column in columns]
