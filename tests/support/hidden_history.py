"""A history of which the hidden truth is known: what runs would have done after they were stopped.

The simulator's population runs under a recorded rule; then what nobody would have seen is cut away. What an
alternative would really have done is a run of the whole curves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import Mode, PolicySpec
from sim import specs
from sim.cluster import Cluster
from sim.engine import Result, simulate
from sim.first_stops import foresee
from sim.latencies import Latencies
from sim.traces.past import End, Past
from sim.traces.trace import Trace, TraceJob
from sim.workload import Evals, Workload
from sim.workloads import MixSettings, generate

RECORDED = "kDeclines:k=3"
DELAYS = Latencies(restart_cost=120.0, start_delay=30.0, suspend_delay=10.0, retain_time=20.0)


@dataclass(frozen=True)
class Hidden:
    """``trace``: what is left for a user to see; ``workload``: all of it; ``result``: the recorded run."""

    trace: Trace
    workload: Workload
    result: Result
    cluster: Cluster

    def truth(self, rule: str, policy: str = "fifo", gpus: int | None = None) -> Result:
        """What the alternative really does; ``rule`` "": nobody is stopped."""
        cluster = Cluster.slots(gpus) if gpus is not None else self.cluster
        base = EvalStop(make_policy(specs.policy(policy)))
        spec = specs.rule(rule) if rule else None
        return simulate(self.workload, cluster, base, rule=spec, latencies=DELAYS)


def hidden(seed: int, *, jobs: int = 120, shadow: float = 0.0, gpus: int = 64) -> Hidden:
    """``shadow``: share of the jobs that are only watched."""
    population = generate(MixSettings().but(jobs=jobs, gpus=gpus), seed)
    workload, rule, cluster = population.workload, specs.rule(RECORDED), Cluster.slots(gpus)
    draw = Random(seed)
    watched = [draw.random() < shadow for _ in range(len(workload))]
    verdicts = foresee(rule, workload.evals)
    judged = [None if only else e for e, only in zip(workload.evals, watched, strict=True)]
    result = simulate(
        replace(workload, evals=judged),
        cluster,
        EvalStop(make_policy(PolicySpec("fifo"))),
        rule=rule,
        latencies=DELAYS,
    )
    rows = []
    for row in range(len(workload)):
        evals, verdict, stopped = workload.evals[row], verdicts[row], row in result.stopped
        seen = result.useful[row] / workload.work[row] if stopped else 1.0
        if stopped:
            assert evals is not None
            assert verdict is not None
            evals = Evals(evals.at[: verdict.eval + 1], evals.scores[: verdict.eval + 1])
        asked = verdict is not None and (stopped or watched[row])
        past = Past(
            end=End.STOPPED if stopped else End.COMPLETE,
            mode=Mode.SHADOW if watched[row] else Mode.ENFORCE,
            seen=seen,
            length="progress" if stopped else "run",
            started=result.started[row],
            ended=result.ended[row],
            service=result.service[row],
            stop_eval=verdict.eval + 1 if asked and verdict is not None else None,
            rule=rule,
        )
        rows.append(
            TraceJob(
                workload.key(row),
                workload.submitted[row],
                workload.gpus[row],
                workload.work[row],
                evals=evals,
                group=workload.group[row],
                estimate=workload.estimate[row] if workload.estimate else None,
                past=past,
            )
        )
    trace = Trace(
        [Path("history")],
        "evalstop-trace",
        rows,
        cluster=cluster,
        policy=PolicySpec("fifo"),
        rule=rule,
        latencies=DELAYS,
        history={"pool": "p", "from": 0.0, "to": max(result.ended), "capacity": [[0.0, [gpus]]]},
    )
    return Hidden(trace, workload, result, cluster)
