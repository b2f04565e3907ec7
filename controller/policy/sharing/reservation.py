"""The reservation of the first waiting job: its earliest start, and what must be left for it until then.

Everybody is let go at its expected end, one after the other, until the job fits: into a group that lost a
resident, or into a new group on GPUs whose last resident has gone. What nobody's end is known of stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.policy.sharing.fit import alone, fit_into
from controller.policy.sharing.types import (
    GroupSupply,
    Resident,
    SharingPlacement,
    SharingSettings,
    WorkerGroup,
)

NEVER = 1 << 62  # microseconds


@dataclass(slots=True)
class GroupReservation:
    """GPUs and groups that are kept for the first waiting job.

    Attributes:
        key: of the job.
        at: microseconds at which it can start; `NEVER`: nobody knows.
        groups: that may not be kept longer: the one whose residency it gets, or those whose GPUs.
        spare, spare_private: GPUs that will be free then and that it does not need.
        overdue: nobody may join ``groups``, not even for a short while.
    """

    key: str
    at: int
    groups: frozenset[str]
    spare: int
    spare_private: int
    overdue: bool = False

    def take(self, gpus: int, private: int) -> None:
        """Count GPUs that a later job keeps beyond ``at``."""
        self.spare -= gpus
        self.spare_private -= private


def reserve(
    job: Resident, supply: GroupSupply, settings: SharingSettings, now: int, *, overdue: bool = False
) -> GroupReservation | None:
    """Return what is kept for a job that cannot start now; None: it can never start, so nothing is."""
    family = supply.families.get(job.family)
    if family is None or not alone(job, family).fits:
        return None
    shares = SharingPlacement(settings.placement) is not SharingPlacement.ISOLATED
    groups = {group.name: group for group in supply.groups}
    free, private = supply.free, supply.private
    together = private is None
    needs = family.gpus + (job.private_gpus if together else 0)
    gone: set[str] = set()
    leaving = sorted(
        (
            (one.ends, group.name, one)
            for group in supply.groups
            for one in group.residents
            if one.ends is not None
        ),
        key=lambda end: (end[0], end[1], end[2].key),
    )
    for ends, name, resident in leaving:
        groups[name] = group = groups[name].left(resident.key)
        if private is None:
            free += resident.private_gpus
        else:
            private += resident.private_gpus
        if not group.residents:
            free += supply.families[group.family].gpus
            gone.add(name)
        if private is not None and job.private_gpus > private:
            continue
        spare_private = 0 if private is None else private - job.private_gpus
        residency = job.private_gpus if together else 0
        may_join = shares and residency <= free and group.family == job.family and group.residents
        if may_join and fit_into(job, group, family, settings).fits:
            kept = frozenset((name,))
            return GroupReservation(job.key, max(now, ends), kept, free - residency, spare_private, overdue)
        if needs <= free:
            return GroupReservation(
                job.key, max(now, ends), frozenset(gone), free - needs, spare_private, overdue
            )
    return GroupReservation(job.key, NEVER, _all(groups), 0, 0, overdue)


def _all(groups: Mapping[str, WorkerGroup]) -> frozenset[str]:
    return frozenset(groups)
