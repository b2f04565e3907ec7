"""Every delay and cost as a table: one or two jobs on one GPU, and when things happen."""

from __future__ import annotations

from typing import Any

import pytest
from virtual import stopping

from controller.policy.params import ParamError
from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import EventLog, Result, simulate
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload

K1 = RuleSpec(PolicySpec("kDeclines", {"k": 1}))
RISING = Evals([0.25, 0.5, 0.75, 1.0], [1.0, 2.0, 3.0, 4.0])
FALLING = Evals([0.25, 0.5, 0.75, 1.0], [2.0, 1.0, 0.5, 0.0])  # the second eval brings the STOP


@pytest.mark.parametrize(
    ("delays", "evals", "ended", "useful"),
    [
        ({}, None, 100, 100),
        ({"start_delay": 7}, None, 107, 100),
        ({"restart_cost": 7}, None, 100, 100),  # it never ran before
        ({"eval_cost": 3}, RISING, 112, 100),
        ({"eval_delay": 3}, RISING, 100, 100),
        ({"start_delay": 7, "eval_cost": 3}, RISING, 119, 100),
        ({}, FALLING, 50, 50),
        ({"suspend_delay": 4}, FALLING, 54, 50),
        ({"suspend_delay": 4, "retain_time": 5}, FALLING, 59, 50),
        ({"eval_cost": 3}, FALLING, 56, 50),
        ({"eval_delay": 3}, FALLING, 53, 53),  # it goes on until the score is known
        ({"eval_delay": 60}, FALLING, 100, 100),  # and is done before
        (
            {"checkpoint_interval": 30, "checkpoint_time": 9},
            FALLING,
            50,
            50,
        ),  # the best is kept
    ],
)
@pytest.mark.parametrize("foresight", [True, False])
def test_one_job(
    delays: dict[str, Any], evals: Evals | None, ended: float, useful: float, foresight: bool
) -> None:
    workload = Workload([0], [1], [100], evals=[evals])
    result = simulate(
        workload,
        Cluster.slots(1),
        stopping(PolicySpec("fifo")),
        rule=K1,
        latencies=Latencies(**delays),
        foresight=foresight,
    )
    assert (result.ended, result.useful) == ([ended], [useful])
    assert result.stopped == ({0} if evals is FALLING and useful < 100 else set())


def preempted(event_log: EventLog | None = None, work: int = 100, **delays: Any) -> Result:
    """A job of 100 s on one GPU; at 55 s one of 10 s with a higher priority comes."""
    workload = Workload([0, 55], [1, 1], [work, 10], priority=[0, 1])
    policy = make_policy(PolicySpec("srtf"))
    return simulate(workload, Cluster.slots(1), policy, latencies=Latencies(**delays), event_log=event_log)


@pytest.mark.parametrize(
    ("delays", "ends", "lost"),
    [
        ({}, [110, 65], 0),
        ({"restart_cost": 2}, [112, 65], 0),
        ({"start_delay": 1}, [113, 66], 0),  # every start
        ({"suspend_delay": 3}, [113, 68], 0),
        ({"checkpoint_time": 3}, [113, 68], 0),
        ({"checkpoint_interval": 20}, [110, 65], 0),  # one more checkpoint, at 55
        ({"checkpoint_interval": 20, "checkpoint_on_preempt": False}, [125, 65], 15),  # back to 40
        ({"checkpoint_interval": 20, "checkpoint_on_preempt": False, "checkpoint_time": 9}, [125, 65], 15),
        ({"checkpoint_interval": 60, "checkpoint_on_preempt": False}, [165, 65], 55),
        ({"start_delay": 50, "checkpoint_interval": 20, "checkpoint_on_preempt": False}, [265, 115], 5),
    ],
)
def test_one_preemption(delays: dict[str, Any], ends: list[float], lost: float) -> None:
    result = preempted(**delays)
    assert result.ended == ends
    assert result.lost == [lost, 0]
    assert result.preempted == {0: 1}


def test_a_job_preempted_before_it_made_progress_has_lost_nothing() -> None:
    result = preempted(start_delay=60.0)
    assert result.ended == [285, 125]
    assert result.service == [55 + 160, 70]


def test_an_eval_cut_short_is_made_again_and_one_already_made_is_not() -> None:
    workload = Workload(
        [0, 30], [1, 1], [100, 10], priority=[0, 1], evals=[Evals([0.2, 0.25], [1.0, 2.0]), None]
    )
    # First eval at 20..28, second due at 33..41: at 30 the job stands at 22 s of training, one eval made.
    result = simulate(
        workload, Cluster.slots(1), make_policy(PolicySpec("srtf")), latencies=Latencies(eval_cost=8)
    )
    assert result.ended[0] == 100 + 2 * 8 + 10
    workload = Workload(
        [0, 25], [1, 1], [100, 10], priority=[0, 1], evals=[Evals([0.2, 0.25], [1.0, 2.0]), None]
    )
    # At 25 it is in the middle of the first: five seconds of it were for nothing.
    result = simulate(
        workload, Cluster.slots(1), make_policy(PolicySpec("srtf")), latencies=Latencies(eval_cost=8)
    )
    assert result.ended[0] == 100 + 2 * 8 + 10 + 5


def test_a_score_that_comes_while_its_job_waits_is_heard_when_it_runs_again() -> None:
    workload = Workload([0, 52], [1, 1], [100, 10], priority=[0, 1], evals=[FALLING, None])
    event_log = EventLog()
    result = simulate(
        workload,
        Cluster.slots(1),
        stopping(PolicySpec("srtf")),
        rule=K1,
        latencies=Latencies(eval_delay=5),
        event_log=event_log,
    )
    assert result.ended == [62, 62]  # known at 55, while it waits; heard, and stopped, at 62
    assert [line for line in event_log.lines if "sim/0" in line] == [
        "0.0 admit sim/0",
        "52.0 preempt sim/0 ShorterJobWaits",
        "52.0 free sim/0",
        "62.0 admit sim/0",
        "62.0 propose sim/0 ConsecutiveDeclines 2",
        "62.0 release sim/0",
        "62.0 free sim/0",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("start_delay", -1), ("eval_cost", float("nan")), ("suspend_delay", float("inf")), ("eval_delay", "1")],
)
def test_delays_that_cannot_be_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParamError, match=rf"latencies\.{name}"):
        Latencies(**{name: value})


def test_gangs_on_nodes_wait_for_a_place_that_counted_gpus_would_have_had() -> None:
    """Two nodes of four with two GPUs free on each: a gang of four in one member must wait."""
    workload = Workload([0, 0, 1], [2, 2, 4], [10, 20, 5])
    slots = simulate(workload, Cluster.slots(8), make_policy(PolicySpec("fifo")))
    assert slots.started[2] == 1
    spread = Workload([0, 0, 0, 1], [3, 3, 1, 2], [10, 20, 30, 5])
    nodes = simulate(spread, Cluster.of_nodes([4, 4]), make_policy(PolicySpec("fifo")))
    assert nodes.started[3] == 10
    two = Workload([0, 0, 0, 1], [3, 3, 1, 2], [10, 20, 30, 5], gpus_per_replica=[3, 3, 1, 1])
    assert simulate(two, Cluster.slots(8), make_policy(PolicySpec("fifo"))).started[3] == 10
