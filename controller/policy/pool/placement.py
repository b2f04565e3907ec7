"""Placement of gangs on nodes: a whole gang or nothing, packed so that the largest gaps stay free.

A job has one part or more: its gang, base rollout actors, and the workers of a group that is opened for it.
The pods of a part ask for the same number of GPUs each and never span nodes. Each goes where it fits best
(`best_fit`), the part of the larger pods first, so that large gangs find whole nodes; all parts find room at
once or none gets any. Nodes that would not have a gang (`QueueJob.avoid`) are the last it gets.

Two rooms: `NodeRoom` over named nodes, and `SlotRoom`, where any GPUs will do and only their number counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from controller.policy.actor_types import Part, Place
from controller.policy.pool.best_fit import NO_RACKS, FreeGpus, fit
from controller.policy.queueing.base import QueueJob
from controller.policy.types import JobKey, JobState

__all__ = ["AnyRoom", "NodeRoom", "Nodes", "Shape", "SlotRoom", "fit", "fit_job", "held", "shape", "workers"]

# Replicas, GPUs of each, base actors, workers of a group to open.
Shape = tuple[int, int, Part | None, Part | None]


class Nodes(NamedTuple):
    """Nodes for the pods of a job: one for each member of its gang, for each base actor, and for each worker
    of the group that is opened for it."""

    gang: tuple[str, ...]
    actors: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()

    def places(self, job: QueueJob) -> list[Place]:
        """(node, GPUs) of every pod."""
        found = [(node, job.gpus_per_replica) for node in self.gang]
        if job.base_actors is not None:
            found += [(node, job.base_actors.gpus) for node in self.actors]
        if self.workers and (opens := workers(job)) is not None:
            found += [(node, opens.gpus) for node in self.workers]
        return found

    def of(self, wanted: Shape) -> list[Place]:
        """(node, GPUs) of every pod of what has this shape."""
        _, size, actors, opens = wanted
        found = [(node, size) for node in self.gang]
        if actors is not None:
            found += [(node, actors.gpus) for node in self.actors]
        if opens is not None:
            found += [(node, opens.gpus) for node in self.workers]
        return found


def workers(job: QueueJob) -> Part | None:
    """Return the workers of the group that is opened for a job; None: none is."""
    return None if job.sharing is None else job.sharing.opens


def shape(job: QueueJob) -> Shape:
    """Return all that tells whether a job fits: two of equal shape fit or do not fit alike."""
    return job.replicas, job.gpus_per_replica, job.base_actors, workers(job)


def fit_job(free: FreeGpus, shape: Shape, avoid: tuple[str, ...] = ()) -> Nodes | None:
    """Return where all parts of a job find room at once; None: nowhere. ``free`` comes out as it was."""
    replicas, size, actors, opens = shape
    if opens is not None:
        return _fit_parts(free, (Part(replicas, size), actors or Part(0, 0), opens), avoid)
    if actors is None or not actors.pods or not actors.gpus:
        nodes = free.fit(replicas, size, avoid)
        return None if nodes is None else Nodes(nodes)
    gang = Part(replicas, size)
    first, second = (gang, actors) if size >= actors.gpus else (actors, gang)
    nodes = free.fit(*first, avoid)
    if nodes is None:
        return None
    for node in nodes:
        free.add(node, -first.gpus)
    others = free.fit(*second, avoid)
    for node in nodes:
        free.add(node, first.gpus)
    if others is None:
        return None
    return Nodes(nodes, others) if first is gang else Nodes(others, nodes)


def _fit_parts(free: FreeGpus, parts: tuple[Part, Part, Part], avoid: tuple[str, ...]) -> Nodes | None:
    """Return where three parts find room at once, those of the larger pods first; None: nowhere."""
    found: list[tuple[str, ...]] = [(), (), ()]
    taken: list[Place] = []
    for index in sorted(range(3), key=lambda i: -parts[i].gpus):
        part = parts[index]
        nodes = free.fit(*part, avoid) if part.pods else ()
        if nodes is None:
            break
        found[index] = nodes
        for node in nodes:
            free.add(node, -part.gpus)
            taken.append((node, part.gpus))
    else:
        nodes = ()
    for node, gpus in taken:
        free.add(node, gpus)
    return None if nodes is None else Nodes(*found)


def held(job: QueueJob) -> list[Place]:
    """Return (node, GPUs) charged to a job (`gpu_accounts`): bound pods, planned ones to come, actors.

    Not those of a worker group.
    """
    gang = _gang_holds(job)
    return [*gang, *job.actor_places] if job.base_actors is not None else gang


def _gang_holds(job: QueueJob) -> list[Place]:
    if not job.bound:
        return [(node, job.gpus_per_replica) for node in job.nodes]
    if job.state is not JobState.ADMITTED:
        return list(job.bound)
    planned = list(job.nodes)
    for node, _ in job.bound:
        if node in planned:
            planned.remove(node)
    missing = max(0, job.replicas - len(job.bound))
    return [*job.bound, *((node, job.gpus_per_replica) for node in planned[:missing])]


class NodeRoom:
    """A `Room` of named nodes; it remembers the nodes of each gang admitted in this pass."""

    def __init__(self, free: Mapping[str, int], racks: Mapping[str, str] = NO_RACKS) -> None:
        """``free``: GPUs per node that nobody uses. ``racks``: node -> rack, of those that name one."""
        self.free, self.racks = FreeGpus(free, racks), racks
        self.placed: dict[JobKey, Nodes] = {}
        self.asked: dict[JobKey, QueueJob] = {}  # those that open a worker group, with its workers
        self.withheld: dict[str, int] = {}  # GPUs of those who leave that somebody waits for already

    @property
    def slots(self) -> int | None:
        return None

    def take(self, job: QueueJob) -> bool:
        nodes = fit_job(self.free, shape(job), job.avoid)
        if nodes is None:
            return False
        self.place(job, nodes)
        return True

    def place(self, job: QueueJob, nodes: Nodes) -> None:
        """Reserve these nodes' GPUs, which were found free before."""
        for node, gpus in nodes.places(job):
            self.free.add(node, -gpus)
        self.placed[job.key] = nodes
        if nodes.workers:
            self.asked[job.key] = job

    def give(self, job: QueueJob) -> None:
        for node, gpus in job.bound or [(node, job.gpus_per_replica) for node in job.nodes]:
            self.free.add(node, gpus)
        for node, gpus in job.actor_places:
            self.free.add(node, gpus)

    def keep(self, job: QueueJob) -> bool:
        """Take a run's GPUs out of the room again if nobody got them; say whether that was so."""
        on = [node for node, _ in job.bound] or list(job.nodes)
        places = [(node, job.gpus_per_replica) for node in on]
        return self.withdraw((*places, *job.actor_places))

    def withdraw(self, places: Iterable[Place]) -> bool:
        """Take these GPUs out of the room if all are free; say whether that was so."""
        wanted: dict[str, int] = {}
        for node, gpus in places:
            if node in self.free:
                wanted[node] = wanted.get(node, 0) + gpus
        if any(self.free[node] < gpus for node, gpus in wanted.items()):
            return False
        for node, gpus in wanted.items():
            self.free.add(node, -gpus)
        return True

    def trial(self) -> NodeTrial:
        return NodeTrial(self)

    def bars(self, job: QueueJob) -> bool:
        return False


