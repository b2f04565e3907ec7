"""Pages that the scrapes of a job meet in place of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.faults import product
from tests.faults.acts.base import act_on, rest, training
from tests.faults.cluster import Job
from tests.faults.trainer import Eval, Life
from tests.faults.world import World


def strange(world: World, job: Job, r: Random) -> Callable[[], ScrapeView]:
    kind = r.choice(("other", "other", "attempt", "early", "broken"))
    world.saw("row 4: a page that is not the trainer's")
    others = [j for j in world.jobs.values() if j is not job and j.lives and j.lives[-1].evals]
    if kind == "other" and others:
        other = r.choice(others)
        life = other.lives[-1]
        uid = other.uid if other.names_itself else None
        return lambda: product.page(life, uid, 0.0, job.lives[-1].pod, job.lives[-1].pod_created, 1000)
    # Of the same pod none answers late that is not recorded (reliability.md, known limits): its
    # port is the newest one's. One that was read just before the operator was killed is not recorded.
    newest, recorded = job.lives[-1], {str(one.attempt) for one in world.operator.record(job.obj).lives}
    earlier = [life for life in job.lives[:-1] if life.text in recorded or life.pod != newest.pod]
    if kind == "early" and earlier:
        life = r.choice(earlier)
        return lambda: world_page(job, life)
    if kind == "broken":
        return lambda: ScrapeView(r.choice((ScrapeOutcome.TIMEOUT, ScrapeOutcome.UNREACHABLE)), "no answer")
    number = job.lives[-1].number + r.choice((-1, 1, 6, 98))
    life = Life(world.new_life(max(0, number)), 99, "pod-x", world.now, world.now, evaluator="1")
    for step in range(10, 60, 10):
        world_eval(world, life, step, round(1.0 - step / 100.0, 3) * 10.0)
    uid = r.choice((job.uid, "uid-strange")) if job.names_itself else None
    return lambda: product.page(life, uid, 0.0, job.lives[-1].pod, job.lives[-1].pod_created, 1000)


def world_page(job: Job, life: Life) -> ScrapeView:
    uid = job.uid if job.names_itself else None
    return product.page(life, uid, 0.0, life.pod, life.pod_created, 1000)


def world_eval(world: World, life: Life, step: int, score: float) -> None:
    life.step = step
    life.evals.append(Eval(step, score, life, world.now, life.evaluator))


@act_on(training, 4)
def stranger(world: World, job: Job, r: Random) -> None:
    """The next scrapes meet another page: of another trainer, an invented one, an earlier process, none."""
    view = strange(world, job, r)
    if not job.names_itself:
        world.oracle.case(job).fooled = True  # nothing tells this page from its own
    world.pages[job.key] = [view] * r.randint(1, 4)
    world.say(f"{job.name}: its next scrapes meet another page")
    rest(world, r)
