"""What can happen in the world, each by a name, a weight, and numbers drawn from a seed of its own.

So a history is a list of (name, seed), and stays the same when others are left out of it (`driver.shrink`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from controller.policy.jobs import ScrapeOutcome, ScrapeView
from tests.faults import product
from tests.faults.cluster import Job
from tests.faults.trainer import Life
from tests.faults.world import World

Act = Callable[[World, Random], None]


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


# -- trainers ------------------------------------------------------------------------------------------


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


@act(14)
def rise(world: World, r: Random) -> None:
    job = training(world, r)
    if job is not None:
        for _ in range(r.randint(1, 2)):
            advance(world, job, r, r.uniform(0.02, 0.1))
            rest(world, r)


@act(9)
def decline(world: World, r: Random) -> None:
    job = training(world, r)
    if job is not None:
        for _ in range(r.randint(1, 3)):
            advance(world, job, r, -r.uniform(0.02, 0.1))
            rest(world, r)


@act(3)
def unsaved_best(world: World, r: Random) -> None:
    """A best whose checkpoint is never written."""
    job = training(world, r)
    if job is not None:
        advance(world, job, r, r.uniform(0.02, 0.2), save="never")
        world.saw("a best without a checkpoint")
        rest(world, r)


@act(3)
def outlier(world: World, r: Random) -> None:
    job = training(world, r)
    if job is not None:
        # Without a gate and a scale for it nothing tells it from a true one.
        if world.config["stderr"] is None or not (world.config["gate"] or world.config["rule"] == "default"):
            world.oracle.case(job).fooled = True
        advance(
            world, job, r, r.uniform(-0.02, 0.05), fault=r.choice(("outlier", "outlier", "nan", "nothing"))
        )
        world.saw("row 7: an eval that says nothing")
        rest(world, r)


@act(3)
def many(world: World, r: Random) -> None:
    """More evals than a page or a record holds."""
    job = training(world, r)
    if job is not None and r.random() < 0.3:
        for _ in range(r.randint(20, 40)):
            advance(world, job, r, r.uniform(-0.004, 0.01))
            world.tick(2)
        world.saw("row 19: more evals than are kept")


@act(6)
def restart(world: World, r: Random) -> None:
    """The process ends; the next one, in the same pod, starts from the newest or an earlier checkpoint."""
    job = training(world, r)
    if job is not None:
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


@act(3)
def climb_again(world: World, r: Random) -> None:
    """Back to an earlier checkpoint, and past its former best at the very same steps; then down."""
    job = training(world, r)
    if job is None or job.life is None:
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


@act(3)
def new_pod(world: World, r: Random) -> None:
    job = training(world, r)
    if job is not None:
        end_process(world, job, r)
        pod = r.choice(job.live_pods)
        pod.ended, pod.ready = "Failed", False
        world.saw("a new pod in one attempt")
        rest(world, r, 6)


@act(3)
def torn_save(world: World, r: Random) -> None:
    """A save begins, and stays half-done until the trainer goes on, or dies."""
    job = training(world, r)
    if job is None or job.life is None or job.life.saving is not None:
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


@act(3)
def rotate(world: World, r: Random) -> None:
    job = training(world, r)
    if job is not None:
        gone = job.files.rotate(r.randint(0, 2), files=r.choice((None, 1, 2)))
        world.say(f"{job.name}: rotation of {gone}")
        world.saw("row 3: rotation")
        rest(world, r, 4)


@act(2)
def written_anew(world: World, r: Random) -> None:
    """A step that lies there is saved once more, into the same files or new ones."""
    job = training(world, r)
    if job is None or job.life is None or job.life.saving is not None:
        return
    mine = [s.step for s in job.files.saved if s.lies and s.life is job.life]
    if mine:
        step = r.choice(mine)
        job.files.save(job.life, step, anew=r.random() < 0.5)
        world.oracle.dirty = True
        world.saw("row 11: a step written anew")
        world.say(f"{job.name}: step {step} is saved anew")
        rest(world, r)


@act(2)
def evaluator(world: World, r: Random) -> None:
    job = training(world, r)
    if job is not None and job.life is not None:
        if r.random() < 0.5:  # while the answer of a secure Job is awaited
            advance(world, job, r, r.uniform(0.05, 0.2), save="always")
            world.tick(r.randint(2, 5))
        if job.life is None:
            return
        job.life.evaluator = str(int(job.life.evaluator) + 1)
        shift = r.choice((-3.0, 3.0, 0.0))
        job.level = round(job.level + shift, 3)
        world.saw("row 8: the evaluator changes")
        if any(a.operation == "secure" for a in job.access.values()):
            world.saw("row 8: the evaluator changes while a secure Job runs")
        advance(world, job, r, r.uniform(-0.05, 0.05))
        rest(world, r)


@act(1)
def ends(world: World, r: Random) -> None:
    """The training ends by itself."""
    job = training(world, r)
    if job is None or r.random() < 0.5:
        return
    if any(a.operation == "secure" for a in job.access.values()):
        world.saw("row 8: the run ends while a secure Job runs")
    job.trained = r.choice(("Complete", "Complete", "Failed"))
    world.say(f"{job.name}: training ends, {job.trained}")
    world.cluster.end(job, job.trained)
    if r.random() < 0.3:
        job.child, job.pods = None, []
        world.saw("row 14: a finished child is removed before its end was seen")
    rest(world, r)


# -- pages ---------------------------------------------------------------------------------------------


def strange(world: World, job: Job, r: Random) -> Callable[[], ScrapeView]:
    kind = r.choice(("other", "other", "attempt", "early", "broken"))
    world.saw("row 4: a page that is not the trainer's")
    others = [j for j in world.jobs.values() if j is not job and j.lives and j.lives[-1].evals]
    if kind == "other" and others:
        other = r.choice(others)
        life = other.lives[-1]
        uid = other.uid if other.names_itself else None
        return lambda: product.page(life, uid, 0.0, job.lives[-1].pod, job.lives[-1].pod_created, 1000)
    if kind == "early" and len(job.lives) > 1:
        life = r.choice(job.lives[:-1])
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
    from tests.faults.trainer import Eval

    life.step = step
    life.evals.append(Eval(step, score, life, world.now, life.evaluator))


@act(4)
def stranger(world: World, r: Random) -> None:
    """The next scrapes meet another page: of another trainer, an invented one, an earlier process, none."""
    job = training(world, r)
    if job is not None:
        view = strange(world, job, r)
        if not job.names_itself:
            world.oracle.case(job).fooled = True  # nothing tells this page from its own
        world.pages[job.key] = [view] * r.randint(1, 4)
        world.say(f"{job.name}: its next scrapes meet another page")
        rest(world, r)


# -- access Jobs and their store -----------------------------------------------------------------------


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


@act(2)
def claims_out(world: World, r: Random) -> None:
    """Claims of checkpoint folders hang, or fail, for a while; all else of the store works. Save records tell
    whose a checkpoint is, so nothing that is promised may depend on the claims."""
    if not world.config["records"]:
        return
    world.claims_out = {"hangs": True} if r.random() < 0.5 else {"kill": 1}
    world.claims_out_until = world.now + r.choice((60.0, 600.0, 7200.0))
    world.saw(f"a claim {'hangs' if 'hangs' in world.claims_out else 'fails'}")
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


# -- users ---------------------------------------------------------------------------------------------


@act(4)
def stop(world: World, r: Random) -> None:
    job = some(world, r)
    if job is not None and job.spec("runState", "Run") == "Run":
        world.saw("row 6: a user stops a run")
        world.edit(job, runState="Stopped")
        rest(world, r, 30)
        if r.random() < 0.5:
            world.edit(job, runState="Run")
            world.saw("row 6: a user takes a stop back")
            rest(world, r)


@act(1)
def stop_without_space(world: World, r: Random) -> None:
    """A user stops a run, and for a day nothing can be retained."""
    job = training(world, r)
    if job is None or job.spec("runState", "Run") != "Run":
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


@act(3)
def run_again(world: World, r: Random) -> None:
    job = some(world, r)
    if job is not None and job.spec("runState", "Run") == "Stopped":
        world.edit(job, runState="Run")
        rest(world, r)


@act(3)
def mode(world: World, r: Random) -> None:
    job = some(world, r)
    if job is not None:
        wanted = r.choice(("Off", "Shadow", "Enforce", "Enforce"))
        if world.operator.record(job.obj).decision is not None:
            world.saw("row 5: mode edited under a stop")
        world.edit(job, mode=wanted)
        rest(world, r)


@act(3)
def pins(world: World, r: Random) -> None:
    job = some(world, r)
    if job is not None:
        steps = sorted({s.step for s in job.files.saved}) or [10]
        wanted = sorted(r.sample([*steps, steps[-1] + 50], r.randint(0, 2)) if len(steps) > 1 else steps)
        if r.random() < 0.3:
            world.next_access.append({"hangs": True})
            world.saw("row 16: a user's pin Job hangs")
        world.saw("pins edited")
        world.edit(job, checkpoints__pins=wanted)
        rest(world, r)


@act(4)
def resume(world: World, r: Random) -> None:
    job = some(world, r)
    if job is None:
        return
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


@act(2)
def rule(world: World, r: Random) -> None:
    job = some(world, r)
    if job is not None:
        world.saw("rule edited")
        world.edit(job, stopRule={"kDeclines": {"k": r.choice((2, 3, 4))}})
        rest(world, r)


@act(1.5)
def guardrail_turned(world: World, r: Random) -> None:
    """A guardrail's direction is corrected."""
    job = training(world, r)
    if job is None or len(job.obj["spec"]["metrics"]) < 2:
        return
    first, guard = job.obj["spec"]["metrics"]
    turned = "Minimize" if guard.get("direction", "Maximize") == "Maximize" else "Maximize"
    world.saw("row 12: a guardrail's direction is corrected")
    world.edit(job, metrics=[first, {**guard, "direction": turned}])
    rest(world, r, 6)
    advance(world, job, r, r.uniform(0.0, 0.05))
    rest(world, r)


