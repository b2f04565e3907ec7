"""A report on a job or a pool: one HTML file to be printed, without script and without an outside address.

It is made from statuses, or from a decision log, which also knows what was deleted since; it says how many
stops it could not see.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from controller import bounded
from controller.frozen import dataclass
from controller.policy import codec, decision_log
from controller.policy.job import (
    TERMINATION,
    Desired,
    JobRecord,
    StopOutcome,
    alone_best,
    evidence,
    losses,
    lost_best,
    other_rules,
    other_rules_sentence,
    promise,
    shadow_record,
    tally,
    was_right,
    were_right,
)
from controller.policy.pool import Handover
from controller.policy.types import Mode
from controller.policy.wording import counted
from controller.web.dashboard.feed import Job, Pool
from controller.web.dashboard.jobs import row
from controller.web.dashboard.pages import curve_of, not_counted, stages_of
from controller.web.dashboard.render import render
from controller.web.dashboard.run_chart import curve_svg
from controller.web.dashboard.savings import Range, Saving, expected, savings, shares_run
from controller.web.dashboard.small_charts import sparkline

CHARTS = 40  # stops whose courses are drawn
ROWS = 2000  # stops that are listed
USER = "User"


@dataclass(frozen=True, slots=True)
class Source:
    """The facts of a report, and where they come from.

    Attributes:
        jobs: as they are now, or as they were when the log last saw them.
        stops: (job, record) of earlier stops of the same jobs, which a log remembers.
        name: of the cluster's statuses, or of the log's file.
        since: from when on the log tells (s); None: statuses, which tell of what is there now.
        unseen: stops that are known to have been and could not be seen.
        notes: what else could not be seen, in sentences.
    """

    jobs: tuple[Job, ...]
    name: str
    since: float | None = None
    stops: tuple[Job, ...] = ()
    unseen: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop, or would-be stop, as a report shows it.

    Attributes:
        kept: step of the checkpoint that was kept for it; None: none was, as in Shadow.
    """

    job: Job
    at: float
    by: str
    shadow: bool
    step: int
    kept: int | None
    numbers: str
    saving: Saving | None
    outcome: str
    spark: str


def job_report(job: Job, now: float, source: Source) -> str:
    """Return the report on one job. ``now``: s since 1970."""
    record, desired = job.record, job.desired
    curve = curve_of(job)
    others = other_rules(record, desired.rule.name, desired.direction, desired.scale)
    ran = shares_run([*source.jobs])
    values = {
        "title": f"Run {job.key}",
        "now": now,
        "source": source,
        "job": job,
        "row": row(job, now),
        "curve": curve,
        "chart": curve_svg(curve, "c", False) if curve.course.points else "",
        "lost": lost_best(record),
        "losses": losses(record),
        "alone": alone_best(record),
        "not_counted": not_counted(job),
        "evidence": evidence(record, desired.direction),
        "outcome": were_right(record.outcome),
        "others": other_rules_sentence(others),
        "promise": promise(desired.rule, record.evals_seen) if record.evals else "",
        "stops": _stops([job, *(one for one in source.stops if one.uid == job.uid)]),
        "saved": _saved([job, *(one for one in source.stops if one.uid == job.uid)], ran),
        "held": _held(record),
        "stages": stages_of(job, ""),
        "waits": _waits([job], now),
    }
    return render("report_job.html", values)


def _held(record: JobRecord) -> str:
    """Return why the stop that was asked for last did not come; "": none was, or it came."""
    target = record.condition(TERMINATION)
    if target is None or target.status or record.decision is not None or target.reason == "NotAccepted":
        return ""
    return f"{target.reason}: {target.message}"


