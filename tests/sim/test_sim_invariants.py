"""What holds in every run, whatever the policy, the cluster and the delays."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import K3, NEVER, clusters, latencies, specs, stopping, workloads

from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import EventLog, Result, simulate
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload


@settings(max_examples=250, deadline=None)
@given(specs, workloads, clusters, latencies)
def test_gpus_jobs_and_gpu_seconds_are_accounted_for(
    spec: PolicySpec, workload: Workload, cluster: Cluster, delays: Latencies
) -> None:
    event_log = EventLog()
    result = simulate(workload, cluster, stopping(spec), rule=K3, latencies=delays, event_log=event_log)
    lines = [line.split(" ") for line in event_log.lines]
    rows = {workload.key(row): row for row in range(len(workload))}
    sizes = dict(cluster.nodes) or {"": cluster.gpus}

    # Replay the event_log: on no node more GPUs than it has, every job's GPUs for as long as they are held.
    held: dict[str, tuple[float, list[str]]] = {}
    free = dict(sizes)
    service = dict.fromkeys(rows, 0.0)
    ended: dict[str, str] = {}
    before = 0.0
    for time, verb, key, *detail in lines:
        now, gpus = float(time), workload.gpus[rows[key]]
        assert now >= before
        before = now
        if verb == "admit":
            assert key not in held
            assert key not in ended
            assert now >= workload.submitted[rows[key]]
            nodes = detail[0].split(",") if detail and detail[0] else [""]
            for node in nodes:
                free[node] -= gpus // len(nodes)
            assert min(free.values()) >= 0
            held[key] = (now, nodes)
        elif verb in ("end", "free"):
            since, nodes = held.pop(key)
            for node in nodes:
                free[node] += gpus // len(nodes)
            service[key] += (now - since) * gpus
            if verb == "end" or (rows[key] in result.stopped and now == result.ended[rows[key]]):
                ended[key] = verb
        else:
            assert key in held  # propose, preempt, release: only who runs
    assert ended.keys() == rows.keys()  # no job lost
    assert not held
    assert free == sizes

    for key, row in rows.items():
        assert service[key] == pytest.approx(result.service[row])
        assert result.ended[row] >= result.started[row] >= workload.submitted[row]
        # GPU-seconds are conserved: training that counts, training undone, and what was no training.
        trained = (result.useful[row] + result.lost[row]) * workload.gpus[row]
        assert trained <= service[key] + 1e-6
        if delays.none:
            assert trained == pytest.approx(service[key])
        if row not in result.stopped:
            assert result.useful[row] == workload.work[row]
    assert result.preemptions == sum(verb == "preempt" for _, verb, *_ in lines)


@settings(max_examples=250, deadline=None)
@given(specs, workloads, latencies)
def test_stops_are_made_once_on_running_jobs_and_keep_the_best(
    spec: PolicySpec, workload: Workload, delays: Latencies
) -> None:
    event_log = EventLog()
    result = simulate(
        workload, Cluster.slots(8), stopping(spec), rule=K3, latencies=delays, event_log=event_log
    )
    released = [line.split(" ")[2] for line in event_log.lines if line.split(" ")[1] == "release"]
    assert len(released) == len(set(released)) == len(result.stopped)
    for row in result.stopped:
        stop, evals = result.stops[row], workload.evals[row]
        assert evals is not None
        # Stopped on an eval that was made, with the best of all until then, none of it trained past the end.
        assert stop.eval < result.evals_made[row] <= len(evals.at)
        seen = list(evals.scores[: stop.eval + 1])
        assert stop.best == seen.index(max(seen))
        assert evals.at[stop.best] * workload.work[row] <= result.useful[row] + 1e-9
        assert result.useful[row] <= workload.work[row]
        assert result.started[row] <= stop.at <= result.ended[row]


@settings(max_examples=250, deadline=None)
@given(specs, workloads, clusters, latencies)
def test_with_a_rule_that_never_stops_the_run_is_its_base_s(
    spec: PolicySpec, workload: Workload, cluster: Cluster, delays: Latencies
) -> None:
    base, wrapped, shown = EventLog(), EventLog(), EventLog()
    simulate(workload, cluster, make_policy(spec), latencies=delays, event_log=base)
    simulate(workload, cluster, stopping(spec), rule=NEVER, latencies=delays, event_log=wrapped)
    simulate(
        workload, cluster, stopping(spec), rule=NEVER, latencies=delays, event_log=shown, foresight=False
    )
    assert wrapped.text() == base.text()
    assert shown.text() == base.text()


@settings(max_examples=250, deadline=None)
@given(specs, workloads, clusters, latencies)
def test_foreseen_stops_are_those_of_the_evals_as_they_come(
    spec: PolicySpec, workload: Workload, cluster: Cluster, delays: Latencies
) -> None:
    foreseen, streamed = EventLog(), EventLog()
    first = simulate(workload, cluster, stopping(spec), rule=K3, latencies=delays, event_log=foreseen)
    second = simulate(
        workload, cluster, stopping(spec), rule=K3, latencies=delays, event_log=streamed, foresight=False
    )
    assert foreseen.text() == streamed.text()
    assert replace(first, events=0) == replace(second, events=0)


@settings(max_examples=250, deadline=None)
@given(specs, workloads, st.booleans())
def test_the_bare_loop_is_the_engine(spec: PolicySpec, workload: Workload, wrapped: bool) -> None:
    """Without delays, nodes and a event_log there is a shorter way; it gives the same, to the last event."""

    def run(event_log: EventLog | None) -> Result:
        policy = stopping(spec) if wrapped else make_policy(spec)
        return simulate(workload, Cluster.slots(8), policy, rule=K3, event_log=event_log)

    assert run(None) == run(EventLog())


@settings(max_examples=250, deadline=None)
@given(specs, workloads)
def test_work_is_conserved(spec: PolicySpec, workload: Workload) -> None:
    """No GPUs idle while somebody who may start would fit on them: there is no such gap in the event_log."""
    event_log = EventLog()
    simulate(workload, Cluster.slots(8), make_policy(spec), event_log=event_log)
    rows = {workload.key(row): row for row in range(len(workload))}
    free, waiting = 8, set()
    times = sorted(
        {float(line.split(" ")[0]) for line in event_log.lines} | {float(t) for t in workload.submitted}
    )
    by_time: dict[float, list[list[str]]] = {}
    for line in event_log.lines:
        time, verb, key, *_ = line.split(" ")
        by_time.setdefault(float(time), []).append([verb, key])
    for time in times:
        waiting |= {key for key, row in rows.items() if workload.submitted[row] == time}
        for verb, key in by_time.get(time, ()):
            gpus = workload.gpus[rows[key]]
            free += {"admit": -gpus, "end": gpus, "free": gpus}.get(verb, 0)
            if verb == "admit":
                waiting.discard(key)
            elif verb == "free":
                waiting.add(key)
        if waiting and spec != PolicySpec("fifo"):
            assert min(workload.gpus[rows[key]] for key in waiting) > free


def test_a_streak_survives_a_preemption() -> None:
    """Two declines before the preemption and one after are three."""
    falling = Evals([0.25, 0.5, 0.75, 1.0], [4.0, 3.0, 2.0, 1.0])
    workload = Workload(submitted=[0, 80], gpus=[1, 1], work=[100, 5], evals=[falling, None], priority=[0, 1])
    rule = RuleSpec(PolicySpec("kDeclines", {"k": 3}))
    for foresight in (True, False):
        result = simulate(
            workload, Cluster.slots(1), stopping(PolicySpec("srtf")), rule=rule, foresight=foresight
        )
        assert result.preempted == {0: 1}
        assert result.stops[0].eval == 3  # at the very end: the job is done by then
        assert result.ended == [105, 85]
        sooner = simulate(
            workload,
            Cluster.slots(1),
            stopping(PolicySpec("srtf")),
            rule=RuleSpec(PolicySpec("kDeclines", {"k": 2})),
            foresight=foresight,
        )
        assert (sooner.stops[0].eval, sooner.ended[0], sooner.preempted) == (2, 75, {})


def test_same_seed_same_bytes_in_another_process_with_another_hash_seed() -> None:
    program = (
        "import random\n"
        "from controller.policy.queueing import EvalStop, make_policy\n"
        "from controller.policy.types import PolicySpec\n"
        "from sim.cluster import Cluster\n"
        "from sim.engine import EventLog, simulate\n"
        "from sim.foresight import RuleSpec\n"
        "from sim.latencies import Latencies\n"
        "from sim.workload import Evals, Workload\n"
        "r = random.Random(7)\n"
        "n = 300\n"
        "at = [i / 10 for i in range(1, 11)]\n"
        "w = Workload(sorted(r.uniform(0, 9000) for _ in range(n)),\n"
        "    [r.choice([1, 2, 4, 8]) for _ in range(n)],\n"
        "    [r.uniform(10, 900) for _ in range(n)], keys=[f't{r.randrange(5)}/{i}' for i in range(n)],\n"
        "    estimate=[r.uniform(10, 900) for _ in range(n)],\n"
        "    evals=[Evals(at, [r.random() for _ in at], [r.random() for _ in at]) for _ in range(n)])\n"
        "rule = RuleSpec(PolicySpec('kDeclines', {'k': 3}))\n"
        "for p in ('fifo', 'srtf', 'srtfEst', 'las', 'slaq', 'fairShare'):\n"
        "    j = EventLog()\n"
        "    policy = EvalStop(make_policy(PolicySpec(p)))\n"
        "    simulate(w, Cluster.of_nodes([8, 8]), policy, rule=rule, event_log=j,\n"
        "        latencies=Latencies(restart_cost=120, suspend_delay=30, eval_cost=5))\n"
        "    print(p, len(j.lines), j.digest())\n"
    )
    outputs = set()
    for hash_seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == 6
