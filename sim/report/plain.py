"""A table as plain text: no library to load, so that small commands answer at once.

`terminal.py` is the version with rich.
"""

from __future__ import annotations

from sim.experiments.findings import NUMERIC_FORMS, Findings
from sim.report.formatting import format_row


def text(findings: Findings) -> str:
    """Title, table and notes, each line without trailing spaces."""
    head = [column.title for column in findings.columns]
    rows = [format_row(findings.columns, row) for row in findings.rows]
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [findings.title, ""]
    for cells in [head, *rows]:
        padded = [
            cell.rjust(width) if column.form in NUMERIC_FORMS else cell.ljust(width)
            for cell, width, column in zip(cells, widths, findings.columns, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
        if cells is head:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *findings.notes]) + "\n"
