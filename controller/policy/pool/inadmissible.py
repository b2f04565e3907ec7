"""Queued gangs excluded from this pass: they cannot fit even without other RLHFJobs, are larger than the
limit of their namespace's quota, or are backing off.

Tests in tests/policy: test_policy_pool_plan (cannot fit), test_policy_quotas (larger than the limit) and
test_policy_reservations (backing off).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from controller.policy.actor_types import Part
from controller.policy.group_types import SharedTraining
from controller.policy.pool.best_fit import FreeGpus
from controller.policy.pool.delegates import DELEGATIONS, TOO_LARGE
from controller.policy.pool.placement import Shape, fit_job, shape
from controller.policy.pool.residencies import family_of
from controller.policy.queueing.base import queue_key, sizes
from controller.policy.queueing.quota_ledger import too_large
from controller.policy.sharing import Resident, alone
from controller.policy.types import JobKey, JobState, JobView, NodeView, PoolSnapshot, Problem, Waiting
from controller.policy.wording import counted, some


def inadmissible_jobs(
    snapshot: PoolSnapshot, joins: Callable[[JobView], bool] = lambda job: False
) -> dict[JobKey, Waiting]:
    """Return the queued jobs that could not run even if no other RLHFJob were running, and why. They block
    nobody: no job that ends can make room for them.

    ``joins``: whether a worker group that is there takes a job now. One that was opened while its family was
    smaller may, though no new one fits into the pool.
    """
    # Cached by shape: `_inadmissible` may use nothing else of the job.
    known: dict[Shape, Problem | None] = {}
    inadmissible: dict[JobKey, Waiting] = too_large(snapshot.quotas, snapshot.jobs)
    for job in sorted(snapshot.jobs, key=lambda j: j.key):
        if job.state is not JobState.QUEUED or job.key in inadmissible:
            continue
        if job.sharing is not None and (amiss := _sharing_inadmissible(job, job.sharing, snapshot, joins)):
            inadmissible[job.key] = Waiting(job.key, 0, *amiss)
            continue
        if not job.private_gpus:
            continue
        asked = shape(job)
        if asked not in known:
            gang = _inadmissible(job, snapshot) if job.gpus_per_replica else None
            known[asked] = gang or _actors_inadmissible(job, snapshot)
        if why := known[asked]:
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
            f"spec.gang.gpusPerReplica: {size} is more than the {counted(largest, 'GPU')} of the "
            f"largest node of pool {pool!r}; at most {largest} is right",
        )
    members = _members(every, size)
    if every and job.replicas > members:
        return Problem(
            TOO_LARGE,
            f"spec.gang.replicas: {counted(job.replicas, 'replica')} of {counted(size, 'GPU')} are more than "
            f"pool {pool!r} can hold ({_room(n.gpus for n in every)}); "
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
            f"needs {job.replicas} x {counted(size, 'GPU')}; {what} {some(closed, 3)} of pool {pool!r} "
            f"{are} not ready, cordoned or tainted, which leaves room for {members}; the job waits until "
            "enough nodes are open again, and others go first",
        )
    # Pods that belong to no RLHFJob stay, but for those that are leaving.
    stay = {n.name: n.foreign - n.leaving for n in nodes}
    left = sum(max(0, n.gpus - stay[n.name]) // size for n in nodes)
    if job.replicas > left:
        return Problem(
            "GPUsUsedByOthers",
            f"needs {job.replicas} x {counted(size, 'GPU')}; pods of no RLHFJob of pool {pool!r} use "
            f"{sum(stay.values())} of its {sum(n.gpus for n in nodes)}, which leaves room for "
            f"{left}; the job waits until they are gone, and others go first",
        )
    return None


def _actors_inadmissible(job: JobView, snapshot: PoolSnapshot) -> Problem | None:
    """Return why base actors have no room, all together with the gang, even if no other RLHFJob ran."""
    actors, pool = job.base_actors, snapshot.pool
    if actors is None:
        return None
    every = snapshot.nodes + tuple(n for n in snapshot.closed if n.gpus)
    largest = max((n.gpus for n in every), default=actors.gpus)
    if actors.gpus > largest:
        return Problem(
            TOO_LARGE,
            f"spec.rollout.gpusPerActor: {actors.gpus} is more than the {counted(largest, 'GPU')} of the "
            f"largest node of pool {pool!r}; at most {largest} is right",
        )
    room, asked = FreeGpus({n.name: n.gpus for n in every}), shape(job)
    if fit_job(room, asked) is None:
        counts = range(actors.pods - 1, -1, -1)
        most = next((n for n in counts if fit_job(room, _with(asked, n)) is not None), 0)
        return Problem(
            TOO_LARGE,
            f"spec.rollout.actors.min: {sizes(job)} at once are more than pool {pool!r} can hold "
            f"({_room(room.values())}); at most {most} is right",
        )
    # Pods that belong to no RLHFJob stay, but for those that are leaving.
    left = FreeGpus({n.name: max(0, n.gpus - n.foreign + n.leaving) for n in snapshot.nodes})
    if fit_job(left, asked) is None:
        return Problem(
            "GPUsUsedByOthers" if len(snapshot.closed) == 0 else "NodesClosed",
            f"needs {sizes(job)} at once; pods of no RLHFJob and closed nodes leave "
            f"{sum(left.values())} of pool {pool!r}, which is no room for all of them; the job waits until "
            "there is, and others go first",
        )
    return None


def _sharing_inadmissible(
    job: JobView, asked: SharedTraining, snapshot: PoolSnapshot, joins: Callable[[JobView], bool]
) -> Problem | None:
    """Return why a job could not have a residency even if no other RLHFJob ran; None: it could."""
    sharing, pool = snapshot.sharing, snapshot.pool
    if sharing is None or not (
        DELEGATIONS[snapshot.delegate].places and DELEGATIONS[snapshot.delegate].orders
    ):
        return Problem(
            "SharingNotOffered",
            f"spec.sharing: pool {pool!r} offers no worker groups (spec.sharing of GPUPool)",
        )
    terms = next((terms for terms in sharing.families if terms.name == asked.family), None)
    if terms is None:
        names = ", ".join(terms.name for terms in sharing.families) or "none"
        return Problem(
            "FamilyNotFound",
            f"spec.sharing.family: pool {pool!r} has no family {asked.family!r}; it has {names}",
        )
    if asked.group:
        return Problem(
            "LeavingGroup", f"its worker and state are still in group {asked.group}; it waits for them"
        )
    own = alone(Resident(job.key, asked.family, job.namespace, max(1, asked.state_bytes)), family_of(terms))
    if not own.fits:
        return Problem("StateTooLarge", f"spec.sharing.stateBytes: {asked.state_bytes}: {own.message}")
    every = FreeGpus({n.name: n.gpus for n in snapshot.nodes + tuple(n for n in snapshot.closed if n.gpus)})
    whole = shape(replace(job, sharing=asked.opening(terms.workers)))
    if every and fit_job(every, whole) is None and not joins(job):
        private = f" and {sizes(job)} are" if job.private_gpus else " is"
        return Problem(
            TOO_LARGE,
            f"spec.sharing.family: a group of {terms.name!r} "
            f"({terms.replicas} x {counted(terms.gpus, 'GPU')}){private} more than pool {pool!r} "
            f"can hold ({_room(every.values())})",
        )
    if not snapshot.nodes:
        return Problem(
            "NoUsableNodes",
            f"GPUPool {pool!r} has no ready and schedulable node now; the job waits until it has",
        )
    return None


def _room(sizes_of_nodes: Iterable[int]) -> str:
    """Return what nodes with so many GPUs hold together: ``12 GPUs on 3 nodes``."""
    each = list(sizes_of_nodes)
    return f"{counted(sum(each), 'GPU')} on {counted(len(each), 'node')}"


def _with(asked: Shape, count: int) -> Shape:
    replicas, size, actors, workers = asked
    assert actors is not None
    return replicas, size, Part(count, actors.gpus), workers


def _members(nodes: Iterable[NodeView], size: int) -> int:
    """Return how many members of ``size`` GPUs the nodes hold."""
    return sum(n.gpus // size for n in nodes)


def backing_off(snapshot: PoolSnapshot, now: float) -> dict[JobKey, str]:
    """Return the queued jobs whose last admission failed and that are not admitted in this pass, and why."""
    failed = [j for j in snapshot.jobs if j.state is JobState.QUEUED and j.not_before is not None]
    if not failed:
        return {}
    why = (
        "not every pod found a node when it was last admitted, or some members had ended well before, or its "
        "trainer had no rollout actor (then condition Running says so); it is tried again after its back-off"
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
