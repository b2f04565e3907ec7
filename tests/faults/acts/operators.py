"""What befalls the operator, and the time that passes."""

from __future__ import annotations

from random import Random

from tests.faults.acts.base import act, rest
from tests.faults.shell import Operator
from tests.faults.world import World


@act(8)
def crash(world: World, r: Random) -> None:
    """The operator dies before or after one of its next writes and actions."""
    world.operator.fuse = r.randint(0, 8)
    rest(world, r, 4)


@act(4)
def away(world: World, r: Random) -> None:
    """No operator for a while; then a new one, which has read nothing yet."""
    latest = world.operator.latest
    world.operator = Operator(world)
    world.operator.latest = latest
    world.down_until = world.now + r.choice((5.0, 30.0, 60.0, 600.0))
    world.saw("a new leader")
    rest(world, r, 4)


@act(4)
def lag(world: World, r: Random) -> None:
    world.operator.stale = r.randint(1, 6)
    world.saw("caches lag")
    rest(world, r, 4)


@act(2)
def clock(world: World, r: Random) -> None:
    world.clock_ahead = r.choice((0.0, 60.0, -60.0, 900.0, -900.0))
    world.saw("row 13: the clock steps")
    rest(world, r, 4)


@act(2)
def another(world: World, r: Random) -> None:
    """One more RLHFJob wants GPUs."""
    if "team/c" in world.jobs:
        return
    world.submit("c")
    world.saw("row 10: somebody waits")
    rest(world, r)


@act(1.5)
def day(world: World, r: Random) -> None:
    """Nothing is heard of trainers for a day."""
    for _ in range(24):
        world.now += 3600.0
        world.tick(1)
    world.saw("row 10: a day without an eval")


@act(8)
def wait(world: World, r: Random) -> None:
    world.tick(r.choice((2, 5, 20, 60)))
