"""Queued gangs excluded from this pass: they cannot fit even without other RLHFJobs, are larger than the
limit of their namespace's quota, or are backing off.

Tests in tests/policy: test_policy_pool_plan (cannot fit), test_policy_quotas (larger than the limit) and
test_policy_reservations (backing off).
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.policy.pool.delegates import DELEGATIONS, TOO_LARGE
from controller.policy.queueing.base import queue_key
from controller.policy.queueing.quota_ledger import too_large
from controller.policy.types import JobKey, JobState, JobView, NodeView, PoolSnapshot, Problem, Waiting
from controller.policy.wording import some


def inadmissible_jobs(snapshot: PoolSnapshot) -> dict[JobKey, Waiting]:
    """Return the queued jobs that could not run even if no other RLHFJob were running, and why. They block
    nobody: no job that ends can make room for them."""
    # Cached by shape: `_inadmissible` may use only replicas and gpus_per_replica of the job.
    known: dict[tuple[int, int], Problem | None] = {}
    inadmissible: dict[JobKey, Waiting] = too_large(snapshot.quotas, snapshot.jobs)
    for job in sorted(snapshot.jobs, key=lambda j: j.key):
        if job.state is not JobState.QUEUED or not job.gpus or job.key in inadmissible:
            continue
        shape = (job.replicas, job.gpus_per_replica)
        if shape not in known:
            known[shape] = _inadmissible(job, snapshot)
        if why := known[shape]:
            inadmissible[job.key] = Waiting(job.key, 0, *why)
    return inadmissible


def _inadmissible(job: JobView, snapshot: PoolSnapshot) -> Problem | None:
    """Return why a gang of this job's shape could not run even if no other RLHFJob were running; None:
    it could.

    `TOO_LARGE`: more than all nodes of the pool hold, including nodes that are not schedulable now."""
    nodes, pool, size = snapshot.nodes, snapshot.pool, job.gpus_per_replica
    # A booting node reports no allocatable GPUs yet.
    every = nodes + tuple(n for n in snapshot.closed if n.gpus)
    largest = max((n.gpus for n in every), default=size)
    if size > largest:
        return Problem(
            TOO_LARGE,
            f"spec.gang.gpusPerReplica: {size} is more than the {largest} GPUs of the "
            f"largest node of pool {pool!r}; at most {largest} is right",
        )
    members = _members(every, size)
    if every and job.replicas > members:
        return Problem(
            TOO_LARGE,
            f"spec.gang.replicas: {job.replicas} replicas of {size} GPUs are more than pool "
            f"{pool!r} can hold ({sum(n.gpus for n in every)} GPUs on {len(every)} nodes); "
            f"at most {members} is right",
        )
    if not nodes:
        return Problem(
            "NoUsableNodes",
            f"GPUPool {pool!r} has no ready and schedulable node now; the job waits until it has",
        )
    if job.replicas > (members := _members(nodes, size)):
        closed = [n.name for n in snapshot.closed]
        what, are = ("node", "is") if len(closed) == 1 else ("nodes", "are")
        return Problem(
            "NodesClosed",
            f"needs {job.replicas} x {size} GPUs; {what} {some(closed, 3)} of pool {pool!r} {are} not ready, "
            f"cordoned or tainted, which leaves room for {members}; the job waits until enough nodes are "
            "open again, and others go first",
        )
    # Pods that belong to no RLHFJob stay, but for those that are leaving.
    stay = {n.name: n.foreign - n.leaving for n in nodes}
    left = sum(max(0, n.gpus - stay[n.name]) // size for n in nodes)
    if job.replicas > left:
        return Problem(
            "GPUsUsedByOthers",
            f"needs {job.replicas} x {size} GPUs; pods of no RLHFJob of pool {pool!r} use "
            f"{sum(stay.values())} of its {sum(n.gpus for n in nodes)}, which leaves room for "
            f"{left}; the job waits until they are gone, and others go first",
        )
    return None


def _members(nodes: Iterable[NodeView], size: int) -> int:
    """Return how many members of ``size`` GPUs the nodes hold."""
    return sum(n.gpus // size for n in nodes)


def backing_off(snapshot: PoolSnapshot, now: float) -> dict[JobKey, str]:
    """Return the queued jobs whose last admission failed and that are not admitted in this pass, and why."""
    failed = [j for j in snapshot.jobs if j.state is JobState.QUEUED and j.not_before is not None]
    if not failed:
        return {}
    why = (
        "not every pod found a node when it was last admitted, or some members had ended well before (then "
        "condition Running says so); it is tried again after its back-off"
    )
    paused = {j.key: why for j in failed if j.not_before is not None and j.not_before > now}
    if DELEGATIONS[snapshot.delegate].places:
        return paused
    # Delegate None: those that failed are tried one by one, and only while no other gang is looking for room.
    looking = any(j.state is JobState.ADMITTED and j.unbound for j in snapshot.jobs)
    ready = sorted((j for j in failed if j.key not in paused), key=queue_key)
    for job in ready if looking else ready[1:]:
        paused[job.key] = "not every pod found a node when it was last admitted; another gang is tried first"
    return paused
