"""The pool's plan: who is released, who starts where, who waits and why. Pure, total, deterministic.

Every GPU of a node is in exactly one of these accounts: free, foreign (pods of no job here), bound (pods of
jobs here, whatever their state, until they are gone or terminal), or reserved (members of admitted gangs
whose pods have no node yet). A job whose stop has begun keeps its GPUs in `bound` until its pods are gone:
released means gone.

Holds announce, before a node is free, to whom its GPUs will go. The winner is chosen again, by the same
policy, when they are free; a hold never decides an admission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from controller.policy.fleet import sift
from controller.policy.placement import NodeRoom, fit
from controller.policy.planner import Planner
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import (
    Admission,
    Grant,
    HeldBack,
    Hold,
    JobKey,
    JobState,
    JobView,
    NodeView,
    PoolPlan,
    PoolSnapshot,
    Preemption,
    Waiting,
)


def plan(snapshot: PoolSnapshot, now: float) -> PoolPlan:
    """What is to happen in this pool at ``now`` (s).

    Raises:
        ParamError: the pool's queue policy or one of its parameters does not exist or is out of bounds.
    """
    views = {j.key: j for j in snapshot.jobs}
    unfit = _unfit_jobs(snapshot)
    room = NodeRoom(free_gpus(snapshot))
    planner = Planner(EvalStop(make_policy(snapshot.policy)), room)
    sifted = sift(snapshot.jobs, snapshot.limits, snapshot.stopped, now)
    held = {h.key for h in sifted.held}
    jobs = (replace(j, proposal=None) if j.key in held else j for j in snapshot.jobs)
    planner.rebuild((j for j in jobs if j.key not in unfit), now)

    decision = planner.decide(now)
    source = _sources(snapshot)
    admitted = tuple(Admission(j.key, room.placed[j.key], source(room.placed[j.key])) for j in decision.admit)
    released = [views[j.key] for j in decision.release]
    idle = _uncontended(snapshot.jobs, held | {j.key for j in released})
    leaving = [j for j in snapshot.jobs if j.state is JobState.STOPPING] + released
    taken = {a.key for a in admitted}
    rest = [views[j.key] for j in planner.policy.queue() if j.key not in taken]
    holds = _holds(snapshot, leaving, admitted, rest, room.free, now)
    wakes = [w for w in (decision.wake_at, sifted.wake_at, *(h.expires for h in holds)) if w is not None]
    return PoolPlan(
        grants=tuple(Grant(j.key, j.proposal) for j in released if j.proposal is not None),
        admissions=admitted,
        preemptions=tuple(Preemption(j.key, why) for j, why in decision.preempt),
        holds=holds,
        waiting=_waiting(rest, room.free, unfit),
        held_back=(*sifted.held, *idle),
        wake_at=min(wakes, default=None),
    )


def _uncontended(jobs: tuple[JobView, ...], settled: set[JobKey]) -> tuple[HeldBack, ...]:
    """Jobs that ask to be stopped only when others wait, and nobody does."""
    why = "nobody waits for its GPUs, and its modifier onlyWhenContended lets it go on until somebody does"
    asking = (j for j in jobs if j.proposal is not None and j.proposal.when_contended)
    return tuple(
        HeldBack(j.key, "NobodyWaits", why)
        for j in asking
        if j.state is JobState.ADMITTED and j.key not in settled
    )


def _unfit_jobs(snapshot: PoolSnapshot) -> dict[JobKey, str]:
    """Queued jobs that could not run even in an empty pool, and why. Many gangs have the same shape."""
    known: dict[tuple[int, int], str | None] = {}
    unfit: dict[JobKey, str] = {}
    for job in snapshot.jobs:
        if job.state is not JobState.QUEUED or not job.gpus:
            continue
        shape = (job.replicas, job.gpus_per_replica)
        if shape not in known:
            known[shape] = _unfit(job, snapshot.nodes, snapshot.pool)
        if why := known[shape]:
            unfit[job.key] = why
    return unfit


def _unfit(job: JobView, nodes: tuple[NodeView, ...], pool: str) -> str | None:
    """Why a gang of this job's shape could not run even in an empty pool; None if it could."""
    largest = max((n.gpus for n in nodes), default=0)
    if job.gpus_per_replica > largest:
        return (
            f"spec.gang.gpusPerReplica: {job.gpus_per_replica} is more than the {largest} GPUs of the "
            f"largest node of pool {pool!r}; at most {largest} is right"
        )
    members = sum(n.gpus // job.gpus_per_replica for n in nodes)
    if job.replicas > members:
        return (
            f"spec.gang.replicas: {job.replicas} replicas of {job.gpus_per_replica} GPUs are more than pool "
            f"{pool!r} can hold ({sum(n.gpus for n in nodes)} GPUs on {len(nodes)} nodes); "
            f"at most {members} is right"
        )
    return None


def _waiting(
    rest: list[JobView], free: Mapping[str, int], unfit: Mapping[JobKey, str]
) -> tuple[Waiting, ...]:
    waiting = []
    total, largest = sum(free.values()), max(free.values(), default=0)
    fits: dict[tuple[int, int], bool] = {}
    for position, job in enumerate(rest, start=1):
        shape = (job.replicas, job.gpus_per_replica)
        if shape not in fits:
            fits[shape] = fit(free, *shape) is not None
        if fits[shape]:
            head = rest[0]
            waiting.append(
                Waiting(job.key, position, "BehindHead", f"it would fit, but {head.key} comes first")
            )
        else:
            message = (
                f"needs {job.replicas} x {job.gpus_per_replica} GPUs at once; {total} are free, "
                f"at most {largest} on one node"
            )
            waiting.append(Waiting(job.key, position, "WaitingForGPUs", message))
    waiting += [Waiting(key, 0, "TooLarge", why) for key, why in sorted(unfit.items())]
    return tuple(waiting)
