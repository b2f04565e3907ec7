"""Histories of evals: CSV (also .gz), JSON lines or Parquet -> series of evals.

Columns: ``series_id, step, eval`` (higher is better), optional ``proxy, kl, stderr, n, label, family, run,
peak_step``. ``label`` is healthy, plateau, declining or hacking; other texts (as ``auto:...``, a guess)
count as no label. ``run`` names what was trained: its series are correlated and are resampled together;
default: the series_id up to its last slash, if it has one; the default of ``family`` is the part before
the first slash.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEEDED = ("series_id", "step", "eval")
NUMBERS = ("step", "eval", "stderr", "n", "proxy", "kl", "peak_step")
LABELS = {"healthy": "healthy", "plateau": "plateau", "declining": "declining", "hacking": "declining"}


class HistoryError(ValueError):
    """A history cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one run over its evals, steps strictly rising, scores finite."""

    id: str
    run: str
    family: str
    label: str | None  # healthy | plateau | declining
    steps: tuple[float, ...]
    scores: tuple[float, ...]
    stderrs: tuple[float | None, ...]
    peak_step: float | None = None  # where the true score is best, if known


def read(path: Path) -> list[Series]:
    """The series of a history, in the order in which they begin.

    Evals that are not finite are left out, as in a running job; of a step seen twice the first counts.

    Raises:
        HistoryError: file, line and field of what cannot be read.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for where, row in _rows(path):
        rows.setdefault(str(row["series_id"]), []).append(_numbers(row, where))
    if not rows:
        raise HistoryError(f"{path}: no evals in it")
    return [_series(name, evals) for name, evals in rows.items()]


def _series(name: str, rows: list[Mapping[str, Any]]) -> Series:
    steps: list[float] = []
    scores: list[float] = []
    stderrs: list[float | None] = []
    for row in sorted(rows, key=lambda r: float(r["step"])):
        if math.isfinite(row["eval"]) and (not steps or row["step"] > steps[-1]):
            steps.append(float(row["step"]))
            scores.append(float(row["eval"]))
            error = row.get("stderr")
            stderrs.append(error if error is not None and math.isfinite(error) and error > 0 else None)
    first = rows[0]
    run = str(first.get("run") or "") or (name.rpartition("/")[0] if "/" in name else name)
    family = str(first.get("family") or "") or (name.split("/")[0] if "/" in name else "unnamed")
    return Series(
        name,
        run,
        family,
        LABELS.get(str(first.get("label") or "").lower()),
        tuple(steps),
        tuple(scores),
        tuple(stderrs),
        first.get("peak_step"),
    )


def _numbers(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    out = dict(row)
    for field in NUMBERS:
        value = row.get(field)
        if value is None or value == "":
            if field in NEEDED and field != "eval":
                raise HistoryError(f"{where}: {field}: empty, expected a number")
            out[field] = math.nan if field == "eval" else None
            continue
        try:
            out[field] = float(value)
        except (TypeError, ValueError):
            raise HistoryError(f"{where}: {field}: {value!r} is no number") from None
    if not math.isfinite(out["step"]):
        raise HistoryError(f"{where}: step: {row['step']!r}, expected a finite number")
    return out


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind = "".join(path.suffixes[-2:]).lower()
    if kind.endswith(".parquet"):
        yield from _checked(path, _parquet(path), 1)
    elif kind.endswith((".jsonl", ".jsonl.gz", ".ndjson")):
        yield from _checked(path, _json_lines(path), 1)
    elif kind.endswith((".csv", ".csv.gz")):
        with _open(path) as file:
            yield from _checked(path, csv.DictReader(file), 2)
    else:
        raise HistoryError(
            f"{path}: expected a name that ends in .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet"
        )


def _checked(
    path: Path, rows: Iterable[Mapping[str, Any]], first: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, row in enumerate(rows, start=first):
        missing = [name for name in NEEDED if name not in row]
        if missing:
            seen = ", ".join(str(k) for k in row)
            raise HistoryError(f"{path}:{number}: {missing[0]}: no such column; columns seen: {seen}")
        yield f"{path}:{number}", row


def _open(path: Path) -> Any:
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", encoding="utf-8", newline="")


def _json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise HistoryError(f"{path}:{number}: not JSON ({error.msg})") from None
            if not isinstance(row, dict):
                raise HistoryError(f"{path}:{number}: expected an object, got {type(row).__name__}")
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise HistoryError(
            f"{path}: reading Parquet needs the package pyarrow; CSV and JSONL do not"
        ) from None
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()
