"""The clock is set back in the middle of a stop, by hand or by a replica that is behind: it still ends."""

from __future__ import annotations

import pytest

from controller.policy.job.record import Operation
from controller.policy.job.types import StartAccess
from tests.support.policy_world import PolicyWorld

RISE_AND_FALL = (0.1, 0.3, 0.5, 0.4, 0.3, 0.2)


@pytest.mark.parametrize("passes", range(10))
def test_a_stop_ends_once_though_the_clock_goes_back_in_it(passes: int) -> None:
    world = PolicyWorld({"n1": 2, "n2": 2})
    world.now = 100_000.0
    for key in ("ns/a", "ns/b"):
        world.submit(key, replicas=2, gpus=2)
    world.settle()
    world.scores("ns/a", *RISE_AND_FALL[:3])
    world.settle()
    world.scores("ns/a", *RISE_AND_FALL[3:])
    copies = []
    for i in range(60):
        if i == passes:
            world.now -= 1200.0
        planned = world.step("ns/a")
        copies += [a.request_id for a in planned.actions if isinstance(a, StartAccess)]
        world.step("ns/b")
        for job in world.jobs.values():
            world._cluster(job)
        world.pool_pass()
    a, b = world.jobs["ns/a"], world.jobs["ns/b"]
    assert a.record.decision is not None
    assert a.record.decision.handed_to == "ns/b"
    assert [kept.best_step for kept in a.record.retained] == [30]
    retains = {request for request in copies if request.startswith(str(Operation.RETAIN))}
    assert len(retains) == 1, "copied once"
    assert b.started == [1]
