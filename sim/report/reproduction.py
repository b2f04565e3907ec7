"""Tables in a Markdown page, filled in from findings, so that no figure in it is typed by hand.

    <!-- table noise: noise precision recall -->
    … replaced …
    <!-- end -->

names an experiment and the columns that the table has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sim.experiments.estimate import Estimate
from sim.experiments.findings import Column, Findings
from sim.report.formatting import format_cell

_TABLE = re.compile(r"(<!-- table ([\w-]+): ([\w ]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def fill(page: str, found: Mapping[str, Findings]) -> str:
    """Return the page with every table anew whose experiment is among ``found``; others stay as they are.

    Raises:
        ValueError: a table asks for a column that its experiment does not have.
    """

    def table(match: re.Match[str]) -> str:
        head, name, keys, before, end = match.groups()
        body = before if name not in found else markdown(found[name], keys.split())
        return f"{head}{body}{end}"

    return _TABLE.sub(table, page)


def markdown(findings: Findings, keys: list[str]) -> str:
    """Return a Markdown table of some columns, by their keys.

    Raises:
        ValueError: the experiment has no such column.
    """
    columns = [_column(findings, key) for key in keys]
    rows = ["| " + " | ".join(column.title for column in columns) + " |", "|" + "---|" * len(columns)]
    for row in findings.rows:
        cells = (format_cell(row.get(column.key), column.form) for column in columns)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _column(findings: Findings, key: str) -> Column:
    shown = {column.key: column for column in findings.columns}
    if key in shown:
        return shown[key]
    if not any(key in row for row in findings.rows):
        known = ", ".join(findings.rows[0])
        raise ValueError(f"table {findings.name}: {key!r} is not allowed, expected one of {known}")
    share = any(isinstance(row.get(key), Estimate) for row in findings.rows)
    return Column(key, key.replace("_", " "), "share" if share else "number")
