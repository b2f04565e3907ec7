"""Workloads and clusters that cannot be are refused, each by row, column, value and what would be right."""

from __future__ import annotations

import math
from typing import Any

import pytest

from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.workload import Evals, Workload


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, 1], [1], [5, 5]), r"workload\.gpus: 1 value for 2 jobs"),
        (([0, 1], [1, 1], [5, -1]), r"workload\.work\[1\]: -1, expected a duration of at least 0 s"),
        (([0, 1], [1, 1], [math.nan, 5]), r"workload\.work\[0\]: nan"),
        (([0, 1], [1, 1], [5, math.inf]), r"workload\.work\[1\]: inf"),
        (([0, math.nan], [1, 1], [5, 5]), r"workload\.submitted\[1\]: nan"),
        (([-1, 1], [1, 1], [5, 5]), r"workload\.submitted\[0\]: -1"),
        (([5, 1], [1, 1], [5, 5]), r"workload\.submitted\[1\]: 1 is before row 0's 5"),
        (([0, 1], [1, -2], [5, 5]), r"workload\.gpus\[1\]: -2, expected at least 0 GPUs"),
    ],
)
def test_columns(columns: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(*columns)


def test_optional_columns() -> None:
    with pytest.raises(ValueError, match=r"workload\.keys\[2\]: 'a/b' is that of row 0 already"):
        Workload([0, 0, 0], [1, 1, 1], [5, 5, 5], keys=["a/b", "a/c", "a/b"])
    with pytest.raises(ValueError, match=r"workload\.priority: 1 value for 2 jobs"):
        Workload([0, 0], [1, 1], [5, 5], priority=[1])


@pytest.mark.parametrize(
    ("at", "scores", "message"),
    [
        ([0.5], [1.0, 2.0], r"1 time, 2 scores"),
        ([0.5, 0.5], [1.0, 2.0], r"evals\.at\[1\]: 0\.5, expected above 0\.5"),
        ([0.0], [1.0], r"evals\.at\[0\]: 0\.0"),
        ([0.5, 1.5], [1.0, 2.0], r"evals\.at\[1\]: 1\.5"),
        ([math.nan], [1.0], r"evals\.at\[0\]: nan"),
    ],
)
def test_evals(at: list[float], scores: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evals(at, scores)


@pytest.mark.parametrize(
    ("workload", "cluster", "message"),
    [
        (
            Workload([0, 0], [1, 9], [5, 5]),
            Cluster.slots(8),
            r"workload\.gpus\[1\]: 9 is more than the cluster's 8",
        ),
        (Workload([0], [9], [5]), Cluster.of_nodes([4, 4]), r"workload\.gpus\[0\]: 3 x 3 GPUs do not fit"),
        (
            Workload([0], [8], [5], gpus_per_replica=[3]),
            Cluster.of_nodes([8]),
            r"workload\.gpus_per_replica\[0\]: 3, expected a divisor of the job's 8 GPUs",
        ),
    ],
)
def test_jobs_that_can_never_run(workload: Workload, cluster: Cluster, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(workload, cluster, make_policy(PolicySpec("fifo")))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster.slots(0), r"cluster\.gpus: 0 "),
        (lambda: Cluster.of_nodes([]), r"cluster\.nodes: \(\) "),
        (lambda: Cluster.of_nodes([4, 0]), r"cluster\.nodes\[1\]: 0 "),
    ],
)
def test_clusters(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_gangs_take_as_few_members_as_nodes_allow() -> None:
    cluster = Cluster.of_nodes([8, 8, 4])
    assert [cluster.gang(gpus) for gpus in (0, 1, 8, 12, 16, 9)] == [
        (1, 0),
        (1, 1),
        (1, 8),
        (2, 6),
        (2, 8),
        (3, 3),
    ]
    assert cluster.holds(2, 8)
    assert not cluster.holds(3, 8)


def test_nothing_to_do_is_done_at_once() -> None:
    result = simulate(Workload([], [], []), Cluster.slots(8), make_policy(PolicySpec("srtf")))
    assert (result.ended, result.makespan, result.preemptions) == ([], 0, 0)
    assert math.isnan(result.mean_jct)


def test_jobs_without_gpus_or_without_work_end() -> None:
    for policy in ("fifo", "srtf", "srtfEst", "las", "slaq", "fairShare"):
        workload = Workload([0, 0, 0], [0, 8, 8], [5, 0, 3])
        result = simulate(workload, Cluster.slots(8), make_policy(PolicySpec(policy)))
        assert result.ended == [5, 0, 3]
