"""`replay`, `record` and `compare`: one log, with and without EvalStop; runs kept, and set side by side.

Nothing here imports numpy, so that the replay of a small log is there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, isfinite
from typing import Any

from controller.frozen import dataclass
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec
from controller.policy.wording import counted
from sim.cluster import Cluster
from sim.engine import EventLog, Result, simulate
from sim.experiments.figures import FIGURES
from sim.experiments.findings import Column, Findings, Value
from sim.experiments.measures import compare
from sim.experiments.setting import EVALSTOP, Setting
from sim.foresight import RuleSpec
from sim.traces.own import cluster_entry
from sim.traces.trace import Trace
from sim.workload import Workload
from sim.workloads import Population, Truth, curves_for
from sim.workloads.kinds import Kind
from sim.workloads.mix import stream

Progress = Callable[[int, int], None]  # runs done, runs in all

DEFAULT_GPUS = 64  # the paper's cluster
DEFAULT_POLICY = PolicySpec("fifo")

COLUMNS = (
    Column("run", "run", "text"),
    Column("jobs", "jobs", "count"),
    Column("mean_jct", "mean JCT", "seconds"),
    Column("median_jct", "median JCT", "seconds"),
    Column("p95_jct", "95 % JCT", "seconds"),
    Column("makespan", "makespan", "seconds"),
    Column("gpu_hours", "GPU-hours", "number"),
    Column("preemptions", "preemptions", "count"),
    Column("stops", "stopped", "count"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of trials: a population (its truth None where nobody knows it), a cluster, policies and delays."""

    workload: Workload
    truth: Truth | None
    cluster: Cluster
    setting: Setting
    notes: tuple[str, ...] = ()
    drawn: bool = True  # whether the setting's mix had a part in the workload

    def as_dict(self) -> dict[str, Any]:
        """Return what is run, as JSON values: one run, with this many jobs on this cluster.

        Of the mix, what the workload is drawn from, and nothing where it is the log's own.
        """
        found = self.setting.as_dict()
        sizes = {"jobs": len(self.workload), "gpus": self.cluster.gpus}
        changes = {"cluster": cluster_entry(self.cluster), "seeds": 1}
        return {**found, **changes, "workload": {**(found["workload"] if self.drawn else {}), **sizes}}

    def run(self, *, stops: bool, event_log: EventLog | None = None) -> Result:
        """Simulate the base policy, with or without EvalStop around it, and return the result."""
        policy = make_policy(self.setting.base, self.setting.quotas)
        return simulate(
            self.workload,
            self.cluster,
            EvalStop(policy) if stops else policy,
            rule=self.setting.rule if stops else None,
            latencies=self.setting.latencies,
            event_log=event_log,
        )


def setting_of(trace: Trace, first_seed: int = 0) -> Setting:
    """Return the setting that a replay starts from: a recording's own delays, else those of the
    experiments."""
    setting = Setting(first_seed=first_seed)
    return setting if trace.latencies is None else replace(setting, latencies=trace.latencies)


def plan(
    trace: Trace,
    setting: Setting,
    *,
    cluster: Cluster | None = None,
    policy: PolicySpec | None = None,
    rule: RuleSpec | None = None,
    curves: str = "",
) -> Plan:
    """Return what to run for a trace: what is asked for, else what the trace says, else the defaults.

    Args:
        trace: the jobs, and what the trace says of its cluster, policy and rule.
        setting: curve settings, delays (`setting_of`) and the seed for whatever has to be drawn.
        cluster: nodes; None: as the trace says.
        policy: queue policy; None: as the trace says.
        rule: stop rule; None: as the trace says.
        curves: family to draw evals from; "": only if no job of the trace has any.

    Raises:
        TraceError: a job is larger than the cluster, and bad rows are not to be skipped.
        ParamError: the family does not exist.
    """
    cluster = cluster or trace.cluster or Cluster.slots(DEFAULT_GPUS)
    trace.fit(cluster)
    setting = replace(
        setting,
        base=policy or trace.policy or DEFAULT_POLICY,
        rule=rule or trace.rule or setting.rule,
        quotas=trace.quotas,
    )
    notes = list(trace.notes)
    truth = _truth(trace)
    workload = trace.workload()
    drawn = bool(curves) or not workload.evals
    if drawn:
        if curves:
            setting = setting.but(family=curves)
        kinds = _kinds(len(workload), setting)
        evals, truth = curves_for(kinds, setting.mix, setting.first_seed)
        workload = replace(workload, evals=evals, group=workload.group or [str(kind) for kind in kinds])
        notes.append(
            f"Evals are drawn: family {setting.mix.family}, seed {setting.first_seed}; the log has none."
            if not curves
            else f"Evals are drawn: family {setting.mix.family}, seed {setting.first_seed}."
        )
    if setting.base.name == "srtfEst" and not workload.estimate:
        drawn = True
        draw, spread = stream(setting.first_seed, "estimates"), setting.mix.estimate_spread
        workload = replace(
            workload, estimate=[work * exp(draw.gauss(0.0, 1.0) * spread) for work in workload.work]
        )
        notes.append(f"Estimates of running times are drawn around the true ones, spread {spread:g}.")
    return Plan(workload, truth, cluster, setting, tuple(notes), drawn)


