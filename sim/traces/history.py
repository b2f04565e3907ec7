"""A cluster's past, folded from what its operator saw: who waited, who had GPUs, evals, stops, nodes.

Fed by the lines of decision logs (`sim.traces.decisions`) and by RLHFJobs as they stand in the cluster
(`evalstop export`); gives a trace whose jobs know what became of them (`sim.traces.past`). Whatever was not
seen stays unknown, and is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from controller.policy.job import Decision, Desired, JobRecord, ScrapeView
from controller.policy.types import (
    Delegate,
    JobState,
    JobView,
    Mode,
    PolicySpec,
    PoolSnapshot,
    StopLimits,
)
from controller.policy.wording import agreeing, counted
from sim.cluster import Cluster
from sim.foresight import RuleSpec
from sim.latencies import PREEMPTION, Latencies
from sim.traces.errors import Skipped, TraceError
from sim.traces.facts import JobFacts
from sim.traces.lifetimes import rule_of, trace_job
from sim.traces.trace import JobChecks, Trace

FORMAT = "decision-log"
CLUSTER = Path("cluster")  # stands for a file where the cluster itself was asked
_FIELDS = {"key": "key", "submitted": "submitted", "gpus": "gpus", "work": "attained"}
_QUIET = 600.0  # s without a line, while somebody had GPUs, from which on a log has a hole


class History:
    """Takes in what an operator saw, in the order of time."""

    def __init__(self, pool: str = "") -> None:
        """``pool``: the one whose past it is; "": there is only one."""
        self.pool = pool
        self.jobs: dict[str, JobFacts] = {}
        self.pools: Counter[str] = Counter()
        self.snapshot: PoolSnapshot | None = None
        self.first: float | None = None
        self.last = -math.inf
        self.holes: list[tuple[float, float]] = []
        self.capacity: list[tuple[float, tuple[int, ...]]] = []  # from when on, GPUs of each node
        self.foreign = 0.0  # GPU-seconds used by pods of nobody here
        self._planned = -math.inf  # when the pool was planned last
        self._there: dict[str, JobFacts] = {}  # jobs of that plan: of all others nothing changes
        self._starts: dict[tuple[str, int], float] = {}  # s from admission to readiness
        self._stops: dict[tuple[str, float], Decision] = {}

    def plan(self, file: Path, line: int, now: float, snapshot: PoolSnapshot) -> None:
        """Take in a plan of the pool.

        Raises:
            TraceError: of another pool, and none was chosen.
        """
        self.pools[snapshot.pool] += 1
        if self.pool and snapshot.pool != self.pool:
            return
        if not self.pool and len(self.pools) > 1:
            pools = " and ".join(self.pools)
            cure = "`evalstop export --pool NAME` takes one of them"
            raise TraceError(file, line, "input.pool", f"of the pools {pools}, expected only one; {cure}")
        beginning = self.snapshot is None
        self._clock(now)
        if self.snapshot is not None:
            foreign = sum(node.foreign for node in self.snapshot.nodes)
            self.foreign += foreign * max(0.0, now - self._planned)
        self.snapshot, self._planned = snapshot, now
        nodes = tuple(node.gpus for node in snapshot.nodes if node.gpus > 0)
        if not self.capacity or sorted(self.capacity[-1][1]) != sorted(nodes):
            self.capacity.append((now, nodes))
        here = {view.key: view for view in snapshot.jobs}
        for key, view in here.items():
            facts = self.jobs.setdefault(key, JobFacts(file, line))
            if facts.view is None and beginning:
                facts.early = view.state is not JobState.QUEUED or view.attempt > 0
            if view.state is not JobState.QUEUED:
                facts.waits.setdefault(view.attempt, view.waited)
        for key, facts in self._there.items():
            if facts.view is not None and _holds(facts):
                facts.held += max(0.0, now - facts.at) * facts.view.gpus
            if key not in here and facts.ended is None:
                facts.ended = now
        self._there = {key: self.jobs[key] for key in here}
        for key, facts in self._there.items():
            facts.view, facts.at, facts.ended = here[key], now, None

    def job(self, file: Path, line: int, now: float, desired: Desired, record: JobRecord) -> JobFacts:
        """Return a job's wish and its record, as of ``now``."""
        self._clock(now)
        facts = self.jobs.setdefault(desired.key, JobFacts(file, line))
        facts.desired, facts.record = desired, record
        facts.take(record.evals)
        if record.progress is not None:
            facts.step = max(facts.step, record.progress.step)  # coarser than what a scrape told
            facts.total_steps = record.progress.total_steps or facts.total_steps
        admission, decision = record.admission, record.decision
        if admission is not None:
            facts.admitted.setdefault(admission.number, admission.at)
            if admission.running_since is not None:
                self._starts[desired.key, admission.number] = admission.running_since - admission.at
        if decision is not None:
            self._stops[desired.key, decision.at] = decision
        return facts

    def scraped(self, facts: JobFacts, scrape: ScrapeView) -> None:
        """Take in what a job's trainer reported."""
        if scrape.step is not None:
            facts.step = scrape.step
        facts.total_steps = scrape.total_steps or facts.total_steps
        mark = scrape.checkpoint_step
        if mark is not None and (not facts.checkpoints or facts.checkpoints[-1] != mark):
            facts.checkpoints.append(mark)
        for metric, points in scrape.others:
            facts.others.setdefault(metric, {}).update(((p.attempt, p.step), p.score) for p in points)
        known = {(p.attempt, p.step) for p in facts.points}
        facts.take(scrape.points)
        # The gauge has the loss of this moment: that of the newest eval, and of none before it.
        if facts.points and scrape.loss is not None and math.isfinite(scrape.loss):
            newest = facts.points[-1]
            place = newest.attempt, newest.step
            if place not in known:
                facts.losses[place] = scrape.loss

    def stands(
        self, now: float, snapshot: PoolSnapshot, jobs: Sequence[tuple[JobView, Desired, JobRecord]]
    ) -> None:
        """Return how the cluster itself says that pool and jobs stand, those too that are over."""
        alone = self.snapshot is None
        live = tuple(view for view, _, record in jobs if not _over(record))
        self.plan(CLUSTER, 0, now, replace(snapshot, jobs=live))
        for view, desired, record in jobs:
            facts = self.job(CLUSTER, 0, now, desired, record)
            if facts.view is None:
                facts.view, facts.at = view, now
            if _over(record) and facts.ended is None:
                facts.ended = now
            if alone:
                facts.early = False
        if alone:
            self.first = min((view.submitted for view, _, _ in jobs), default=now)

    def _clock(self, now: float) -> None:
        if self.first is None:
            self.first = now
        if now - self.last > _QUIET and any(_holds(f) for f in self._there.values()):
            self.holes.append((self.last, now))
        self.last = max(self.last, now)

    # -- the trace

    def trace(self, files: list[Path], skipped: Skipped) -> Trace:
        """Return jobs that had GPUs, or whose length somebody estimated; others are left out, since nobody
        knows how long they would have trained.

        Raises:
            TraceError: a job cannot be, and what is wrong is not to be skipped; or the pool never planned.
        """
        file = files[0]
        if self.snapshot is None:
            if self.pool and self.pools:
                raise TraceError.value(file, 0, "pool", self.pool, "one of " + ", ".join(self.pools))
            raise TraceError(file, 0, "", "no plan of a pool in it, so no cluster and no jobs")
        trace = Trace(files, FORMAT, [], skipped, policy=self.snapshot.policy)
        if self.snapshot.delegate is not Delegate.BUILTIN:
            trace.policy = PolicySpec("fifo", {"backfill": True})
            trace.notes.append(
                f"The pool's delegate is {self.snapshot.delegate}: whose turn it was is not replayed; jobs"
                " queue by fifo with backfill instead."
            )
        trace.quotas = self.snapshot.quotas
        trace.cluster = self._cluster()
        trace.rule = self._rule(trace.notes)
        trace.latencies = self._latencies()
        if self.snapshot.limits != StopLimits():
            trace.notes.append(
                "The pool's limits on stops are not replayed: every stop is let through at once."
            )
        lossless, checks = 0, JobChecks(file, ordered=False)
        for key, facts in self.jobs.items():
            if facts.view is None:
                reason = "of another pool" if len(self.pools) > 1 else "in no plan of the pool"
                trace.left_out[reason] += 1
                continue
            job = trace_job(key, facts, self.last)
            if isinstance(job, str):
                trace.left_out[job] += 1
                continue
            try:
                checks.check(job, _FIELDS)
            except TraceError as error:
                skipped.add(TraceError(facts.file, facts.line, error.field, error.problem))
                continue
            lossless += bool(facts.losses) and job.evals is not None and not job.evals.losses
            trace.jobs.append(job)
        trace.jobs.sort(key=lambda job: job.submitted)
        _note_gaps(trace, lossless)
        assert self.first is not None
        trace.history = {
            "pool": self.snapshot.pool,
            "from": self.first,
            "to": self.last,
            "capacity": [[at, list(nodes)] for at, nodes in self.capacity],
            "holes": [list(hole) for hole in self.holes],
        }
        if self.foreign:
            trace.history["foreign_gpus"] = self.foreign / max(self.last - self.first, 1e-9)
        return trace

    def _cluster(self) -> Cluster | None:
        """Return the nodes as they were for the longest time."""
        lasted: Counter[tuple[int, ...]] = Counter()
        until = [at for at, _ in self.capacity[1:]] + [max(self.last, self.capacity[-1][0])]
        for (at, nodes), end in zip(self.capacity, until, strict=True):
            lasted[tuple(sorted(nodes, reverse=True))] += end - at  # type: ignore[assignment]
        chosen = next((nodes for nodes, _ in lasted.most_common() if nodes), None)
        if chosen is None:
            return None
        return Cluster.of_nodes(chosen)

    def _latencies(self) -> Latencies | None:
        """Return the delays that the record shows, as medians; None: it shows none."""
        stops = [d for d in self._stops.values() if d.mode is Mode.ENFORCE and d.suspended_at is not None]
        copied = [d.retained_at - d.at for d in stops if d.retained_at is not None]
        freed = [
            d.pods_gone_at - d.suspended_at
            for d in stops
            if d.pods_gone_at is not None and d.suspended_at is not None
        ]
        handed = [
            d.handed_at - d.pods_gone_at
            for d in stops
            if d.handed_at is not None and d.pods_gone_at is not None
        ]
        if not self._starts and not stops:
            return None
        redone = [
            f.record.lost / f.view.gpus / f.record.preemptions
            for f in self.jobs.values()
            if f.record is not None and f.record.preemptions and f.view is not None and f.view.gpus
        ]
        return Latencies(
            start_delay=_typical(self._starts.values()),
            restart_cost=_typical(redone) if redone else PREEMPTION,
            suspend_delay=_typical(freed),
            retain_time=_typical(copied),
            handover_delay=_typical(handed),
        )

    def _rule(self, notes: list[str]) -> RuleSpec | None:
        """Return the rule that most jobs had."""
        jobs = (facts for facts in self.jobs.values() if facts.view is not None or len(self.pools) < 2)
        wishes = [f.desired for f in jobs if f.desired is not None and f.desired.rule.name]
        rules = [rule_of(desired) for desired in wishes]
        if not rules:
            return None
        counts = Counter(repr(rule) for rule in rules)
        chosen = max(rules, key=lambda rule: counts[repr(rule)])
        chosen.make()
        if len(counts) > 1:
            notes.append(
                f"{len(counts)} different stop rules; the commonest, {chosen.rule.name}, judges all."
            )
        return chosen


