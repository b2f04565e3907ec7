"""The two sides of a what-if as runs of the simulator: what was recorded, and the alternative.

Judging and queueing are kept apart. First each job's stop is found on its own curve (as recorded, or by
another rule); then the jobs run with these stops, under whatever policy and nodes. Rules by which a stop
hangs on others (peers, contention) cannot be found beforehand: they are judged while the jobs run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from random import Random

from controller.frozen import dataclass
from controller.policy.queueing import MAX_WAIT, EvalStop, make_policy
from controller.policy.types import Mode, PolicySpec, Quota
from controller.policy.wording import agreeing, counted
from sim import quotas, specs
from sim.cluster import Cluster
from sim.engine import EventLog, Result, simulate
from sim.first_stops import foresee
from sim.foresight import RuleSpec, first_stop
from sim.latencies import PREEMPTION, Latencies
from sim.traces.past import End, Past
from sim.traces.trace import Trace, TraceJob
from sim.what_if import futures
from sim.workload import Evals, Workload
from sim.workloads.mix import stream

_AS_GIVEN = RuleSpec(PolicySpec("kDeclines", {"k": 1}))  # stops where `_scores_for_stop` has scores fall
_SPREAD = 0.5  # of estimates that have to be drawn, as `MixSettings.estimate_spread`


@dataclass(frozen=True, slots=True)
class Alternative:
    """Changes to what was recorded; None: that stays.

    Attributes:
        rule: judges every job with evals, whatever its mode was.
        stops: False: nobody is stopped.
        enforce: jobs in Shadow and Off are stopped by their own rules, too.
    """

    rule: RuleSpec | None = None
    policy: PolicySpec | None = None
    cluster: Cluster | None = None
    stops: bool = True
    enforce: bool = False
    quotas: tuple[Quota, ...] | None = None

    @property
    def name(self) -> str:
        """Return what differs, in words."""
        parts = []
        if not self.stops:
            parts.append("no stops")
        if self.rule is not None:
            parts.append(f"rule {specs.rule_text(self.rule)}")
        if self.enforce:
            parts.append("stops of Shadow jobs enforced")
        if self.policy is not None:
            parts.append(f"policy {specs.text(self.policy)}")
        if self.quotas is not None:
            parts.append("quotas " + " ".join(map(quotas.text, self.quotas)) if self.quotas else "no quotas")
        if self.cluster is not None:
            parts.append(cluster_text(self.cluster))
        return ", ".join(parts) or "as recorded"

    @property
    def judges_as_it_runs(self) -> bool:
        """Return whether a stop hangs on more than the job's own curve."""
        rule = self.rule
        return rule is not None and (rule.standing or "peers" in rule.needs)


