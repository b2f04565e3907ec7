"""Processes that start from a checkpoint of which the operator knows little, or save and evaluate it anew."""

from __future__ import annotations

from random import Random

from tests.faults.acts.base import act_on, rest, training
from tests.faults.acts.store import out_of_claims
from tests.faults.acts.trainers import advance, end_process, finish
from tests.faults.cluster import Job
from tests.faults.trainer import Life
from tests.faults.world import World


def next_process(world: World, job: Job, r: Random, step: int, ticks: int) -> Life | None:
    """End the process, and return the next one, which starts from the checkpoint of ``step``; None: it has
    not come, or starts from another."""
    former = job.life
    if former is None:
        return None
    end_process(world, job, r)
    job.next_from = step
    world.tick(ticks)
    new = job.life
    return new if new is not None and new is not former and new.source and new.step == step else None


@act_on(training, 3)
def first_step_again(world: World, job: Job, r: Random) -> None:
    """A process starts from the newest checkpoint, saves and evaluates that very step once more, and ends
    perhaps: as one does that was killed in the last step of all, after its save or after its eval too."""
    life = job.life
    if life is None or life.saving is not None:
        return
    anew = world.config["anew"]
    if r.random() < 0.5:  # killed between the save and the eval
        life.step += 10
        job.files.save(life, life.step, anew=anew)
    else:
        advance(world, job, r, r.uniform(-0.05, 0.1), save="always")
    world.tick(r.randint(0, 4))
    for _ in range(r.choice((1, 1, 2))):
        if job.life is None or job.files.at(job.life.step) is None:
            return
        new = next_process(world, job, r, job.life.step, r.randint(2, 9))
        if new is None:
            return
        saves = not new.tells or r.random() < 0.8
        job.level = round(job.level + world.oracle.sign(job) * r.uniform(-0.03, 0.1), 3)
        if saves and world.config["save_first"]:
            job.files.save(new, new.step, anew=anew)
        world.evaluate(job, job.level, guard=0.5 if world.config["guard"] else None)
        if saves:
            if not world.config["save_first"]:
                job.files.save(new, new.step, anew=anew)
            world.oracle.dirty = True
            world.saw("row 1: the step that a process started from is saved and evaluated again")
        world.tick(r.randint(0, 5))
    if r.random() < 0.4:
        finish(world, job, "Complete")
    rest(world, r)


@act_on(training, 3)
def reached_unsaved(world: World, job: Job, r: Random) -> None:
    """Back to an earlier checkpoint, and to the steps of the former branch again, better than ever: none is
    saved, and those of the former branch still lie there."""
    former = job.life
    there = sorted({s.step for s in job.files.saved if s.lies and s.life.pod})
    if former is None or former.saving is not None or len(there) < 2:
        return
    sign = world.oracle.sign(job)
    best = max((sign * e.score for e in former.branch if not e.fault), default=0.0)
    new = next_process(world, job, r, there[-2], r.randint(3, 8))
    while new is not None and job.life is new and new.step < there[-1]:
        advance(world, job, r, max(0.02, best - sign * job.level + 0.05), save="never")
        rest(world, r, 12)
    if new is not None and job.files.at(new.step) is not None:
        world.saw("row 1: a step reached again, better, and not saved")
    rest(world, r, 40)


@act_on(training, 3)
def unseen_checkpoint(world: World, job: Job, r: Random) -> None:
    """A process saves beyond all that the operator has read of it, and ends at once. The next one goes back
    before it; the one after that goes on from what nobody has seen."""
    former = job.life
    there = sorted({s.step for s in job.files.saved if s.lies and s.life.pod})
    if former is None or former.saving is not None or not there:
        return
    if r.random() < 0.6:
        out_of_claims(world, r)
    advance(world, job, r, r.uniform(0.0, 0.1))
    world.tick(r.randint(0, 4))
    if job.life is not former:
        return
    for _ in range(r.randint(1, 3)):
        former.step += 10
        job.files.save(former, former.step, anew=world.config["anew"])
    unseen = former.step
    back = next_process(world, job, r, r.choice(there), r.randint(2, 8))
    if back is None:
        return
    for _ in range(r.randint(0, 3)):
        advance(world, job, r, r.uniform(-0.02, 0.1), save=r.choice(("never", "always")))
        world.tick(r.randint(0, 4))
    if job.life is not back or (lies := job.files.at(unseen)) is None or lies.life is not former:
        return
    new = next_process(world, job, r, unseen, r.randint(2, 8))
    if new is not None:
        world.saw("row 10: started from another branch's checkpoint that nobody had seen")
    for _ in range(r.randint(0, 3)):
        advance(world, job, r, -r.uniform(0.0, 0.1))
        rest(world, r)
