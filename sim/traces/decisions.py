"""A decision log of the operator, read as a trace of the cluster that it ran.

Jobs, GPUs, priorities, the queue policy and the nodes are in the pool's lines; evals, steps and rules are in
the jobs' lines. A job's training is the service it had, and where it did not come to its end, what its
progress makes of that for the whole run; evals that were never made are not invented.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from controller.policy.codec import decode
from controller.policy.declog import VERSION
from controller.policy.jobs import Desired, Direction, JobRecord, Observed
from controller.policy.types import (
    Attempt,
    EvalPoint,
    JobState,
    JobView,
    Paired,
    PolicySpec,
    PoolSnapshot,
    StopLimits,
)
from sim.cluster import Cluster
from sim.foresight import RuleSpec
from sim.traces.errors import Skipped, TraceError
from sim.traces.json_text import parse
from sim.traces.trace import JobChecks, Trace, TraceJob
from sim.workload import Evals

_FIELDS = {"key": "key", "submitted": "submitted", "gpus": "gpus", "work": "attained"}
_Place = tuple[Attempt, int]  # of an eval: attempt and step


@dataclass(slots=True)
class _Seen:
    """What the log has said of one job so far."""

    line: int
    view: JobView | None = None
    at: float = 0.0  # when the view was given
    ended: float | None = None  # first plan of the pool without it
    held: float = 0.0  # GPU-seconds from plan to plan while it was admitted
    desired: Desired | None = None
    points: list[EvalPoint] = field(default_factory=list)
    losses: dict[_Place, float] = field(default_factory=dict)  # training loss when the eval was first seen
    others: dict[str, dict[_Place, float]] = field(default_factory=dict)  # by metric, as the trainer reports
    step: int = 0
    total_steps: int = 0
    finished: str | None = None


class _Log:
    """Takes in a decision log line by line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jobs: dict[str, _Seen] = {}
        self.pools: Counter[str] = Counter()
        self.snapshot: PoolSnapshot | None = None

    def take(self, line: int, text: str) -> None:
        """Raises `TraceError` for a line that cannot be read."""
        entry = parse(self._file, line, text, "; was it cut off?")
        if not isinstance(entry, dict) or entry.get("v") != VERSION:
            version = entry.get("v") if isinstance(entry, dict) else None
            raise TraceError.value(self._file, line, "v", version, f"version {VERSION}")
        kind, now, given = entry.get("kind"), entry.get("now"), entry.get("input")
        if isinstance(now, bool) or not isinstance(now, (int, float)) or not math.isfinite(now):
            raise TraceError.value(self._file, line, "now", now, "seconds since the epoch")
        try:
            if kind == "pool":
                self._pool(line, now, decode(PoolSnapshot, given))
            elif kind == "job":
                assert isinstance(given, dict) or given is None
                parts = given or {}
                record = decode(JobRecord, parts.get("record"))
                desired = decode(Desired, parts.get("desired"))
                self._job(line, desired, decode(Observed, parts.get("observed")), record)
            else:
                raise TraceError.value(self._file, line, "kind", kind, "job or pool")
        except TraceError:
            raise
        except (ValueError, TypeError, AssertionError) as error:
            raise TraceError(self._file, line, "input", str(error)) from None

    def _pool(self, line: int, now: float, snapshot: PoolSnapshot) -> None:
        self.pools[snapshot.pool] += 1
        if len(self.pools) > 1:
            pools = " and ".join(self.pools)
            raise TraceError(self._file, line, "input.pool", f"of the pools {pools}, expected only one")
        self.snapshot = snapshot
        here = {view.key: view for view in snapshot.jobs}
        for key in here:
            self.jobs.setdefault(key, _Seen(line))
        for key, seen in self.jobs.items():
            if seen.view is not None and seen.ended is None and seen.view.state is not JobState.QUEUED:
                seen.held += (now - seen.at) * seen.view.gpus
            if key in here:
                seen.view, seen.at, seen.ended = here[key], now, None
            elif seen.view is not None and seen.ended is None:
                seen.ended = now

    def _job(self, line: int, desired: Desired, observed: Observed, record: JobRecord) -> None:
        seen = self.jobs.setdefault(desired.key, _Seen(line))
        seen.desired = desired
        seen.finished = record.finished or (observed.workload.finished if observed.workload else None)
        scrape = observed.scrape
        if scrape is None:
            return
        seen.step = max(seen.step, scrape.step or 0)
        seen.total_steps = max(seen.total_steps, scrape.total_steps or 0)
        for metric, points in scrape.others:
            seen.others.setdefault(metric, {}).update(((p.attempt, p.step), p.score) for p in points)
        known = {(p.attempt, p.step) for p in seen.points}
        for point in sorted(scrape.points, key=lambda p: (p.attempt, p.step)):
            newest = seen.points[-1].attempt if seen.points else Attempt(0, 0)
            if (point.attempt, point.step) in known or point.attempt < newest:
                continue
            if point.attempt > newest:  # a new attempt takes back what it does again
                seen.points = [p for p in seen.points if p.step < point.step]
            if not seen.points or point.step > seen.points[-1].step:
                seen.points.append(point)
        # The gauge has the loss of this moment: that of the newest eval, and of none before it.
        if seen.points and scrape.loss is not None and math.isfinite(scrape.loss):
            newest_point = seen.points[-1]
            place = newest_point.attempt, newest_point.step
            if place not in known:
                seen.losses[place] = scrape.loss