@dataclass(frozen=True, slots=True)
class Row:
    """One job in one arm.

    Attributes:
        work: s of training.
        evals: as far as seen, or made up (`futures`).
        stop: number from 0 of the eval at which it is stopped, None: it is not.
        seen: share of the work that was observed.
        invented: beyond it the evals are made up.
    """

    work: float
    evals: Evals | None
    stop: int | None
    seen: float
    invented: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way in which the alternative may have gone. ``unseen_wasted``: training that nobody saw counts as
    of no use."""

    name: str
    rows: tuple[Row, ...]
    unseen_wasted: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """The recorded cluster: jobs in the order of their submission, and how they are replayed.

    ``left_out``: jobs in neither arm, for the cluster could not hold them; it was another when they ran.
    """

    jobs: tuple[TraceJob, ...]
    workload: Workload
    cluster: Cluster
    policy: PolicySpec
    latencies: Latencies
    rule: RuleSpec | None
    notes: tuple[str, ...]
    left_out: tuple[TraceJob, ...] = ()
    quotas: tuple[Quota, ...] = ()

    @property
    def every(self) -> int:
        """Return how many jobs the history has."""
        return len(self.jobs) + len(self.left_out)


def setting(trace: Trace, latencies: Latencies | None = None) -> Setting:
    """Return how a trace is replayed; jobs that do not fit into its cluster are left out (the trace keeps
    them).

    Raises:
        ValueError: it names no cluster.
        TraceError: no job fits.
    """
    if trace.cluster is None:
        raise ValueError("--nodes: the history names none, expected the nodes there were, as 4x8")
    history, trace = trace, replace(trace, jobs=list(trace.jobs), skipped=trace.skipped.copy())
    assert trace.cluster is not None
    trace.fit(trace.cluster)
    kept = set(map(id, trace.jobs))
    notes = []
    if latencies is None:
        latencies = trace.latencies
        if latencies is None:
            latencies = Latencies(restart_cost=PREEMPTION)
            notes.append("The history says nothing of delays: none are charged but those of a preemption.")
    jobs = tuple(sorted(trace.jobs, key=lambda job: job.submitted))
    return Setting(
        jobs,
        trace.workload(),
        trace.cluster,
        trace.policy or PolicySpec("fifo"),
        latencies,
        trace.rule,
        tuple(notes),
        tuple(job for job in history.jobs if id(job) not in kept),
        trace.quotas,
    )


def recorded(given: Setting) -> tuple[Row, ...]:
    """Return every job as it was: stopped where it was stopped, ended where it ended."""
    return tuple(_recorded(job) for job in given.jobs)


def _recorded(job: TraceJob) -> Row:
    past = job.past
    if past is None or past.end is not End.STOPPED:
        return Row(job.work, job.evals, None, past.seen if past is not None else 1.0)
    if past.stop_eval is None or job.evals is None:
        return _cut(job)
    return Row(job.work, job.evals, past.stop_eval - 1, past.seen)


def _cut(job: TraceJob) -> Row:
    """Return the job as if its end had been where it was stopped."""
    seen = job.past.seen if job.past is not None else 1.0
    return Row(job.work * seen, job.evals and _until(job.evals, seen), None, 1.0)


def scenarios(given: Setting, other: Alternative, future: str, draws: int, seed: int) -> list[Scenario]:
    """Return the ways in which the alternative may have gone: one, where all of it was seen.

    Raises:
        ValueError: ``future`` is none of `futures.MODES`, or cannot be had of this history.
    """
    if future not in futures.MODES:
        raise ValueError(f"--future: {future!r} is not allowed, expected one of {', '.join(futures.MODES)}")
    if other.rule is None and other.stops:
        rows = tuple(_as_recorded(job, other.enforce, given.rule) for job in given.jobs)
        return [Scenario("known", rows, True)]
    rows = _judged(given, other)
    open_ = [n for n, job in enumerate(given.jobs) if rows[n].stop is None and _censored(job.past)]
    if not open_:
        return [Scenario("known", rows, True)]
    if not other.stops:  # they run to their end for certain; whether that is of use, nobody knows
        if future == "nearest":
            return _drawn(given, other, rows, open_, draws, seed)
        return [Scenario("least", rows, False), Scenario("most", rows, True)]
    if future == "nearest":
        return _drawn(given, other, rows, open_, draws, seed)
    ended = {n: _cut(given.jobs[n]) if other.judges_as_it_runs else _recorded(given.jobs[n]) for n in open_}
    least = Scenario("least", _with(rows, ended), False)
    return [least] if future == "recorded" else [least, Scenario("most", rows, True)]


def _drawn(
    given: Setting, other: Alternative, rows: tuple[Row, ...], open_: Sequence[int], draws: int, seed: int
) -> list[Scenario]:
    found = futures.donors(given.jobs, given.rule)
    near = {n: futures.nearest(given.jobs[n], found) for n in open_ if given.jobs[n].evals is not None}
    rule = other.rule.make() if other.rule is not None else None
    made = []
    for number in range(draws):
        random = Random(f"{seed}/{number}")
        changed = {}
        for n, others in near.items():
            job = given.jobs[n]
            evals = futures.continued(job, others, random)
            stop = first_stop(rule, evals) if rule is not None else None
            seen = job.past.seen if job.past is not None else 1.0
            changed[n] = Row(job.work, evals, None if stop is None else stop.eval, seen, invented=True)
        made.append(Scenario(f"draw {number + 1}", _with(rows, changed), True))
    return made


def _judged(given: Setting, other: Alternative) -> tuple[Row, ...]:
    """Return every job by the alternative's rule, on what was seen of it; no stop: it goes on."""
    evals = [job.evals for job in given.jobs]
    if other.rule is None or other.judges_as_it_runs:
        stops: list[int | None] = [None] * len(evals)
    else:
        rule = other.rule
        shown = [e if rule.judges(job.group) else None for e, job in zip(evals, given.jobs, strict=True)]
        stops = [None if found is None else found.eval for found in foresee(rule, shown)]
    return tuple(
        Row(job.work, e, stop, job.past.seen if job.past is not None else 1.0)
        for job, e, stop in zip(given.jobs, evals, stops, strict=True)
    )


def _as_recorded(job: TraceJob, enforce: bool, rule: RuleSpec | None) -> Row:
    row, past = _recorded(job), job.past
    if not enforce or row.stop is not None or job.evals is None:
        return row
    if past is not None and past.mode is Mode.ENFORCE:
        return row
    if past is not None and past.stop_eval is not None:
        return replace(row, stop=past.stop_eval - 1)
    own = past.rule if past is not None and past.rule is not None else rule
    found = first_stop(own.make(), job.evals) if own is not None else None
    return row if found is None else replace(row, stop=found.eval)


