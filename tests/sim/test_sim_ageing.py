"""The bound on waits in the simulator: the same wrapper by the same name, unseen while nobody is overdue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from virtual import K3, clusters, latencies, specs, workloads

from controller.policy.params import ParamError
from controller.policy.queueing import MAX_WAIT, EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim import specs as text
from sim.cluster import Cluster
from sim.engine import EventLog, simulate
from sim.latencies import Latencies
from sim.workload import Workload


def aged(spec: PolicySpec, most: float) -> PolicySpec:
    return replace(spec, params={**spec.params, MAX_WAIT: most})


def event_log(spec: PolicySpec, workload: Workload, cluster: Cluster, delays: Latencies) -> list[str]:
    found = EventLog()
    simulate(workload, cluster, EvalStop(make_policy(spec)), rule=K3, latencies=delays, event_log=found)
    return found.lines


@settings(max_examples=150, deadline=None)
@given(specs, workloads, clusters, latencies)
def test_where_nobody_waits_for_so_long_nothing_is_changed(
    spec: PolicySpec, workload: Workload, cluster: Cluster, delays: Latencies
) -> None:
    assert event_log(aged(spec, 1e9), workload, cluster, delays) == event_log(spec, workload, cluster, delays)


@settings(max_examples=150, deadline=None)
@given(specs, workloads, clusters, latencies)
def test_with_a_bound_that_bites_every_job_still_ends(
    spec: PolicySpec, workload: Workload, cluster: Cluster, delays: Latencies
) -> None:
    lines = [line.split(" ") for line in event_log(aged(spec, 15.0), workload, cluster, delays)]
    over = {line[2] for line in lines if line[1] == "end"} | {
        line[2] for line in lines if line[1] == "release"
    }
    assert over == {workload.key(row) for row in range(len(workload))}


def test_a_long_job_is_passed_for_ever_or_not() -> None:
    """One of 500 s among a stream of 10 s: by srtf it starts when the stream ends, with the bound in time."""
    stream = list(range(0, 5000, 10))
    workload = Workload([0.0, *map(float, stream)], [1] * 501, [500.0, *[10.0] * 500])

    def started(spec: str) -> float:
        policy = make_policy(text.policy(spec))
        return simulate(workload, Cluster.slots(1), EvalStop(policy)).started[0]

    assert started("srtf") == 5000.0
    assert started("srtf:max_wait=600") == 600.0
    assert started("srtf:maxWait=600") == 600.0


def test_its_value_is_checked_by_name() -> None:
    with pytest.raises(ParamError, match=r"fifo\.max_wait: -1\.0 is not allowed"):
        text.policy("fifo:max_wait=-1")
    with pytest.raises(ParamError, match="backfill, max_wait"):
        text.policy("fifo:maxwait=3")
    with pytest.raises(ParamError, match="expected each parameter once, maxWait is given twice"):
        text.policy("fifo:max_wait=3,maxWait=4")
