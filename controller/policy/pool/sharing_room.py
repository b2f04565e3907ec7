"""Rooms in which a job may get a residency in a worker group instead of GPUs of its own.

A residency and private GPUs come together or not at all. A group's GPUs are given to nobody while it has a
resident that stays: a policy that preempts gets them all at once, if every resident comes after the one that
asks (`SharedTrial`). GPUs of groups without residents, and of groups that are closing, count as those of jobs
that leave: nobody is preempted where they would do. A residency that a leaving job still has is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.policy.actor_types import JobKey, Place
from controller.policy.group_types import GROUPS_NAMESPACE, group_key
from controller.policy.pool.best_fit import NO_RACKS, FreeGpus
from controller.policy.pool.lending_room import LendingRoom, LendingTrial
from controller.policy.pool.placement import NodeRoom, NodeTrial, fit_job, held, shape
from controller.policy.pool.residencies import NOBODY, Residencies, Residency
from controller.policy.queueing.base import QueueJob
from controller.policy.types import JobState, JobView


class SharedRoom(NodeRoom):
    """A `NodeRoom` with worker groups.

    Attributes:
        residencies: who is where, as of this pass.
        coming_groups: (node, GPUs) of groups that are closing.
    """

    residencies: Residencies
    coming_groups: tuple[Place, ...]

    def take(self, job: QueueJob) -> bool:
        if job.sharing is None:
            return super().take(job)
        for way in self.residencies.ways(job):
            if super().take(way.asks(job)):
                self.residencies.settle(job, way)
                return True
        self.residencies.refuse(job, self.unused())
        return False

    def give(self, job: QueueJob) -> None:
        """Count a job's GPUs as free, and its group's if it was the last resident."""
        super().give(job)
        name = self.residencies.leave(job.key)
        if name is not None:
            self.dissolve(name)

    def let_go(self, key: JobKey) -> bool:
        """Let a job leave, or a group that is empty; say whether its own GPUs come free by that."""
        namespace, _, name = key.partition("/")
        if namespace != GROUPS_NAMESPACE:
            self.residencies.leave(key)
            return True
        group = self.residencies.groups.get(name)
        if group is not None and group.residents:
            return False
        self.residencies.groups.pop(name, None)
        return True

    def dissolve(self, name: str) -> bool:
        """Count the GPUs of a group as free if it has no residents; say whether that was so."""
        group = self.residencies.groups.get(name)
        if group is None or group.residents:
            return False
        del self.residencies.groups[name]
        for node, gpus in self.residencies.places[name]:
            self.free.add(node, gpus)
        return True

    def keep(self, job: QueueJob) -> bool:
        asked = job.sharing
        if asked is None or not asked.group:
            return super().keep(job)
        before = self.residencies.groups.get(asked.group)
        places = self.residencies.places.get(asked.group, ())
        if before is None and not self.withdraw(places):
            return False  # others have its group's GPUs
        if self.residencies.rejoin(job, asked.group) and super().keep(job):
            return True
        self.residencies.leave(job.key)
        self.dissolve(asked.group)
        return False

    def trial(self) -> SharedTrial:
        return SharedTrial(self)

    def unused(self) -> int:
        """Return GPUs that nobody uses."""
        return sum(max(0, gpus) for gpus in self.free.values())


class SharedTrial(NodeTrial):
    """A `Trial` in a `SharedRoom`: whole groups are taken, or none of a group."""

    def __init__(self, room: SharedRoom) -> None:
        super().__init__(room)
        self._shared = room
        self._homes = room.residencies.copy()
        self._gone = set(self._homes.leaving)  # residents that leave anyway
        self._given: dict[str, set[JobKey]] = {}  # by group, residents whose GPUs were given
        self._counted: dict[str, tuple[FreeGpus, ...]] = {}  # groups whose GPUs are counted, and where
        self._stands: dict[str, JobView] = {}  # by group, what stands for it among runs
        self._lost: set[str] = set()  # groups whose GPUs somebody better has
        self._asked: dict[JobKey, tuple[QueueJob, Residency]] = {}
        self._awaited: set[str] = set()  # groups of which a residency is waited for
        for node, gpus in room.coming_groups:
            for counts in (self._coming, self._lent, self._open):
                counts.add(node, gpus)
        for name, group in self._homes.groups.items():
            self._given[name] = {one.key for one in group.residents if one.key in self._gone}
            if len(self._given[name]) == len(group.residents) and name not in self._homes.withheld:
                self._count(name, (self._coming, self._lent, self._open))

    def give(self, job: QueueJob) -> None:
        super().give(job)
        name = self._homes.home.get(job.key)
        if name is None or name not in self._homes.groups or name in self._counted:
            return
        given = self._given[name]
        given.add(job.key)
        if job.state is not JobState.ADMITTED or job.proposal is not None:
            self._gone.add(job.key)
        elif name not in self._stands:
            # Before the best of its residents: its GPUs are lent after all of them were.
            self._stands[name] = stand = self._stand_in(name)
            self._stay.add(stand.key)
            self._runs.insert(len(self._runs) - 1, stand)
        if all(one.key in given for one in self._homes.groups[name].residents):
            self._all_given(name)

    def keep(self, job: QueueJob) -> bool:
        name = self._homes.home.get(job.key)
        if name is None or name not in self._counted:
            return name not in self._lost and super().keep(job)
        places = (*held(job), *self._homes.places[name])
        if not _there(self._open, self._homes.places[name]):
            self._lose(name)
            return False
        return _there(self._open, places) and self._claim(name) and super().keep(job)

    def take(self, job: QueueJob) -> bool:
        if job.sharing is None:
            return super().take(job)
        for stage, counts in enumerate((self._idle, self._coming, self._open)):
            gone = self._gone if stage else NOBODY
            for way in self._homes.ways(job, gone):
                if self._take_way(job, way, counts, waits=bool(gone) and way.opens is None):
                    return True
        self._homes.refuse(job, self._shared.unused())
        return False

    def commit(self) -> list[QueueJob]:
        started = super().commit()
        found = []
        names: dict[str, str] = {}  # groups that are opened have another number here: not all of them start
        for asked in started:
            job, way = self._asked.get(asked.key, (asked, None))
            if way is not None:
                name = way.group
                if way.opens is not None:
                    names[name] = self._shared.residencies.next_name
                self._shared.residencies.settle(job, replace(way, group=names.get(name, name)))
            found.append(job)
        return found

    def withhold(self) -> Callable[[], None]:
        give_back = super().withhold()
        residencies = self._shared.residencies
        before = residencies.withheld
        used = {name for name in self._counted if not _there(self._coming, self._homes.places[name])}
        residencies.withheld = before | self._awaited | used

        def give_all_back() -> None:
            residencies.withheld = before
            give_back()

        return give_all_back

    # -- parts

    def _take_way(self, job: QueueJob, way: Residency, counts: FreeGpus, *, waits: bool) -> bool:
        """Take a job in one way, if its private GPUs are in ``counts``. ``waits``: for a residency that is
        not free yet."""
        asked = way.asks(job)
        name, places = way.group, self._homes.places.get(way.group, ())
        if name in self._lost:
            return False
        claims = name in self._counted
        if claims:
            if not _there(counts if counts is not self._idle else self._coming, places):
                return False
            undo = self._before(places)
            if not self._claim(name):
                return False
        # What was recalled for it is in no count: in the end every way is tried.
        if counts is self._open or fit_job(counts, shape(asked), asked.avoid) is not None:
            before = len(self._starts)
            if super().take(asked):
                if waits and len(self._starts) > before:
                    started, nodes = self._starts.pop()
                    self._waits += nodes.places(started)
                self._asked[job.key] = (job, way)
                self._homes.settle(job, way)
                if len(self._starts) == before:
                    self._awaited.add(name)
                    if way.opens is not None:  # nobody joins a group that is not there yet
                        self._homes.withheld |= {name}
                return True
        if claims:
            undo()
            self._too_large.discard(shape(asked))
        return False

    def _all_given(self, name: str) -> None:
        """Count a group's GPUs as its residents': all leave, or all may be preempted."""
        if all(one.key in self._gone for one in self._homes.groups[name].residents):
            self._count(name, (self._coming, self._lent, self._open))
            return
        stand = self._stands[name]
        self._stay.discard(stand.key)
        if not any(run is stand for run in self._runs):
            self._runs.insert(0, stand)
        self._count(name, (self._open,))

    def _count(self, name: str, where: tuple[FreeGpus, ...]) -> None:
        self._too_large.clear()
        self._counted[name] = where
        for node, gpus in self._homes.places[name]:
            for counts in where:
                counts.add(node, gpus)

    def _claim(self, name: str) -> bool:
        """Let a group whose GPUs are counted keep them; say whether they were there."""
        where, places = self._counted[name], self._homes.places[name]
        if not all(_there(counts, places) for counts in where):
            return False
        del self._counted[name]
        stand = self._stands.get(name)
        if len(where) == 1 and stand is not None:
            return super().keep(stand)
        for node, gpus in places:
            for counts in where:
                counts.add(node, -gpus)
        for node, _ in places:
            if node in self._idle:
                self._cap(node)
        return True

    def _lose(self, name: str) -> None:
        del self._counted[name]
        self._lost.add(name)

    def _before(self, places: Iterable[Place]) -> Callable[[], None]:
        """Return what brings back the counts of these nodes, and what groups are counted."""
        nodes = {node for node, _ in places if node in self._open}
        every = (self._idle, self._coming, self._lent, self._open)
        had = [(counts, {node: counts[node] for node in nodes}) for counts in every]
        counted, stay = dict(self._counted), set(self._stay)

        def undo() -> None:
            self._counted, self._stay = counted, stay
            for counts, amounts in had:
                for node, gpus in amounts.items():
                    counts[node] = gpus

        return undo

    def _stand_in(self, name: str) -> JobView:
        """Return a run that holds the GPUs of a group."""
        places = self._homes.places[name]
        return JobView(group_key(name), 0.0, 0, len(places), 0, state=JobState.ADMITTED, bound=places)


class SharedLendingRoom(SharedRoom, LendingRoom):
    """A `LendingRoom` with worker groups. Their GPUs are lent to nobody, and no right is placed on them."""

    def trial(self) -> SharedLendingTrial:
        return SharedLendingTrial(self)

    def unused(self) -> int:
        return sum(max(0, gpus) for gpus in self.unclaimed().values())


class SharedLendingTrial(SharedTrial, LendingTrial):
    """A `SharedTrial` in a `SharedLendingRoom`."""

    def __init__(self, room: SharedLendingRoom) -> None:
        super().__init__(room)


def sharing_room(
    residencies: Residencies | None,
    closing: Iterable[Place],
    free: Mapping[str, int],
    racks: Mapping[str, str] = NO_RACKS,
    **lending: Any,
) -> NodeRoom:
    """Return a room: with groups if there are ``residencies``, with rollout actors if there is ``lending``.

    Args:
        residencies: changed by the room; None: the pool has no groups.
        closing: (node, GPUs) of groups that are closing.
        free: GPUs per node that nobody uses.
        racks: node -> rack.
        lending: as `LendingRoom` takes it.
    """
    if residencies is None:
        return LendingRoom(free, racks, **lending) if lending else NodeRoom(free, racks)
    room = SharedLendingRoom(free, racks, **lending) if lending else SharedRoom(free, racks)
    room.residencies, room.coming_groups = residencies, tuple(closing)
    return room


def _there(counts: FreeGpus, places: Iterable[Place]) -> bool:
    """Return whether all these GPUs are among ``counts``; nodes that it does not know do not matter."""
    wanted: dict[str, int] = {}
    for node, gpus in places:
        if node in counts:
            wanted[node] = wanted.get(node, 0) + gpus
    return all(counts[node] >= gpus for node, gpus in wanted.items())
