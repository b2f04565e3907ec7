"""A pool's rollout actors in one pass: who returns, who is recalled for whom, who gets a spare one.

In this order. A base actor that returns has the first call on GPUs: it starts on free ones, or spare actors
are recalled for it, or where that is not enough base actors that find room elsewhere. Then the pool's policy
admits who fits, in a room (`room`) where no gang gets what a right needs, nor what was recalled for another.
For gangs that still wait, and would start were spare actors gone, these are recalled (`recall`). What nobody
could use now goes to spare actors (`grant`): to the namespace that borrows the least for its weight, in it to
the job whose step got the most shorter for each GPU, as measured. What a plan promises counts for nothing; a
job of which nothing is measured yet may have one spare actor before others, to be measured by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from controller.policy.actor_types import (
    ActorStart,
    ActorState,
    JobKey,
    KeptPlace,
    Lending,
    LendingPlan,
    Place,
    Recall,
    Reserved,
    Rollout,
)
from controller.policy.pool.best_fit import FreeGpus
from controller.policy.pool.groups import Groups
from controller.policy.pool.lending_room import LendingRoom
from controller.policy.pool.placement import Shape, fit_job, shape
from controller.policy.pool.recalling import (
    Spare,
    added,
    borrowed_by_weight,
    by_node,
    free_up,
    movable,
    needs,
    spares,
)
from controller.policy.pool.rights import pack
from controller.policy.queueing.base import QueueJob, stay_key
from controller.policy.queueing.quota_ledger import QuotaLedger
from controller.policy.types import JobState, JobView, PoolSnapshot, Waiting


@dataclass
class Loans:
    """Actors of a pool, and what one pass does about them.

    Attributes:
        free: GPUs per node that nobody uses; those that were recalled for somebody are in ``kept``.
        kept: by job, what was recalled for it and is free. ``coming``: and is not free yet.
        spare: spare actors that are still there, the first to be recalled first.
        movable: base actors that would move for a right, each with a right of its own in ``rights``.
        rights: by job, how many of its base actors may return, those that do in this pass not among them, nor
            those for which something is reserved.
        going: GPUs per node of who leaves anyhow, be it for nobody.
        groups: worker groups; None: the pool has none.
    """

    lending: Lending
    now: float
    expires: float  # of what is reserved in this pass
    racks: Mapping[str, str]
    free: dict[str, int]
    running: dict[JobKey, tuple[JobView, Rollout]]
    spare: list[Spare]
    movable: list[Spare] = field(default_factory=list)
    kept: dict[JobKey, list[Place]] = field(default_factory=dict)
    coming: dict[JobKey, list[Place]] = field(default_factory=dict)
    rights: Counter[JobKey] = field(default_factory=Counter)
    going: Counter[str] = field(default_factory=Counter)
    reserved: list[Reserved] = field(default_factory=list)
    starts: list[ActorStart] = field(default_factory=list)
    recalls: list[Recall] = field(default_factory=list)
    groups: Groups | None = None

    @classmethod
    def of(
        cls,
        snapshot: PoolSnapshot,
        free: Mapping[str, int],
        out: Collection[JobKey],
        now: float,
        going: Iterable[Place] = (),
        groups: Groups | None = None,
    ) -> Loans:
        """Take in a pool, and let its base actors return.

        Args:
            snapshot: the pool.
            free: GPUs per node, as its accounts have them.
            out: queued jobs that cannot start in this pass.
            now: time (s).
            going: (node, GPUs) of jobs that leave.
            groups: worker groups; None: the pool has none.
        """
        lending = snapshot.lending or Lending()
        every = [(job, job.rollout) for job in snapshot.jobs if job.rollout is not None]
        running = {job.key: (job, rollout) for job, rollout in every if job.state is JobState.ADMITTED}
        loans = cls(
            lending,
            now,
            expires=now + lending.recall_seconds + snapshot.reservation_seconds,
            racks={n.name: n.rack for n in snapshot.nodes if n.rack},
            free=dict(free),
            running=running,
            spare=spares((job for job, _ in running.values()), free),
            rights=Counter({key: rollout.rights for key, (_, rollout) in running.items()}),
            groups=groups,
        )
        queued = {j.key for j in snapshot.jobs if j.state is JobState.QUEUED and j.key not in out}
        loans._keep_reserved(queued)
        for node, gpus in going:
            loans.going[node] += gpus
        if not lending.enabled:
            for one in loans.spare:
                loans.recalls.append(loans._recall(one, ""))
                loans.coming.setdefault("", []).append((one.actor.node, one.actor.gpus))
            loans.spare = []
        for node, gpus in loans.coming.get("", ()):
            loans.going[node] += gpus
        loans.movable = movable(
            (job for job, _ in running.values()),
            loans._rights(),
            loans.free,
            added(by_node(loans.spare), loans.going),
        )
        loans.rights.update(one.key for one in loans.movable)
        for job in sorted((job for job, _ in running.values()), key=stay_key):
            loans._return(job)
        return loans

    # -- steps of a pass

    def room(self) -> LendingRoom:
        """Return what gangs may be admitted to."""
        terms: dict[str, Any] = {
            "rights": self._rights(),
            "spare": by_node(self.spare),
            "going": self.going,
            "movable": by_node(self.movable),
            "kept": self.kept,
            "coming": self.coming,
        }
        if self.groups is None:
            return LendingRoom(self.free, self.racks, **terms)
        room = self.groups.room(self.free, **terms)
        assert isinstance(room, LendingRoom)
        return room

    def what_if(self, room: LendingRoom) -> LendingRoom:
        """Return the room as it would be without any spare actor. ``room``: after the policy's decision."""
        every, spare = room.unclaimed(), by_node(self.spare)
        every = {node: gpus + spare.get(node, 0) for node, gpus in every.items()}
        terms: dict[str, Any] = {
            "rights": self._rights(),
            "going": self.going,
            "movable": by_node(self.movable),
        }
        if self.groups is None:
            return LendingRoom(every, self.racks, **terms)
        other = self.groups.other_room(every, **terms)
        assert isinstance(other, LendingRoom)
        return other

    def admitted(self, room: LendingRoom) -> None:
        """Go on from what the policy's decision left."""
        self.free = room.unclaimed()
        self.kept = room.kept
        self.reserved = [r for r in self.reserved if r.returning or r.target not in room.placed]

    def waits_for_recall(self, key: JobKey) -> bool:
        """Return whether actors were recalled for its admission already."""
        return any(r.target == key and not r.returning for r in self.reserved)

    def explained(self, waiting: Iterable[Waiting]) -> tuple[Waiting, ...]:
        """Return why jobs wait; of those for which actors were recalled, that."""
        found = []
        for why in waiting:
            if why.position and self.waits_for_recall(why.key):
                message = (
                    f"spare rollout actors have to go for it within {self.lending.recall_seconds:g} s; their "
                    "GPUs are kept for it"
                )
                why = Waiting(why.key, why.position, "WaitingForRecall", message)
            found.append(why)
        return tuple(found)

    def recall(self, winners: Iterable[QueueJob], room: LendingRoom) -> None:
        """Recall spare actors for gangs that would start were they gone, next one first. ``room``: the one
        where that was asked."""
        for job in winners:
            self._recall_for(job.key, shape(room.asked.get(job.key, job)), job.avoid)

    def recall_for_quota(self, barred: Iterable[JobView], ledger: QuotaLedger) -> None:
        """Recall spare actors for the first gang of each quota that they alone keep above its limit."""
        seen: set[int] = set()
        for job in barred:
            entry = ledger.entry(job.key)
            if entry is None or entry in seen or not job.gpus:
                continue
            seen.add(entry)
            limit, mine = ledger.quotas[entry].limit, []
            over = ledger.used[entry] + ledger.lent[entry] + job.gpus - (inf if limit is None else limit)
            for one in (one for one in self.spare if ledger.entry(one.key) == entry):
                if over <= 0:
                    break
                mine.append(one)
                over -= one.actor.gpus
            spare = by_node(self.spare)
            every = {node: gpus + spare.get(node, 0) for node, gpus in self.free.items()}
            if mine and over <= 0 and fit_job(FreeGpus(every), shape(job)) is not None:
                self._drop(mine, job.key)

    def grant(
        self, going: Collection[JobKey], waiting: Iterable[JobView], ledger: QuotaLedger | None
    ) -> None:
        """Start spare actors on what nobody could use now.

        Args:
            going: jobs that leave their GPUs in this pass.
            waiting: jobs that are not admitted in it.
            ledger: what each quota has in use; None: there are none.
        """
        if not self.lending.enabled:
            return
        recalled = {recall.key for recall in self.recalls}
        has = {key: len(r.staying) for key, (_, r) in self.running.items()}
        for start in self.starts:
            has[start.key] += 1
        open_ = [
            job
            for key, (job, r) in self.running.items()
            if key not in going
            and key not in recalled
            and not job.demoted
            and job.proposal is None
            and has[key] >= r.base
            and r.gpus > 0
        ]
        if not open_:
            return
        lent = borrowed_by_weight(job for job, _ in self.running.values())
        needed = _needed_within_limits(waiting, ledger)
        free = FreeGpus(self.free)

        def rank(job: JobView) -> tuple[float, float, JobKey]:
            rollout = self.running[job.key][1]
            gain = rollout.gain
            if gain is None:
                gain = inf if has[job.key] == rollout.base else 0.0
            return lent[job.namespace] + rollout.gpus / max(job.weight, 1e-9), -gain, job.key

        while open_ := [job for job in open_ if has[job.key] < self.running[job.key][1].wants]:
            job = min(open_, key=rank)
            rollout = self.running[job.key][1]
            nodes = None if _over(ledger, needed, job.key, rollout.gpus) else free.fit(1, rollout.gpus)
            if nodes is None:
                open_.remove(job)
                continue
            self._start(job.key, nodes[0], rollout, spare=True)
            free.add(nodes[0], -rollout.gpus)
            has[job.key] += 1
            lent[job.namespace] += rollout.gpus / max(job.weight, 1e-9)
            if ledger is not None:
                ledger.charge(job.key, 0, rollout.gpus)
        self.free = dict(free)

    def plan(self) -> LendingPlan:
        return LendingPlan(tuple(self.starts), tuple(self.recalls), tuple(self.reserved))

    # -- parts of them

    def _rights(self) -> list[int]:
        """GPUs of each base actor that may return."""
        return [self.running[key][1].gpus for key, count in self.rights.items() for _ in range(count)]

    def _keep_reserved(self, queued: Collection[JobKey]) -> None:
        """Take what was recalled for somebody out of the free GPUs, as long as that one waits for it."""
        leaving: dict[JobKey, Counter[str]] = {}
        for _, rollout in self.running.values():
            for actor in rollout.actors:
                if actor.state is ActorState.RECALLED and actor.node in self.free:
                    leaving.setdefault(actor.for_whom, Counter())[actor.node] += actor.gpus
        returning = {key: rollout.returning for key, (_, rollout) in self.running.items()}
        for reserved in sorted(self.lending.reserved, key=lambda r: r.expires):
            target = reserved.target
            waits = returning.get(target, 0) > 0 if reserved.returning else target in queued
            if not waits or reserved.expires <= self.now:
                continue
            comes = leaving.get(target, Counter())
            wanted: Counter[str] = Counter()
            for node, gpus in reserved.places:
                wanted[node] += gpus
            if any(self.free.get(node, 0) + comes[node] < gpus for node, gpus in wanted.items()):
                continue  # others have taken some of it, or the node is gone: it is to be recalled anew
            if reserved.returning:  # what was recalled for it counts as its own, here or still to come
                returning[target] -= 1
                self.rights[target] -= 1
            for node, gpus in wanted.items():
                here = min(gpus, self.free[node])
                self.free[node] -= here
                comes[node] -= gpus - here
                if here:
                    self.kept.setdefault(target, []).append((node, here))
                if gpus > here:
                    self.coming.setdefault(target, []).append((node, gpus - here))
            self.reserved.append(reserved)
        rest = [(node, gpus) for comes in leaving.values() for node, gpus in (+comes).items()]
        if rest:
            self.coming[""] = rest

    def _return(self, job: JobView) -> None:
        """Start a job's base actors that return, or recall spare ones for them."""
        rollout = self.running[job.key][1]
        mine = [r for r in self.reserved if r.target == job.key and r.returning]
        for reserved in mine:
            kept = self.kept.get(job.key, [])
            if all(place in kept for place in reserved.places):
                for place in reserved.places:
                    kept.remove(place)
                    self._start(job.key, place[0], rollout)
                self.reserved.remove(reserved)
        for _ in range(rollout.returning - len(mine)):
            self.rights[job.key] -= 1
            node = self._room_for(rollout.gpus)
            if node is not None:
                self.free[node] -= rollout.gpus
                self._start(job.key, node, rollout)
            elif not self._recall_for(job.key, (1, rollout.gpus, None, None), (), returning=True):
                self.rights[job.key] += 1
                return

    def _room_for(self, gpus: int) -> str | None:
        """Return a node with so many free GPUs of which no other right needs one."""
        rights, spare = self._rights(), added(by_node((*self.spare, *self.movable)), self.going)
        packed = pack(rights, self.free, spare)
        room = FreeGpus({node: have - packed.on_free.get(node, 0) for node, have in self.free.items()})
        if (found := room.fit(1, gpus)) is not None:
            return found[0]
        for node in sorted(self.free, key=lambda n: (self.free[n], n)):
            if self.free[node] >= gpus:
                left = {**self.free, node: self.free[node] - gpus}
                if pack(rights, left, spare).short <= packed.short:
                    return node
        return None

    def _recall_for(
        self,
        key: JobKey,
        wanted: Shape,
        avoid: tuple[str, ...],
        returning: bool = False,
    ) -> bool:
        """Recall spare actors for one that needs GPUs and reserve these; return whether that was done.

        For a base actor that returns others move where they have to.
        """
        rights, racks = self._rights(), self.racks
        going = added(self.going, by_node(self.movable))
        freed = free_up(wanted, avoid, self.free, self.spare, rights, racks, going)
        if freed is None and returning and self.movable:
            borrowers = [*self.spare, *self.movable]
            freed = free_up(wanted, avoid, self.free, borrowers, rights, racks, self.going)
        if freed is None or not freed.lenders:
            return False
        self._drop(freed.lenders, key)
        places = needs(freed.nodes, wanted)
        kept = tuple(KeptPlace(*place) for place in places)
        self.reserved.append(Reserved(key, kept, self.expires, returning))
        for node, gpus in places:
            here = min(gpus, self.free[node])
            self.free[node] -= here
            if here:
                self.kept.setdefault(key, []).append((node, here))
            if gpus > here:
                self.coming.setdefault(key, []).append((node, gpus - here))
        return True

    def _drop(self, lenders: Sequence[Spare], for_whom: JobKey) -> None:
        self.recalls += [self._recall(one, for_whom) for one in lenders]
        self.spare = [one for one in self.spare if one not in lenders]
        self.movable = [one for one in self.movable if one not in lenders]

    def _recall(self, one: Spare, for_whom: JobKey) -> Recall:
        return Recall(one.key, one.actor.number, for_whom, self.now + self.lending.recall_seconds)

    def _start(self, key: JobKey, node: str, rollout: Rollout, spare: bool = False) -> None:
        number = rollout.next + sum(start.key == key for start in self.starts)
        self.starts.append(ActorStart(key, number, node, rollout.gpus, spare))


def _needed_within_limits(waiting: Iterable[JobView], ledger: QuotaLedger | None) -> dict[int, int]:
    """Return, by quota, GPUs of the largest job that waits and lies within its limit without spare actors."""
    found: dict[int, int] = {}
    for job in waiting if ledger is not None else ():
        assert ledger is not None
        entry = ledger.entry(job.key)
        limit = None if entry is None else ledger.quotas[entry].limit
        if entry is not None and limit is not None and ledger.used[entry] + job.gpus <= limit:
            found[entry] = max(job.gpus, found.get(entry, 0))
    return found


def _over(ledger: QuotaLedger | None, needed: Mapping[int, int], key: JobKey, gpus: int) -> bool:
    """Return whether one more spare actor would bring a quota above its limit, or so near to it that a job of
    it that waits could not start."""
    if ledger is None:
        return False
    entry = ledger.entry(key)
    return ledger.bars(key, gpus + (0 if entry is None else needed.get(entry, 0)))
