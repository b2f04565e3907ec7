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
    admitted = tuple(
        Admission(j.key, room.placed[j.key], source(room.placed[j.key])) for j in decision.admit
    )
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


def free_gpus(snapshot: PoolSnapshot) -> dict[str, int]:
    """Free GPUs per node: allocatable less foreign, bound and reserved; never below zero.

    An admitted gang's members without a node are charged where their admission planned them, or, if that
    node is no longer here, wherever they fit. So are the GPUs of a stopping gang whose pods are gone but
    whose release is not recorded yet: the record comes first, then the next job.
    """
    free = {n.name: n.gpus - n.foreign for n in snapshot.nodes}
    for job in snapshot.jobs:
        for node, gpus in job.bound:
            if node in free:
                free[node] -= gpus
    for job in snapshot.jobs:
        for node in _reserved(job, free):
            free[node] -= job.gpus_per_replica
    return {name: max(0, gpus) for name, gpus in free.items()}


def _reserved(job: JobView, free: Mapping[str, int]) -> list[str]:
    """One node per unbound member: the planned ones that no bound member took, then any that fit."""
    if job.gpus_per_replica == 0:
        return []
    if job.state in (JobState.STOPPING, JobState.PREEMPTING):
        return [] if job.bound else [n for n in job.nodes if n in free]
    if job.state is not JobState.ADMITTED:
        return []
    open_ = list(job.nodes)
    for node, _ in job.bound:
        if node in open_:
            open_.remove(node)
    nodes = [n for n in open_ if n in free][: job.unbound]
    missing = job.unbound - len(nodes)
    if missing:
        nodes += fit({n: max(0, g) for n, g in free.items()}, missing, job.gpus_per_replica) or ()
    return nodes


def _uncontended(jobs: tuple[JobView, ...], settled: set[JobKey]) -> tuple[HeldBack, ...]:
    """Jobs that ask to be stopped only when others wait, and nobody does."""
    why = "nobody waits for its GPUs, and its modifier onlyWhenContended lets it go on until somebody does"
    asking = (j for j in jobs if j.proposal is not None and j.proposal.when_contended)
    return tuple(
        HeldBack(j.key, "NobodyWaits", why)
        for j in asking
        if j.state is JobState.ADMITTED and j.key not in settled
    )


def _sources(snapshot: PoolSnapshot) -> Callable[[tuple[str, ...]], JobKey | None]:
    """Nodes -> the stopped job whose GPUs these were: by the oldest hold on them whose source is gone."""
    if not snapshot.holds:
        return lambda nodes: None
    there = {(j.key, node) for j in snapshot.jobs for node, _ in j.bound}
    oldest = sorted(snapshot.holds, key=lambda h: (h.expires, h.source))

    def source(nodes: tuple[str, ...]) -> JobKey | None:
        wanted = set(nodes)
        gone = (h for h in oldest if any(n in wanted and (h.source, n) not in there for n in h.nodes))
        return next((h.source for h in gone), None)

    return source


def _holds(
    snapshot: PoolSnapshot,
    leaving: list[JobView],
    admitted: tuple[Admission, ...],
    rest: list[JobView],
    free: Mapping[str, int],
    now: float,
) -> tuple[Hold, ...]:
    """Whom freed GPUs go to: promised while their job leaves, kept until the winner's pods have nodes."""
    known = {(h.source, h.target): h.expires for h in snapshot.holds}
    wanted = _promises(snapshot, leaving, rest, free, now)
    wanted += [(a.source, a.key, a.nodes) for a in admitted if a.source is not None]
    settled = {source for source, _, _ in wanted} | {j.key for j in leaving}
    views = {j.key: j for j in snapshot.jobs}
    for hold in snapshot.holds:
        target = views.get(hold.target)
        waits = target is not None and (target.state is JobState.QUEUED or target.unbound > 0)
        if waits and hold.source not in settled:
            wanted.append((hold.source, hold.target, hold.nodes))
    holds = (Hold(s, t, n, known.get((s, t), now + snapshot.hold_seconds)) for s, t, n in wanted)
    return tuple(h for h in holds if h.expires > now)


def _promises(
    snapshot: PoolSnapshot, leaving: list[JobView], rest: list[JobView], free: Mapping[str, int], now: float
) -> list[tuple[JobKey, JobKey, tuple[str, ...]]]:
    """(source, target, nodes): the same policy on the room as it will be when each leaving job is gone."""
    policy = make_policy(snapshot.policy)
    room = NodeRoom(free)
    promises: list[tuple[JobKey, JobKey, tuple[str, ...]]] = []
    promised: set[JobKey] = set()
    for job in leaving:
        room.give(job)
        policy.rebuild((j for j in rest if j.key not in promised), now)
        for winner in policy.decide(now, room).admit:
            promised.add(winner.key)
            promises.append((job.key, winner.key, room.placed[winner.key]))
    return promises


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
