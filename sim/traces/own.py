"""Our own trace format, JSON lines: a header, then one job a line (docs/use/traces.md).

    {"format": "evalstop-trace", "version": 1, "cluster": {"gpus": 64}}
    {"job": "team-a/run-1", "submitted": 0, "gpus": 8, "work": 36000,
     "evals": {"at": [0.5, 1.0], "scores": [0.61, 0.58]}}

A recorded run is such a trace whose header says how it was made (``run``) and whose jobs carry their
``outcome``. What `evalstop export` made of a cluster's past says so in its header (``history``), and its jobs
say what became of them there (``past``, `sim.traces.past`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from controller.policy.params import ParamError, describe
from controller.policy.queueing import make_policy
from controller.policy.types import Paired, PolicySpec, Quota
from sim import quotas
from sim.cluster import Cluster
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.traces.errors import Skipped, TraceError
from sim.traces.json_text import parse
from sim.traces.past import read_past
from sim.traces.trace import JobChecks, Trace, TraceJob
from sim.workload import Evals

NAME = "evalstop-trace"
VERSION = 1
_HEADER = (
    "format",
    "version",
    "cluster",
    "policy",
    "quotas",
    "rule",
    "modifiers",
    "guardrails",
    "run",
    "history",
)
_FIELDS = {"key": "job", "submitted": "submitted", "gpus": "gpus", "work": "work"}


def read_own(file: Path, lines: Iterable[str], skipped: Skipped) -> Trace:
    """Return the trace of a file in our own format.

    Raises:
        TraceError: the header is wrong, or a line is and is not to be skipped.
    """
    trace = Trace([file], NAME, [], skipped)
    checks = JobChecks(file, ordered=True)
    first = True
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        if first:
            _header(file, line, _object(file, line, text), trace)
            first = False
            continue
        try:
            job = _job(file, line, _object(file, line, text))
            checks.check(job, _FIELDS)
        except TraceError as error:
            skipped.add(error)
            continue
        trace.jobs.append(job)
    return trace


def write_own(file: Path, jobs: Iterable[TraceJob], header: Mapping[str, Any]) -> None:
    """Write jobs in the order of their submission; ``header``: what goes into the first line."""
    with file.open("w", encoding="utf-8") as out:
        out.write(_dumps({"format": NAME, "version": VERSION, **header}) + "\n")
        for job in jobs:
            out.write(_dumps(_entry(job)) + "\n")


def cluster_entry(cluster: Cluster) -> dict[str, Any]:
    if cluster.nodes:
        return {"nodes": [gpus for _, gpus in cluster.nodes]}
    return {"gpus": cluster.gpus}


def spec_entry(spec: PolicySpec) -> dict[str, Any]:
    return {"name": spec.name, **spec.params}


def guardrails_entry(rule: RuleSpec) -> dict[str, Any]:
    """Return the header's part on guardrails; nothing where there are none."""
    found = {metric: spec_entry(spec) for metric, spec in rule.guardrails}
    return {"guardrails": found} if found else {}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _entry(job: TraceJob) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "job": job.key,
        "submitted": job.submitted,
        "gpus": job.gpus,
        "work": job.work,
        "gpus_per_replica": job.gpus_per_replica,
        "priority": job.priority or None,
        "weight": job.weight if job.weight != 1.0 else None,
        "estimate": job.estimate,
        "group": job.group or None,
    }
    if job.evals is not None:
        entry["evals"] = {"at": list(job.evals.at), "scores": [_score(s) for s in job.evals.scores]}
        if len(job.evals.losses):
            entry["evals"]["losses"] = list(job.evals.losses)
        if len(job.evals.proxies):
            entry["evals"]["proxies"] = list(job.evals.proxies)
        if len(job.evals.stderrs):
            entry["evals"]["stderrs"] = list(job.evals.stderrs)
        if len(job.evals.paired):
            entry["evals"]["paired"] = [None if p is None else list(p) for p in job.evals.paired]
        if job.evals.others:
            entry["evals"]["others"] = {
                metric: [None if s is None else _score(s) for s in scores]
                for metric, scores in job.evals.others.items()
            }
    if job.truth is not None:
        entry["truth"] = {"hacks": job.truth[0], "peak": job.truth[1]}
    if job.outcome is not None:
        entry["outcome"] = job.outcome
    if job.past is not None:
        entry["past"] = job.past.entry()
    return {name: value for name, value in entry.items() if value is not None}


def _score(score: float) -> float | None:
    """Return the score as it is written: None for a missing eval, which is NaN for a rule."""
    return score if math.isfinite(score) else None


