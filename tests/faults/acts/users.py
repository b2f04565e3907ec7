"""What users do."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.faults.acts.base import act_on, rest, some, training
from tests.faults.acts.trainers import advance
from tests.faults.cluster import Job
from tests.faults.world import World


@act_on(some, 4)
def stop(world: World, job: Job, r: Random) -> None:
    if job.spec("runState", "Run") == "Run":
        world.saw("row 6: a user stops a run")
        world.edit(job, runState="Stopped")
        rest(world, r, 30)
        if r.random() < 0.5:
            world.edit(job, runState="Run")
            world.saw("row 6: a user takes a stop back")
            rest(world, r)


@act_on(training, 1)
def stop_without_space(world: World, job: Job, r: Random) -> None:
    """A user stops a run, and for a day nothing can be retained."""
    if job.spec("runState", "Run") != "Run":
        return
    world.no_space_until = world.now + 86400.0
    if r.random() < 0.3:
        world.out_until = world.now + 86400.0
    world.saw("row 6: a user stops a run, no space to retain")
    world.edit(job, runState="Stopped")
    for _ in range(r.choice((20, 400))):
        world.tick()
        if not job.live_pods:
            break
    if r.random() < 0.5:
        world.edit(job, runState="Run")
        rest(world, r)
    if r.random() < 0.5:
        world.no_space_until = world.out_until = 0.0


@act_on(some, 3)
def run_again(world: World, job: Job, r: Random) -> None:
    if job.spec("runState", "Run") == "Stopped":
        world.edit(job, runState="Run")
        rest(world, r)


@act_on(some, 3)
def mode(world: World, job: Job, r: Random) -> None:
    wanted = r.choice(("Off", "Shadow", "Enforce", "Enforce"))
    if world.operator.record(job.obj).decision is not None:
        world.saw("row 5: mode edited under a stop")
    world.edit(job, mode=wanted)
    rest(world, r)


@act_on(some, 3)
def pins(world: World, job: Job, r: Random) -> None:
    steps = sorted({s.step for s in job.files.saved}) or [10]
    wanted = sorted(r.sample([*steps, steps[-1] + 50], r.randint(0, 2)) if len(steps) > 1 else steps)
    if r.random() < 0.3:
        world.next_access.append({"hangs": True})
        world.saw("row 16: a user's pin Job hangs")
    world.saw("pins edited")
    world.edit(job, checkpoints__pins=wanted)
    rest(world, r)


@act_on(some, 4)
def resume(world: World, job: Job, r: Random) -> None:
    source = r.choice(("Best", "Best", "Latest", "Step"))
    wish: dict[str, Any] = {"id": f"r{r.randint(0, 10**6)}", "from": source}
    if source == "Step":
        wish["step"] = r.choice([s.step for s in job.files.saved] or [10])
    world.saw("row 17: resume asked for")
    world.edit(job, runState="Run", resume=wish)
    rest(world, r, 30)
    if r.random() < 0.2:
        world.saw("row 17: a resume is withdrawn")
        world.edit(job, resume=None)
        rest(world, r)


@act_on(some, 2)
def rule(world: World, job: Job, r: Random) -> None:
    world.saw("rule edited")
    world.edit(job, stopRule={"kDeclines": {"k": r.choice((2, 3, 4))}})
    rest(world, r)


@act_on(training, 1.5)
def guardrail_turned(world: World, job: Job, r: Random) -> None:
    """A guardrail's direction is corrected."""
    if len(job.obj["spec"]["metrics"]) < 2:
        return
    first, guard = job.obj["spec"]["metrics"]
    turned = "Minimize" if guard.get("direction", "Maximize") == "Maximize" else "Maximize"
    world.saw("row 12: a guardrail's direction is corrected")
    world.edit(job, metrics=[first, {**guard, "direction": turned}])
    rest(world, r, 6)
    advance(world, job, r, r.uniform(0.0, 0.05))
    rest(world, r)


@act_on(some, 1.5)
def delete(world: World, job: Job, r: Random) -> None:
    world.saw("an RLHFJob deleted")
    if world.operator.record(job.obj).decision is not None:
        world.saw("row 17: deleted under a stop")
    world.delete(job)
    rest(world, r)
    if job.gone and r.random() < 0.7:
        while job.live_pods:
            world.tick()
            if world.cluster.stuck:
                break
        if not job.live_pods:
            world.saw("row 11: made anew in the same folder")
            world.submit(job.name)
            rest(world, r)
