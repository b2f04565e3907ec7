"""The delays that a real cluster adds to a run, as a table: when things happen, and who gets away."""

from __future__ import annotations

from typing import Any

import pytest
from virtual import stopping

from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import EventLog, Result, simulate
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload

K1 = RuleSpec(PolicySpec("kDeclines", {"k": 1}))
FALLING = Evals([0.25, 0.5, 0.75, 1.0], [2.0, 1.0, 0.5, 0.0])  # the second eval brings the STOP


def two_in_a_row(**delays: Any) -> list[float]:
    workload = Workload([0, 0], [1, 1], [100, 10])
    policy = make_policy(PolicySpec("fifo"))
    return simulate(workload, Cluster.slots(1), policy, latencies=Latencies(**delays)).ended


@pytest.mark.parametrize(
    ("delays", "ended"),
    [
        ({}, [100, 110]),
        ({"queue_delay": 2}, [102, 112]),
        ({"end_delay": 3}, [103, 116]),  # GPUs are held until the end is seen, twice
        ({"handover_delay": 4}, [100, 114]),  # the job has ended, but its GPUs are given out later
        ({"queue_delay": 2, "end_delay": 3, "handover_delay": 4}, [105, 122]),
    ],
)
def test_what_it_takes_to_be_heard_of_seen_to_end_and_replaced(
    delays: dict[str, float], ended: list[float]
) -> None:
    assert two_in_a_row(**delays) == ended


def preempted(evals: Evals | None = None, foresight: bool = True, **delays: Any) -> tuple[Result, EventLog]:
    """A job of 100 s on one GPU; at 55 s one of 10 s that goes first comes."""
    event_log = EventLog()
    workload = Workload([0, 55], [1, 1], [100, 10], evals=[evals, None])
    policy = make_policy(PolicySpec("srtf")) if evals is None else stopping(PolicySpec("srtf"))
    rule = None if evals is None else K1
    result = simulate(
        workload,
        Cluster.slots(1),
        policy,
        rule=rule,
        latencies=Latencies(**delays),
        event_log=event_log,
        foresight=foresight,
    )
    return result, event_log


@pytest.mark.parametrize(
    ("delays", "ends", "times"),
    [
        ({}, [110, 65], 1),
        ({"preempt_delay": 5}, [110, 70], 1),  # it trains on for those 5 s: they are not lost
        ({"preempt_delay": 5, "suspend_delay": 3}, [113, 73], 1),
        ({"preempt_delay": 5, "handover_delay": 1}, [112, 71], 1),
        ({"preempt_delay": 45}, [100, 110], 0),  # it ends before it would have left
        ({"preempt_delay": 44.5, "end_delay": 1}, [101, 112], 1),  # half a second left: it is next again
    ],
)
def test_a_preempted_run_trains_on_until_it_hears_of_it(
    delays: dict[str, float], ends: list[float], times: int
) -> None:
    result, event_log = preempted(**delays)
    assert result.ended == ends
    assert result.preemptions == times
    assert event_log.text().count("preempt") == times


@pytest.mark.parametrize("foresight", [True, False])
def test_an_eval_of_a_run_that_is_to_leave_counts_when_it_is_back(foresight: bool) -> None:
    """Decided at 55 s, told at 65 s; in between, at 60 s, comes the eval that the rule stops it for."""
    evals = Evals([0.25, 0.6, 1.0], [2.0, 1.0, 0.0])
    result, event_log = preempted(evals, foresight, preempt_delay=10)
    # Back at 75 s, and stopped at once: the eval was known all the while.
    assert result.ended == [75, 75]
    assert result.stopped == {0}
    assert [line.split()[1] for line in event_log.lines if "sim/0" in line] == [
        "admit",
        "preempt",
        "free",
        "admit",
        "propose",
        "release",
        "free",
    ]


@pytest.mark.parametrize("foresight", [True, False])
@pytest.mark.parametrize(
    ("delays", "ended", "stopped"),
    [
        ({"retain_time": 49}, 99, {0}),
        ({"retain_time": 50}, 100, set()),  # done before its checkpoint is copied away
        ({"retain_time": 60, "end_delay": 2}, 102, set()),
        ({"eval_delay": 50, "end_delay": 2}, 102, set()),  # the score of a run whose trainer is gone
    ],
)
def test_a_run_whose_training_ends_before_it_is_stopped_has_ended(
    delays: dict[str, float], ended: float, stopped: set[int], foresight: bool
) -> None:
    workload = Workload([0], [1], [100], evals=[FALLING])
    policy = stopping(PolicySpec("fifo"))
    result = simulate(
        workload, Cluster.slots(1), policy, rule=K1, latencies=Latencies(**delays), foresight=foresight
    )
    assert result.ended == [ended]
    assert result.stopped == stopped


@pytest.mark.parametrize(
    ("longer", "ends"),
    [
        ({}, [113, 73]),
        ({"preempt_delay": 2.0}, [113, 75]),  # it trains on for those as well
        ({"suspend_delay": 2.0}, [115, 75]),
        ({"handover_delay": 2.0}, [117, 75]),  # after it was preempted, and after the short one
        ({"preempt_delay": -9.0}, [113, 68]),  # nothing takes less than nothing
        ({"retain_time": 50.0}, [113, 73]),  # nobody is stopped here
    ],
)
def test_delays_scatter_from_time_to_time(longer: dict[str, float], ends: list[float]) -> None:
    workload = Workload([0, 55], [1, 1], [100, 10])
    asked: list[str] = []

    def scatter(latency: str) -> float:
        asked.append(latency)
        return longer.get(latency, 0.0)

    result = simulate(
        workload,
        Cluster.slots(1),
        make_policy(PolicySpec("srtf")),
        latencies=Latencies(preempt_delay=5, suspend_delay=3),
        scatter=scatter,
    )
    assert result.ended == ends
    # One preemption; and GPUs come free three times.
    assert sorted(asked) == [*["handover_delay"] * 3, "preempt_delay", "suspend_delay"]


def test_a_stop_has_delays_of_its_own_too_even_where_nothing_takes_time_usually() -> None:
    workload = Workload([0], [1], [100], evals=[FALLING])
    later = {"retain_time": 7.0, "suspend_delay": 2.0}
    policy = stopping(PolicySpec("fifo"))
    result = simulate(
        workload, Cluster.slots(1), policy, rule=K1, scatter=lambda latency: later.get(latency, 0.0)
    )
    assert result.ended == [50 + 7 + 2]
