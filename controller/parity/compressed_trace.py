"""A trace compressed in time, for the same run in the simulator and on a cluster."""

from __future__ import annotations

import re
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.params import ParamError, describe
from controller.policy.queueing import MAX_WAIT, POLICIES
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine.gangs import gangs
from sim.experiments.replay import plan, setting_of
from sim.foresight import RuleSpec
from sim.traces import Trace
from sim.workload import Workload

NAME_MOST = 40  # characters of an RLHFJob's name
MAX_WAIT_LEAST = 60.0  # s, the shortest that a GPUPool takes
_PLAYED = frozenset(
    {"progress"}
)  # inputs of a rule besides score and stderr. Keep in step with examples/played.py
_TIMES = ("s", "GPU-seconds")  # units of parameters that are compressed with the trace


@dataclass(frozen=True, slots=True)
class TraceOnCluster:
    """A compressed trace and where it runs.

    Attributes:
        gangs: (replicas, GPUs of each) by row.
        names: of the RLHFJobs, by row; unique.
        speed: how many seconds of the trace pass in one.
        max_priority: highest priority of any job, at least 0.
    """

    workload: Workload
    cluster: Cluster
    gangs: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    rule: RuleSpec
    speed: float
    notes: tuple[str, ...] = ()

    @property
    def max_priority(self) -> int:
        return max((0, *self.workload.priority))

    @property
    def load(self) -> float | None:
        """Offered load: GPU-seconds requested / GPU-seconds available until the last arrival; None: all jobs
        arrive at 0."""
        asked = sum(g * w for g, w in zip(self.workload.gpus, self.workload.work, strict=True))
        last = self.workload.submitted[-1] if len(self.workload) else 0.0
        return asked / (self.cluster.gpus * last) if last else None


def compress_trace(
    trace: Trace,
    *,
    cluster: Cluster | None = None,
    rule: RuleSpec | None = None,
    speed: float | None = None,
    minutes: float = 10.0,
    seed: int = 0,
) -> TraceOnCluster:
    """Return a trace prepared for simulator and cluster. Work is rounded to whole seconds, the unit of the
    user's estimate.

    Args:
        trace: the jobs.
        cluster: nodes; default: the trace's own.
        rule: stop rule; default: the trace's own.
        speed: how many times faster than the trace; default: such that all GPUs busy all the time would need
            ``minutes``.
        minutes: see ``speed``.
        seed: for evals, where the trace has none.

    Raises:
        TraceError: a job is larger than the cluster, or the trace names no cluster and none is given.
        ParamError: the rule looks at what a played run does not report, or ``speed`` is not above 0.
    """
    if (cluster or trace.cluster) is None or not (cluster or trace.cluster).nodes:  # type: ignore[union-attr]
        raise ParamError("nodes", "", "nodes, as in --nodes 4x8: the trace does not name any")
    planned = plan(trace, setting_of(trace, seed), cluster=cluster, rule=rule)
    judged = planned.setting.rule
    playable(judged)
    whole = planned.workload
    if speed is None:
        asked = sum(g * w for g, w in zip(whole.gpus, whole.work, strict=True))
        speed = max(1.0, asked / planned.cluster.gpus / (60.0 * minutes))
    if not speed > 0.0:
        raise ParamError("speed", speed, "a number above 0")
    packed = Workload(
        [round(s / speed, 3) for s in whole.submitted],
        whole.gpus,
        [max(1, round(w / speed)) for w in whole.work],
        keys=[whole.key(row) for row in range(len(whole))],
        gpus_per_replica=whole.gpus_per_replica,
        priority=whole.priority,
        weight=whole.weight,
        estimate=[e if e is None else max(1, round(e / speed)) for e in whole.estimate],
        group=whole.group,
        evals=whole.evals,
    )
    shapes = gangs(packed, planned.cluster)
    assert shapes is not None  # there are nodes
    names = tuple(_name(packed.key(row), row) for row in range(len(packed)))
    return TraceOnCluster(packed, planned.cluster, tuple(shapes), names, judged, speed, planned.notes)


def playable(rule: RuleSpec) -> None:
    """Raise `ParamError` for a rule that looks at what a played run does not report."""
    if rule.guardrails:
        raise ParamError("rule", "guardrails", "none: a played run reports one metric")
    if unknown := rule.needs - _PLAYED:
        expected = (
            f"a rule that goes by scores alone: a played run does not report {', '.join(sorted(unknown))}"
        )
        raise ParamError("rule", rule.rule.name, expected)


def compressed(policy: PolicySpec, speed: float) -> PolicySpec:
    """Return a policy whose times and services pass as fast as the trace's do, its defaults among them.

    The longest wait is compressed only if it is given: the default of one week never binds.

    Raises:
        ParamError: a policy that goes by what a played run does not report, or by namespaces.
    """
    # Keep in step with examples/played.py: what it does not report no policy may ask for.
    if policy.name in ("slaq", "fairShare", "srtfEst"):
        expected = (
            "fifo, srtf or las: played runs report no loss and share one namespace, and only the operator "
            "learns estimates"
        )
        raise ParamError("policy", policy.name, expected)
    values = dict(policy.params)
    for info in describe(POLICIES[policy.name].params):
        if info.unit in _TIMES:
            values[info.name] = float(values.get(info.name, info.default)) / speed
    if MAX_WAIT in values:
        values[MAX_WAIT] = max(MAX_WAIT_LEAST, float(round(float(values[MAX_WAIT]) / speed)))
    return replace(policy, params=values)


def _name(key: str, row: int) -> str:
    """``team/Run_7`` in row 12 -> ``run-7-12``: a unique name that Kubernetes accepts."""
    slug = re.sub(r"[^a-z0-9]+", "-", key.rpartition("/")[2].lower()).strip("-")
    tail = f"-{row}"
    return (slug[: NAME_MOST - len(tail)].strip("-") or "job") + tail
