"""Jobs of two parts in the simulator: a gang and its base actors start together or not at all."""

from __future__ import annotations

import pytest
from virtual import POLICIES, stopping

from controller.policy.actor_types import Part
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.workload import Workload


def workload(*rows: tuple[float, int, int, Part | None]) -> Workload:
    """Of (submitted, GPUs of the gang, GPUs of each member, base actors), 10 s of work each."""
    gpus = [gang + (0 if actors is None else actors.pods * actors.gpus) for _, gang, _, actors in rows]
    return Workload(
        [row[0] for row in rows],
        gpus,
        [10.0] * len(rows),
        gpus_per_replica=[row[2] for row in rows],
        actors=[row[3] for row in rows],
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_both_parts_wait_for_room(policy: PolicySpec) -> None:
    jobs = workload((0.0, 4, 4, Part(2, 1)), (1.0, 2, 2, Part(1, 2)))
    # The second one's gang would fit beside the first, its actor would not.
    result = simulate(jobs, Cluster.of_nodes([4, 4]), stopping(policy))
    assert result.started[1] > 1.0  # when the first has ended, or was preempted
    result = simulate(jobs, Cluster.of_nodes([4, 4, 2]), stopping(policy))
    assert list(result.started) == [0.0, 1.0]
    assert list(result.service) == [60.0, 40.0]


def test_on_slots_their_gpus_count_together() -> None:
    jobs = workload((0.0, 4, 4, Part(2, 1)), (1.0, 2, 2, None))
    result = simulate(jobs, Cluster.slots(7), stopping(PolicySpec("fifo")))
    assert list(result.started) == [0.0, 10.0]


@pytest.mark.parametrize(
    ("actors", "said"),
    [(Part(5, 1), "1 x 4 GPUs and, for base actors, 5 x 1 GPU do not fit"), (Part(1, 8), "do not fit")],
)
def test_what_no_cluster_holds_is_refused(actors: Part, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        simulate(workload((0.0, 4, 4, actors)), Cluster.of_nodes([4, 4]), stopping(PolicySpec("fifo")))


def test_more_gpus_than_the_job_has_are_refused() -> None:
    jobs = Workload([0.0], [4], [1.0], gpus_per_replica=[4], actors=[Part(5, 1)])
    with pytest.raises(ValueError, match=r"workload.actors\[0\]: 5 x 1 GPU, expected at most the job's 4"):
        simulate(jobs, Cluster.slots(8), stopping(PolicySpec("fifo")))