def replay(trace: Trace, plan: Plan, progress: Progress | None = None) -> Findings:
    """Replay the trace on its cluster, without and with EvalStop, and return the findings.

    ``progress`` is called with the number of runs done and of all runs.
    """
    advance = progress or (lambda done, total: None)
    advance(0, 2)
    base = plan.run(stops=False)
    advance(1, 2)
    arm = plan.run(stops=True)
    advance(2, 2)
    name = plan.setting.base.name
    rows = [summary(name, base), summary(f"{name} + {EVALSTOP}", arm)]
    headline: dict[str, Value] = {
        "jct_gain": _gain(sum(arm.jct), sum(base.jct)),
        "gpu_time_gain": _gain(sum(arm.service), sum(base.service)),
        "stops": len(arm.stopped),
        "skipped": len(trace.skipped),
    }
    notes = [
        f"{', '.join(str(file) for file in trace.files)}: {trace.format}, "
        f"{counted(len(plan.workload), 'job')}, {counted(plan.cluster.gpus, 'GPU')}"
        + (f" on {counted(len(plan.cluster.nodes), 'node')}" if plan.cluster.nodes else ""),
        *(
            f"Left out: {counted(count, 'row')}, {reason}."
            for reason, count in sorted(trace.left_out.items())
        ),
    ]
    if trace.skipped:
        notes.append(
            f"Skipped: {counted(len(trace.skipped), 'bad row')}, the first: {trace.skipped.errors[0]}"
        )
    notes += plan.notes
    notes.append(
        f"EvalStop saves {_percent(headline['jct_gain'])} of the mean JCT and"
        f" {_percent(headline['gpu_time_gain'])} of the GPU-time."
    )
    if plan.truth is not None:
        tally = compare(Population(plan.workload, plan.truth), base, arm)
        found = {key: figure.once(tally) for key, figure in FIGURES.items()}
        headline.update(found)
        precision = _percent(found["precision"]) if arm.stopped else "not known, since no job was stopped"
        notes.append(
            f"By the truth about its runs: precision {precision}, recall {_percent(found['recall'])}, "
            f"{tally.false_alarms} of {counted(tally.healthy, 'healthy job')} accused."
        )
    title = f"{name} with and without EvalStop"
    findings = Findings("replay", title, plan.as_dict(), COLUMNS, rows, headline, notes)
    findings.extra["stopped_jobs"] = stops(plan.workload, arm)
    findings.extra["left_out"] = dict(trace.left_out)
    findings.extra["skipped_rows"] = [str(error) for error in trace.skipped.errors]
    return findings


def summary(run: str, result: Result) -> dict[str, Value]:
    """Return one run in a row."""
    ordered = sorted(result.jct)
    return {
        "run": run,
        "jobs": len(ordered),
        "mean_jct": result.mean_jct,
        "median_jct": quantile(ordered, 0.5),
        "p95_jct": quantile(ordered, 0.95),
        "makespan": result.makespan,
        "gpu_hours": sum(result.service) / 3600.0,
        "preemptions": result.preemptions,
        "stops": len(result.stopped),
    }


def stops(workload: Workload, result: Result) -> list[dict[str, Any]]:
    """Return the jobs that were stopped, in the order of their stops."""
    return [
        {
            "job": workload.key(row),
            "at": result.stops[row].at,
            "eval": result.stops[row].eval + 1,
            "best_eval": result.stops[row].best + 1,
            "gpu_hours_freed": (workload.work[row] - result.useful[row]) * workload.gpus[row] / 3600.0,
        }
        for row in sorted(result.stopped, key=lambda row: (result.stops[row].at, row))
    ]


def quantile(ordered: list[float], share: float) -> float:
    """Linear between neighbours, as numpy's default; NaN without values."""
    if not ordered:
        return float("nan")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _gain(ours: float, theirs: float) -> float:
    return 1.0 - ours / theirs if theirs > 0.0 else 0.0


def _percent(share: Value) -> str:
    return f"{100.0 * share:.1f} %" if isinstance(share, float) and isfinite(share) else "not known"


def _kinds(jobs: int, setting: Setting) -> list[Kind]:
    draw, mix = stream(setting.first_seed, "kinds"), setting.mix
    kinds = []
    for _ in range(jobs):
        u = draw.random()
        lora = u < mix.rlhf_share + mix.lora_share
        kinds.append(Kind.RLHF if u < mix.rlhf_share else Kind.LORA if lora else Kind.DPO)
    return kinds


def _truth(trace: Trace) -> Truth | None:
    """Return the truth that a recorded workload carries; None unless all jobs do. In the order of
    submission."""
    jobs = sorted(trace.jobs, key=lambda job: job.submitted)
    known = [job.truth for job in jobs if job.truth is not None]
    if len(known) < len(jobs):
        return None
    kinds = tuple(Kind(job.group) if job.group in list(Kind) else Kind.RLHF for job in jobs)
    return Truth(kinds, tuple(hacks for hacks, _ in known), tuple(peak for _, peak in known))