class NodeTrial:
    """A `Trial` over named nodes. Running gangs stay on their nodes: none is migrated.

    A gang that can only have the GPUs of runs takes them from those that come last: it is lent the GPUs of
    the last one given, then of the last but one, until it fits. So nobody is preempted for it where runs
    that come later would do, wherever those are.
    """

    def __init__(self, room: NodeRoom) -> None:
        self._room = room
        self._idle = FreeGpus(room.free)  # free now, and not taken in this trial
        self._coming = FreeGpus(room.free)  # idle, and GPUs of those who leave anyway
        self._lent = FreeGpus(room.free)  # coming, and GPUs of runs that are lent
        self._open = FreeGpus(room.free)  # coming, and GPUs of runs that could be preempted
        self._runs: list[QueueJob] = []  # that could be preempted, best first, and are not lent yet
        self._lenders: set[JobKey] = set()  # whose GPUs are in ``_lent``
        self._stay: set[JobKey] = set()  # who has kept its GPUs
        self._starts: list[tuple[QueueJob, Nodes]] = []
        self._waits: list[Place] = []  # of pods that were taken and cannot start
        self._too_large: set[Shape] = set()  # gangs that did not fit; nor do others like them
        for node, gpus in room.withheld.items():
            for counts in (self._coming, self._lent, self._open):
                counts.add(node, -gpus)

    def give(self, job: QueueJob) -> None:
        self._too_large.clear()
        leaves = job.state is not JobState.ADMITTED or job.proposal is not None
        for node, gpus in held(job):
            if self._open.add(node, gpus) and leaves:
                self._lent.add(node, gpus)
                self._coming.add(node, gpus)
        if leaves:
            self._lenders.add(job.key)
        else:
            self._runs.append(job)

    def keep(self, job: QueueJob) -> bool:
        open_ = self._open
        wanted: dict[str, int] = {}
        for node, gpus in held(job):
            if node in open_:
                wanted[node] = wanted.get(node, 0) + gpus
        for node, gpus in wanted.items():
            if open_[node] < gpus:
                return False
        self._stay.add(job.key)
        for node, gpus in wanted.items():
            open_.add(node, -gpus)
            if job.key in self._lenders:
                self._lent.add(node, -gpus)
            self._cap(node)
        return True

    def take(self, job: QueueJob) -> bool:
        wanted = shape(job)
        if wanted in self._too_large:
            return False
        nodes = fit_job(self._idle, wanted, job.avoid)
        if nodes is not None:
            places = nodes.places(job)
            self._starts.append((job, nodes))
            for node, gpus in places:
                self._idle.add(node, -gpus)
                self._coming.add(node, -gpus)
        elif (nodes := fit_job(self._coming, wanted, job.avoid)) is not None:
            # Nobody need be preempted for it.
            places = nodes.places(job)
            for node, gpus in places:
                self._coming.add(node, -gpus)
            self._waits += places
        elif (found := fit_job(self._open, wanted, job.avoid)) is None:
            self._too_large.add(wanted)
            return False
        else:
            # Until all is lent that is open, it fits, and without the nodes to avoid if it does there.
            without = set(job.avoid)
            if not without.isdisjoint((*found.gang, *found.actors)):
                without = set()
            while (nodes := fit_job(self._lent, wanted, job.avoid)) is None or not without.isdisjoint(
                (*nodes.gang, *nodes.actors)
            ):
                self._lend()
            places = nodes.places(job)
            self._waits += places
        for node, gpus in places:
            self._open.add(node, -gpus)
            self._lent.add(node, -gpus)
            self._cap(node)
        return True

    def commit(self) -> list[QueueJob]:
        for job, nodes in self._starts:
            self._room.place(job, nodes)
        return [job for job, _ in self._starts]

    def withhold(self) -> Callable[[], None]:
        room, free = self._room, self._room.free
        idle: dict[str, int] = {}
        coming: dict[str, int] = {}
        for node, gpus in self._waits:
            coming[node] = coming.get(node, 0) + gpus
        for node in coming:
            idle[node] = free[node] - self._idle[node]
            coming[node] -= idle[node]
            free.add(node, -idle[node])
        before, room.withheld = room.withheld, coming

        def give_back() -> None:
            room.withheld = before
            for node, gpus in idle.items():
                free.add(node, gpus)

        return give_back

    def _lend(self) -> None:
        """Count the GPUs of one more run as lent: the last one that neither is lent nor stays."""
        while (job := self._runs.pop()).key in self._stay:
            pass
        self._lenders.add(job.key)
        for node, gpus in held(job):
            self._lent.add(node, gpus)

    def _cap(self, node: str) -> None:
        """Lower a node's GPUs in ``_coming`` to those in ``_lent``, in ``_idle`` to those in ``_coming``."""
        self._idle.cap(node, self._coming.cap(node, self._lent[node]))


