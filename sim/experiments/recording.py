"""Recorded runs: a workload with what became of it, as a trace that can be replayed and compared."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from controller.policy.wording import agreeing, counted
from sim import quotas
from sim.engine import EventLog, Result
from sim.experiments.estimate import Estimate
from sim.experiments.findings import Findings, Value
from sim.experiments.replay import COLUMNS, Plan, Progress, quantile
from sim.traces.errors import TraceError
from sim.traces.own import cluster_entry, guardrails_entry, spec_entry, write_own
from sim.traces.trace import Trace, TraceJob

_OUTCOME = ("started", "ended", "service", "useful", "preempted", "stopped")
_SHOWN = 10  # jobs that differ most


def record(plan: Plan, file: Path, *, stops: bool, progress: Progress | None = None) -> tuple[Result, str]:
    """Run and write it down; returns what came of it, and the digest of every decision."""
    advance = progress or (lambda done, total: None)
    event_log = EventLog()
    advance(0, 1)
    result = plan.run(stops=stops, event_log=event_log)
    advance(1, 1)
    setting = plan.setting
    header = {
        "cluster": cluster_entry(plan.cluster),
        "policy": spec_entry(setting.base),
        **({"quotas": quotas.entry(setting.quotas)} if setting.quotas else {}),
        "rule": spec_entry(setting.rule.rule),
        "modifiers": [spec_entry(modifier) for modifier in setting.rule.modifiers],
        **guardrails_entry(setting.rule),
        "run": {"evalstop": stops, "decisions": event_log.digest(), "setting": plan.as_dict()},
    }
    write_own(file, [_job(plan, result, row) for row in range(len(plan.workload))], header)
    return result, event_log.digest()


def _job(plan: Plan, result: Result, row: int) -> TraceJob:
    workload, truth = plan.workload, plan.truth
    return TraceJob(
        workload.key(row),
        workload.submitted[row],
        workload.gpus[row],
        workload.work[row],
        gpus_per_replica=workload.gpus_per_replica[row] if workload.gpus_per_replica else None,
        priority=workload.priority[row] if workload.priority else 0,
        weight=workload.weight[row] if workload.weight else 1.0,
        estimate=workload.estimate[row] if workload.estimate else None,
        group=workload.group[row] if workload.group else "",
        evals=workload.evals[row] if workload.evals else None,
        truth=(truth.hacks[row], truth.peak[row]) if truth is not None else None,
        outcome={
            "started": result.started[row],
            "ended": result.ended[row],
            "service": result.service[row],
            "useful": result.useful[row],
            "preempted": result.preempted.get(row, 0),
            "stopped": row in result.stopped,
        },
    )


def compare_runs(a: Trace, b: Trace) -> Findings:
    """Compare two recorded runs, job by job.

    Raises:
        TraceError: one of them is no recorded run, or they have no job in common.
    """
    left, right = _outcomes(a), _outcomes(b)
    both = [key for key in left if key in right]
    if not both:
        raise TraceError(b.files[0], 0, "job", f"no job of {a.files[0]} is in it")
    jct_a = [_jct(left[key]) for key in both]
    jct_b = [_jct(right[key]) for key in both]
    rows = [_row(a, [left[key] for key in both]), _row(b, [right[key] for key in both])]
    same = a.run.get("decisions") == b.run.get("decisions") and len(both) == len(left) == len(right)
    notes = [
        f"{counted(len(both), 'job')} {agreeing(len(both), 'is', 'are')} in both, {len(left) - len(both)} "
        f"in {a.files[0].name} only, {len(right) - len(both)} in {b.files[0].name} only.",
        "Every decision is the same." if same else "Decisions differ.",
        "jct_gain: of the second over the first; its interval is over jobs, which share a cluster, so that it"
        " is narrower than one over independent runs would be.",
    ]
    headline: dict[str, Value] = {"jct_gain": _interval(jct_b, jct_a), "same_decisions": int(same)}
    headline["jobs_faster"] = sum(y < x for x, y in zip(jct_a, jct_b, strict=True))
    headline["jobs_slower"] = sum(y > x for x, y in zip(jct_a, jct_b, strict=True))
    title = f"{a.files[0].name} and {b.files[0].name}"
    findings = Findings("compare", title, {"a": a.run, "b": b.run}, COLUMNS, rows, headline, notes)
    changed = sorted(zip(both, jct_a, jct_b, strict=True), key=lambda one: (-abs(one[2] - one[1]), one[0]))
    findings.extra["most_changed"] = [
        {"job": key, "jct_a": x, "jct_b": y, "change": y - x} for key, x, y in changed[:_SHOWN] if x != y
    ]
    return findings


def _outcomes(trace: Trace) -> dict[str, tuple[TraceJob, dict[str, Any]]]:
    found = {}
    for job in trace.jobs:
        outcome = job.outcome
        if not isinstance(outcome, dict):
            problem = "is missing: this is no recorded run (`evalstop sim record` makes one)"
            raise TraceError(trace.files[0], job.line, "outcome", problem)
        for name in _OUTCOME:
            value = outcome.get(name)
            if not isinstance(value, (int, float)) or not isfinite(value):
                raise TraceError.value(trace.files[0], job.line, f"outcome.{name}", value, "a finite number")
        found[job.key] = (job, outcome)
    return found


def _jct(one: tuple[TraceJob, dict[str, Any]]) -> float:
    job, outcome = one
    return float(outcome["ended"] - job.submitted)


def _row(trace: Trace, jobs: list[tuple[TraceJob, dict[str, Any]]]) -> dict[str, Value]:
    ordered = sorted(_jct(one) for one in jobs)
    return {
        "run": trace.files[0].name,
        "jobs": len(jobs),
        "mean_jct": sum(ordered) / len(ordered),
        "median_jct": quantile(ordered, 0.5),
        "p95_jct": quantile(ordered, 0.95),
        "makespan": max(outcome["ended"] for _, outcome in jobs),
        "gpu_hours": sum(outcome["service"] for _, outcome in jobs) / 3600.0,
        "preemptions": sum(outcome["preempted"] for _, outcome in jobs),
        "stops": sum(outcome["stopped"] for _, outcome in jobs),
    }


def _interval(ours: list[float], theirs: list[float]) -> Estimate:
    from sim.experiments.statistics import ratio

    return ratio(ours, theirs, gain=True)
