"""A table as plain text: no library to load, so that small commands answer at once."""

from __future__ import annotations

from sim.experiments.findings import Findings
from sim.report.forms import written

_RIGHT = {"share", "seconds", "count", "number", "p"}


def text(findings: Findings) -> str:
    """Title, table and notes, each line without trailing spaces."""
    head = [column.title for column in findings.columns]
    rows = [written(findings.columns, row) for row in findings.rows]
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [findings.title, ""]
    for cells in [head, *rows]:
        padded = [
            cell.rjust(width) if column.form in _RIGHT else cell.ljust(width)
            for cell, width, column in zip(cells, widths, findings.columns, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
        if cells is head:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *findings.notes]) + "\n"
