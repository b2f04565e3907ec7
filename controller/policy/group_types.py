"""Shared worker groups as a pool sees them: plain frozen values.

A *group* is a gang of worker pods of one family. Its *residents* are jobs whose states it keeps, all of one
namespace; they train on its GPUs by turns, and none of those GPUs is theirs: they belong to the group's pods.
What a job has beside a residency (its gang, which may have no GPUs, and rollout actors) is *private*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from controller.frozen import dataclass
from controller.policy.actor_types import JobKey, Part
from controller.policy.stored import WHERE_USED

GROUPS_NAMESPACE = "evalstop-workers"  # of every group's pods
SILENT = 30.0  # s without an answer, after which a group that was ready takes no newcomers
STAYS = 20  # steps in a row slower than allowed, after which the last one that came has to go
LOST_IN_ROW = 3  # turns of one resident that its group loses one after the other: then that is told
MAX_SLOWDOWN_PERCENT = 10  # by which a resident's steps may take longer, unless it says otherwise


def group_key(name: str) -> JobKey:
    """Return the key by which a group stands among jobs in accounts and reservations."""
    return f"{GROUPS_NAMESPACE}/{name}"


def slowdown_limit(sharing: Mapping[str, Any]) -> int:
    """Return by how many percent a job's steps may take longer than alone, by its ``spec.sharing``."""
    return int(sharing.get("maxSlowdownPercent", MAX_SLOWDOWN_PERCENT))


def times_allowed(percent: int) -> float:
    """Return how many times as long as alone steps may take, of which ``percent`` % more is allowed."""
    return 1.0 + percent / 100.0


class MeasuredSlowness(NamedTuple):
    """Measured steps of a resident (`sharing.watch`): faded sums of microseconds, and steps in a row above
    its limit."""

    took: float = 0.0
    alone: float = 0.0
    above: int = 0


NOT_SLOW = MeasuredSlowness()


class LosesTurns(NamedTuple):
    """A group that loses each turn of a resident: since when (s), and how it lost the newest."""

    since: float
    why: str


class NotReady(NamedTuple):
    """A group that is not ready: since when (s), and why it cannot start, code and message; "": it can."""

    since: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class SharedTraining:
    """A job's wish for a residency, and what it has of one.

    Attributes:
        state_bytes: of its state on one member.
        kind: by which its profile is found; "": nothing is known of it.
        max_slowdown_percent: by which its steps may take longer than alone.
        group: in which it has, or had, its residency: from its admission until the group has said that
            worker and state are gone.
        number: of the admission that its residency came with, of its job alone.
        since: when it got the residency (s), by which residents are in order.
        not_in: groups that it had to leave because somebody there was too slow.
        slowness: as measured since the newest resident came.
        share: GPUs of a group that are charged to it; while it waits: that it would be charged at most.
        may_open: it may open a group of its own. Not so where its namespace's limit allows it a residency
            only.
        opens: workers of the group that is opened for it; None: none is.
    """

    family: str
    state_bytes: int
    kind: str = ""
    max_slowdown_percent: int = MAX_SLOWDOWN_PERCENT
    group: str = ""
    number: int = 0
    since: float = 0.0
    not_in: tuple[str, ...] = ()
    slowness: MeasuredSlowness = NOT_SLOW
    share: int = 0
    may_open: bool = True
    opens: Part | None = field(default=None, metadata=WHERE_USED)

    def opening(self, workers: Part) -> SharedTraining:
        """Return it as one for which a group of these workers is opened."""
        return replace(self, opens=workers)


@dataclass(frozen=True, slots=True)
class ResidencyTerms:
    """A job's wish for a residency by its spec. ``kind``: by which its profile is found."""

    family: str
    state_bytes: int
    max_slowdown_percent: int = MAX_SLOWDOWN_PERCENT
    kind: str = ""