@act(1.5)
def delete(world: World, r: Random) -> None:
    job = some(world, r)
    if job is None:
        return
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


# -- administrators, nodes, hands from outside -----------------------------------------------------------


@act(3)
def pool_edited(world: World, r: Random) -> None:
    """Its ceiling, its policy, a misspelt field, its deletion; or all is right again."""
    if world.pool is None or r.random() < 0.5:
        status = (world.pool or {}).get("status") or {}
        generation = (world.pool or {}).get("metadata", {}).get("generation", 1) + 1
        world.pool = product.gpupool()
        world.pool["metadata"]["generation"] = generation
        if status:
            world.pool["status"] = status
    else:
        world.saw("row 9: the pool befalls something")
        what = r.choice(("ceiling", "policy", "misspelt", "gone", "cap"))
        change: dict[str, Any] = {
            "ceiling": {"allowedNamespaces": [{"name": "team", "maxPriority": 1}]},
            "policy": {"queuePolicy": {"srtf": {}}},
            "misspelt": {"gangTimeout": "soon"},
            "cap": {"modeCap": "Shadow"},
            "gone": {},
        }[what]
        world.pool = None if what == "gone" else product.edited(world.pool, change)
        world.say(f"pool: {what}")
    rest(world, r, 20)


@act(2)
def node(world: World, r: Random) -> None:
    name = r.choice(list(world.cluster.nodes))
    node = world.cluster.nodes[name]
    node.ready = not node.ready
    if not node.ready:
        world.saw("a node is lost")
    world.say(f"node {name}: {'back' if node.ready else 'lost'}")
    rest(world, r)
    if not node.ready and r.random() < 0.7:
        node.ready = True
        rest(world, r)


