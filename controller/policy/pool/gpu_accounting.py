"""GPU accounting of a pool: free, used outside the pool, bound, or reserved for pods still to come.

Every GPU of a node is in exactly one account: foreign (non-terminal pods of no job here), bound (non-terminal
pods of jobs here, whatever their state), reserved (members of admitted gangs whose pods have no node yet),
actor (rollout actors, from their entry on), group (workers of groups that jobs share, from the opening until
all pods are gone), or free. What a leaving gang still has counts as its own until
all of it is gone: released means gone. Of free GPUs those that were recalled for somebody are kept for that
one (`lending`).

A member without a node is charged where its admission planned it. If that node is no longer here, or others
have taken its GPUs (a pod of nobody's, a pod that kube-scheduler put elsewhere than planned), the member is
charged where it fits, for there it may go; the planned nodes of all gangs come before that. If it fits
nowhere it is charged what is free of the nodes that could hold it, first of its own, so that nobody is
admitted to GPUs of which there are not enough. The extender keeps such a member its planned node, as far as
there is room, and refuses it any other: what is charged elsewhere is then given to no gang, and to that one
neither, until it gets its node or its time-out takes its admission back (`gangs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.group_types import GroupView
from controller.policy.node import still_open
from controller.policy.pool.best_fit import FreeGpus
from controller.policy.types import JobKey, JobState, JobView, NodeView, PoolSnapshot

LEAVING = (JobState.STOPPING, JobState.PREEMPTING)

Charges = list[tuple[str, int]]  # node, GPUs


@dataclass(frozen=True, slots=True)
class GpuAccounts:
    """Free GPUs of a pool's nodes, and those charged to gangs.

    Attributes:
        free: GPUs per node that belong to nobody, never below zero.
        reserved: what is charged to a gang beside its bound pods.
        displaced: gangs not all of whose members are charged where planned.
    """

    free: dict[str, int]
    reserved: Mapping[JobKey, Charges]
    displaced: frozenset[JobKey] = frozenset()

    def account(self, job: JobView) -> Charges:
        """Return (node, GPUs) of all that is charged to a job: its gang, and its actors."""
        return [*self.of_gang(job), *_actors(job)]

    def of_gang(self, job: JobView) -> Charges:
        """Return (node, GPUs) of all that is charged to its gang."""
        return [*job.bound, *self.reserved.get(job.key, ())]

    def as_charged(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Return the snapshot with each gang planned where it is charged; a member that fits nowhere has no
        node."""
        if not self.displaced:
            return snapshot
        return replace(snapshot, jobs=tuple(map(self._planned, snapshot.jobs)))

    def _planned(self, job: JobView) -> JobView:
        if job.key not in self.displaced:
            return job
        taken = (node for node, _ in job.bound)
        kept = (node for node, gpus in self.reserved.get(job.key, ()) if gpus == job.gpus_per_replica)
        return replace(job, nodes=(*taken, *kept))


def free_gpus(snapshot: PoolSnapshot) -> dict[str, int]:
    """Return free GPUs per node: allocatable less foreign, bound, reserved and of groups; at least zero."""
    return gpu_accounts(
        snapshot, map(stand_in, snapshot.sharing.groups if snapshot.sharing is not None else ())
    ).free


def stand_in(group: GroupView) -> JobView:
    """Return a worker group as a gang among jobs."""
    return JobView(
        group.key,
        group.opened,
        0,
        group.replicas,
        group.gpus,
        state=JobState.STOPPING if group.closing else JobState.ADMITTED,
        bound=group.bound,
        unbound=0 if group.closing else group.unbound,
        nodes=group.nodes,
        may_return=group.may_return,
    )


def gpu_accounts(snapshot: PoolSnapshot, groups: Iterable[JobView] = ()) -> GpuAccounts:
    """Return all accounts of a pool. ``groups``: worker groups, each as a gang among the jobs.

    A leaving gang's GPUs come free together: those whose pods are gone before the others' stay charged while
    a reservation for the gang lasts, so that they are not given piecemeal to somebody who comes after the job
    they are held for; while pods may still come in the place of those that are gone; and until its release is
    recorded, all of them. What others have taken of them is not looked for elsewhere.
    """
    free = {n.name: n.gpus - n.foreign for n in snapshot.nodes}
    held = frozenset(h.source for h in snapshot.reservations)  # jobs whose GPUs are reserved for others
    every = (*groups, *snapshot.jobs)
    for job in every:
        for node, gpus in job.bound:
            if node in free:
                free[node] -= gpus
        if job.rollout is not None:
            for node, gpus in _actors(job):
                if node in free:
                    free[node] -= gpus
    for node, gpus in free.items():
        if gpus < 0:
            free[node] = 0
    reserved: dict[JobKey, Charges] = {}
    short: list[tuple[JobView, int]] = []  # gangs, and how many of their members are charged nothing yet
    displaced: set[JobKey] = set()
    for job in every:
        size = job.gpus_per_replica
        if size == 0 or job.state is JobState.QUEUED:
            continue
        leaves = job.state in LEAVING
        if leaves and job.bound and job.key not in held and not job.may_return:
            continue
        members = max(0, job.replicas - len(job.bound)) if leaves else job.unbound
        if not members:
            continue  # as nearly always: each of its pods is bound
        charges: Charges = []
        for node in _open(job, free)[:members]:
            gpus = size if free[node] >= size else free[node] if leaves else 0
            if gpus:
                free[node] -= gpus
                charges.append((node, gpus))
            if gpus < size:
                displaced.add(job.key)
        if charges:
            reserved[job.key] = charges
        if not leaves and (missing := members - len(charges)):
            displaced.add(job.key)
            short.append((job, missing))
    if short:
        _charge_elsewhere(snapshot.nodes, free, short, reserved)
    return GpuAccounts(free, reserved, frozenset(displaced))


def _actors(job: JobView) -> Charges:
    """(node, GPUs) of a job's actors: charged from the entry on, which is there before the pod."""
    return [] if job.rollout is None else [(actor.node, actor.gpus) for actor in job.rollout.actors]


def _charge_elsewhere(
    nodes: tuple[NodeView, ...],
    free: dict[str, int],
    short: list[tuple[JobView, int]],
    reserved: dict[JobKey, Charges],
) -> None:
    """Charge members whose planned nodes do not hold them: whole where they fit, else what there is.

    Changes ``free`` and ``reserved``.
    """
    room, left = FreeGpus(free), sum(free.values())
    for job, missing in short:
        if not left:
            break
        size = job.gpus_per_replica
        whole = min(missing, room.members(size))
        charges: Charges = [(node, size) for node in room.fit(whole, size) or ()] if whole else []
        rest = (missing - whole) * size
        for node, gpus in charges:
            room.add(node, -gpus)
        if rest:
            could = [n.name for n in nodes if n.gpus >= size and room[n.name] > 0]
            for node in sorted(could, key=lambda n: (n not in job.nodes, -room[n], n)):
                gpus = min(rest, room[node])
                room.add(node, -gpus)
                charges.append((node, gpus))
                rest -= gpus
                if not rest:
                    break
        left -= sum(gpus for _, gpus in charges)
        if charges:
            reserved.setdefault(job.key, []).extend(charges)
    free.update(room)


def _open(job: JobView, free: Mapping[str, int]) -> list[str]:
    """Planned nodes, one per member, that no bound member took."""
    return [node for node in still_open(job.nodes, (node for node, _ in job.bound)) if node in free]
