"""Promises on GPUs that come free: as many asks of the policy as are needed give what all of them would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_policy_world import POLICIES, name

from controller.policy.pool.gpu_accounting import free_gpus, gpu_accounts
from controller.policy.pool.placement import NodeRoom
from controller.policy.pool.reservations import reserve
from controller.policy.queueing import make_policy
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot

NODES = {"a": 4, "b": 4, "c": 2}
NOW = 100.0
GANGS = st.lists(
    st.tuples(st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 4), (2, 4)]), st.integers(0, 9), st.booleans()),
    max_size=8,
)


def snapshot(spec: PolicySpec, waiting: list[tuple[tuple[int, int], int, bool]]) -> PoolSnapshot:
    """Every node is full: on two of them jobs are stopping, on the third one is preempted."""
    jobs = [
        JobView(f"x/{node}", 0.0, 0, 1, gpus, state=state, bound=((node, gpus),), nodes=(node,), attained=9.0)
        for (node, gpus), state in zip(
            NODES.items(), [JobState.STOPPING, JobState.STOPPING, JobState.PREEMPTING], strict=True
        )
    ]
    jobs += [
        JobView(
            f"t{number % 3}/{row}",
            float(number),
            row,
            *gang,
            priority=int(urgent),
            since=float(number),
            remaining=10.0 * number,
            estimate=10.0 * number,
            attained=8.0 * number,
            weight=1.0 + number % 2,
        )
        for row, (gang, number, urgent) in enumerate(waiting)
    ]
    nodes = tuple(NodeView(n, g) for n, g in NODES.items())
    return PoolSnapshot("p", spec, nodes, tuple(jobs))


def plainly(shot: PoolSnapshot, leaving: list[JobView], rest: list[JobView]) -> list[tuple[str, str]]:
    """A fresh policy, told of all who wait still, after each job that leaves."""
    accounts = gpu_accounts(shot)
    room = NodeRoom(accounts.free)
    found: list[tuple[str, str]] = []
    for job in leaving:
        for node, gpus in accounts.account(job):
            if node in room.free:
                room.free[node] += gpus
        policy = make_policy(shot.policy)
        policy.rebuild([j for j in rest if j.key not in {target for _, target in found}], NOW)
        found += [(job.key, winner.key) for winner in policy.decide(NOW, room).admit]
    return found


@pytest.mark.parametrize("spec", POLICIES, ids=name)
@settings(max_examples=60, deadline=None)
@given(GANGS)
def test_promises_are_those_of_asking_anew_each_time(
    spec: PolicySpec, waiting: list[tuple[tuple[int, int], int, bool]]
) -> None:
    shot = snapshot(spec, waiting)
    leaving = [j for j in shot.jobs if j.state is not JobState.QUEUED]
    rest = [j for j in shot.jobs if j.state is JobState.QUEUED]
    found = reserve(shot, leaving, (), rest, free_gpus(shot), gpu_accounts(shot), NOW)
    assert [(h.source, h.target) for h in found] == plainly(shot, leaving, rest)
