"""Tables and progress in a terminal, without colours when stdout is not a terminal.

Loads rich; import lazily. `plain.py` is the version without libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from sim.experiments.findings import NUMERIC_FORMS, Findings
from sim.report.formatting import format_row

_PLAIN_WIDTH = 200  # of a table that goes into a file or a pipe


def show(findings: Findings, console: Console | None = None) -> None:
    """Print the findings' table and notes to stdout."""
    console = console or Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    table = Table(title=findings.title, title_justify="left", title_style="bold", caption_justify="left")
    cells = [list(format_row(findings.columns, row)) for row in findings.rows]
    shown, below = _fitting(findings, cells, console.width)
    for i in shown:
        numeric = findings.columns[i].form in NUMERIC_FORMS
        table.add_column(findings.columns[i].title, justify="right" if numeric else "left", no_wrap=i == 0)
    for row in cells:
        table.add_row(*(row[i] for i in shown))
    console.print(table)
    for i in below:
        for row in cells:
            if row[i]:
                console.print(f"  {row[0]}, {findings.columns[i].title}: {row[i]}", markup=False)
    for note in findings.notes:
        console.print(f"  {note}", markup=False)


def _fitting(
    findings: Findings, cells: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return which columns fit side by side, and which stand below the table: words, the widest first."""
    widths = [
        max([len(column.title), *(len(row[i]) for row in cells)]) for i, column in enumerate(findings.columns)
    ]
    shown, below = list(range(len(widths))), []
    while sum(widths[i] + 3 for i in shown) + 1 > width:
        words = [i for i in shown[1:] if findings.columns[i].form not in NUMERIC_FORMS]
        if not words:
            break
        widest = max(words, key=lambda i: widths[i])
        shown.remove(widest)
        below.append(widest)
    return shown, sorted(below)


@contextmanager
def progress(title: str, unit: str = "trial") -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, or one summary line if stderr is not a terminal.

    Yields a function to call with the trials done and the number of all trials.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        began, counts = monotonic(), [0]

        def count(done: int, total: int) -> None:
            counts[0] = total

        yield count
        units = unit if counts[0] == 1 else f"{unit}s"
        print(f"{title}: {counts[0]} {units} in {monotonic() - began:.1f} s", file=sys.stderr)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
