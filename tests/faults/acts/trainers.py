"""What trainers do, and what becomes of their processes."""

from __future__ import annotations

from random import Random

from tests.faults.acts.base import act_on, rest, training
from tests.faults.cluster import Job
from tests.faults.world import World


def advance(world: World, job: Job, r: Random, change: float, fault: str = "", save: str = "mostly") -> None:
    """Train to the next step, save and evaluate there."""
    life = job.life
    if life is None:
        return
    if life.saving is not None:
        job.files.go_on(life)
    sign = world.oracle.sign(job)
    life.step += 10
    job.level = round(job.level + sign * change, 3)
    anew = world.config["anew"]
    saves = save == "always" or (save == "mostly" and r.random() < 0.9)
    if saves and world.config["save_first"]:
        job.files.save(life, life.step, anew=anew)
    score = job.level
    if fault == "outlier":
        score = r.choice((0.0, round(job.level + r.choice((-5.0, 5.0)), 3)))
    elif fault == "nan":
        score = float("nan")
    elif fault == "nothing":
        score = 0.0
    guard = None
    if world.config["guard"]:
        guard = 0.5
    world.evaluate(job, score, fault, guard)
    if saves and not world.config["save_first"]:
        job.files.save(life, life.step, anew=anew)
    if saves and r.random() < 0.7:
        job.files.rotate(world.config["keep"])


@act_on(training, 14)
def rise(world: World, job: Job, r: Random) -> None:
    for _ in range(r.randint(1, 2)):
        advance(world, job, r, r.uniform(0.02, 0.1))
        rest(world, r)


@act_on(training, 9)
def decline(world: World, job: Job, r: Random) -> None:
    for _ in range(r.randint(1, 3)):
        advance(world, job, r, -r.uniform(0.02, 0.1))
        rest(world, r)


@act_on(training, 3)
def unsaved_best(world: World, job: Job, r: Random) -> None:
    """A best whose checkpoint is never written."""
    advance(world, job, r, r.uniform(0.02, 0.2), save="never")
    world.saw("a best without a checkpoint")
    rest(world, r)


@act_on(training, 3)
def outlier(world: World, job: Job, r: Random) -> None:
    # Without a gate and a scale for it nothing tells it from a true one.
    if world.config["stderr"] is None or not (world.config["gate"] or world.config["rule"] == "default"):
        world.oracle.case(job).fooled = True
    advance(world, job, r, r.uniform(-0.02, 0.05), fault=r.choice(("outlier", "outlier", "nan", "nothing")))
    world.saw("row 7: an eval that says nothing")
    rest(world, r)


@act_on(training, 3)
def many(world: World, job: Job, r: Random) -> None:
    """More evals than a page or a record holds."""
    if r.random() < 0.3:
        for _ in range(r.randint(20, 40)):
            advance(world, job, r, r.uniform(-0.004, 0.01))
            world.tick(2)
        world.saw("row 19: more evals than are kept")


@act_on(training, 6)
def restart(world: World, job: Job, r: Random) -> None:
    """The process ends; the next one, in the same pod, starts from the newest or an earlier checkpoint."""
    end_process(world, job, r)
    rest(world, r, 3)


def end_process(world: World, job: Job, r: Random) -> None:
    life = job.life
    assert life is not None
    life.alive = False
    if life.saving is not None:
        world.saw("row 3: killed in a save")
    there = sorted({s.step for s in job.files.saved if s.lies})
    if there and r.random() < 0.8:
        job.next_from = r.choice(there)
        best = max((e.score for e in life.branch if not e.fault), default=0.0)
        if job.next_from < life.step and best:
            world.saw("row 1: restarted from before its newest eval")
    job.restarts_at = world.now + r.choice((0.0, 5.0, 30.0))
    world.say(f"{job.name}: process ends; next from {job.next_from}")


@act_on(training, 3)
def climb_again(world: World, job: Job, r: Random) -> None:
    """Back to an earlier checkpoint, and past its former best at the very same steps; then down."""
    if job.life is None:
        return
    former = job.life
    rest(world, r, 60)
    if job.life is None:
        return
    end_process(world, job, r)
    world.tick(8)
    if job.life is None or job.life is former:
        return
    sign = world.oracle.sign(job)
    best = max((sign * e.score for e in former.branch if not e.fault), default=0.0)
    while job.life is not None and job.life.step < former.step:
        advance(world, job, r, max(0.05, best - sign * job.level + 0.1), save="always")
        rest(world, r, 30)
    world.saw("row 1: a step reached again, better")
    for _ in range(r.randint(0, 3)):
        advance(world, job, r, -0.1)
        rest(world, r, 20)