def _over(record: JobRecord) -> bool:
    """Return whether a job no longer competes for GPUs."""
    decision = record.decision
    stopped = decision is not None and decision.mode is Mode.ENFORCE and decision.pods_gone_at is not None
    return record.finished is not None or stopped


def _holds(facts: JobFacts) -> bool:
    return facts.view is not None and facts.ended is None and facts.view.state is not JobState.QUEUED


def _typical(values: Iterable[float]) -> float:
    found = [max(0.0, value) for value in values]
    return round(median(found), 3) if found else 0.0


def _note_gaps(trace: Trace, lossless: int) -> None:
    jobs = len(trace.jobs)
    lengths = Counter(job.past.length for job in trace.jobs if job.past is not None)
    if cut := jobs - lengths["run"]:
        trace.notes.append(
            f"{cut} of {counted(jobs, 'job')} did not come to their end in the log; their whole length is "
            "taken from their progress, and evals that were never made are missing."
        )
    if unseen := sum(job.past.ended_unseen for job in trace.jobs if job.past is not None):
        trace.notes.append(
            f"{unseen} of {counted(jobs, 'job')} came to {agreeing(unseen, 'its', 'their')} end unread, "
            f"before all steps were seen; {agreeing(unseen, 'its', 'their')} evals are the first ones only."
        )
    if lengths["estimate"]:
        trace.notes.append(f"Of {lengths['estimate']} of them the length is their submitter's estimate.")
    if lengths["unknown"]:
        trace.notes.append(f"{lengths['unknown']} of them told no progress: they end where the log does.")
    if lossless:
        trace.notes.append(
            f"{lossless} of {counted(jobs, 'job')} had evals at which their training loss was not seen; they "
            "are replayed without it."
        )
