"""A benchmark's results: rows of name, value, unit, baseline and ratio, as a table and as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """``baseline``: what the same costs without our part, measured in the same run; None: there is none."""

    name: str
    value: float
    unit: str
    baseline: float | None = None

    @property
    def ratio(self) -> float | None:
        """Value by baseline."""
        return self.value / self.baseline if self.baseline else None


def median_row(name: str, values: Sequence[float], unit: str, baseline: Sequence[float] = ()) -> Row:
    """The median of repeated measurements, against the median of the baseline's."""
    return Row(name, statistics.median(values), unit, statistics.median(baseline) if baseline else None)


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile by nearest rank: of 100 values the 99th percentile is the last but one."""
    return sorted(values)[max(0, math.ceil(round(share * len(values), 9)) - 1)]


def write(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1) + "\n")


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table("name")
    for header in ("value", "unit", "baseline", "ratio"):
        table.add_column(header, justify="left" if header == "unit" else "right")
    for row in rows:
        baseline = "" if row.baseline is None else f"{row.baseline:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        table.add_row(row.name, f"{row.value:.4g}", row.unit, baseline, ratio)
    console.print(table)