def pool_report(name: str, pool: Pool | None, now: float, source: Source, namespace: str = "") -> str:
    """Return the report on a pool. ``pool``: None: its GPUPool could not be read, or the log has none.
    ``namespace``: the one whose jobs it is about; "": all."""
    jobs = [*source.jobs, *source.stops]
    records = [job.record for job in jobs]
    stops = _stops(jobs)
    values = {
        "title": f"Pool {name}",
        "now": now,
        "source": source,
        "pool": pool,
        "jobs": source.jobs,
        "stops": stops[:ROWS],
        "left_out": max(0, len(stops) - ROWS),
        "saved": _saved(jobs, shares_run(source.jobs)),
        "shadow": shadow_record(records),
        "enforced": tally(records, Mode.ENFORCE),
        "waits": _waits(source.jobs, now),
        "handovers": [one for one in _handovers(pool) if _is_of(one[0].source, namespace)],
    }
    return render("report_pool.html", values)


def unseen(pool: Pool | None, jobs: Iterable[Job], namespace: str = "") -> int:
    """Return how many stops a pool's status tells of that none of the jobs shows any more: those of jobs that
    were deleted or resumed since. ``namespace``: the one whose jobs were asked for; "": all were."""
    if pool is None:
        return 0
    seen = {(j.key, j.record.decision.at) for j in jobs if j.record.decision is not None}
    recorded = {(back.source, back.decided) for back in pool.status.last_handovers}
    granted = pool.status.stops.granted if pool.status.stops is not None else ()
    recorded |= {(stop.job, stop.at) for stop in granted}
    return sum(
        1
        for job, at in recorded
        if _is_of(job, namespace) and not any(job == k and abs(at - a) < 2.0 for k, a in seen)
    )


def _is_of(key: str, namespace: str) -> bool:
    return not namespace or key.startswith(f"{namespace}/")


def _stops(jobs: Sequence[Job]) -> list[Stop]:
    found: dict[tuple[str, float], Stop] = {}
    for number, job in enumerate(jobs):
        decision = job.record.decision
        if decision is None or (decision.mode is Mode.ENFORCE and decision.suspended_at is None):
            continue
        spark = ""
        if number < CHARTS:
            curve = curve_of(job)
            spark = sparkline(curve.course, curve.best, not job.desired.minimizes)
        saving = next(iter(savings([job]).stops), None)
        found[job.uid, decision.at] = Stop(
            job=job,
            at=decision.at,
            by=decision.by,
            shadow=decision.mode is Mode.SHADOW,
            step=decision.proposal.step,
            kept=_kept(job.record),
            numbers=evidence(job.record, job.desired.direction) or decision.message,
            saving=saving,
            outcome=_outcome(job.record.outcome, decision.at),
            spark=spark,
        )
    return sorted(found.values(), key=lambda one: (-one.at, one.job.key))


def _kept(record: JobRecord) -> int | None:
    """Return the step of the checkpoint that was kept for a stop: of the newest copy made since its decision,
    for under a guardrail's the Primary metric may have risen on; without one, of the pin."""
    decision = record.decision
    if decision is None or decision.mode is Mode.SHADOW:
        return None
    copies = [one for one in record.retained if one.at >= decision.at]
    found = max(copies, key=lambda one: one.at) if copies else record.secured
    return found.step if found is not None else None


def _outcome(found: StopOutcome | None, decided: float) -> str:
    return was_right(found) if found is not None and found.decided == decided else ""


def _saved(jobs: Sequence[Job], ran: Sequence[float]) -> Range:
    return expected(savings(jobs).stops, ran)


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that jobs waited for GPUs: of those that wait now, and the last wait of those that got them."""

    now: tuple[tuple[str, float], ...]  # the longest first
    over: tuple[float, ...]

    @property
    def middle(self) -> float | None:
        return median(self.over) if self.over else None

    @property
    def longest(self) -> float | None:
        return max(self.over) if self.over else None


def _waits(jobs: Iterable[Job], now: float) -> Waits:
    waiting, over = [], []
    for job in jobs:
        record, since = job.record, job.record.queued_at or job.created
        if record.admission is not None:
            over.append(max(0.0, record.admission.at - since))
        elif record.decision is None and record.finished is None and not job.problem and since:
            waiting.append((job.key, max(0.0, now - since)))
    return Waits(tuple(sorted(waiting, key=lambda one: -one[1])), tuple(over))


def _handovers(pool: Pool | None) -> list[tuple[Handover, float | None]]:
    """Return the pool's newest handovers, newest first, each with the seconds until its pods were gone."""
    backs = pool.status.last_handovers if pool is not None else ()
    return [
        (back, None if back.pods_gone is None else max(0.0, back.pods_gone - back.decided))
        for back in reversed(backs)
    ]


