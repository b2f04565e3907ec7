"""Families, residents, groups and settings: the things that sharing is decided from.

Times are whole microseconds, so that sums are exact; sizes are bytes of one member. A *member* is one pod of
a group, a *resident* a job whose state a group keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, param
from controller.policy.sharing.profile import Profile

SECOND = 1_000_000  # microseconds
MOST_RESIDENTS = 8  # of one group


class SharingPlacement(StrEnum):
    """The place of a job's training.

    ISOLATED: always alone in a group.
    PACK: with others, in the fullest group that fits, before a new group is opened.
    SPREAD: in a new group while GPUs are free, else with others, in the emptiest group that fits.
    """

    ISOLATED = "Isolated"
    PACK = "Pack"
    SPREAD = "Spread"


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """Settings of a pool for sharing its worker groups.

    Raises:
        ParamError: a value is out of bounds.
    """

    placement: str = param("Spread", unit="", doc="where a job trains", choices=tuple(SharingPlacement))
    backfill: bool = param(True, unit="", doc="later jobs may start if they delay nobody before them")
    max_residents: int = param(3, unit="jobs", doc="of one group", ge=1, le=MOST_RESIDENTS)
    max_duty_percent: int = param(80, unit="%", doc="of the time that turns take, summed", ge=1, le=100)
    consecutive: int = param(
        1, unit="turns", doc="in a row that one resident has while another waits", ge=1, le=100
    )

    def __post_init__(self) -> None:
        check(self, "sharing")


@dataclass(frozen=True, slots=True)
class Family:
    """Worker processes that several jobs can use: one model class, one parallelism.

    Args:
        name: as jobs ask for it.
        gpus: of one group, over all members.
        device_bytes: memory of a member's device.
        residual_bytes: what a sleeping resident keeps on a member's device.
        host_bytes: host memory of a member for sleeping states.
    """

    name: str
    gpus: int
    device_bytes: int
    residual_bytes: int
    host_bytes: int

    def __post_init__(self) -> None:
        if not self.name:
            raise ParamError("family.name", self.name, "a name")
        for field, least in (("gpus", 1), ("device_bytes", 1), ("residual_bytes", 0), ("host_bytes", 1)):
            value = getattr(self, field)
            if value < least:
                raise ParamError(f"family.{field}", value, f"at least {least}")


@dataclass(frozen=True, slots=True)
class Resident:
    """A job that a group keeps, or that asks for one.

    Args:
        key: of the job.
        family: that it asks for.
        namespace: of the job; all residents of a group are of one.
        state_bytes: of a member: weights, gradients, optimizer.
        profile: of its kind; None: nothing is known of it.
        max_slowdown_percent: by which its steps may take longer than alone.
        private_gpus: of its own, for rollouts; they come with a residency or not at all.
        came: when it came, as any number that grows; only the order counts.
        lasts: microseconds that it is expected to take from its start, while it waits; None: nobody knows.
        ends: microseconds at which it is expected to end, once it is a resident; None: nobody knows.
        not_in: groups that it has left because somebody there was too slow.
    """

    key: str
    family: str
    namespace: str
    state_bytes: int
    profile: Profile | None = None
    max_slowdown_percent: int = 10
    private_gpus: int = 0
    came: int = 0
    lasts: int | None = None
    ends: int | None = None
    not_in: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.state_bytes < 1:
            raise ParamError("sharing.stateBytes", self.state_bytes, "at least 1 byte")
        if not 0 <= self.max_slowdown_percent <= 1000:
            raise ParamError("sharing.maxSlowdownPercent", self.max_slowdown_percent, "0 to 1000 %")

    @property
    def known(self) -> bool:
        """True if enough steps of its kind were measured alone."""
        return self.profile is not None and self.profile.known


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """A group of workers: its family and residents. ``closed``: why it takes no newcomers; empty: it does."""

    name: str
    family: str
    residents: tuple[Resident, ...] = ()
    closed: str = ""

    def joined(self, resident: Resident) -> WorkerGroup:
        """Return the group with one resident more."""
        return replace(self, residents=(*self.residents, resident))

    def left(self, key: str) -> WorkerGroup:
        """Return the group without a resident."""
        return replace(self, residents=tuple(one for one in self.residents if one.key != key))


@dataclass(frozen=True, slots=True)
class GroupSupply:
    """Groups and GPUs that there are for jobs that share.

    Args:
        groups: that are open.
        families: by name.
        free: GPUs that are free, for new groups.
        private: GPUs that are free for rollouts; None: those are taken from ``free``, too.
        next_number: of the next group's name.
    """

    groups: tuple[WorkerGroup, ...]
    families: Mapping[str, Family]
    free: int
    private: int | None = None
    next_number: int = 1
