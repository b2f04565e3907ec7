"""Whose each GPU of a pool is: free, somebody's outside the pool, bound, or kept for pods still to come.

Every GPU of a node is in exactly one account: foreign (non-terminal pods of no job here), bound (non-terminal
pods of jobs here, whatever their state), reserved (members of admitted gangs whose pods have no node yet), or
free. What a leaving gang still has counts as its own until all of it is gone: released means gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.policy.placement import fit
from controller.policy.planned_nodes import still_open
from controller.policy.types import JobKey, JobState, JobView, PoolSnapshot

LEAVING = (JobState.STOPPING, JobState.PREEMPTING)


def free_gpus(snapshot: PoolSnapshot) -> dict[str, int]:
    """Free GPUs per node: allocatable less foreign, bound and reserved; never below zero.

    An admitted gang's members without a node are charged where their admission planned them, or, if that
    node is no longer here, wherever they fit. A leaving gang's GPUs come free together: those whose pods are
    gone before the others' stay charged while a hold on the gang lasts, so that they are not given piecemeal
    to somebody who comes after the job they are held for; while pods may still come in the place of those
    that are gone; and until its release is recorded, all of them.
    """
    free = {n.name: n.gpus - n.foreign for n in snapshot.nodes}
    held = sources(snapshot)
    for job in snapshot.jobs:
        for node, gpus in job.bound:
            if node in free:
                free[node] -= gpus
    for job in snapshot.jobs:
        for node in reserved(job, free, held):
            free[node] -= job.gpus_per_replica
    return {name: max(0, gpus) for name, gpus in free.items()}


def sources(snapshot: PoolSnapshot) -> frozenset[JobKey]:
    """Jobs whose GPUs are promised to others."""
    return frozenset(h.source for h in snapshot.holds)


def reserved(job: JobView, free: Mapping[str, int], held: Collection[JobKey]) -> list[str]:
    """The nodes, of those in ``free``, on which GPUs of the gang are charged beside those of its bound pods.

    One entry per member. ``held``: jobs whose GPUs are promised to others.
    """
    if job.gpus_per_replica == 0 or job.state is JobState.QUEUED:
        return []
    if job.state in LEAVING:
        if job.bound and job.key not in held and not job.may_return:
            return []
        return _open(job, free)[: max(0, job.replicas - len(job.bound))]
    nodes = _open(job, free)[: job.unbound]
    missing = job.unbound - len(nodes)
    if missing:
        nodes += fit({n: max(0, g) for n, g in free.items()}, missing, job.gpus_per_replica) or ()
    return nodes


def account(job: JobView, free: Mapping[str, int], held: Collection[JobKey]) -> list[tuple[str, int]]:
    """(node, GPUs) of all that is charged to a gang."""
    return [*job.bound, *((node, job.gpus_per_replica) for node in reserved(job, free, held))]


def _open(job: JobView, free: Mapping[str, int]) -> list[str]:
    """Planned nodes, one per member, that no bound member took."""
    return [node for node in still_open(job.nodes, (node for node, _ in job.bound)) if node in free]
