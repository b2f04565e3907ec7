"""What the step API is told of a job: room for its actors, and starts and recalls as they were measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.api.rlhfjob import Rollout
from controller.operator.state.rollout_steps import RolloutSteps
from controller.policy.actor_types import Actor, ActorState, RolloutTerms
from controller.policy.job import AdmissionRecord, JobRecord, Plan
from controller.steps.directory import Demand, Directory

ENGINE = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
SPEC = Rollout.model_validate(
    {
        "template": {"spec": {"containers": [ENGINE]}},
        "gpusPerActor": 2,
        "actors": {"min": 1, "max": 4, "static": 2},
    }
)
TERMS = RolloutTerms(base=1, gpus=2, recall_seconds=10.0)


class World:
    """Jobs as passes see them, without a cluster: a pool that says how much is free, and a clock."""

    def __init__(self, free: int = 0) -> None:
        self.now, self.directory = 100.0, Directory(lambda: self.now)
        cache = SimpleNamespace(get=lambda kind, key: {"status": {"free": free}})
        cluster: Any = SimpleNamespace(cache=cache, touch=lambda key: None, wants=None)
        self.steps = RolloutSteps(self.directory, cluster, lambda: self.now)

    def put(self, uid: str, *actors: Actor, pool: str = "p", lends: bool = True) -> None:
        self.steps._specs[uid] = (1, SPEC)
        spec = SimpleNamespace(lending=SimpleNamespace(enabled=lends))
        loaded: Any = SimpleNamespace(
            uid=uid,
            key=f"ns/{uid}",
            obj={"metadata": {"generation": 1}},
            desired=SimpleNamespace(rollout=TERMS, deleting=False),
            observed=SimpleNamespace(rollout=None),
            pool=SimpleNamespace(metadata=SimpleNamespace(name=pool), spec=spec),
            pods=(),
            stored_actor_pods=(),
        )
        record = JobRecord(attempt=1, admission=AdmissionRecord(1, ("n1",), 50.0), actors=actors)
        self.steps.put(loaded, Plan(record), self.now)

    def job(self, uid: str) -> Any:
        return self.directory.job(uid)


def actors(count: int, since: float = 90.0) -> list[Actor]:
    return [Actor(number, "n1", 2, ActorState.RUNNING, since) for number in range(count)]


@pytest.mark.parametrize(
    ("free", "others", "pool", "lends", "most", "at_hand"),
    [
        (0, 0, "p", True, 1, 1),
        (5, 0, "p", True, 3, 3),
        (0, 3, "p", True, 3, 1),  # two of the other's three are spare: they leave between its steps
        (2, 3, "p", True, 4, 2),
        (0, 1, "p", True, 1, 1),  # a base actor is its own
        (0, 3, "q", True, 1, 1),  # of another pool
        (6, 3, "p", False, 1, 1),  # nobody borrows there
    ],
)
def test_room_is_what_may_be_there_when_a_step_begins(
    free: int, others: int, pool: str, lends: bool, most: int, at_hand: int
) -> None:
    world = World(free)
    world.put("other", *actors(others), pool=pool)
    world.put("mine", *actors(1), lends=lends)
    assert (world.job("mine").most, world.job("mine").at_hand) == (most, at_hand)


def test_gpus_that_change_hands_are_room_all_the_while() -> None:
    """An actor is gone, and its pool has not said yet that its GPUs are free."""
    world = World()
    world.put("mine", *actors(3))
    world.now += 1.0
    world.put("mine", *actors(1))
    assert (world.job("mine").most, world.job("mine").at_hand) == (3, 1)
    world.now += 5.0
    world.put("mine", *actors(1))
    assert world.job("mine").most == 1, "somebody has them"


def test_starts_and_recalls_are_as_they_were_measured() -> None:
    world = World()
    world.put("mine", *actors(1))
    assert (world.job("mine").start, world.job("mine").recall) == (30.0, 10.0), "none was seen yet"
    starting = Actor(1, "n1", 2, ActorState.STARTING, since=100.0)
    world.put("mine", *actors(1), starting)
    assert world.job("mine").coming == 1
    world.now = 107.0
    world.directory.want("mine", Demand(ready=frozenset({1})))  # it has registered
    world.put("mine", *actors(1), starting)
    assert (world.job("mine").start, world.job("mine").coming) == (7.0, 0)
    leaving = Actor(0, "n1", 2, ActorState.RECALLED, 90.0, "ns/x", 117.0)
    world.put("mine", leaving, starting)
    world.now = 109.5
    world.put("mine", starting)
    world.put("mine", starting)  # by the next pass
    assert world.job("mine").recall == 2.5
    world.put("third", *actors(1))
    assert world.job("third").recall == 2.5, "a recall takes as long whoever is recalled in the pool"
    assert world.job("third").start == 30.0


def test_what_the_step_under_way_put_aside_is_seen_by_passes() -> None:
    world = World()
    world.put("mine", *actors(1))
    assert world.steps.wants("mine").aside is None
    said = ("actor 0 lost: no token for 120 s", "actor 1 faulty: " + "x" * 600)
    world.directory.want("mine", Demand(step=4, generating=True, aside=said, aside_at=120.0))
    found = world.steps.wants("mine").aside
    assert found is not None
    assert (found.step, found.at, found.count, len(found.failures)) == (4, 120.0, 2, 512)
    assert found.failures.startswith("actor 0 lost: no token for 120 s; actor 1 faulty: x")
