"""Decision logs of the operator, read as a trace of the cluster that it ran.

Jobs, GPUs, priorities, the queue policy and the nodes are in the pool's lines; evals, steps and rules are in
the jobs' lines (`sim.traces.history`). A log in several files (rotated, or of several operators that led one
after the other) is one log: lines are taken in the order of their time, and each once.
"""

from __future__ import annotations

import contextlib
import gzip
import heapq
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from controller.policy.codec import decode
from controller.policy.decision_log import READABLE, VERSION, readable
from controller.policy.job import Desired, JobRecord, ScrapeView
from controller.policy.rollout import StepQuestion
from controller.policy.types import PoolSnapshot
from controller.policy.wording import counted
from sim.traces.errors import Skipped, TraceError
from sim.traces.history import History
from sim.traces.json_text import parse
from sim.traces.trace import Trace

_GZIP = b"\x1f\x8b"
_LOST = b"{"  # stands for what cannot be unpacked, so that it is counted
# Why a line was left out.
CUT = "cut off at the end of the file"
DAMAGED = "damaged, or cut off in the middle"
OLDER = "of an older version"
NEWER = "of a newer version"
REPEATED = "repeated"
UNREADABLE = "with a field that cannot be read"


class Line(NamedTuple):
    """One line of a log; ``entry`` None: it could not be read, ``error`` says why."""

    now: float
    order: int
    line: int
    file: Path
    text: str
    entry: dict[str, Any] | None = None
    error: TraceError | None = None
    why: str = ""


@dataclass(slots=True)
class _Raw:
    """A job's parts as they were last: what is the same again need not be read again."""

    desired: Any = None
    record: Any = None
    read: tuple[Desired, JobRecord] | None = None
    decided: Any = None  # the record that its last line decides on


class _Fold:
    """Takes lines into a `History`."""

    def __init__(self, pool: str = "") -> None:
        self.history = History(pool)
        self._raw: dict[str, _Raw] = {}

    def take(self, file: Path, line: int, entry: dict[str, Any], now: float) -> None:
        """Take in a line of the decision log.

        Raises:
            TraceError: the line's input cannot be read.
        """
        kind, given = entry.get("kind"), entry.get("input")
        try:
            if kind == "pool":
                self.history.plan(file, line, now, decode(PoolSnapshot, given))
            elif kind == "step":
                decode(StepQuestion, given)  # a trace of jobs has no steps; they replay by themselves
            elif kind == "job":
                assert isinstance(given, dict) or given is None
                self._job(file, line, now, given or {}, entry.get("decision"))
            else:
                raise TraceError.value(file, line, "kind", kind, "job, pool or step")
        except TraceError:
            raise
        except (ValueError, TypeError, AssertionError) as error:
            raise TraceError(file, line, "input", str(error)) from None

    def _job(self, file: Path, line: int, now: float, parts: dict[str, Any], decision: Any) -> None:
        wished, kept = parts.get("desired"), parts.get("record")
        key = str(wished.get("key")) if isinstance(wished, dict) else ""
        raw = self._raw.setdefault(key, _Raw())
        if raw.read is None or raw.desired != wished or raw.record != kept:
            raw.read = decode(Desired, wished), decode(JobRecord, kept)
            raw.desired, raw.record = wished, kept
        observed = parts.get("observed")
        seen = observed.get("scrape") if isinstance(observed, dict) else None
        scrape = None if seen is None else decode(ScrapeView, seen)
        facts = self.history.job(file, line, now, *raw.read)
        if scrape is not None:
            self.history.scraped(facts, scrape)
        raw.decided = decision.get("record") if isinstance(decision, dict) else None

    def end(self) -> History:
        """Return all that was taken in. What a job's last line decided is its record from then on: no later
        line would tell that it ended if the log ends with that."""
        for key, raw in self._raw.items():
            if raw.decided is not None and raw.decided != raw.record and key in self.history.jobs:
                with contextlib.suppress(ValueError, TypeError):  # its input was read, and counts
                    self.history.jobs[key].record = decode(JobRecord, raw.decided)
        return self.history


@dataclass(slots=True)
class LeftOut:
    """Lines of a log that say nothing: how many by reason, and the first of each reason."""

    lines: int = 0  # that the log has, those included
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, TraceError] = field(default_factory=dict)

    def add(self, why: str, error: TraceError) -> None:
        self.counts[why] += 1
        self.first.setdefault(why, error)

    def notes(self) -> list[str]:
        """Return a sentence for each reason."""
        notes = []
        for why, count in self.counts.items():
            are, report = ("is", "tells") if count == 1 else ("are", "tell")
            first = "." if why == REPEATED else f"; the first: {self.first[why]}"
            notes.append(f"{count} of {counted(self.lines, 'line')} {are} {why} and {report} nothing{first}")
        return notes


