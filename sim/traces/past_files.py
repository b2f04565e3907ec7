"""A cluster's past from whatever a user has of it: decision logs as the operator left them, exported traces.

Nothing is lost silently: what could not be read is counted, by reason, in the notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from controller.policy.wording import agreeing, counted
from sim.traces.decisions import LeftOut, read_history, stream
from sim.traces.errors import Skipped, TraceError
from sim.traces.history import History
from sim.traces.json_text import parse
from sim.traces.read import read
from sim.traces.trace import Trace

_LOOKED_AT = 20  # lines of a file, by which a decision log is told


def read_past(
    files: Sequence[Path],
    *,
    pool: str = "",
    rotated: bool = True,
    more: Callable[[History], None] | None = None,
) -> Trace:
    """Return one trace of decision logs, exported traces, or logs of other formats.

    Args:
        files: decision logs, exported traces, or logs of other formats.
        pool: whose past; "": there is only one pool.
        rotated: whether to read the older files of a decision log, too (``LOG.1``, ``LOG.2``, …).
        more: adds what the cluster itself knows, once the logs are read; without files it is all there is.

    Raises:
        TraceError: nothing can be read of a file, or there is no job; the message says what to do.
        OSError: a file cannot be read.
    """
    logs = [file for file in files if is_decision_log(file)]
    others = [file for file in files if file not in logs]
    traces = []
    if logs or more is not None:
        traces.append(_of_logs(with_rotated(logs) if rotated else logs, pool, more))
    for file in others:
        traces.append(read([file], skip_bad=True))
    trace = traces[0] if len(traces) == 1 else merged(traces)
    if pool and others and any(t.history.get("pool") not in (pool, None) for t in traces):
        found = ", ".join(sorted({str(t.history.get("pool")) for t in traces}))
        raise TraceError.value(others[0], 1, "history.pool", found, f"the pool {pool}")
    if trace.skipped:
        first, many = trace.skipped.errors[0], len(trace.skipped)
        trace.notes.append(
            f"{many} {agreeing(many, 'job or row', 'jobs or rows')} cannot be, and "
            f"{agreeing(many, 'is', 'are')} left out; the first: {first}"
        )
    if not trace.jobs:
        reasons = "; ".join(f"{n} {why}" for why, n in sorted(trace.left_out.items())) or "it has none at all"
        raise TraceError(trace.files[0], 0, "", f"no job in it that had GPUs ({reasons})")
    return trace


def is_decision_log(file: Path) -> bool:
    """Return whether one of the first lines is one of a decision log's; what is damaged tells nothing."""
    for number, text in zip(range(_LOOKED_AT), stream(file), strict=False):
        try:
            entry = parse(file, number + 1, text)
        except TraceError:
            continue
        if isinstance(entry, dict) and "format" not in entry and {"kind", "input"} <= entry.keys():
            return True
        if isinstance(entry, dict) and "v" in entry:
            return True
    return False


def with_rotated(files: Iterable[Path]) -> list[Path]:
    """Return the files and the older ones that the operator put aside, oldest first."""
    found: dict[Path, None] = {}
    for file in files:
        pattern = re.compile(re.escape(file.name) + r"\.(\d+)(\.gz)?")
        aside = [(int(m[1]), path) for path in file.parent.iterdir() if (m := pattern.fullmatch(path.name))]
        for _, path in sorted(aside, reverse=True):
            found[path] = None
        found[file] = None
    return list(found)


def merged(traces: Sequence[Trace]) -> Trace:
    """Return one past of several: of a job that is in more than one, the newest has the last word."""
    ordered = sorted(traces, key=lambda trace: float(trace.history.get("to", 0.0)))
    newest = ordered[-1]
    pools = {trace.history["pool"] for trace in ordered if "pool" in trace.history}
    if len(pools) > 1:
        names = " and ".join(sorted(pools))
        raise TraceError(newest.files[0], 0, "history.pool", f"of the pools {names}, expected only one")
    jobs = {job.key: job for trace in ordered for job in trace.jobs}
    total = sum(len(trace.jobs) for trace in ordered)
    made = Trace(
        [file for trace in ordered for file in trace.files],
        newest.format,
        sorted(jobs.values(), key=lambda job: job.submitted),
        Skipped(skip=True),
        cluster=newest.cluster,
        policy=newest.policy,
        rule=newest.rule,
        latencies=newest.latencies,
    )
    for trace in ordered:
        made.left_out += trace.left_out
        made.skipped.errors += trace.skipped.errors
        made.notes += [note for note in trace.notes if note not in made.notes]
    if total > len(jobs):
        made.notes.append(
            f"{counted(total - len(jobs), 'job')} {agreeing(total - len(jobs), 'is', 'are')} in more than "
            "one file; the newest counts."
        )
    spans = [trace.history for trace in ordered if trace.history]
    if spans:
        made.history = {
            **spans[-1],
            "from": min(span["from"] for span in spans if "from" in span),
            "capacity": sorted(part for span in spans for part in span.get("capacity", ())),
            "holes": sorted(part for span in spans for part in span.get("holes", ())),
        }
    return made


def _of_logs(files: Sequence[Path], pool: str, more: Callable[[History], None] | None) -> Trace:
    history, left = read_history(files, pool) if files else (History(pool), LeftOut())
    logged = bool(files)
    if more is not None:
        more(history)
    trace = history.trace(list(files) or [Path("cluster")], Skipped(skip=True))
    trace.notes = left.notes() + _gaps(history, trace, logged) + trace.notes
    trace.history["lines"] = left.lines
    if left.counts:
        trace.history["left_out_lines"] = dict(left.counts)
    return trace


def _gaps(history: History, trace: Trace, logged: bool) -> list[str]:
    """Return what the history itself shows that it does not know."""
    notes = []
    for reason, count in sorted(trace.left_out.items()):
        notes.append(f"{counted(count, 'job')} {agreeing(count, 'is', 'are')} left out: {reason}.")
    if history.holes:
        longest = max(end - start for start, end in history.holes)
        notes.append(
            f"The log has {counted(len(history.holes), 'hole')} while jobs ran, the longest of "
            f"{longest / 3600.0:.1f} h: what happened in them is known only as far as later lines tell."
        )
    pasts = [job.past for job in trace.jobs if job.past is not None]
    early = sum(past.early for past in pasts)
    if early and logged:
        notes.append(
            f"{counted(early, 'job')} {agreeing(early, 'was', 'were')} there before the log begins: "
            f"{agreeing(early, 'its', 'their')} first evals, and how long {agreeing(early, 'it', 'they')} "
            "waited then, may not be known."
        )
    missed = [past.missed for past in pasts if past.missed]
    if missed:
        notes.append(
            f"{counted(sum(missed), 'eval')} of {counted(len(missed), 'job')} "
            f"{agreeing(sum(missed), 'was', 'were')} made and {agreeing(sum(missed), 'is', 'are')} not here."
        )
    scale = [past.scale for past in pasts if past.scale]
    if scale:
        notes.append(
            f"{counted(sum(scale), 'eval')} of {counted(len(scale), 'job')} "
            f"{agreeing(sum(scale), 'is', 'are')} left out: scored by another evaluator, or before a fall "
            "that the whole pool shared."
        )
    unseen = sum(1 for past in pasts if past.attempts > 1 and past.started is None)
    if unseen:
        notes.append(
            f"Of {counted(unseen, 'job')} the first attempts are not here; their service is counted all the "
            "same."
        )
    return notes
