"""Residencies and new groups for waiting jobs, in the order of the queue; and a reservation for the first.

`plan_placements` goes through the waiting jobs in the order that a queue policy has given them. A job gets
its residency and its private GPUs together or not at all. Where it goes is decided by `SharingPlacement`. The
first job that gets nothing has a reservation (`reserve`). Without backfill nobody behind it starts. With
backfill a later one does if it delays nobody: it ends before the reservation, or it takes nothing that the
reservation needs. While an overdue job waits, nobody joins a group that it waits for, however short.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from enum import StrEnum

from controller.frozen import dataclass
from controller.policy.sharing.fit import Fit, alone, fit_into
from controller.policy.sharing.reservation import GroupReservation, reserve
from controller.policy.sharing.types import (
    Family,
    GroupSupply,
    Resident,
    SharingPlacement,
    SharingSettings,
    WorkerGroup,
)

NO_GROUP_FITS = "NoGroupFits"
SHOWN = 3  # groups that a message names
Kept = GroupReservation | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A job gets a residency. ``opens``: the group is a new one. ``slowdowns``: predicted, by key."""

    key: str
    group: str
    opens: bool
    slowdowns: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The first job that got nothing, why, and what is kept for it."""

    key: str
    reason: str
    message: str
    reservation: GroupReservation | None


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """Jobs that start now, and the first that waits; ``wait`` is None: none does.

    ``closes``: groups without residents whose GPUs others get.
    """

    placed: tuple[Placed, ...]
    wait: Wait | None = None
    closes: tuple[str, ...] = ()


def plan_placements(
    waiting: Iterable[Resident],
    supply: GroupSupply,
    settings: SharingSettings,
    now: int,
    overdue: Iterable[str] = (),
) -> SharingPlan:
    """Return which of the waiting jobs start now, and where.

    Args:
        waiting: in the order of the queue.
        supply: groups and GPUs.
        settings: of the pool.
        now: microseconds.
        overdue: keys of those that have waited too long (`queueing.ageing`).
    """
    work = _Work.of(supply, settings)
    late = frozenset(overdue)
    placed: list[Placed] = []
    wait: Wait | None = None
    for job in waiting:
        found = work.try_place(job, wait.reservation if wait is not None else None, now)
        if found is not None:
            placed.append(found)
        elif wait is None:
            kept = reserve(job, work.supply(), settings, now, overdue=job.key in late)
            wait = Wait(job.key, NO_GROUP_FITS, why_not(job, work.supply(), settings), kept)
            work.forget_refusals()
            if not settings.backfill:
                break
    return SharingPlan(tuple(placed), wait, tuple(work.closed))


def why_not(job: Resident, supply: GroupSupply, settings: SharingSettings) -> str:
    """Return why a job gets neither a residency nor a group of its own, with the numbers."""
    family = supply.families.get(job.family)
    if family is None:
        return f"there is no family {job.family!r}, only {', '.join(supply.families) or 'none'}"
    own = alone(job, family)
    if not own.fits:
        return own.message
    reasons: list[str] = []
    groups = [group for group in supply.groups if group.family == job.family]
    if SharingPlacement(settings.placement) is not SharingPlacement.ISOLATED:
        fits = [fit_into(job, group, family, settings) for group in groups]
        reasons = [one.message for one in fits if not one.fits]
        if any(one.fits for one in fits):  # what it lacks is something else
            reasons = []
        if len(reasons) > SHOWN:
            reasons = [*reasons[:SHOWN], f"{len(reasons) - SHOWN} groups more"]
    if supply.private is not None and job.private_gpus > supply.private:
        reasons.append(f"{supply.private} of {job.private_gpus} private GPUs are free")
    needs = family.gpus + (job.private_gpus if supply.private is None else 0)
    if needs > supply.free:
        private = f" and {job.private_gpus} private ones" if needs > family.gpus else ""
        reasons.append(f"a new group needs {family.gpus} GPUs{private}, {supply.free} are free")
    return "; ".join(reasons) or "others before it wait for what is free"


@dataclasses.dataclass(slots=True)
class _Work:
    """The supply that is left while a plan is made.

    GPUs of groups without residents count as free: their family gets such a group again, and others get its
    GPUs if they need them (``closed``).
    """

    settings: SharingSettings
    families: Mapping[str, Family]
    groups: dict[str, WorkerGroup]
    by_family: dict[str, list[str]]
    idle: dict[str, str]  # groups without residents: their family
    free: int
    private: int | None
    next_number: int
    closed: list[str] = field(default_factory=list)
    refused: set[Hashable] = field(default_factory=set)  # jobs alike that no group takes

    @classmethod
    def of(cls, supply: GroupSupply, settings: SharingSettings) -> _Work:
        by_family: dict[str, list[str]] = {}
        groups: dict[str, WorkerGroup] = {}
        idle: dict[str, str] = {}
        free = supply.free
        for group in supply.groups:
            if not group.residents and not group.closed:
                idle[group.name] = group.family
                free += supply.families[group.family].gpus
                continue
            by_family.setdefault(group.family, []).append(group.name)
            groups[group.name] = group
        return cls(
            settings, supply.families, groups, by_family, idle, free, supply.private, supply.next_number
        )

    def supply(self) -> GroupSupply:
        return GroupSupply(
            tuple(self.groups.values()), self.families, self.free, self.private, self.next_number
        )

    def forget_refusals(self) -> None:
        self.refused.clear()

    def try_place(self, job: Resident, kept: Kept, now: int) -> Placed | None:
        """Place a job if it can be; ``kept``: what is not to be delayed."""
        family = self.families.get(job.family)
        if family is None or (self.private is not None and job.private_gpus > self.private):
            return None
        ends = None if job.lasts is None else now + job.lasts
        in_time = kept is not None and ends is not None and ends <= kept.at
        for way in WAYS[SharingPlacement(self.settings.placement)]:
            found = _ATTEMPTS[way](self, job, family, kept, in_time)
            if found is not None:
                resident = job if job.ends == ends else replace(job, ends=ends)
                self.groups[found.group] = self.groups[found.group].joined(resident)
                self.refused.clear()  # a group that is new or has another resident may take others
                return found
        return None

    def _open(self, job: Resident, family: Family, kept: Kept, in_time: bool) -> Placed | None:
        own = job.private_gpus if self.private is None else 0
        if family.gpus + own > self.free or not alone(job, family).fits:
            return None
        if not self._delays_nobody(family.gpus, job, kept, in_time):
            return None
        name = next((name for name, of in self.idle.items() if of == family.name), None)
        opens = name is None
        if name is None:
            self._close_idle(family.gpus + own)
            name = f"wg-{self.next_number}"
            self.next_number += 1
        else:
            del self.idle[name]
        self.free -= family.gpus
        self._pay(job)
        self.groups[name] = WorkerGroup(name, family.name)
        self.by_family.setdefault(family.name, []).append(name)
        return Placed(job.key, name, opens)

    def _close_idle(self, needs: int) -> None:
        """Close groups without residents until so many GPUs are free without them."""
        theirs = sum(self.families[family].gpus for family in self.idle.values())
        for name, family in list(self.idle.items()):
            if self.free - theirs >= needs:
                return
            del self.idle[name]
            self.closed.append(name)
            theirs -= self.families[family].gpus

    def _join(self, job: Resident, family: Family, kept: Kept, in_time: bool) -> Placed | None:
        if self.private is None and job.private_gpus > self.free:
            return None
        kind = job.profile.kind if job.profile is not None else None
        alike = (
            kind, job.family, job.namespace, job.state_bytes, job.max_slowdown_percent, job.not_in,
            in_time, job.private_gpus,
        )  # fmt: skip
        if alike in self.refused:
            return None
        groups = [self.groups[name] for name in self.by_family.get(job.family, ())]
        if kept is not None and (kept.overdue or not in_time):
            groups = [group for group in groups if group.name not in kept.groups]
        for found in residencies(job, groups, family, self.settings):
            if not self._delays_nobody(0, job, kept, in_time):
                break
            self._pay(job)
            return Placed(job.key, found.group, False, found.slowdowns)
        self.refused.add(alike)
        return None

    def _delays_nobody(self, gpus: int, job: Resident, kept: Kept, in_time: bool) -> bool:
        """Return whether GPUs may be had beside a reservation, and count them there."""
        if kept is None or in_time:
            return True
        together = self.private is None
        more = gpus + job.private_gpus if together else gpus
        private = 0 if together else job.private_gpus
        if more > kept.spare or private > kept.spare_private:
            return False
        kept.take(more, private)
        return True

    def _pay(self, job: Resident) -> None:
        if self.private is None:
            self.free -= job.private_gpus
        else:
            self.private -= job.private_gpus


def residencies(
    job: Resident,
    groups: Iterable[WorkerGroup],
    family: Family,
    settings: SharingSettings,
    refused: set[Hashable] | None = None,
) -> Iterator[Fit]:
    """Yield the groups that a job fits into, in the order in which they are tried: with placement Pack the
    fullest first, else the emptiest. ``refused``: jobs alike and groups that were found not to fit; those are
    not asked again, and more are put in."""
    kind = job.profile.kind if job.profile is not None else None
    alike = (kind, job.family, job.namespace, job.state_bytes, job.max_slowdown_percent, job.not_in)
    open_ = [group for group in groups if len(group.residents) < settings.max_residents]
    sign = -1.0 if SharingPlacement(settings.placement) is SharingPlacement.PACK else 1.0
    for group in sorted(open_, key=lambda group: sign * _duty(group)):
        keys = tuple(one.key for one in group.residents) if refused is not None else ()
        if refused is not None and (alike, group.name, keys, group.closed) in refused:
            continue
        found = fit_into(job, group, family, settings)
        if found.fits:
            yield found
        elif refused is not None:
            refused.add((alike, group.name, keys, group.closed))


def _duty(group: WorkerGroup) -> float:
    return sum(one.profile.duty for one in group.residents if one.profile is not None)


class Way(StrEnum):
    """OPEN: alone in a group. JOIN: beside residents."""

    OPEN = "Open"
    JOIN = "Join"


WAYS: Mapping[SharingPlacement, tuple[Way, ...]] = {
    SharingPlacement.ISOLATED: (Way.OPEN,),
    SharingPlacement.PACK: (Way.JOIN, Way.OPEN),
    SharingPlacement.SPREAD: (Way.OPEN, Way.JOIN),
}
_Attempt = Callable[[_Work, Resident, Family, Kept, bool], Placed | None]
_ATTEMPTS: Mapping[Way, _Attempt] = {Way.OPEN: _Work._open, Way.JOIN: _Work._join}
