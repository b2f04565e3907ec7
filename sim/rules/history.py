"""Histories of evals: CSV (also .gz), JSON lines or Parquet -> series of evals.

Columns: ``series_id, step, eval`` (higher is better), optional ``proxy, kl, stderr, n, label, family, run,
peak_step`` and the per-prompt differences to a reference step, ``reference_step, paired_prompts,
paired_mean, paired_variance`` (all four or none of an eval). ``n`` is the number of samples of an eval,
``prompts`` that of its prompts; ``lowest`` and ``highest``, a prompt's scores at most, and ``total_steps`` of
the run are read from a series' first row.
``kl`` is read, checked and drawn; no rule looks at it. ``label`` is healthy, plateau, declining or hacking;
other texts (as ``auto:...``, a guess) count as no label. ``run`` names what was trained: its series are
correlated and are resampled together; default: the series_id up to its last slash, if it has one; the
default of ``family`` is the part before the first slash.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from controller.bounded import quoted
from controller.frozen import dataclass
from controller.policy.types import EvalInContext, EvalPoint, FleetNoise, Paired, PromptPair
from controller.policy.wording import counted, some
from sim.traces.csv_rows import Rows, other_mark
from sim.traces.errors import TraceError
from sim.traces.json_text import parse

T = TypeVar("T")

_HINT = (
    "; a history of evalstop export, or a decision log, is what evalstop what-if and evalstop report read: "
    "for stop rules write it by evalstop export --evals"
)
NEEDED = ("series_id", "step", "eval")
NAMES = ("series_id", "run", "family")  # shown in terminals and pictures
PAIRED = ("reference_step", "paired_prompts", "paired_mean", "paired_variance")
SIZE = ("prompts", "lowest", "highest", "total_steps")
NUMBERS = ("step", "eval", "stderr", "n", "proxy", "kl", "peak_step", *PAIRED, *SIZE)
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
    proxies: tuple[float | None, ...] = ()  # these four: one for each eval, or empty: none is known
    kls: tuple[float | None, ...] = ()
    samples: tuple[int | None, ...] = ()
    paired: tuple[Paired | None, ...] = ()
    prompts: tuple[int | None, ...] = ()
    range: tuple[float, float] | None = None  # lowest and highest score of a prompt
    total: float | None = None  # steps of the whole run, where it states them
    prompt_pairs: tuple[PromptPair | None, ...] = ()  # with the best before; no history file has these
    last_pairs: tuple[PromptPair | None, ...] = ()  # with the eval before
    usual: FleetNoise | None = None  # what its pool knows of its noise; no history file has it

    def points(self) -> Iterator[EvalPoint]:
        """Yield the evals as a stop rule is shown them."""
        nothing = (None,) * len(self.steps)
        for step, score, stderr, samples, proxy, paired, prompts, *pairs in zip(
            self.steps,
            self.scores,
            self.stderrs,
            self.samples or nothing,
            self.proxies or nothing,
            self.paired or nothing,
            self.prompts or nothing,
            self.prompt_pairs or nothing,
            self.last_pairs or nothing,
            strict=True,
        ):
            plain = EvalPoint(
                int(step),
                score,
                stderr=stderr,
                samples=samples,
                proxy=proxy,
                paired=paired,
                prompts=prompts,
                prompt_pairs=tuple({pair.step: pair for pair in pairs if pair is not None}.values()),
            )
            if self.range is None and self.total is None and self.usual is None:
                yield plain
            else:
                yield EvalInContext.of(
                    plain, progress=self._progress(step), range=self.range, fleet_noise=self.usual
                )

    def _progress(self, step: float) -> float | None:
        return None if self.total is None else step / self.total

    def progress(self) -> tuple[float | None, ...]:
        """Return the share of the run that is done at each eval, as far as it is known."""
        return tuple(self._progress(step) for step in self.steps)


def read(path: Path, notes: list[str] | None = None) -> list[Series]:
    """Return the series of a history, in the order in which they begin.

    Evals that are not finite, or of 0 samples, are left out, as in a running job; of a step seen twice the
    first counts. ``notes`` receives a sentence about each kind of cell that was not used for what it says.

    Raises:
        HistoryError: file, line and field of what cannot be read.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    try:
        for where, row in _rows(path):
            for field in NAMES:
                if not str(row.get(field) or "").isprintable():
                    raise HistoryError(f"{where}: {field}: {quoted(row[field])} has control characters")
            rows.setdefault(str(row["series_id"]), []).append(_numbers(row, where))
    except UnicodeDecodeError as error:
        raise HistoryError(f"{path}: not UTF-8 text in rows ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HistoryError(f"{path}: cannot be unpacked ({error}); was it cut off?") from None
    if not rows:
        raise HistoryError(f"{path}: no evals in it")
    if notes is not None:
        notes += _unused(path, rows)
    return [_series(name, evals) for name, evals in rows.items()]


def _unused(path: Path, rows: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield what is said of a step twice, and differently, and of standard errors that are none."""
    twice: list[str] = []
    errors: list[str] = []
    for name, evals in rows.items():
        first: dict[float, float] = {}
        for row in evals:
            where = f"step {row['step']:g} of {name}"
            if first.setdefault(row["step"], row["eval"]) != row["eval"] and math.isfinite(row["eval"]):
                twice.append(where)
            if row["stderr"] is not None and not row["stderr"] >= 0.0:
                errors.append(where)
    if twice:
        more = counted(len(twice), "row")
        yield f"{path}: {more} of a step that is there already not used: {some(twice, 3)}"
    if errors:
        yield (
            f"{path}: stderr: {counted(len(errors), 'cell')} not used, expected at least 0: {some(errors, 3)}"
        )


def turned(one: Series) -> Series:
    """Return a series of which lower evals are better, with higher ones better: all its scores negated."""
    return replace(
        one,
        scores=tuple(-score for score in one.scores),
        paired=tuple(p and p._replace(mean=-p.mean) for p in one.paired),
        range=one.range and (-one.range[1], -one.range[0]),
    )


def grouped(series: Iterable[Series], pattern: str) -> list[Series]:
    """Return the series with their runs named by what ``pattern`` matches of their ids; unmatched ones stay.

    Raises:
        HistoryError: it is no regular expression.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise HistoryError(f"--run: {pattern!r} is no regular expression ({error})") from None
    out = []
    for one in series:
        match = expression.search(one.id)
        out.append(replace(one, run=match.group()) if match and match.group() else one)
    return out


def write(path: Path, series: Sequence[Series]) -> None:
    """Write a history as CSV, with those optional columns for which a value is known; `read` reads it."""
    optional = [name for name, known in _OPTIONAL.items() if any(known(s) for s in series)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("series_id", "run", "family", "label", "step", "eval", "peak_step", *optional))
        for s in series:
            peak = "" if s.peak_step is None else f"{s.peak_step:g}"
            columns = [_OPTIONAL[name](s) or ("",) * len(s.steps) for name in optional]
            for step, score, *more in zip(s.steps, s.scores, *columns, strict=True):
                writer.writerow((s.id, s.run, s.family, s.label, f"{step:g}", score, peak, *more))


_OPTIONAL: dict[str, Callable[[Series], tuple[Any, ...]]] = {
    "stderr": lambda s: s.stderrs if any(s.stderrs) else (),
    "proxy": lambda s: s.proxies,
    "kl": lambda s: s.kls,
    "n": lambda s: s.samples,
    "prompts": lambda s: s.prompts,
    "lowest": lambda s: (s.range[0],) * len(s.steps) if s.range else (),
    "highest": lambda s: (s.range[1],) * len(s.steps) if s.range else (),
    "total_steps": lambda s: (s.total,) * len(s.steps) if s.total else (),
    "reference_step": lambda s: tuple(p and p.reference_step for p in s.paired),
    "paired_prompts": lambda s: tuple(p and p.prompts for p in s.paired),
    "paired_mean": lambda s: tuple(p and p.mean for p in s.paired),
    "paired_variance": lambda s: tuple(p and p.variance for p in s.paired),
}


def _series(name: str, rows: list[Mapping[str, Any]]) -> Series:
    kept: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda r: float(r["step"])):
        if math.isfinite(row["eval"]) and row["n"] != 0.0 and (not kept or row["step"] > kept[-1]["step"]):
            kept.append(row)
    first = rows[0]
    run = str(first.get("run") or "") or (name.rpartition("/")[0] if "/" in name else name)
    family = str(first.get("family") or "") or (name.split("/")[0] if "/" in name else "unnamed")
    counts = (_finite(r, "n", above=0.0) for r in kept)
    prompts = (_finite(r, "prompts", above=0.0) for r in kept)
    lowest, highest = _finite(first, "lowest"), _finite(first, "highest")
    return Series(
        name,
        run,
        family,
        LABELS.get(str(first.get("label") or "").lower()),
        tuple(float(r["step"]) for r in kept),
        tuple(float(r["eval"]) for r in kept),
        tuple(_finite(r, "stderr", above=0.0) for r in kept),
        first.get("peak_step"),
        _if_any(_finite(r, "proxy") for r in kept),
        _if_any(_finite(r, "kl") for r in kept),
        _if_any(None if n is None else int(n) for n in counts),
        _if_any(_paired(r) for r in kept),
        _if_any(None if n is None else int(n) for n in prompts),
        None if lowest is None or highest is None else (lowest, highest),
        _finite(first, "total_steps", above=0.0),
    )


def _finite(row: Mapping[str, Any], field: str, above: float = -math.inf) -> float | None:
    value = row.get(field)
    return value if value is not None and math.isfinite(value) and value > above else None


def _paired(row: Mapping[str, Any]) -> Paired | None:
    step, prompts, mean, variance = (_finite(row, field) for field in PAIRED)
    if step is None or prompts is None or mean is None or variance is None:
        return None
    return Paired(int(step), int(prompts), mean, variance)


def _if_any(values: Iterable[T | None]) -> tuple[T | None, ...]:
    found = tuple(values)
    return found if any(v is not None for v in found) else ()


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
        except (TypeError, ValueError, OverflowError):
            raise HistoryError(f"{where}: {field}: {quoted(value)} is no number") from None
    if not math.isfinite(out["step"]):
        raise HistoryError(f"{where}: step: {row['step']!r}, expected a finite number")
    missing = [field for field in PAIRED if out.get(field) is None]
    if missing and len(missing) < len(PAIRED):
        raise HistoryError(f"{where}: {missing[0]}: empty, expected a number beside the other differences'")
    if not missing and (out["paired_prompts"] < 2 or out["paired_variance"] < 0):
        raise HistoryError(
            f"{where}: paired_prompts, paired_variance: {row['paired_prompts']!r}, "
            f"{row['paired_variance']!r}, expected at least 2 and at least 0"
        )
    return out


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind = "".join(path.suffixes[-2:]).lower()
    if kind.endswith(".parquet"):
        yield from _checked(path, _parquet(path), 1)
    elif kind.endswith((".jsonl", ".jsonl.gz", ".ndjson")):
        yield from _checked(path, _json_lines(path), 1)
    elif kind.endswith((".csv", ".csv.gz")):
        with _open(path) as file:
            yield from _csv(path, file)
    else:
        raise HistoryError(
            f"{path}: expected a name that ends in .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet"
        )


def _csv(path: Path, file: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = Rows(path, file)
    header: list[str] = []
    try:
        header = next(rows, [])
        rows.check()
        if not header:
            which = "its first line is" if rows.last else "is"
            expected = f"expected the names of its columns, {', '.join(NEEDED)} among them"
            raise TraceError(path, 1, "", f"{which} empty, {expected}")
        twice = next((name for place, name in enumerate(header) if name in header[:place]), None)
        if twice is not None:
            raise HistoryError(f"{path}:1: {twice}: is there twice, expected one column of that name")
        for row in rows:
            rows.check()
            if not row:
                continue
            rows.check_width(row, header)
            found = dict(zip(header, row, strict=False))
            for name in NEEDED:
                if name in header[len(row) :]:
                    raise TraceError(path, rows.line, name, "is missing in this row, was it cut off?")
            yield _with_needed(path, rows.line, found)
    except TraceError as fault:
        error = rows.widened(fault)
        field = f"{error.field}: " if error.field else ""
        raise HistoryError(f"{path}:{error.line}: {field}{error.problem}") from None


def _checked(
    path: Path, rows: Iterable[Mapping[str, Any]], first: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, row in enumerate(rows, start=first):
        yield _with_needed(path, number, row)


def _with_needed(path: Path, number: int, row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return where a row is, and the row. Raises: HistoryError, it lacks a column that is needed."""
    missing = [name for name in NEEDED if name not in row]
    if missing:
        seen = ", ".join(str(k) for k in row)
        hint = _HINT if {"format", "kind"} & row.keys() and "eval" not in row else ""
        hint = other_mark([str(k) for k in row]) or hint or _meant(missing[0], row)
        raise HistoryError(f"{path}:{number}: {missing[0]}: no such column; columns seen: {seen}{hint}")
    return f"{path}:{number}", row


def _meant(name: str, row: Mapping[str, Any]) -> str:
    """Return which column is to be named so, if one has that name but for capitals and spaces; "": none."""
    found = next((str(k) for k in row if str(k).strip().lower().replace(" ", "_") == name), "")
    return f"; {found!r} is there, expected {name!r}" if found else ""


def _open(path: Path) -> Any:
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")  # spreadsheets write a byte order mark


def _json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = parse(path, number, line)
            except TraceError as error:
                raise HistoryError(f"{path}:{number}: {error.problem}") from None
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
