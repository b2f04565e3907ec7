"""Administrators, nodes, and hands from outside."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.faults import product
from tests.faults.acts.base import act, act_on, rest, some
from tests.faults.cluster import Job
from tests.faults.world import World


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


@act_on(some, 1.5)
def unsuspended(world: World, job: Job, r: Random) -> None:
    """Somebody starts a child by hand."""
    if job.child is None or job.trained:
        return
    if not job.child.suspended and r.random() < 0.5 and job.spec("runState", "Run") == "Run":
        world.edit(job, runState="Stopped")  # of a run that its user has just stopped
        for _ in range(60):
            world.tick()
            if job.child is None or job.child.suspended:
                break
    if job.child is None or not job.child.suspended or job.trained:
        return
    world.saw("row 15: a suspended child is started by hand")
    job.child = replace(job.child, suspended=False, version=job.child.version + 1, nodes=())
    rest(world, r)


@act_on(some, 1)
def child_deleted(world: World, job: Job, r: Random) -> None:
    if job.child is not None and job.child.finished is None:
        world.saw("a child is deleted by hand")
        job.child = None
        rest(world, r)


@act(2)
def child_written(world: World, r: Random) -> None:
    """Another controller writes the child, and the operator, about to suspend it, has not heard of that."""
    job = some(world, r)
    if job is None or job.child is None or job.child.suspended or job.trained:
        return
    if job.spec("runState", "Run") == "Run":
        world.edit(job, runState="Stopped")
    for _ in range(40):
        world.tick()
        decision = world.operator.record(job.obj).decision
        if job.gone or job.child is None or job.child.suspended or job.trained:
            return
        if decision is not None and decision.retained_at is not None:
            break
    world.operator.stale = r.randint(2, 8)
    job.child = replace(job.child, version=job.child.version + 1)
    world.say(f"{job.name}: its child is written by somebody else")
    rest(world, r, 20)
    if r.random() < 0.5 and not job.gone:
        world.edit(job, runState="Run")
        rest(world, r)
