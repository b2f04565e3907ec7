"""Rows of a CSV file, each with the line on which it begins, so that a quote that stays open is found."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from controller.policy.wording import counted
from sim.traces.errors import TraceError

_OTHER_MARKS = ";\t|"  # what else parts columns in exports of spreadsheets
_OPEN = 'a quote (") opens in this row and is never closed'


def other_mark(header: Sequence[str]) -> str:
    """Return that columns are parted by something else than a comma, as the end of a sentence; "": they are
    not. ``header``: the cells of the first row."""
    mark = next((mark for mark in _OTHER_MARKS if mark in header[0]), "") if len(header) == 1 else ""
    return f"; columns are parted by {mark!r}, expected a comma" if mark else ""


class Rows(Iterator[list[str]]):
    """Iterator over the cells of each row.

    Attributes:
        line: on which the newest row begins, counted from 1.
        last: on which it ends; further on than ``line`` where a quoted cell has line ends in it.

    Raises:
        TraceError: from `next`; a row is no CSV.
    """

    def __init__(self, file: Path, lines: Iterable[str]) -> None:
        self._file = file
        self._ended = self._open = False
        self._reader = csv.reader(self._seen(lines))
        self.line = self.last = 0

    def _seen(self, lines: Iterable[str]) -> Iterator[str]:
        yield from lines
        self._ended = True  # the reader asks for a further line: between rows, or within a quoted cell

    def __next__(self) -> list[str]:
        self.line = self._reader.line_num + 1
        try:
            row = next(self._reader)  # no further row: nothing is open
            self._open = self._ended
        except csv.Error as error:
            raise TraceError(self._file, self.line, "", f"not CSV ({error})") from None
        self.last = self._reader.line_num
        return row

    def check(self) -> None:
        """Raise `TraceError` if a quote that the newest row opens is not closed before the file ends."""
        if self._open:
            raise TraceError(self._file, self.line, "", _OPEN)

    def check_width(self, row: list[str], header: list[str]) -> None:
        """Raise `TraceError` if the newest row has more cells than there are columns."""
        if len(row) > len(header):
            under = f"{counted(len(row), 'cell')} under {counted(len(header), 'column')}"
            raise TraceError(self._file, self.line, "", under + other_mark(header))

    def widened(self, error: TraceError) -> TraceError:
        """Return an error of the newest row; of one over several lines, with its last line."""
        if self._open or self.last <= self.line:
            return error
        problem = f"{error.problem}; the row goes on to line {self.last}, is a quote not closed?"
        return TraceError(error.file, error.line, error.field, problem)