def _object(file: Path, line: int, text: str) -> dict[str, Any]:
    value = parse(file, line, text)
    if not isinstance(value, dict):
        raise TraceError.value(file, line, "", value, "a JSON object")
    return value


def _header(file: Path, line: int, entry: dict[str, Any], trace: Trace) -> None:
    if entry.get("version") != VERSION:
        raise TraceError.value(file, line, "version", entry.get("version"), f"version {VERSION}")
    _known(file, line, entry, _HEADER)
    try:
        trace.cluster = _cluster(file, line, entry.get("cluster"))
        if "policy" in entry:
            trace.policy = _spec(file, line, "policy", entry["policy"])
            make_policy(trace.policy)
        trace.quotas = _quotas(file, line, entry.get("quotas", []))
        if "rule" in entry:
            rule = _spec(file, line, "rule", entry["rule"])
            modifiers, guardrails = _modifiers(file, line, entry), _guardrails(file, line, entry)
            trace.rule = RuleSpec(rule, modifiers, guardrails=guardrails)
            trace.rule.make()
    except ParamError as error:
        raise TraceError(file, line, "policy" if trace.rule is None else "rule", str(error)) from None
    for name in ("modifiers", "guardrails"):
        if entry.get(name) and "rule" not in entry:
            raise TraceError(file, line, name, "there is no rule for them, expected rule beside them")
    trace.run = entry.get("run") or {}
    if not isinstance(trace.run, dict):
        raise TraceError.value(file, line, "run", trace.run, "an object, as `evalstop sim record` writes it")
    trace.latencies = _latencies(file, line, trace.run)
    trace.history = entry.get("history") or {}
    if not isinstance(trace.history, dict):
        expected = "an object, as `evalstop export` writes it"
        raise TraceError.value(file, line, "history", trace.history, expected)


def _cluster(file: Path, line: int, value: Any) -> Cluster | None:
    if value is None:
        return None
    expected = '{"gpus": 64} or {"nodes": [8, 8]}'
    if not isinstance(value, dict) or len(value) != 1:
        raise TraceError.value(file, line, "cluster", value, expected)
    try:
        if "gpus" in value:
            return Cluster.slots(_whole(value["gpus"]))
        return Cluster.of_nodes([_whole(gpus) for gpus in value["nodes"]])
    except (ValueError, TypeError, KeyError):
        raise TraceError.value(file, line, "cluster", value, expected) from None


def _quotas(file: Path, line: int, value: Any) -> tuple[Quota, ...]:
    try:
        return quotas.read(value)
    except ValueError as error:
        raise TraceError(file, line, "quotas", str(error).removeprefix("quotas: ")) from None


def _spec(file: Path, line: int, field: str, value: Any) -> PolicySpec:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise TraceError.value(file, line, field, value, '{"name": …} with its parameters')
    return PolicySpec(value["name"], {name: v for name, v in value.items() if name != "name"})


def _modifiers(file: Path, line: int, entry: dict[str, Any]) -> tuple[PolicySpec, ...]:
    value = entry.get("modifiers", [])
    if not isinstance(value, list):
        raise TraceError.value(file, line, "modifiers", value, 'a list of {"name": …} with their parameters')
    return tuple(_spec(file, line, f"modifiers[{n}]", modifier) for n, modifier in enumerate(value))


def _latencies(file: Path, line: int, run: dict[str, Any]) -> Latencies | None:
    """Return the delays of a recorded run; None where there is none."""
    field, value = "run.setting", run.get("setting")
    if isinstance(value, dict):
        field, value = "run.setting.latencies", value.get("latencies")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TraceError.value(file, line, field, value, "an object, as `evalstop sim record` writes it")
    _known(file, line, value, [info.name for info in describe(Latencies)], f"{field}.")
    try:
        return Latencies(**value)
    except ParamError as error:
        raise TraceError(file, line, field, str(error)) from None


def _guardrails(file: Path, line: int, entry: dict[str, Any]) -> tuple[tuple[str, PolicySpec], ...]:
    value = entry.get("guardrails", {})
    if not isinstance(value, dict):
        raise TraceError.value(file, line, "guardrails", value, 'an object, {metric: {"name": …}}')
    return tuple((m, _spec(file, line, f"guardrails.{m}", rule)) for m, rule in value.items())