def read_decisions(logs: Sequence[tuple[Path, Iterable[str]]], skipped: Skipped) -> Trace:
    """Return the trace of one log, whose files may be several.

    Raises:
        TraceError: a line is wrong and is not to be skipped, or no pool ever planned.
    """
    fold = _Fold()
    for why, error in _taken(fold, logs):
        if error is not None and why != REPEATED:
            skipped.add(error)
    return fold.end().trace([file for file, _ in logs], skipped)


def read_history(files: Sequence[Path], pool: str = "") -> tuple[History, LeftOut]:
    """Return what can be read of a log, whatever else is in it.

    A line that was cut off, at the end or in the middle, is left out, as are damaged and repeated ones and
    those of other versions; all before and after them counts.

    Raises:
        TraceError: nothing of it can be read, or it is of several pools and none is named.
        OSError: a file cannot be read.
    """
    fold, left = _Fold(pool), LeftOut()
    for why, error in _taken(fold, [(file, stream(file)) for file in files]):
        left.lines += 1
        if error is not None:
            if error.field == "input.pool":
                raise error
            left.add(why, error)
    if left.lines and left.counts.total() == left.lines:
        raise next(iter(left.first.values()))
    if not left.lines:
        raise TraceError(files[0], 0, "", "is empty")
    return fold.end(), left


def _taken(
    fold: _Fold, logs: Sequence[tuple[Path, Iterable[str]]]
) -> Iterator[tuple[str, TraceError | None]]:
    """Of every line, why it could not be taken in; ("", None): it was."""
    for found in merged(logs):
        why, error = found.why, found.error
        if found.entry is not None:
            try:
                fold.take(found.file, found.line, found.entry, found.now)
            except TraceError as wrong:
                why, error = UNREADABLE, wrong
        yield why, error


def merged(logs: Sequence[tuple[Path, Iterable[str]]]) -> Iterator[Line]:
    """Yield the lines of all files in the order of their time; repeated ones are marked as such."""
    streams = [_lines(file, lines, order) for order, (file, lines) in enumerate(logs)]
    now, seen = -math.inf, set[str]()
    for found in heapq.merge(*streams, key=lambda line: (line.now, line.order)):
        if found.now != now:
            now, seen = found.now, set()
        if found.entry is not None and found.text in seen:
            yield found._replace(entry=None, error=_repeated(found), why=REPEATED)
            continue
        seen.add(found.text)
        yield found


def _repeated(found: Line) -> TraceError:
    return TraceError(found.file, found.line, "", "is there already")


def _lines(file: Path, lines: Iterable[str], order: int) -> Iterator[Line]:
    """``now`` never falls within a file: a line that cannot be read stands where it was written."""
    now = -math.inf
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        whole = text.endswith("\n")
        try:
            entry = _entry(file, number, text)
        except TraceError as error:
            why = _why(file, number, text, whole)
            yield Line(now, order, number, file, text, None, error, why)
            continue
        now = max(now, float(entry["now"]))
        yield Line(now, order, number, file, text.rstrip("\n"), entry)


def _entry(file: Path, line: int, text: str) -> dict[str, Any]:
    entry = parse(file, line, text, "; was it cut off?")
    if not isinstance(entry, dict) or not readable(entry.get("v")):
        version = entry.get("v") if isinstance(entry, dict) else None
        raise TraceError.value(file, line, "v", version, f"{READABLE}{_cure(version)}")
    now = entry.get("now")
    if isinstance(now, bool) or not isinstance(now, (int, float)) or not math.isfinite(now):
        raise TraceError.value(file, line, "now", now, "seconds since the epoch")
    return entry


def _cure(version: Any) -> str:
    if type(version) is not int:
        return ""
    if version > VERSION:
        return ": it is of a newer evalstop; read it with that one (`pip install --upgrade evalstop`)"
    return (
        ": it is of an older evalstop, whose lines say other things; export it with the evalstop that"
        " wrote it, or take the RLHFJobs' own histories (`evalstop export --cluster`)"
    )


def _why(file: Path, number: int, text: str, whole: bool) -> str:
    try:
        entry = parse(file, number, text)
    except TraceError:
        return DAMAGED if whole else CUT
    version = entry.get("v") if isinstance(entry, dict) else None
    if type(version) is int and not readable(version):
        return OLDER if version < VERSION else NEWER
    return UNREADABLE


def stream(file: Path) -> Iterator[str]:
    """Yield the lines of a file, plain or gzipped, as they come; bytes that are no UTF-8 make a line
    unreadable.

    A gzipped file that was cut off or damaged gives what could be unpacked, and then a line that was cut.
    """
    with file.open("rb") as raw:
        zipped = raw.read(2) == _GZIP
    rest = b""
    with gzip.open(file, "rb") if zipped else file.open("rb") as data:
        while True:
            try:
                chunk = data.read(1 << 20)
            except (EOFError, OSError, zlib.error):
                rest = rest or _LOST
                break
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace") + "\n" if _is_text(line) else "not UTF-8\n"
    if rest:
        yield rest.decode("utf-8", "replace")


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
