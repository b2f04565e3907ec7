"""Logs as CSV, by a table that says which of their columns is what.

A new log is one entry in `sim/traces/logs.py`. A cell that cannot be read is an error that names its line
and column; a row that is no GPU job is left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.frozen import dataclass
from sim.traces.csv_rows import Rows
from sim.traces.errors import Skipped, TraceError
from sim.traces.trace import JobChecks, Trace, TraceJob

Cells = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A value of a job: the columns it is made of, how a cell is read, and how they are put together."""

    names: tuple[str, ...]
    read: Callable[[str], Any]
    expected: str
    join: Callable[..., Any] = lambda value: value
    optional: bool = False

    @property
    def title(self) -> str:
        """Return how errors name it."""
        return " and ".join(self.names)

    def of(self, cells: Cells, file: Path, line: int) -> Any:
        """Return the value that a row's cells hold.

        Raises:
            TraceError: a cell is missing or cannot be read.
        """
        values = []
        for name in self.names:
            text = cells.get(name)
            if text is None:
                raise TraceError(file, line, name, "there is no such column in this row, was it cut off?")
            if "\n" in text.strip():
                raise TraceError(file, line, name, "a line ends within it")
            try:
                values.append(self.read(text.strip()))
            except (ValueError, OverflowError):
                raise TraceError.value(file, line, name, text, self.expected) from None
        return self.join(*values)


@dataclass(frozen=True, slots=True)
class Log:
    """One kind of log.

    Attributes:
        columns: by field of `TraceJob`, and ``tenant``, which goes before the id.
        signature: columns by which the log is known; all of them must be there.
        leave_out: why a row is no job to simulate, "" if it is one.
        ordered: rows must be in the order of submission.
    """

    name: str
    doc: str
    columns: Mapping[str, Column]
    signature: frozenset[str]
    leave_out: Callable[[Cells], str] = field(default=lambda cells: "")
    ordered: bool = False
    notes: tuple[str, ...] = ()


def number(text: str) -> float:
    """Return a finite number; whole ones stay ints, so that whole seconds stay exact."""
    try:
        found = int(text)
        float(found)  # a whole number beyond every float is refused, too
        return found
    except ValueError:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(text) from None
        return int(value) if value.is_integer() else value


def whole(text: str) -> int:
    value = number(text)
    if not isinstance(value, int):
        raise ValueError(text)
    return value


def moment(text: str) -> float:
    """Return seconds: a number, or a date and time; without an offset it is taken to be UTC."""
    try:
        return number(text)
    except ValueError:
        when = datetime.fromisoformat(text)
        value = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        return int(value) if value.is_integer() else value


def seconds(name: str, *, optional: bool = False) -> Column:
    return Column((name,), number, "a finite number of seconds", optional=optional)


def time(name: str) -> Column:
    return Column((name,), moment, "a time: seconds, or YYYY-MM-DD HH:MM:SS")


def gpus(name: str) -> Column:
    return Column((name,), whole, "a whole number of GPUs")


def text(name: str, *, optional: bool = False) -> Column:
    return Column((name,), str, "text", optional=optional)


def read_csv(file: Path, lines: Iterable[str], log: Log, skipped: Skipped, before: int = 0) -> Trace:
    """Return jobs of a CSV log. ``before``: the number of the first row where the log gives its rows no ids.

    Raises:
        TraceError: a row is wrong and is not to be skipped, or there is no job at all.
    """
    rows = Rows(file, lines)
    header = [name.strip() for name in next(rows, [])]
    rows.check()
    for place, name in enumerate(header):
        if name and name in header[:place]:
            raise TraceError(file, rows.line, name, "is there twice, expected one column of that name")
    trace = Trace([file], log.name, [], skipped, notes=list(log.notes))
    checks = JobChecks(file, ordered=log.ordered)
    present = {
        name: column
        for name, column in log.columns.items()
        if not column.optional or all(part in header for part in column.names)
    }
    fields = {name: log.columns[name].title for name in ("submitted", "work", "gpus")}
    fields["key"] = log.columns["key"].title if "key" in log.columns else "row"
    for row in rows:
        if not row:
            continue
        cells = dict(zip(header, row, strict=False))
        try:
            rows.check()
            rows.check_width(row, header)
            if reason := log.leave_out(cells):
                trace.left_out[reason] += 1
                continue
            job = _job(cells, present, file, rows.line, before + len(trace.jobs))
            checks.check(job, fields)
        except TraceError as error:
            skipped.add(rows.widened(error))
            continue
        trace.jobs.append(job)
    return trace


def _job(cells: Cells, columns: Mapping[str, Column], file: Path, line: int, place: int) -> TraceJob:
    values = {
        name: column.of(cells, file, line)
        for name, column in columns.items()
        if not (column.optional and not any(cells.get(part, "").strip() for part in column.names))
    }
    tenant = str(values.pop("tenant", "") or "trace").replace("/", "-")
    key = str(values.pop("key", place))
    return TraceJob(key=key if "/" in key else f"{tenant}/{key}", line=line, **values)