def read_decisions(file: Path, lines: Iterable[str], skipped: Skipped) -> Trace:
    """Jobs that had GPUs; others are left out, since nobody knows how long they would have trained.

    Raises:
        TraceError: a line is wrong and is not to be skipped, or no pool ever planned.
    """
    log = _Log(file)
    for line, text in enumerate(lines, start=1):
        if text.strip():
            try:
                log.take(line, text)
            except TraceError as error:
                skipped.add(error)
    if log.snapshot is None:
        raise TraceError(file, 0, "", "no plan of a pool in it, so no cluster and no jobs")
    trace = Trace([file], "decision-log", [], skipped, policy=log.snapshot.policy)
    nodes = [node.gpus for node in log.snapshot.nodes if node.gpus > 0]
    trace.cluster = Cluster.of_nodes(nodes) if nodes else None
    trace.rule = _rule(log, trace.notes)
    if log.snapshot.limits != StopLimits():
        trace.notes.append("The pool's limits on stops are not replayed: every stop is let through at once.")
    cut_short, lossless, checks = 0, 0, JobChecks(file, ordered=False)
    for key, seen in log.jobs.items():
        job = _job(key, seen)
        if isinstance(job, str):
            trace.left_out[job] += 1
            continue
        try:
            checks.check(job, _FIELDS)
        except TraceError as error:
            skipped.add(error)
            continue
        cut_short += seen.finished != "Complete"
        lossless += bool(seen.losses) and job.evals is not None and not job.evals.losses
        trace.jobs.append(job)
    trace.jobs.sort(key=lambda job: job.submitted)
    if cut_short:
        trace.notes.append(
            f"{cut_short} of {len(trace.jobs)} jobs did not come to their end in the log; their whole length"
            " is taken from their progress, and evals that were never made are missing."
        )
    if lossless:
        trace.notes.append(
            f"{lossless} of {len(trace.jobs)} jobs had evals at which their training loss was not seen; they"
            " are replayed without it."
        )
    return trace


def _job(key: str, seen: _Seen) -> TraceJob | str:
    view = seen.view
    if view is None:
        return "in no plan of the pool"
    service = seen.held
    if view.attained > 0.0:  # the operator's own count, which leaves out the time until all pods were ready
        running = view.state is not JobState.QUEUED and seen.ended is not None
        service = view.attained + ((seen.ended or seen.at) - seen.at) * view.gpus * running
    if service <= 0.0:
        return "never had GPUs"
    done = min(1.0, seen.step / seen.total_steps) if seen.total_steps else 1.0
    if seen.finished == "Complete" or done <= 0.0:
        done = 1.0
    return TraceJob(
        key,
        view.submitted,
        view.gpus,
        service / view.gpus / done,
        line=seen.line,
        gpus_per_replica=view.gpus_per_replica,
        priority=view.priority,
        weight=view.weight,
        estimate=view.estimate,
        group="RLHF",
        evals=_evals(seen),
    )


def _evals(seen: _Seen) -> Evals | None:
    steps = max(seen.total_steps, seen.step, seen.points[-1].step if seen.points else 0)
    points = [p for p in seen.points if p.step > 0]
    if not points:
        return None
    sign = -1.0 if seen.desired is not None and seen.desired.direction is Direction.MINIMIZE else 1.0
    number = {p.step: n for n, p in enumerate(points, start=1)}

    def paired(point: EvalPoint) -> Paired | None:
        """Its differences, to the eval of the reference step; without, where the log lacks that eval."""
        found = point.paired
        if found is None or found.reference_step not in number:
            return None
        return found._replace(reference_step=number[found.reference_step], mean=sign * found.mean)

    signs = _signs(seen.desired)
    places = [(p.attempt, p.step) for p in points]
    losses = [seen.losses[place] for place in places if place in seen.losses]
    proxies, pairs = [p.proxy for p in points], [paired(p) for p in points]
    stderrs = [p.stderr for p in points]
    return Evals(
        [p.step / steps for p in points],
        [sign * p.score for p in points],
        losses=losses if len(losses) == len(points) else (),
        proxies=proxies if any(p is not None for p in proxies) else (),
        paired=pairs if any(p is not None for p in pairs) else (),
        stderrs=stderrs if any(e is not None for e in stderrs) else (),
        others={
            metric: [sign * scores[place] if place in scores else None for place in places]
            for metric, sign in signs.items()
            if (scores := seen.others.get(metric))
        },
    )


def _signs(desired: Desired | None) -> dict[str, float]:
    """Of guardrail metrics, by name: -1 where lower is better."""
    guardrails = desired.guardrails if desired is not None else ()
    return {g.metric: -1.0 if g.direction is Direction.MINIMIZE else 1.0 for g in guardrails}


def _rule(log: _Log, notes: list[str]) -> RuleSpec | None:
    """The rule that most jobs had."""
    wishes = [seen.desired for seen in log.jobs.values() if seen.desired is not None]
    rules = [_spec(desired) for desired in wishes]
    if not rules:
        return None
    counts = Counter(repr(rule) for rule in rules)
    chosen = max(rules, key=lambda rule: counts[repr(rule)])
    chosen.make()
    if len(counts) > 1:
        notes.append(f"{len(counts)} different stop rules; the commonest, {chosen.rule.name}, judges all.")
    return chosen


def _spec(desired: Desired) -> RuleSpec:
    """A job's rule and guardrails, each at the whole budget of false alarms: `RuleSpec.make` shares it."""
    judged = 1 + len(desired.guardrails)
    guardrails = tuple((g.metric, _whole(g.rule, judged)) for g in desired.guardrails)
    return RuleSpec(_whole(desired.rule, judged), desired.modifiers, guardrails=guardrails)


def _whole(rule: PolicySpec, judged: int) -> PolicySpec:
    """What `controller.policy.stopping.guardrails.shared` made this share of the budget of."""
    share = rule.params.get("alpha")
    if judged == 1 or not isinstance(share, int | float):
        return rule
    return PolicySpec(rule.name, {**rule.params, "alpha": share * judged})
