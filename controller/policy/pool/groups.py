"""A pool's worker groups in one pass: their account, which are closed to newcomers, who leaves, which close.

*The account.* A group's GPUs are charged to it from its opening until its pods are gone, as a gang's are
(`gpu_accounting`). They are lent to nobody, and a group is opened on GPUs only to which nobody has a right.
Its residents pay for them: the first ones that came one GPU more each where they do not divide, so that the
shares of a group sum to its GPUs, in quotas and in every rank.

*Closing for an overdue job.* While a job that has waited too long gets no room, the groups whose GPUs or
residencies it waits for take nobody in. So they are empty once their present residents have ended, and the
bound on waits (`queueing.ageing`) holds with groups, too.

*Closing a group.* One without residents goes at once while somebody waits, else after `idle_seconds`; one
whose pods found no nodes in time, or were not ready, goes, and its residents back into the queue. One that
does not answer goes, once nobody who stays is in it: its word that the others are gone may never come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.policy.actor_types import JobKey, Place
from controller.policy.group_types import (
    SILENT,
    ClosedGroup,
    GroupClosing,
    GroupOpening,
    GroupsPlan,
    GroupView,
    PoolSharing,
)
from controller.policy.pool.best_fit import FreeGpus
from controller.policy.pool.gpu_accounting import LEAVING, GpuAccounts, stand_in
from controller.policy.pool.group_plan import SILENCE
from controller.policy.pool.placement import NodeRoom, fit_job, shape
from controller.policy.pool.residencies import Residencies, silence
from controller.policy.pool.sharing_room import SharedRoom, sharing_room
from controller.policy.queueing import MAX_WAIT
from controller.policy.queueing.ageing import overdue
from controller.policy.queueing.base import stay_key
from controller.policy.queueing.quota_ledger import charged
from controller.policy.sharing import Slowness, reserve, too_slow
from controller.policy.types import JobState, JobView, PoolSnapshot, Preemption

SLOWS_OTHERS, NO_NODES, NOT_READY = "SlowsOthers", "GroupFoundNoNodes", "GroupNotReady"
EMPTY, WANTED = "Empty", "GPUsWanted"


def stand_ins(sharing: PoolSharing | None) -> tuple[JobView, ...]:
    """Return groups as gangs among jobs, for accounts and reservations."""
    return tuple(map(stand_in, sharing.groups)) if sharing is not None else ()


def with_shares(snapshot: PoolSnapshot) -> PoolSnapshot:
    """Return the snapshot with the share of a group in each job's view: of residents what is charged to them,
    of those that wait the whole group that may be opened for them."""
    sharing = snapshot.sharing
    if sharing is None or all(job.sharing is None for job in snapshot.jobs):
        return snapshot
    of_residents = _shares(sharing, snapshot.jobs)
    whole = {terms.name: terms.replicas * terms.gpus for terms in sharing.families}
    jobs = []
    for job in snapshot.jobs:
        if job.sharing is not None:
            share = of_residents.get(job.key)
            if share is None:
                share = whole.get(job.sharing.family, 0) if job.state is JobState.QUEUED else 0
            job = replace(job, sharing=replace(job.sharing, share=share))
        jobs.append(job)
    return replace(snapshot, jobs=tuple(jobs))


def shares(snapshot: PoolSnapshot) -> dict[JobKey, int]:
    """Return how many of its group's GPUs each resident stands for."""
    return {} if snapshot.sharing is None else _shares(snapshot.sharing, snapshot.jobs)


def _shares(sharing: PoolSharing, jobs: Iterable[JobView]) -> dict[JobKey, int]:
    residents: dict[str, list[JobView]] = {}
    for job in jobs:
        if job.sharing is not None and job.sharing.group and job.state is not JobState.QUEUED:
            residents.setdefault(job.sharing.group, []).append(job)
    found: dict[JobKey, int] = {}
    for group in sharing.groups:
        mine = residents.get(group.name, [])
        mine.sort(key=lambda job: (job.sharing.since if job.sharing is not None else 0.0, job.key))
        for number, job in enumerate(mine):
            each, more = divmod(group.replicas * group.gpus, len(mine))
            found[job.key] = each + (number < more)
    return found


