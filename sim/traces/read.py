"""Reading traces: which format a file has, and every file into one trace."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from pathlib import Path

from sim.traces import own, philly_json, trainer
from sim.traces.columns import read_csv
from sim.traces.csv_rows import Rows, other_mark
from sim.traces.errors import Skipped, TraceError
from sim.traces.json_text import parse
from sim.traces.logs import LOGS
from sim.traces.trace import Trace

DECISIONS = "decision-log"
FORMATS = (own.NAME, *LOGS, philly_json.NAME, trainer.NAME, DECISIONS)
_GZIP = b"\x1f\x8b"
UNPACKED_MOST = 1 << 30  # bytes; a thousand times what is packed can come of it


def read(files: Sequence[Path], *, format: str = "", skip_bad: bool = False) -> Trace:
    """Return one trace of one or more files of the same format; ``format`` "": told by what is in them.

    Args:
        files: of the same format.
        format: name in `FORMATS`; "": told by what is in the files.
        skip_bad: whether to count rows that are wrong instead of raising for the first one; a file that is no
            trace at all, or has no job in it, is still an error.

    Raises:
        TraceError: what is wrong, by file, line and field.
        OSError: a file cannot be read.
    """
    if format and format not in FORMATS:
        raise TraceError.value(files[0], 0, "format", format, "one of " + ", ".join(FORMATS))
    skipped = Skipped(skip=skip_bad)
    first = _named(files[0], format)
    if first[1] == DECISIONS:
        return _with_jobs(_read_decisions([first, *(_named(file, DECISIONS) for file in files[1:])], skipped))
    trace = _read_one(*first, skipped)
    keys = {}
    for job in trace.jobs:
        job.file = keys[job.key] = files[0]
    for file in files[1:]:
        more = _read_one(*_named(file, trace.format), skipped, len(trace.jobs))
        for job in more.jobs:
            if job.key in keys:
                problem = f"{job.key!r} is in {keys[job.key]} already"
                skipped.add(TraceError(file, job.line, "job", problem))
                continue
            job.file = keys[job.key] = file
            trace.jobs.append(job)
        _settle(trace, more)
        trace.files.append(file)
        trace.left_out += more.left_out
        trace.notes += [note for note in more.notes if note not in trace.notes]
    return _with_jobs(trace)


def _with_jobs(trace: Trace) -> Trace:
    """Return the trace, if it has a job.

    Raises:
        TraceError: it has none.
    """
    if not trace.jobs:
        reasons = [f"{count} {reason}" for reason, count in sorted(trace.left_out.items())]
        if trace.skipped:
            reasons.append(f"{len(trace.skipped)} wrong, the first: {trace.skipped.errors[0]}")
        raise TraceError(
            trace.files[0], 0, "", "no job in it" + (f" ({'; '.join(reasons)})" if reasons else "")
        )
    return trace


def _settle(trace: Trace, more: Trace) -> None:
    """Take settings from a further file, where no file before it had them."""
    for name in ("cluster", "policy", "rule", "latencies"):
        first, second = getattr(trace, name), getattr(more, name)
        if first is None:
            setattr(trace, name, second)
        elif second is not None and second != first:
            trace.notes.append(f"{more.files[0]} names another {name} than a file before it, whose holds.")


_Named = tuple[Path, str, str]  # file, format, content


def _named(file: Path, format: str) -> _Named:
    content = _content(file)
    if not content.strip():
        raise TraceError(file, 0, "", "is empty")
    return file, format or detect_format(file, content), content


def _read_decisions(named: Sequence[_Named], skipped: Skipped) -> Trace:
    """Read a decision log from its files."""
    from sim.traces.decisions import read_decisions  # loads the whole brain, which other formats do without

    return read_decisions([(file, io.StringIO(content)) for file, _, content in named], skipped)


def _read_one(file: Path, name: str, content: str, skipped: Skipped, before: int = 0) -> Trace:
    """``before``: jobs of the files before it, from where rows without an id are numbered."""
    lines = io.StringIO(content, newline="")
    match name:
        case own.NAME:
            return own.read_own(file, lines, skipped)
        case philly_json.NAME:
            return philly_json.read_philly(file, content, skipped)
        case trainer.NAME:
            return trainer.read_trainer(file, lines, skipped)
    return read_csv(file, lines, LOGS[name], skipped, before)


def detect_format(file: Path, content: str) -> str:
    """Return the format of a file.

    Raises:
        TraceError: none that is known.
    """
    start = content.lstrip()
    if start[0] == "[":
        return philly_json.NAME
    first = start.split("\n", 1)[0]
    if start[0] == "{":
        return _format_of_lines(file, first)
    names = next(Rows(file, [first]), [])
    header = {name.strip() for name in names}
    for log in LOGS.values():
        if log.signature <= header:
            return log.name
    nearest = max(LOGS.values(), key=lambda log: len(log.signature & header) / len(log.signature))
    missing = ", ".join(sorted(nearest.signature - header))
    problem = f"no log that is known has these columns; nearest is {nearest.name}, which lacks {missing}"
    raise TraceError(file, 1, "", problem + other_mark(names))


def _format_of_lines(file: Path, first: str) -> str:
    entry = parse(file, 1, first)
    if entry.get("format") == own.NAME:
        return own.NAME
    if "kind" in entry and "input" in entry:
        return DECISIONS
    if "step" in entry and "gold" in entry:
        return trainer.NAME
    expected = f'a header line {{"format": "{own.NAME}", …}}, or the fields of a known format'
    raise TraceError(file, 1, "format", f"{entry.get('format')!r} is not allowed, expected {expected}")


def _content(file: Path) -> str:
    data = file.read_bytes()
    try:
        if data.startswith(_GZIP):
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(UNPACKED_MOST + 1)
            if len(data) > UNPACKED_MOST:
                raise TraceError(file, 0, "", f"has more than {UNPACKED_MOST} bytes when it is unpacked")
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(file, 0, "", f"cannot be unpacked ({error}); was it cut off?") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(file, line, "", f"not UTF-8 text (byte {error.start})") from None
