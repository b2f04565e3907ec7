"""A room in which some GPUs are spoken for: rights of return, and what was recalled for somebody.

No gang starts on GPUs that a right needs: after every start all rights that fitted before still fit at once,
into free GPUs and those of spare actors. (Of base actors, too, where one has to move for a right:
`recalling.movable`.) What was recalled for a job is there for that job alone. GPUs of
spare actors count as those of jobs that leave: nobody is preempted where a recall would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controller.policy.actor_types import JobKey, Place
from controller.policy.pool.best_fit import NO_RACKS, FreeGpus
from controller.policy.pool.placement import NodeRoom, Nodes, NodeTrial, Shape, fit_job, held, shape
from controller.policy.pool.rights import pack
from controller.policy.queueing.base import QueueJob
from controller.policy.types import JobState


class LendingRoom(NodeRoom):
    """A `NodeRoom` whose ``free`` are GPUs that nobody has a claim to."""

    def __init__(
        self,
        free: Mapping[str, int],
        racks: Mapping[str, str] = NO_RACKS,
        *,
        rights: Sequence[int] = (),
        spare: Mapping[str, int] | None = None,
        going: Mapping[str, int] | None = None,
        movable: Mapping[str, int] | None = None,
        kept: Mapping[JobKey, Sequence[Place]] | None = None,
        coming: Mapping[JobKey, Sequence[Place]] | None = None,
    ) -> None:
        """Set rights aside.

        Args:
            free: GPUs per node that nobody uses; those in ``kept`` are not among them.
            racks: node -> rack.
            rights: GPUs of each base actor that may return.
            spare: GPUs per node of spare actors that could be recalled.
            going: GPUs per node of who leaves anyhow: rights are placed there first of all.
            movable: GPUs per node of base actors that would move for a right, and for nobody else: rights are
                placed there last of all.
            kept: GPUs that were recalled for a job and are free.
            coming: GPUs that were recalled for a job and are not free yet; under "" those recalled for
                nobody.
        """
        self.rights, self.spare, self._going = tuple(rights), dict(spare or {}), dict(going or {})
        self.movable = dict(movable or {})
        self._backing = dict(Counter(self.spare) + Counter(self._going) + Counter(self.movable))
        self.kept = {key: list(places) for key, places in (kept or {}).items()}
        self.coming = {key: list(places) for key, places in (coming or {}).items()}
        packed = pack(self.rights, free, self._backing)
        self.short = packed.short  # rights that find no room whatever starts: others have taken it
        self.aside = packed.on_free  # GPUs per node that are free, and set aside for rights
        self._borrowed = packed.on_spare
        self._no_room: set[Shape] = set()  # what did not fit, however rights are placed
        super().__init__(_less(free, self.aside), racks)

    def unclaimed(self) -> dict[str, int]:
        """Free GPUs per node, those set aside for rights among them."""
        return {node: gpus + self.aside.get(node, 0) for node, gpus in self.free.items()}

    def recallable(self) -> dict[str, int]:
        """GPUs per node of spare actors that no right is placed on."""
        return {
            node: left
            for node, gpus in self.spare.items()
            if node in self.free
            and (left := gpus - max(0, self._borrowed.get(node, 0) - self._going.get(node, 0))) > 0
        }

    def for_rights(self) -> dict[str, int]:
        """GPUs per node on which rights are placed, and on which somebody else could be: free ones, those of
        spare actors and of who leaves."""
        found = dict(self.aside)
        for node, gpus in self._borrowed.items():
            others = self.spare.get(node, 0) + self._going.get(node, 0)
            found[node] = found.get(node, 0) + min(gpus, others)
        return found

    def rights_on_going(self) -> dict[str, int]:
        """GPUs per node of who leaves anyhow on which rights are placed."""
        return {node: min(gpus, self._going.get(node, 0)) for node, gpus in self._borrowed.items()}

    def place_rights(self) -> None:
        """Place rights anew, on what is there by now."""
        free = self.unclaimed()
        packed = pack(self.rights, free, self._backing)
        for node, gpus in free.items():
            self.free[node] = gpus - packed.on_free.get(node, 0)
        self.aside, self._borrowed = packed.on_free, packed.on_spare

    def take(self, job: QueueJob) -> bool:
        mine = self._unlock(job.key)
        if super().take(job) or self._take_otherwise(job):
            return True
        if mine:
            self.kept[job.key] = mine
            for node, gpus in mine:
                self.free.add(node, -gpus)
        return False

    def place(self, job: QueueJob, nodes: Nodes) -> None:
        self._unlock(job.key)
        super().place(job, nodes)

    def give(self, job: QueueJob) -> None:
        self._no_room.clear()
        super().give(job)

    def trial(self) -> LendingTrial:
        return LendingTrial(self)

    def _unlock(self, key: JobKey) -> list[Place]:
        """Count what was recalled for a job as free."""
        mine = self.kept.pop(key, [])
        for node, gpus in mine:
            self.free.add(node, gpus)
        if mine:
            self._no_room.clear()
        return mine

    def _take_otherwise(self, job: QueueJob) -> bool:
        """Take a job that fits if rights are placed otherwise."""
        wanted = shape(job)
        if not self.aside or wanted in self._no_room:
            return False
        free = self.unclaimed()
        nodes = fit_job(FreeGpus(free, self.racks), wanted, job.avoid)
        if nodes is not None:
            left = dict(free)
            for node, gpus in nodes.places(job):
                left[node] -= gpus
            packed = pack(self.rights, left, self._backing)
            if packed.short <= self.short:
                for node, gpus in free.items():
                    self.free[node] = gpus - packed.on_free.get(node, 0)
                self.aside, self._borrowed = packed.on_free, packed.on_spare
                self.place(job, nodes)
                return True
        self._no_room.add(wanted)
        return False


class LendingTrial(NodeTrial):
    """A `Trial` in a `LendingRoom`. Rights are placed otherwise where that lets a job start, or wait for a
    recall, that would else have somebody preempted."""

    def __init__(self, room: LendingRoom) -> None:
        super().__init__(room)
        self._lending = room
        self._on_going = room.rights_on_going()
        for node, gpus in [*room.recallable().items(), *self._left_by_rights(room.coming.get("", ()))]:
            for counts in (self._coming, self._lent, self._open):
                counts.add(node, gpus)
        self._there = FreeGpus(room.unclaimed(), room.racks)  # free now, set aside for rights or not
        self._for_rights = room.for_rights()

    def take(self, job: QueueJob) -> bool:
        kept = self._lending.kept.get(job.key, [])
        coming = self._lending.coming.get(job.key, [])
        if not kept and not coming:
            return self._take(job)
        now = (self._idle, self._there)
        every = (*now, self._coming, self._lent, self._open)
        before = [{node: counts[node] for node, _ in (*kept, *coming) if node in counts} for counts in every]
        for counts in every:
            for node, gpus in kept if any(counts is one for one in now) else (*kept, *coming):
                counts.add(node, gpus)
        self._too_large.discard(shape(job))
        taken = self._take(job)
        self._too_large.discard(shape(job))
        # What it leaves of it is for nobody else, as long as it has not started.
        for counts, had in zip(every, before, strict=True):
            for node, gpus in had.items():
                counts.cap(node, gpus)
        return taken

    def give(self, job: QueueJob) -> None:
        super().give(job)
        if job.state is JobState.ADMITTED:
            return
        places = held(job)
        for (node, gpus), (_, left) in zip(places, self._left_by_rights(places), strict=True):
            if left < gpus:
                for counts in (self._coming, self._lent, self._open):
                    counts.add(node, left - gpus)

    def _left_by_rights(self, places: Sequence[Place]) -> list[Place]:
        """Return what is left of GPUs of who leaves, once rights that are placed there have theirs."""
        found = []
        for node, gpus in places:
            taken = min(gpus, self._on_going.get(node, 0))
            if taken:
                self._on_going[node] -= taken
            found.append((node, gpus - taken))
        return found

    def commit(self) -> list[QueueJob]:
        started = super().commit()
        if self._lending.rights:
            self._lending.place_rights()
            for node, gpus in self._lending.free.items():
                self._idle.cap(node, max(0, gpus))
        return started

    def _take(self, job: QueueJob) -> bool:
        wanted = shape(job)
        if wanted in self._too_large:
            return False
        if fit_job(self._idle, wanted, job.avoid) is None and self._lending.rights:
            if self._take_otherwise(job, self._there, starts=True):
                return True
            if fit_job(self._coming, wanted, job.avoid) is None:
                whole = {node: gpus + self._for_rights.get(node, 0) for node, gpus in self._coming.items()}
                if self._take_otherwise(job, FreeGpus(whole, self._lending.racks), starts=False):
                    return True
        before = len(self._starts)
        taken = super().take(job)
        for started, nodes in self._starts[before:]:
            for node, gpus in nodes.places(started):
                self._there.add(node, -gpus)
        return taken

    def _take_otherwise(self, job: QueueJob, room: FreeGpus, *, starts: bool) -> bool:
        """Take a job that finds its GPUs in ``room``, if all rights find theirs in what is left."""
        nodes = fit_job(room, shape(job), job.avoid)
        if nodes is None:
            return False
        places = nodes.places(job)
        left = {node: gpus + self._for_rights.get(node, 0) for node, gpus in self._coming.items()}
        for node, gpus in places:
            left[node] -= gpus
        if min(left.values()) < 0:
            return False
        packed = pack(self._lending.rights, left, self._lending.movable)
        if packed.short > self._lending.short:
            return False
        self._for_rights = packed.on_free
        for node, gpus in left.items():
            more = gpus - packed.on_free.get(node, 0) - self._coming[node]
            if more:
                for counts in (self._coming, self._lent, self._open):
                    counts.add(node, more)
        if starts:
            self._starts.append((job, nodes))
            for node, gpus in places:
                self._there.add(node, -gpus)
        else:
            self._waits += places
        for node, gpus in self._there.items():
            self._idle.cap(node, max(0, min(gpus, self._coming[node])))
        return True


def _less(free: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, int]:
    return {node: gpus - taken.get(node, 0) for node, gpus in free.items()}