class AnyRoom:
    """A `Room` in which every gang fits, because another system places the pods; it names no node."""

    def __init__(self) -> None:
        self.free: dict[str, int] = {}
        self.placed: dict[JobKey, Nodes] = {}

    @property
    def slots(self) -> int | None:
        return None

    def take(self, job: QueueJob) -> bool:
        self.placed[job.key] = Nodes(())
        return True

    def give(self, job: QueueJob) -> None:
        """Nothing was taken."""

    def trial(self) -> AnyTrial:
        return AnyTrial(self)

    def bars(self, job: QueueJob) -> bool:
        return False


class AnyTrial:
    """A `Trial` in an `AnyRoom`."""

    def __init__(self, room: AnyRoom) -> None:
        self._room = room
        self._starts: list[QueueJob] = []

    def give(self, job: QueueJob) -> None:
        """Nothing was taken."""

    def keep(self, job: QueueJob) -> bool:
        return True

    def take(self, job: QueueJob) -> bool:
        self._starts.append(job)
        return True

    def commit(self) -> list[QueueJob]:
        for job in self._starts:
            self._room.take(job)
        return self._starts

    def withhold(self) -> Callable[[], None]:
        return lambda: None


class SlotRoom:
    """A `Room` that only counts GPUs: any of them suit any gang."""

    __slots__ = ("slots", "withheld")

    def __init__(self, slots: int) -> None:
        """``slots``: GPUs that nobody uses."""
        self.slots = slots
        self.withheld = 0  # GPUs of those who leave that somebody waits for already

    def take(self, job: QueueJob) -> bool:
        gpus = job.gpus
        if gpus > self.slots:
            return False
        self.slots -= gpus
        return True

    def give(self, job: QueueJob) -> None:
        self.slots += job.gpus

    def trial(self) -> SlotTrial:
        return SlotTrial(self)

    def bars(self, job: QueueJob) -> bool:
        return False


