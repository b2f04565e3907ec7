"""A what-if as a terminal shows it: one line for each figure, then what has to be known to believe it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from controller.policy.wording import counted
from sim.report.formatting import NOTHING, fitted, folded, number
from sim.what_if.compare import Compared, Comparison

_HEAD = ("", "recorded", "replayed", "alternative", "difference", "95 % interval", "")


def text(made: Comparison, width: int | None = None) -> str:
    """Return title, table, the jobs that change most, notes. ``width``: of the screen; None: of any."""
    rows = [_HEAD, *(_row(one) for one in made.figures if not _idle(one))]
    lines = [*folded(made.title, width), *folded(_span(made), width), ""]
    lines += [*fitted(rows, _lined(rows), width), ""]
    if made.jobs:
        rows = _jobs(made.jobs)
        lines += ["Jobs that change most:", *fitted(rows, _lined(rows), width), ""]
    return "\n".join([*lines, *(line for note in made.notes for line in folded(note, width))]) + "\n"


def _span(made: Comparison) -> str:
    history, chosen = made.history, len(made.chosen)
    words = [f"pool {history['pool']}"] if history.get("pool") else []
    if "from" in history and "to" in history:
        words.append(f"{moment(history['from'])} to {moment(history['to'])}")
    words.append(f"{chosen} of {counted(made.given.every, 'job')}")
    return ", ".join(words)


def moment(seconds: float) -> str:
    """Return a time as people write it, UTC; what is no time since 1970 as seconds."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"


def _idle(one: Compared) -> bool:
    """Return whether there is nothing of this in either arm."""
    return (
        one.figure.less is not False
        and not one.baseline
        and not any(one.alternative)
        and not (isfinite(one.recorded) and one.recorded)
    )


def _row(one: Compared) -> tuple[str, ...]:
    form, figure = one.figure.form, one.figure
    low, high = one.interval
    values = [d.value for d in one.difference]
    verdict = {True: "better", False: "worse", None: ""}[one.better]
    return (
        figure.title,
        number(one.recorded, form) if isfinite(one.recorded) else NOTHING,
        number(one.baseline, form),
        _range(one.alternative, form),
        _signed(values, form) + _relative(one),
        f"[{_sign(low, form)}, {_sign(high, form)}]" if isfinite(low) else NOTHING,
        verdict,
    )


def _range(values: Sequence[float], form: str) -> str:
    low, high = number(min(values), form), number(max(values), form)
    return low if low == high else f"{low} … {high}"


def _signed(values: Sequence[float], form: str) -> str:
    low, high = _sign(min(values), form), _sign(max(values), form)
    return low if low == high else f"{low} … {high}"


def _relative(one: Compared) -> str:
    """In per cent of the baseline, where all scenarios agree and that says something."""
    values = {d.value for d in one.difference}
    if len(values) != 1 or one.figure.form == "count" or not one.baseline:
        return ""
    return f" ({100.0 * next(iter(values)) / one.baseline:+.1f} %)"


def _sign(value: float, form: str) -> str:
    written = number(abs(value), form)
    zero = number(0.0, form)
    return written if written == zero else ("+" if value > 0 else "-") + written


def _jobs(jobs: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("  job", "replayed", "alternative", "stopped at eval, of those known")]
    for job in jobs:
        stops = [job["stopped_baseline"], job["stopped_alternative"]]
        moved = "" if stops == [None, None] else " -> ".join(NOTHING if s is None else str(s) for s in stops)
        times = (number(job[f"jct_{arm}"], "seconds") for arm in ("baseline", "alternative"))
        rows.append((f"  {job['job']}", *times, moved))
    return rows


def _lined(rows: Sequence[Sequence[str]]) -> list[str]:
    """In columns: the first to the left, the last too, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if place in (0, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
