"""What acts are made of.

An act has a name, a weight, and numbers drawn from a seed of its own. So a history is a list of (name, seed),
and stays the same when others are left out of it (`driver.shrink`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from random import Random

from tests.faults.cluster import Job
from tests.faults.world import World

Act = Callable[[World, Random], None]
ActOn = Callable[[World, Job, Random], None]


@dataclass(frozen=True)
class Entry:
    act: Act
    weight: float


ACTS: dict[str, Entry] = {}


def act(weight: float) -> Callable[[Act], Act]:
    def register(function: Act) -> Act:
        ACTS[function.__name__] = Entry(function, weight)
        return function

    return register


def act_on(pick: Callable[[World, Random], Job | None], weight: float) -> Callable[[ActOn], Act]:
    """As `act`, upon the job that ``pick`` (`some`, `training`) draws first; without one nothing happens."""

    def register(function: ActOn) -> Act:
        @wraps(function)
        def upon(world: World, r: Random) -> None:
            job = pick(world, r)
            if job is not None:
                function(world, job, r)

        return act(weight)(upon)

    return register


def some(world: World, r: Random) -> Job | None:
    """A job that is there; mostly the first."""
    there = [j for j in world.jobs.values() if not j.gone]
    if not there:
        return None
    return there[0] if r.random() < 0.8 else r.choice(there)


def training(world: World, r: Random) -> Job | None:
    """A job whose trainer runs now."""
    there = [j for j in world.jobs.values() if not j.gone and j.life is not None]
    if not there:
        return None
    return there[0] if r.random() < 0.8 else r.choice(there)


def rest(world: World, r: Random, most: int = 12) -> None:
    world.tick(r.randint(1, most))