class SlotTrial:
    """A `Trial` that only counts GPUs."""

    __slots__ = ("_idle", "_open", "_room", "_starts", "_waits")

    def __init__(self, room: SlotRoom) -> None:
        self._room = room
        self._idle = room.slots
        self._open = room.slots - room.withheld
        self._starts: list[QueueJob] = []
        self._waits = 0  # GPUs of gangs that were taken and cannot start

    def give(self, job: QueueJob) -> None:
        self._open += job.gpus

    def keep(self, job: QueueJob) -> bool:
        return self._use(job.gpus)

    def take(self, job: QueueJob) -> bool:
        gpus = job.gpus
        if gpus > self._open:
            return False
        if gpus <= self._idle:
            self._starts.append(job)
            self._idle -= gpus
        else:
            self._waits += gpus
        return self._use(gpus)

    def commit(self) -> list[QueueJob]:
        for job in self._starts:
            self._room.take(job)
        return self._starts

    def withhold(self) -> Callable[[], None]:
        room = self._room
        idle, before = room.slots - self._idle, room.withheld
        if not self._waits:
            idle = 0
        room.slots -= idle
        room.withheld = self._waits - idle

        def give_back() -> None:
            room.slots += idle
            room.withheld = before

        return give_back

    def _use(self, gpus: int) -> bool:
        if gpus > self._open:
            return False
        self._open -= gpus
        self._idle = min(self._idle, self._open)
        return True