@act_on(training, 3)
def back_behind_its_pin(world: World, job: Job, r: Random) -> None:
    """Back behind the best checkpoint, and on to its step again, which is saved in place: sooner or later."""
    life, kept = job.life, world.operator.record(job.obj).secured
    if life is None or life.saving is not None or kept is None:
        return
    before = [s.step for s in job.files.saved if s.lies and s.step < kept.step]
    end_process(world, job, r)
    job.next_from = max(before, default=None)
    rest(world, r, r.choice((4, 30)))
    if job.life is None or job.life is life:
        return
    while job.life is not None and job.life.step < kept.step:
        advance(world, job, r, -r.uniform(0.0, 0.02), save="never")
        rest(world, r, r.choice((1, 4, 12)))
    if job.life is not None and job.life.saving is None:
        job.files.save(job.life, job.life.step, anew=False)
        world.oracle.dirty = True
        world.saw("row 11: a step saved in place after going back")
        world.say(f"{job.name}: step {job.life.step} is saved in place, having gone back")
    rest(world, r)


@act_on(training, 3)
def new_pod(world: World, job: Job, r: Random) -> None:
    end_process(world, job, r)
    pod = r.choice(job.live_pods)
    pod.ended, pod.ready = "Failed", False
    world.saw("a new pod in one attempt")
    rest(world, r, 6)


@act_on(training, 3)
def torn_save(world: World, job: Job, r: Random) -> None:
    """A save begins, and stays half-done until the trainer goes on, or dies."""
    if job.life is None or job.life.saving is not None:
        return
    life = job.life
    life.step += 10
    job.level = round(job.level + world.oracle.sign(job) * r.uniform(0.0, 0.1), 3)
    job.files.begin(life, life.step, anew=world.config["anew"])
    assert life.saving is not None
    job.files.go_on(life, r.randint(0, len(life.saving[1]) - 1))
    world.evaluate(job, job.level)
    world.saw("row 3: a save half-done")
    rest(world, r)
    if r.random() < 0.6 and job.life is life:
        end_process(world, job, r)
        rest(world, r, 6)


@act_on(training, 3)
def rotate(world: World, job: Job, r: Random) -> None:
    gone = job.files.rotate(r.randint(0, 2), files=r.choice((None, 1, 2)))
    world.say(f"{job.name}: rotation of {gone}")
    world.saw("row 3: rotation")
    rest(world, r, 4)


@act_on(training, 2)
def written_anew(world: World, job: Job, r: Random) -> None:
    """A step that lies there is saved once more, into the same files or new ones."""
    if job.life is None or job.life.saving is not None:
        return
    mine = [s.step for s in job.files.saved if s.lies and s.life is job.life]
    if mine:
        step = r.choice(mine)
        job.files.save(job.life, step, anew=r.random() < 0.5)
        world.oracle.dirty = True
        world.saw("row 11: a step written anew")
        world.say(f"{job.name}: step {step} is saved anew")
        rest(world, r)


def securing(world: World, job: Job) -> bool:
    """Whether a secure Job of it runs."""
    return any(a.operation == "secure" and (a.hangs or world.now < a.ends) for a in job.access.values())


@act_on(training, 2)
def evaluator(world: World, job: Job, r: Random) -> None:
    if job.life is not None:
        if r.random() < 0.5:  # while the answer of a secure Job is awaited
            advance(world, job, r, r.uniform(0.05, 0.2), save="always")
            world.tick(r.randint(2, 5))
        if job.life is None:
            return
        job.life.evaluator = str(int(job.life.evaluator) + 1)
        shift = r.choice((-3.0, 3.0, 0.0))
        job.level = round(job.level + shift, 3)
        world.saw("row 8: the evaluator changes")
        if securing(world, job):
            world.saw("row 8: the evaluator changes while a secure Job runs")
        advance(world, job, r, r.uniform(-0.05, 0.05))
        rest(world, r)


def finish(world: World, job: Job, how: str) -> bool:
    """The training ends by itself, if it runs."""
    if job.life is None or job.child is None:
        return False
    if securing(world, job):
        world.saw("row 8: the run ends while a secure Job runs")
    job.trained = how
    world.say(f"{job.name}: training ends, {how}")
    world.cluster.end(job, how)
    return True


@act_on(training, 1)
def ends(world: World, job: Job, r: Random) -> None:
    """The training ends by itself, half of the time right after its best eval."""
    if r.random() < 0.5:
        return
    if r.random() < 0.5:
        advance(world, job, r, r.uniform(0.05, 0.2), save="always")
        world.tick(r.randint(2, 5))
    if not finish(world, job, r.choice(("Complete", "Complete", "Failed"))):
        return
    if r.random() < 0.3:
        job.child, job.pods = None, []
        world.saw("row 14: a finished child is removed before its end was seen")
    rest(world, r)
