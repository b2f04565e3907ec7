"""Philly's cluster_job_log: one JSON array of jobs with their scheduling attempts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controller.bounded import too_deep
from sim.traces.columns import moment
from sim.traces.errors import Skipped, TraceError
from sim.traces.json_text import TOO_DEEP, RepeatedName, decoder
from sim.traces.trace import JobChecks, Trace, TraceJob

NAME = "philly-json"
_FIELDS = {"key": "jobid", "submitted": "submitted_time", "work": "attempts", "gpus": "attempts"}


def read_philly(file: Path, content: str, skipped: Skipped) -> Trace:
    """Return the trace in a Philly log.

    A job's training is the sum of its attempts; its GPUs are those of its largest attempt. Jobs without an
    attempt that began and ended are left out: they never ran, or ran on.

    Raises:
        TraceError: an entry is wrong and is not to be skipped, or the file is no such array.
    """
    trace = Trace([file], NAME, [], skipped, notes=["Times have no time zone; they are taken as they stand."])
    checks = JobChecks(file, ordered=False)
    for line, entry in entries(file, content):
        try:
            job = _job(file, line, entry)
            if isinstance(job, str):
                trace.left_out[job] += 1
                continue
            checks.check(job, _FIELDS)
        except TraceError as error:
            skipped.add(error)
            continue
        trace.jobs.append(job)
    return trace


def entries(file: Path, content: str) -> Iterator[tuple[int, Any]]:
    """Elements of a JSON array, each with the line where it begins."""
    reader = decoder()
    at, line, counted = _space(content, 0), 1, 0
    if content[at : at + 1] != "[":
        raise TraceError(file, 1, "", "expected a JSON array of jobs")
    at = _space(content, at + 1)
    while content[at : at + 1] != "]":
        line, counted = line + content.count("\n", counted, at), at
        try:
            entry, end = reader.raw_decode(content, at)
        except json.JSONDecodeError as error:
            problem = f"not JSON ({error.msg}); was the file cut off?"
            raise TraceError(file, error.lineno, "", problem) from None
        except RepeatedName as error:
            raise TraceError(file, line, "", str(error)) from None
        except RecursionError:
            raise TraceError(file, line, "", TOO_DEEP) from None
        if too_deep(content[at:end]):
            raise TraceError(file, line, "", TOO_DEEP)
        yield line, entry
        at = _space(content, end)
        if content[at : at + 1] == ",":
            at = _space(content, at + 1)
        elif content[at : at + 1] != "]":
            line += content.count("\n", counted, at)
            raise TraceError(file, line, "", "expected , or ] after a job; was the file cut off?")


def _space(content: str, at: int) -> int:
    while content[at : at + 1].isspace():
        at += 1
    return at


def _job(file: Path, line: int, entry: Any) -> TraceJob | str:
    if not isinstance(entry, Mapping):
        raise TraceError.value(file, line, "", entry, "a JSON object for each job")
    for name in ("jobid", "vc", "submitted_time", "attempts"):
        if name not in entry:
            raise TraceError(file, line, name, "is missing")
    if not isinstance(entry["attempts"], list):
        raise TraceError.value(file, line, "attempts", entry["attempts"], "a list")
    work, gpus, ran = 0.0, 0, False
    for number, attempt in enumerate(entry["attempts"]):
        name = f"attempts[{number}]"
        if not isinstance(attempt, Mapping):
            raise TraceError.value(file, line, name, attempt, "an object")
        began = _time(file, line, f"{name}.start_time", attempt.get("start_time"))
        ended = _time(file, line, f"{name}.end_time", attempt.get("end_time"))
        gpus = max(gpus, _gpus(file, line, name, attempt))
        if began is None or ended is None:
            continue
        if ended < began:
            end = attempt["end_time"]
            raise TraceError.value(file, line, f"{name}.end_time", end, "a time not before its start_time")
        work, ran = work + (ended - began), True
    if not ran:
        return "no attempt that began and ended"
    if not gpus:
        return "no GPUs"
    submitted = _time(file, line, "submitted_time", entry["submitted_time"])
    if submitted is None:
        raise TraceError.value(file, line, "submitted_time", entry["submitted_time"], "a time")
    tenant = str(entry["vc"]).replace("/", "-") or "trace"
    return TraceJob(f"{tenant}/{entry['jobid']}", submitted, gpus, work, line)


def _gpus(file: Path, line: int, name: str, attempt: Mapping[str, Any]) -> int:
    try:
        return sum(len(part["gpus"]) for part in attempt.get("detail") or ())
    except (TypeError, KeyError):
        expected = "a list of objects with ip and gpus"
        raise TraceError.value(file, line, f"{name}.detail", attempt["detail"], expected) from None


def _time(file: Path, line: int, field: str, value: Any) -> float | None:
    """Return seconds; None where the log has none."""
    if value in (None, "None", ""):
        return None
    try:
        return moment(str(value))
    except (ValueError, OverflowError):
        raise TraceError.value(file, line, field, value, "a time: YYYY-MM-DD HH:MM:SS") from None
