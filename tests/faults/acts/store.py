"""What befalls access Jobs and the store."""

from __future__ import annotations

from random import Random

from tests.faults.acts.base import act, rest, training
from tests.faults.acts.trainers import end_process
from tests.faults.world import World


@act(4)
def slow_access(world: World, r: Random) -> None:
    takes = r.choice((60.0, 300.0, 1500.0, 5400.0))
    world.next_access.append({"takes": takes, "late": r.random() < 0.5})
    world.saw("row 2, 5: a slow access Job")
    rest(world, r, 4)


@act(2)
def hanging_access(world: World, r: Random) -> None:
    world.next_access.append({"hangs": True})
    world.saw("row 16: an access Job hangs")
    rest(world, r, 4)


@act(3)
def killed_access(world: World, r: Random) -> None:
    world.next_access.append({"kill": r.randint(1, 40)})
    rest(world, r, 4)


@act(4)
def busy_store(world: World, r: Random) -> None:
    """Rotation, or a save that goes on, in the middle of the next access Job."""
    world.next_access.append({"beside": r.randint(2, 40)})
    rest(world, r, 4)


def out_of_claims(world: World, r: Random) -> None:
    world.claims_out = {"hangs": True} if r.random() < 0.5 else {"kill": 1}
    world.claims_out_until = world.now + r.choice((60.0, 600.0, 7200.0))
    world.saw(f"a claim {'hangs' if 'hangs' in world.claims_out else 'fails'}")


@act(2)
def claims_out(world: World, r: Random) -> None:
    """Claims of checkpoint folders hang, or fail, for a while; all else of the store works. Save records tell
    whose a checkpoint is, so nothing that is promised may depend on the claims."""
    out_of_claims(world, r)
    if r.random() < 0.5 and (job := training(world, r)) is not None:
        if r.random() < 0.5:
            end_process(world, job, r)
            rest(world, r, 6)
        elif job.spec("runState", "Run") == "Run":
            world.edit(job, runState="Stopped")
    rest(world, r)


@act(2)
def store_out(world: World, r: Random) -> None:
    seconds = r.choice((10.0, 60.0, 600.0))
    if r.random() < 0.5:
        world.out_until = world.now + seconds
    else:
        world.no_space_until = world.now + r.choice((60.0, 7200.0))
        world.saw("row 6: no space to retain")
    rest(world, r)