def _censored(past: Past | None) -> bool:
    return past is not None and past.censored


def _with(rows: tuple[Row, ...], changed: dict[int, Row]) -> tuple[Row, ...]:
    return tuple(changed.get(n, row) for n, row in enumerate(rows))


def _until(evals: Evals, share: float) -> Evals | None:
    """Return the evals of a run that is cut down to this share of its length."""
    kept = [n for n, at in enumerate(evals.at) if at <= share]
    if not kept or share <= 0.0:
        return None
    return Evals([evals.at[n] / share for n in kept], [evals.scores[n] for n in kept])


def run(
    given: Setting, rows: Sequence[Row], other: Alternative | None = None, event_log: EventLog | None = None
) -> Result:
    """Let the jobs run with these stops; ``other``: under what else the alternative changes.

    Raises:
        ValueError: a job does not fit into the alternative's nodes.
    """
    other = other or Alternative()
    spec = _with_wait(other.policy, given.policy)
    cluster = other.cluster or given.cluster
    streams = other.judges_as_it_runs
    policy = make_policy(spec, given.quotas if other.quotas is None else other.quotas)
    evals = [
        row.evals if streams else _scores_for_stop(row, policy.watches, job.evals)
        for row, job in zip(rows, given.jobs, strict=True)
    ]
    workload = replace(given.workload, work=[row.work for row in rows], evals=evals)
    if spec.name == "srtfEst" and not all(e is not None for e in workload.estimate or [None]):
        workload = replace(workload, estimate=_estimates(workload))
    rule = other.rule if streams else _AS_GIVEN
    return simulate(
        workload, cluster, EvalStop(policy), rule=rule, latencies=given.latencies, event_log=event_log
    )


def check_fits(given: Setting, cluster: Cluster) -> None:
    """Check that each job could run on these nodes if it were alone.

    Raises:
        ValueError: a job could not.
    """
    shapes = given.workload.gpus_per_replica
    lost = []
    for row, job in enumerate(given.jobs):
        shape = (job.gpus // shapes[row], shapes[row]) if len(shapes) else cluster.gang(job.gpus)
        if job.gpus > cluster.gpus or not cluster.holds(*shape):
            lost.append(f"{job.key} ({shape[0]}x{shape[1]} {agreeing(job.gpus, 'GPU', 'GPUs')})")
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ValueError(
            f"--nodes: {cluster_text(cluster)} cannot hold {lost[0]}{more}, expected room for each"
        )


def _with_wait(spec: PolicySpec | None, usual: PolicySpec) -> PolicySpec:
    """Another policy keeps the pool's bound on waits, unless it brings its own."""
    if spec is None or MAX_WAIT in spec.params or MAX_WAIT not in usual.params:
        return spec or usual
    return PolicySpec(spec.name, {**spec.params, MAX_WAIT: usual.params[MAX_WAIT]})


def _estimates(workload: Workload) -> list[float]:
    """Return the estimate of every job's length (s), the same for every arm.

    An estimate that is not known is drawn around the true length.
    """
    draw = stream(0, "estimates")
    known = workload.estimate or [None] * len(workload)
    drawn = [work * exp(draw.gauss(0.0, 1.0) * _SPREAD) for work in workload.work]
    return [own if own is not None else made for own, made in zip(known, drawn, strict=True)]


def _scores_for_stop(row: Row, watched: bool, real: Evals | None) -> Evals | None:
    """Evals whose scores rise up to the row's stop and fall there; losses stay, for policies that watch."""
    if row.evals is None:
        return None
    if row.stop is None:
        if not watched:
            return None
        return Evals(row.evals.at, range(len(row.evals.at)), _losses(row, real))
    at, losses = list(row.evals.at), list(_losses(row, real))
    scores = [float(n) if n < row.stop else -1.0 for n in range(len(at))]
    if row.stop == 0:  # nothing can fall before there was something
        at, scores, losses = [at[0] / 2.0, *at], [0.0, *scores], losses[:1] + losses
    return Evals(at, scores, losses)


def _losses(row: Row, real: Evals | None) -> Sequence[float]:
    return real.losses if real is not None and not row.invented else ()


def cluster_text(cluster: Cluster) -> str:
    if not cluster.nodes:
        return counted(cluster.gpus, "GPU")
    sizes: dict[int, int] = {}
    for _, gpus in cluster.nodes:
        sizes[gpus] = sizes.get(gpus, 0) + 1
    return "nodes " + ",".join(f"{count}x{gpus}" for gpus, count in sorted(sizes.items(), reverse=True))