@act(2)
def stuck_pod(world: World, r: Random) -> None:
    """A pod does not go when it is deleted."""
    job = some(world, r)
    if job is not None and job.live_pods:
        world.cluster.stuck.add(r.choice(job.live_pods).uid)
        world.saw("a pod is stuck")
    elif world.cluster.stuck:
        world.cluster.stuck.clear()
    rest(world, r, 6)


@act(1.5)
def unsuspended(world: World, r: Random) -> None:
    """Somebody starts a child by hand."""
    job = some(world, r)
    if job is None or job.child is None or not job.child.suspended or job.trained:
        return
    from dataclasses import replace

    world.saw("row 15: a suspended child is started by hand")
    job.child = replace(job.child, suspended=False, version=job.child.version + 1, nodes=())
    rest(world, r)


@act(1)
def child_deleted(world: World, r: Random) -> None:
    job = some(world, r)
    if job is not None and job.child is not None and job.child.finished is None:
        world.saw("a child is deleted by hand")
        job.child = None
        rest(world, r)


# -- the operator --------------------------------------------------------------------------------------


@act(8)
def crash(world: World, r: Random) -> None:
    """The operator dies before or after one of its next writes and actions."""
    world.operator.fuse = r.randint(0, 8)
    rest(world, r, 4)


@act(4)
def away(world: World, r: Random) -> None:
    """No operator for a while; then a new one, which has read nothing yet."""
    from tests.faults.shell import Operator

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
