"""Residents of a pool's groups while one pass is made, and the ways in which a job may get a residency.

A way is a group that takes the job beside its residents, one without residents, or a new group. Which comes
first is said by the pool's placement, whether a job fits by `sharing.fit_into`. The first job that gets
nothing has a reservation (`sharing.reserve`): without backfill no other job gets a residency after it in this
pass, with backfill one does that leaves alone what is reserved, or is done before. Where nobody knows when
residents will end, nothing is reserved; then a group takes no newcomers once the job that waits is overdue.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.actor_types import JobKey, Place
from controller.policy.group_types import SILENT, FamilyTerms, GroupView, KindProfile, PoolSharing
from controller.policy.params import ParamError
from controller.policy.queueing.base import QueueJob
from controller.policy.sharing import (
    NEVER,
    SECOND,
    WAYS,
    Family,
    GroupReservation,
    GroupSupply,
    Profile,
    RecordedTurn,
    Resident,
    SharingPlacement,
    SharingSettings,
    Way,
    WorkerGroup,
    alone,
    reserve,
    residencies,
    why_not,
)
from controller.policy.types import JobState, JobView, namespace_of
from controller.policy.wording import silent_since

NOBODY: frozenset[JobKey] = frozenset()
OVERDUE = "an overdue job waits for its GPUs"
OUTDATED = "it is of an earlier template of its family"
OUTGROWN = "its family is of another size by now, and pods of it are missing"
BEFORE = " (before)"  # ends the key of a resident whose job has left it behind


@dataclass(frozen=True, slots=True)
class Residency:
    """One way for a job: into ``group``; ``opens``: the family of the new group that this is, else None."""

    group: str
    opens: FamilyTerms | None = None

    def asks(self, job: QueueJob) -> QueueJob:
        """Return the job as it is to be placed: with the workers of the group that is opened for it."""
        if self.opens is None:
            return job
        assert isinstance(job, JobView)
        assert job.sharing is not None
        return replace(job, sharing=job.sharing.opening(self.opens.workers))


class Residencies:
    """Groups of a pool and their residents; changed while jobs are given residencies.

    Attributes:
        groups: by name, those that are not closing.
        places: (node, GPUs) that are charged to each of them; of those opened in this pass, nothing.
        home: group of each resident.
        leaving: residents that run no more; their worker and state are not gone yet.
        joined: group of each job that got a residency in this pass.
        opened: family of each group that was opened in this pass, and for which job.
        next_number: of the next group's name.
    """

    def __init__(
        self,
        sharing: PoolSharing,
        jobs: Iterable[JobView],
        places: Mapping[str, Iterable[Place]],
        now: float,
    ) -> None:
        """Take in a pool's groups. ``places``: (node, GPUs) of each group by name. ``now``: s."""
        self.settings = SharingSettings(
            sharing.placement,
            sharing.backfill,
            sharing.max_residents,
            sharing.max_duty_percent,
            sharing.consecutive,
        )
        self.now = round(now * SECOND)
        self.terms = {terms.name: terms for terms in sharing.families}
        self.families = {terms.name: family_of(terms) for terms in sharing.families}
        self.profiles = profiles(sharing)
        self.places = {name: tuple(held) for name, held in places.items()}
        self.groups: dict[str, WorkerGroup] = {}
        self.home: dict[JobKey, str] = {}
        self.leaving: set[JobKey] = set()
        self.joined: dict[JobKey, str] = {}
        self.opened: dict[str, tuple[FamilyTerms, JobKey]] = {}
        self.next_number = sharing.next_group
        self.overdue: dict[str, JobKey] = {}  # groups that take no newcomers, and who waits for them
        self.withheld: frozenset[str] = frozenset()  # groups of which somebody waits for the residency
        self._kept: GroupReservation | None = None
        self._first: JobKey | None = None
        self._known: dict[JobKey, Resident] = {}
        self._refused: set[Hashable] = set()  # of all copies: it depends on nothing that a pass changes
        jobs = list(jobs)
        self._named = frozenset(job.key for job in jobs)
        here = [job for job in jobs if job.sharing is not None and job.sharing.group]
        for view in sharing.groups:
            if not view.closing:
                residents = self._residents(view, here)
                closed = silence(view, now) or self._outgrown(view) or self._outdated(view, residents)
                self.groups[view.name] = WorkerGroup(view.name, view.family, residents, closed)

    def copy(self) -> Residencies:
        """Return another one that changes on its own."""
        other = object.__new__(Residencies)
        other.__dict__.update(self.__dict__)
        for name in ("groups", "places", "home", "joined", "opened", "overdue"):
            setattr(other, name, dict(getattr(self, name)))
        return other

    def resident(self, job: QueueJob) -> Resident:
        """Return a job as `sharing` sees it."""
        known = self._known.get(job.key)
        if known is None:
            known = self._known[job.key] = self._as_resident(job)
        return known

    @property
    def next_name(self) -> str:
        """Return the name of the next group that is opened."""
        return f"wg-{self.next_number}"

    def empty(self) -> list[str]:
        """Return the groups without residents."""
        return [name for name, group in self.groups.items() if not group.residents]

    def ways(self, job: QueueJob, gone: Collection[JobKey] = NOBODY) -> Iterator[Residency]:
        """Yield the ways in which a job may get a residency, the best first.

        Args:
            job: one that waits.
            gone: residents whose residencies count as free.
        """
        resident = self.resident(job)
        family = self.families.get(resident.family)
        if family is None or job.sharing is None or not alone(resident, family).fits:
            return
        groups = [self._seen(group, job, gone) for group in self.groups.values()]
        groups = [
            group for group in groups if group.family == family.name and group.name not in self.withheld
        ]
        for way in WAYS[SharingPlacement(self.settings.placement)]:
            if way is Way.JOIN:
                beside = [group for group in groups if group.residents and self._may(resident, group.name, 0)]
                if not job.sharing.may_open:  # only where its namespace pays already
                    beside = [
                        group for group in beside if any(r.key not in self.leaving for r in group.residents)
                    ]
                for found in residencies(resident, beside, family, self.settings, self._refused):
                    yield Residency(found.group)
                continue
            for group in groups:
                free = job.sharing.may_open and not group.residents and not group.closed
                if free and self._may(resident, group.name, 0):
                    yield Residency(group.name)
            if job.sharing.may_open and self._may(resident, "", family.gpus):
                yield Residency(self.next_name, self.terms[family.name])

    def settle(self, job: QueueJob, way: Residency) -> None:
        """Give a job its residency."""
        resident = self.resident(job)
        needs = resident.private_gpus
        if way.opens is not None:
            self.groups[way.group] = WorkerGroup(way.group, way.opens.name)
            self.places[way.group] = ()
            self.opened[way.group] = (way.opens, job.key)
            self.next_number += 1
            needs += way.opens.replicas * way.opens.gpus
        self.groups[way.group] = self.groups[way.group].joined(resident)
        self.home[job.key] = self.joined[job.key] = way.group
        if self._kept is not None and not self._in_time(resident):
            self._kept = replace(self._kept, spare=self._kept.spare - needs)

    def refuse(self, job: QueueJob, free: int) -> None:
        """Reserve for a job that gets nothing now, if it is the first. ``free``: GPUs that nobody uses."""
        if self._first is None:
            self._first = job.key
            self._kept = reserve(self.resident(job), self.supply(free), self.settings, self.now)

    def rejoin(self, job: QueueJob, name: str) -> bool:
        """Let a resident come back into its group, if nobody took its place; say whether that was so."""
        resident = self.resident(job)
        group = self.groups.get(name) or WorkerGroup(name, resident.family)
        if any(self.joined.get(one.key) == name for one in group.residents):
            return False
        self.groups[name], self.home[job.key] = group.joined(resident), name
        return True

    def leave(self, key: JobKey) -> str | None:
        """Let a resident go; return its group."""
        name = self.home.pop(key, None)
        if name is not None and name in self.groups:
            self.groups[name] = self.groups[name].left(key)
        return name

    def supply(self, free: int) -> GroupSupply:
        """Return the groups, and so many free GPUs."""
        known = tuple(group for group in self.groups.values() if group.family in self.families)
        return GroupSupply(known, self.families, free, next_number=self.next_number)

    def why_not(self, job: QueueJob, free: int) -> str:
        """Return why a job gets no residency, with the numbers. ``free``: GPUs that nobody uses."""
        groups = {name: self._seen(group, job, NOBODY) for name, group in self.groups.items()}
        supply = replace(
            self.supply(free),
            groups=tuple(group for group in groups.values() if group.family in self.families),
        )
        return why_not(self.resident(job), supply, self.settings)

    # -- parts

    def _residents(self, view: GroupView, jobs: Iterable[JobView]) -> tuple[Resident, ...]:
        mine = [job for job in jobs if job.sharing is not None and job.sharing.group == view.name]
        found = [self.resident(job) for job in mine]
        self.leaving |= {job.key for job in mine if job.state is JobState.QUEUED}
        known = {one.key for one in found}
        for one in view.lingering:
            if one.key not in known:
                # Its job may be there again, under its name or after it gave this residency up.
                key = f"{one.key}{BEFORE}" if one.key in self._named else one.key
                found.append(Resident(key, view.family, namespace_of(key), max(1, one.state_bytes)))
                self.leaving.add(key)
        found.sort(key=lambda one: (one.came, one.key))
        for resident in found:
            self.home[resident.key] = view.name
        return tuple(found)

    def _outgrown(self, view: GroupView) -> str:
        """Return why nobody comes into a group that lacks pods, and gets none: its family is of another size
        by now; "": that is not so. One whose pods are there takes others."""
        terms = self.terms.get(view.family)
        same = terms is None or (terms.replicas, terms.gpus) == (view.replicas, view.gpus)
        return "" if same or not view.unbound else OUTGROWN

    def _outdated(self, view: GroupView, residents: Iterable[Resident]) -> str:
        """Return why nobody comes into a group of a template that its family has no more; "": that matters
        not. One that trains its residents goes on taking others: a new group would need GPUs of its own."""
        if not view.outdated or not (view.failing or all(one.key in self.leaving for one in residents)):
            return ""
        return f"{OUTDATED}, and fails" if view.failing else OUTDATED

    def _as_resident(self, job: QueueJob) -> Resident:
        assert isinstance(job, JobView)
        assert job.sharing is not None
        asked = job.sharing
        lasts = None if job.remaining is None else round(job.remaining * SECOND)
        runs = job.state is not JobState.QUEUED
        return Resident(
            job.key,
            asked.family,
            job.namespace,
            max(1, asked.state_bytes),
            self.profiles.get(asked.kind),
            asked.max_slowdown_percent,
            job.private_gpus,
            round(asked.since * SECOND),
            lasts,
            None if lasts is None or not runs else self.now + lasts,
            frozenset(asked.not_in),
        )

    def _seen(self, group: WorkerGroup, job: QueueJob, gone: Collection[JobKey]) -> WorkerGroup:
        """Return a group as it is to one that asks: without those that are gone, closed for others' sake."""
        if gone and any(one.key in gone for one in group.residents):
            group = replace(group, residents=tuple(one for one in group.residents if one.key not in gone))
        if self.overdue.get(group.name, job.key) != job.key:
            group = replace(group, closed=OVERDUE)
        return group

    def _may(self, resident: Resident, group: str, needs: int) -> bool:
        """Return whether a way leaves alone what is reserved for the first job that got nothing."""
        if self._first is None or self._first == resident.key:
            return True
        if not self.settings.backfill:
            return False
        kept = self._kept
        if kept is None or kept.at == NEVER or self._in_time(resident):
            return True
        return group not in kept.groups and needs + resident.private_gpus <= kept.spare

    def _in_time(self, resident: Resident) -> bool:
        kept = self._kept
        return kept is not None and resident.lasts is not None and self.now + resident.lasts <= kept.at


def silence(view: GroupView, now: float, seconds: float = SILENT) -> str:
    """Return since when a group answers nobody, in words; "": it does, or not for ``seconds`` (s) yet."""
    if view.unanswered is None or now < view.unanswered + seconds:
        return ""
    return silent_since(view.unanswered)


def profiles(sharing: PoolSharing) -> dict[str, Profile]:
    """Return what was measured, by kind; what cannot be read counts as not measured."""
    found = ((one.kind, profile_of(one)) for one in sharing.profiles)
    return {kind: profile for kind, profile in found if profile is not None}


def profile_of(one: KindProfile) -> Profile | None:
    """Return a kind's profile as `sharing` sees it; None: it cannot be read."""
    try:
        turns = tuple(RecordedTurn(*turn) for turn in one.turns)
        return Profile(one.kind, turns, one.per_step, one.lag, one.loads, one.offloads)
    except ParamError:
        return None


def family_of(terms: FamilyTerms) -> Family:
    """Return a family as `sharing` sees it."""
    return Family(
        terms.name,
        max(1, terms.replicas * terms.gpus),
        terms.device_bytes,
        terms.residual_bytes,
        terms.host_bytes,
    )