@dataclass
class Groups:
    """A pool's groups, and what one pass does about them.

    Attributes:
        stands: groups as gangs, by name.
        residencies: as of this pass.
        late: groups whose pods found no nodes in time.
    """

    snapshot: PoolSnapshot
    sharing: PoolSharing
    accounts: GpuAccounts
    now: float
    racks: Mapping[str, str]
    residencies: Residencies
    stands: Mapping[str, JobView]
    late: frozenset[str]
    closings: list[GroupClosing] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: PoolSnapshot, accounts: GpuAccounts, now: float) -> Groups | None:
        """Return them; None: the pool offers no sharing.

        Args:
            snapshot: the pool, with shares (`with_shares`).
            accounts: those of its groups among them.
            now: time (s).
        """
        sharing = snapshot.sharing
        if sharing is None:
            return None
        stands = {view.name: stand for view, stand in zip(sharing.groups, stand_ins(sharing), strict=True)}
        late = frozenset(view.name for view in sharing.groups if _is_late(view, sharing, now))
        going = replace(
            sharing, groups=tuple(replace(g, closing=g.closing or g.name in late) for g in sharing.groups)
        )
        places = {name: accounts.account(stand) for name, stand in stands.items()}
        residencies = Residencies(going, snapshot.jobs, places, now)
        racks = {n.name: n.rack for n in snapshot.nodes if n.rack}
        return cls(snapshot, sharing, accounts, now, racks, residencies, stands, late)

    # -- before the policy is asked

    def within_limits(self) -> PoolSnapshot:
        """Return the snapshot with jobs that may have a residency only, because a group of their own would
        bring their namespace above its limit: they count for their private GPUs alone."""
        snapshot = self.snapshot
        if not snapshot.quotas:
            return snapshot
        ledger = charged(snapshot.quotas, snapshot.jobs)
        jobs = []
        for job in snapshot.jobs:
            if job.sharing is not None and job.state is JobState.QUEUED and ledger.bars(job.key, job.gpus):
                joins = replace(job, sharing=replace(job.sharing, share=0, may_open=False))
                if any(True for _ in self.residencies.ways(joins)):
                    job = joins
            jobs.append(job)
        self.snapshot = replace(snapshot, jobs=tuple(jobs))
        return self.snapshot

    def joins(self, job: JobView) -> bool:
        """Return whether a group that is there takes a job that waits."""
        return any(way.opens is None for way in self.residencies.ways(job))

    def close_for_overdue(self, competing: Callable[[JobKey], bool]) -> None:
        """Close groups to newcomers for the job that is overdue the longest, if it gets no room now."""
        most = self.snapshot.policy.params.get(MAX_WAIT)
        if not isinstance(most, (int, float)) or isinstance(most, bool):
            return
        late = [
            job
            for job in self.snapshot.jobs
            if job.state is JobState.QUEUED and competing(job.key) and overdue(job, most, self.now)
        ]
        if not late or not self.residencies.groups:
            return
        first = min(late, key=stay_key)
        free = dict(self.accounts.free)
        if not self.other_room(free).take(first):
            self.residencies.overdue = dict.fromkeys(self._waits_for(first, free), first.key)

    def _waits_for(self, job: JobView, free: Mapping[str, int]) -> Iterable[str]:
        """Return the groups whose GPUs or residencies a job waits for."""
        residencies = self.residencies
        if job.sharing is not None:
            supply = residencies.supply(sum(free.values()))
            kept = reserve(
                residencies.resident(job), supply, residencies.settings, residencies.now, overdue=True
            )
            return kept.groups if kept is not None else ()
        # Those first that are empty the soonest, as many as it needs; all, if it waits for others, too.
        room = FreeGpus(free, self.racks)
        for other in self.snapshot.jobs:
            if other.state in LEAVING:
                for node, gpus in self.accounts.account(other):
                    room.add(node, gpus)
        needed: list[str] = []
        for name in sorted(residencies.groups, key=self._empties):
            if fit_job(room, shape(job), job.avoid) is not None:
                break
            needed.append(name)
            for node, gpus in residencies.places[name]:
                room.add(node, gpus)
        return needed

    def _empties(self, name: str) -> tuple[float, int, str]:
        residents = self.residencies.groups[name].residents
        ends = [float("inf") if one.ends is None else float(one.ends) for one in residents]
        return max(ends, default=0.0), len(residents), name

    def room(self, free: Mapping[str, int], **lending: Any) -> NodeRoom:
        """Return the room of this pass, in which residencies are given.

        Args:
            free: GPUs per node that nobody uses.
            lending: as `LendingRoom` takes it.
        """
        return sharing_room(self.residencies, self.coming(), free, self.racks, **lending)

    def other_room(self, free: Mapping[str, int], **lending: Any) -> SharedRoom:
        """Return a room for a what-if; what comes free of groups that close is not in it."""
        room = sharing_room(self.residencies.copy(), (), free, self.racks, **lending)
        assert isinstance(room, SharedRoom)
        return room

    def coming(self) -> list[Place]:
        """(node, GPUs) of groups that close."""
        closing = (stand for name, stand in self.stands.items() if name not in self.residencies.groups)
        return [place for stand in closing for place in self.accounts.account(stand)]

    # -- after it

    def must_leave(self, going: Iterable[JobKey]) -> list[Preemption]:
        """Return residents that have to leave: of groups without nodes all, and who slows others too much."""
        out = set(going)
        runs = {
            job.key: job
            for job in self.snapshot.jobs
            if job.sharing is not None and job.state is JobState.ADMITTED and job.key not in out
        }
        found = [
            Preemption(key, NO_NODES if self._unbound(job.sharing.group) else NOT_READY)
            for key, job in runs.items()
            if job.sharing is not None and job.sharing.group in self.late
        ]
        starts = {view.name for view in self.sharing.groups if not view.ready}
        for group in self.residencies.groups.values():
            if group.name in starts:
                continue  # nobody trains in it; what was measured is of its start before
            stay = [one for one in group.residents if one.key in runs]
            if len(stay) < len(group.residents):
                continue  # somebody leaves, or has just come
            measured = {one.key: _slowness(runs[one.key]) for one in stay}
            slow = too_slow(stay, measured)
            if slow is not None and runs[slow.leaves].preemptible:
                found.append(Preemption(slow.leaves, SLOWS_OTHERS))
        return found

    def close(self, waits: bool) -> list[JobView]:
        """Close groups, and return them as gangs that leave. ``waits``: somebody waits for GPUs."""
        left = []
        for view in self.sharing.groups:
            if view.closing:
                left.append(self.stands[view.name])
                continue
            if view.name in self.late:
                pods, seconds = f"{view.unbound} of {view.replicas} pods", self.sharing.gang_seconds
                if view.unbound:
                    found = GroupClosing(view.name, NO_NODES, f"{pods} found no node within {seconds:g} s")
                else:
                    found = GroupClosing(view.name, NOT_READY, f"it was not ready within {seconds:g} s")
                self.closings.append(found)
            elif self.residencies.groups[view.name].residents:
                why = silence(view, self.now, self.sharing.gang_seconds)
                if not why or any(
                    one.key not in self.residencies.leaving
                    for one in self.residencies.groups[view.name].residents
                ):
                    continue
                self.closings.append(GroupClosing(view.name, SILENCE, f"{why}, and nobody stays in it"))
            elif waits:
                self.closings.append(
                    GroupClosing(view.name, WANTED, "it has no residents, and somebody waits")
                )
            elif self.now >= self._empty_since(view) + self.sharing.idle_seconds:
                message = f"it has had no residents for {self.sharing.idle_seconds:g} s"
                self.closings.append(GroupClosing(view.name, EMPTY, message))
            else:
                continue
            self.residencies.groups.pop(view.name, None)
            left.append(self.stands[view.name])
        return left

    def emptied(self, leaving: Iterable[JobKey]) -> list[JobView]:
        """Return the groups, as gangs, that are without residents once these have left."""
        gone = {*leaving, *self.residencies.leaving}
        return [
            self.stands[name]
            for name, group in self.residencies.groups.items()
            if name in self.stands and group.residents and all(one.key in gone for one in group.residents)
        ]

    def plan(self, placed: Mapping[JobKey, tuple[str, ...]]) -> GroupsPlan:
        """Return what is to be done. ``placed``: by job, the nodes of the workers of the group that is opened
        for it."""
        residencies = self.residencies
        return GroupsPlan(
            tuple(
                GroupOpening(name, terms.name, placed[key], key)
                for name, (terms, key) in residencies.opened.items()
            ),
            tuple(self.closings),
            tuple(ClosedGroup(name, key) for name, key in sorted(residencies.overdue.items())),
            residencies.next_number,
        )

    def wakes(self) -> list[float]:
        """Return when a group is closed, or is late, though nothing happens (s)."""
        closed = {closing.name for closing in self.closings}
        found = [self.now + self.sharing.gang_seconds] if self.residencies.opened else []
        for view in self.sharing.groups:
            if view.closing or view.name in closed:
                continue
            if not view.ready:
                found.append(view.opened + self.sharing.gang_seconds)
            if view.unanswered is not None:
                found += [view.unanswered + seconds for seconds in (SILENT, self.sharing.gang_seconds)]
            if not self.residencies.groups[view.name].residents:
                found.append(self._empty_since(view) + self.sharing.idle_seconds)
        # A silence goes on after its times: a plan is no reason to plan at once again.
        return [at for at in found if at > self.now]

    def _unbound(self, name: str) -> int:
        return next(view.unbound for view in self.sharing.groups if view.name == name)

    def _empty_since(self, view: GroupView) -> float:
        return view.opened if view.empty_since is None else view.empty_since


def _is_late(view: GroupView, sharing: PoolSharing, now: float) -> bool:
    """Return whether a start has not come to be ready in time. One that was ready and lacks a pod is started
    anew by the group's own pass, which may come after this one."""
    return not view.closing and not view.ready and now >= view.opened + sharing.gang_seconds


def _slowness(job: JobView) -> Slowness:
    assert job.sharing is not None
    measured = job.sharing.slowness
    return Slowness(measured.took, measured.alone, measured.above)