# -- from a decision log --------------------


def from_log(lines: Iterable[str], name: str, wanted: Callable[[str, str], bool]) -> Source:
    """Return what a decision log tells.

    Args:
        lines: of the log, oldest first.
        name: of its file.
        wanted: whether a job (namespace/name) of a pool ("" where the log does not say) belongs in the
            report.
    """
    newest: dict[str, tuple[float, Mapping[str, Any]]] = {}
    stops: dict[tuple[str, float], tuple[float, Mapping[str, Any]]] = {}
    pools: dict[str, str] = {}
    first: float | None = None
    unread = 0
    for text in lines:
        if not text.strip():
            continue
        try:
            entry = bounded.load(
                text, "line", decision_log.LINE_BYTES, values=decision_log.LINE_VALUES, python=True
            )
            if not isinstance(entry, dict) or not decision_log.readable(entry.get("v")):
                raise ValueError
            given, kind, at = entry["input"], entry["kind"], float(entry["now"])
            first = at if first is None else min(first, at)
            if kind == "pool":
                pools |= {str(one["key"]): str(given["pool"]) for one in given["jobs"]}
                continue
            if kind == "step":
                continue
            uid, decision = str(given["desired"]["uid"]), entry["decision"]["record"]["decision"]
            found = {"desired": given["desired"], "record": entry["decision"]["record"]}
            newest[uid] = at, found
            if decision is not None:
                stops[uid, float(decision["at"])] = at, found
        except (bounded.Unbounded, KeyError, TypeError, ValueError):
            unread += 1
    jobs, earlier = [], []
    for uid, (at, document) in newest.items():
        made = _logged(uid, at, document, pools)
        if made is not None and wanted(made.key, made.pool):
            jobs.append(made)
    for (uid, decided), (at, at_stop) in stops.items():
        made = _logged(uid, at, at_stop, pools)
        last = next((job for job in jobs if job.uid == uid), None)
        if made is None or last is None:
            continue
        if last.record.decision is None or last.record.decision.at != decided:
            earlier.append(made)
    notes = []
    if unread:
        notes.append(f"{counted(unread, 'line')} of the log could not be read: what they tell is missing.")
    notes.append("What was stopped before the log begins is not in it.")
    return Source(tuple(jobs), name, first, tuple(earlier), notes=tuple(notes))


def _logged(uid: str, at: float, found: Mapping[str, Any], pools: Mapping[str, str]) -> Job | None:
    try:
        desired = codec.decode(Desired, found["desired"])
        record = codec.decode(JobRecord, found["record"])
    except (ValueError, KeyError, TypeError):
        return None
    namespace, _, name = desired.key.partition("/")
    from controller.policy.job import summary

    return Job(
        key=desired.key,
        namespace=namespace,
        name=name,
        pool=pools.get(desired.key, ""),
        priority=0,
        created=0.0,
        uid=uid,
        version=str(at),
        summary=summary(record.conditions),
        desired=desired,
        record=record,
        rule_text=_rule(desired),
    )


def _rule(desired: Desired) -> str:
    words = []
    for spec in (desired.rule, *desired.modifiers):
        listed = ", ".join(f"{k}={json.dumps(v)}" for k, v in sorted(spec.params.items()))
        words.append(f"{spec.name}({listed})" if listed else spec.name)
    return " + ".join(words)


def stamp(now: float) -> str:
    """Return a time as a part of a file's name: ``20261126-0312Z``."""
    return time.strftime("%Y%m%d-%H%MZ", time.gmtime(now))