def _job(file: Path, line: int, entry: dict[str, Any]) -> TraceJob:
    _known(file, line, entry, (*_READERS, "evals", "truth", "outcome", "past"))
    values: dict[str, Any] = {}
    for name, (field, read, expected, needed) in _READERS.items():
        if name not in entry:
            if needed:
                raise TraceError(file, line, name, f"is missing, expected {expected}")
            continue
        try:
            values[field] = read(entry[name])
        except (ValueError, TypeError):
            raise TraceError.value(file, line, name, entry[name], expected) from None
    if "/" not in values["key"]:
        values["key"] = f"trace/{values['key']}"
    job = TraceJob(line=line, evals=_evals(file, line, entry.get("evals")), **values)
    job.truth, job.outcome = _truth(file, line, entry.get("truth")), entry.get("outcome")
    if "past" in entry:
        try:
            job.past = read_past(entry["past"])
        except ValueError as error:
            raise TraceError(file, line, "past", str(error)) from None
    return job


def _evals(file: Path, line: int, value: Any) -> Evals | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TraceError.value(file, line, "evals", value, "an object with at and scores")
    _known(file, line, value, (*_COLUMNS, "others"), "evals.")
    columns: dict[str, Any] = {
        name: _column(file, line, f"evals.{name}", value.get(name, []), read, expected)
        for name, (read, expected) in _COLUMNS.items()
    }
    others = value.get("others", {})
    if not isinstance(others, dict):
        raise TraceError.value(file, line, "evals.others", others, "an object of lists, by metric")
    read, expected = _COLUMNS["proxies"]
    columns["others"] = {
        metric: _column(file, line, f"evals.others.{metric}", column, read, expected)
        for metric, column in others.items()
    }
    try:
        return Evals(**columns)
    except ValueError as error:
        field, _, problem = str(error).partition(": ")
        raise TraceError(file, line, field, problem) from None


def _column(
    file: Path, line: int, field: str, column: Any, read: Callable[[Any], Any], expected: str
) -> list[Any]:
    if not isinstance(column, list):
        raise TraceError.value(file, line, field, column, f"a list, of {expected} each")
    cells = []
    for number, cell in enumerate(column):
        try:
            cells.append(read(cell))
        except (ValueError, TypeError):
            raise TraceError.value(file, line, f"{field}[{number}]", cell, expected) from None
    return cells


def _truth(file: Path, line: int, value: Any) -> tuple[bool, float] | None:
    if value is None:
        return None
    try:
        hacks, peak = value["hacks"], _number(value["peak"])
        if type(hacks) is not bool or not 0.0 < peak <= 1.0:
            raise ValueError(value)
    except (KeyError, TypeError, ValueError):
        expected = '{"hacks": true or false, "peak": share of the training}'
        raise TraceError.value(file, line, "truth", value, expected) from None
    return hacks, peak


def _known(file: Path, line: int, entry: dict[str, Any], names: Iterable[str], prefix: str = "") -> None:
    for name in entry:
        if name not in names:
            raise TraceError(file, line, prefix + name, "unknown, expected one of " + ", ".join(names))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(value)
    return value


def _score_or_nan(value: Any) -> float:
    return math.nan if value is None else _number(value)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _paired(value: Any) -> Paired | None:
    if value is None:
        return None
    reference, prompts, mean, variance = value
    found = Paired(_whole(reference), _whole(prompts), _number(mean), _number(variance))
    if found.prompts < 2 or found.reference_step < 0 or found.variance < 0.0:
        raise ValueError(value)
    return found


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    value.encode()  # half a surrogate pair, which JSON can name, could not be written again
    return value


# By name in the file: field of `TraceJob`, reader, what is expected, whether it must be there.
_READERS: Mapping[str, tuple[str, Callable[[Any], Any], str, bool]] = {
    "job": ("key", _text, "text, namespace/name", True),
    "submitted": ("submitted", _number, "a finite number of seconds", True),
    "gpus": ("gpus", _whole, "a whole number of GPUs", True),
    "work": ("work", _number, "a finite number of seconds", True),
    "gpus_per_replica": ("gpus_per_replica", _whole, "a whole number of GPUs", False),
    "priority": ("priority", _whole, "a whole number", False),
    "weight": ("weight", _number, "a finite number above 0", False),
    "estimate": ("estimate", _number, "a finite number of seconds", False),
    "group": ("group", _text, "text", False),
}


_FINITE = "a finite number"
# Columns of a job's evals: how a cell is read, and what it should have been.
_COLUMNS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "at": (_number, _FINITE),
    "scores": (_score_or_nan, _FINITE),
    "losses": (_number, _FINITE),
    "proxies": (_number_or_none, "a finite number or null"),
    "stderrs": (_number_or_none, "a finite number of at least 0, or null"),
    "paired": (_paired, "[reference eval, prompts, mean, variance] or null"),
}
