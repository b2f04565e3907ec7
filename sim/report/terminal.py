"""Tables and progress in a terminal, without colours when stdout is not a terminal.

Loads rich; import lazily. `plain.py` is the version without libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
    for column in findings.columns:
        table.add_column(column.title, justify="right" if column.form in NUMERIC_FORMS else "left")
    for row in findings.rows:
        table.add_row(*format_row(findings.columns, row))
    console.print(table)
    for note in findings.notes:
        console.print(f"  {note}", markup=False)


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
