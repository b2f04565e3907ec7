"""Findings as tidy files: CSV always, Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.policy.params import ParamError
from sim.experiments.findings import Findings


def check_table_path(path: Path) -> None:
    """Refuse a path that `write_table` could not write, before the work is done.

    Raises:
        ParamError: the ending is neither .csv nor .parquet, or pyarrow is not there for the latter.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ParamError("table", str(path), "a file name that ends in .csv or .parquet")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ParamError("table", str(path), "a .csv file, or pyarrow installed")
    if not path.absolute().parent.is_dir():
        raise ParamError("table", str(path), "a file in a folder that exists")


def write_table(path: Path, findings: Sequence[Findings]) -> None:
    """All rows of these findings, one below the other; columns that one of them lacks are empty there."""
    header: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    for one in findings:
        names, cells = one.tidy()
        header.update(dict.fromkeys(names))
        rows += [dict(zip(names, row, strict=True)) for row in cells]
    if path.suffix == ".parquet":
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        columns = {name: [row.get(name) for row in rows] for name in header}
        parquet.write_table(arrow.table(columns), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(header), restval="")
        writer.writeheader()
        writer.writerows(rows)