@dataclass(frozen=True, slots=True)
class FamilyTerms:
    """A family of a pool: workers that several jobs can use. Bytes are of one member.

    Attributes:
        replicas: members of a group.
        gpus: of each member.
        device_bytes: memory of a member's devices.
        residual_bytes: what a sleeping resident keeps of it.
        host_bytes: for sleeping states.
    """

    name: str
    replicas: int
    gpus: int
    device_bytes: int
    residual_bytes: int
    host_bytes: int

    @property
    def workers(self) -> Part:
        return Part(self.replicas, self.gpus)


@dataclass(frozen=True, slots=True)
class KindProfile:
    """Measurements of a kind of job, as in `sharing.Profile`: turns are microseconds (away, held)."""

    kind: str
    turns: tuple[tuple[int, int], ...] = ()
    per_step: int = 1
    lag: int = 0
    loads: tuple[int, ...] = ()
    offloads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lingering:
    """A resident whose job is not in the pool any more: its worker and state are still there."""

    key: JobKey
    state_bytes: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its pool sees it, from its opening until its pods are gone.

    Attributes:
        nodes: planned node of each member.
        bound: (node, GPUs) of each non-terminal pod that has a node.
        unbound: members whose pod has no node yet.
        closing: it takes nobody any more; its GPUs are its own until its pods are gone.
        opened: s, when it was admitted.
        empty_since: s, when its last resident had left; None: it has some, or none has come yet.
        lingering: residents without a job.
        may_return: pods may still come in the place of those that are gone.
        ready: it could grant turns once since its newest start.
        unanswered: s, since when questions to it bring no answer, once it was ready; None: the newest did.
        outdated: its pods are of a template that its family has no more.
        failing: it loses each turn of a resident, or its pods do not start.
    """

    name: str
    family: str
    replicas: int
    gpus: int
    nodes: tuple[str, ...]
    bound: tuple[tuple[str, int], ...] = ()
    unbound: int = 0
    closing: bool = False
    opened: float = 0.0
    empty_since: float | None = None
    lingering: tuple[Lingering, ...] = ()
    may_return: bool = False
    ready: bool = True
    unanswered: float | None = None
    outdated: bool = False
    failing: bool = False

    @property
    def key(self) -> JobKey:
        return group_key(self.name)


@dataclass(frozen=True, slots=True)
class PoolSharing:
    """A pool's terms of sharing, its groups, and what was measured.

    Attributes:
        placement, backfill, max_residents, max_duty_percent, consecutive: as in `sharing.SharingSettings`.
        idle_seconds: s for which a group may be without residents while nobody waits.
        gang_seconds: s that a group's pods may take to get their nodes, and be ready.
        next_group: number of the next group's name.
    """

    families: tuple[FamilyTerms, ...]
    placement: str = "Spread"
    backfill: bool = True
    max_residents: int = 3
    max_duty_percent: int = 80
    consecutive: int = 1
    idle_seconds: float = 60.0
    gang_seconds: float = 600.0
    groups: tuple[GroupView, ...] = ()
    profiles: tuple[KindProfile, ...] = ()
    next_group: int = 1


@dataclass(frozen=True, slots=True)
class GroupOpening:
    """A group to open: it is to be written before its Job is made.

    ``nodes``: of each member. ``first``: the job for which it is opened.
    """

    name: str
    family: str
    nodes: tuple[str, ...]
    first: JobKey


@dataclass(frozen=True, slots=True)
class GroupClosing:
    """A group to close, in CamelCase and in words why. Its residents, if any, are preempted in this plan."""

    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ClosedGroup:
    """A group that takes no newcomers for now, because an overdue job waits for GPUs of it."""

    name: str
    overdue: JobKey


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """The next acts upon a pool's groups; ``next_group``: to be kept for the next pass."""

    openings: tuple[GroupOpening, ...] = ()
    closings: tuple[GroupClosing, ...] = ()
    closed: tuple[ClosedGroup, ...] = ()
    next_group: int = 1
