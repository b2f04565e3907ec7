"""Worker groups on the dashboard: as far as the viewer may know whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.frozen import dataclass
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.job import GROUP_CURES, Cure
from controller.policy.wording import ELSEWHERE
from controller.web import groups as seen
from controller.web.dashboard.access import Viewer
from controller.web.dashboard.feed import Feed
from controller.web.dashboard.lanes import Bar, Lane, Lanes
from controller.web.dashboard.queues import FoundGroups
from controller.web.groups import Group, Resident


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group as one viewer may see it.

    Attributes:
        group: with the names of jobs that the viewer may not list replaced.
        began: s since the epoch, when the present turn began; None: there is none, or it is not known.
        used: bytes of host memory on the fullest member; None: not known.
        cure: what to do about a group that is not Ready; None: nothing, or nothing is known.
        slowest: the resident whose steps are slowed the most; None: none was measured.
    """

    group: Group
    began: float | None
    used: int | None
    slowest: Resident | None
    cure: Cure | None

    @property
    def name(self) -> str:
        return self.group.name


def groups_of(feed: Feed, live: FoundGroups, viewer: Viewer) -> list[ShownGroup]:
    """Return the groups that a viewer may see, by name: with turns where the operator tells them, else by the
    WorkerGroups, else by the residents' own jobs.

    Who may list GPUPools sees all groups, others those whose residents are of a namespace that they may list.
    """
    found = {one.name: one for one in _all(feed, live)}
    return [
        _shown(one, viewer)
        for _, one in sorted(found.items())
        if viewer.pools or (one.namespace and viewer.sees(one.namespace))
    ]


def _all(feed: Feed, live: FoundGroups) -> Iterable[Group]:
    if not live.problem:
        return live.groups.values()
    if not feed.groups_known:
        jobs = (feed.object_of(RLHFJOBS, job.key) for job in feed.jobs())
        return seen.groups_of_jobs(obj for obj in jobs if obj is not None)
    return [one for one in (_read(feed, obj) for obj in feed.groups()) if one is not None]


def _read(feed: Feed, obj: Mapping[str, Any]) -> Group | None:
    pool = feed.object_of(GPUPOOLS, str((obj.get("spec") or {}).get("pool")))
    try:
        return seen.group(obj, seen.Around(lambda key: feed.object_of(RLHFJOBS, key), pool))
    except ValueError:
        return None  # of another version: `evalstop groups` tells which field


def _shown(one: Group, viewer: Viewer) -> ShownGroup:
    if not (viewer.namespaces is None or viewer.sees(one.namespace)):
        one = _without_names(one)
    elif one.overdue and not viewer.sees(one.overdue.partition("/")[0]):
        one = one.model_copy(update={"overdue": ELSEWHERE})
    used = [member.host_bytes for member in one.members if member.host_bytes is not None]
    measured = [who for who in one.residents if who.slowdown is not None]
    began = one.reported - one.turn.seconds if one.reported is not None and one.turn is not None else None
    cure = GROUP_CURES.get(one.reason)
    return ShownGroup(
        one,
        began,
        max(used, default=None),
        max(measured, key=lambda who: who.slowdown or 0.0, default=None),
        cure.filled(one.name, GROUPS_NAMESPACE, one.pool, "") if cure is not None else None,
    )


def _without_names(one: Group) -> Group:
    """Return a group without names of jobs: all its residents are of a namespace that may not be listed."""
    hidden = {"job": ELSEWHERE}
    return one.model_copy(
        update={
            "namespace": "",
            "overdue": ELSEWHERE if one.overdue else "",
            "loaded": ELSEWHERE if one.loaded else "",
            "message": "",
            "turn": None if one.turn is None else one.turn.model_copy(update=hidden),
            "waiting": tuple(wait.model_copy(update=hidden) for wait in one.waiting),
            "recent": tuple(turn.model_copy(update=hidden) for turn in one.recent),
            "residents": tuple(who.model_copy(update=hidden) for who in one.residents),
        }
    )


DRAWN_ANEW = 10.0  # s after which the lanes of a silent group are drawn with the time that passed


def lanes(one: Group, now: float = 0.0) -> Lanes | None:
    """Return the newest turns as one lane for each resident; None: none is known.

    From the newest report of a group that does not answer until ``now`` (s) nothing is known of any: that is
    drawn as long as what was reported before at most.
    """
    if not one.recent and one.turn is None:
        return None
    bars: dict[str, list[Bar]] = {who.job: [] for who in one.residents}
    for turn in one.recent:
        lane = bars.setdefault(turn.job, [])
        if turn.granted > turn.began:
            lane.append(Bar(turn.began, turn.granted, "switches", ""))
        kind = "has the turn" if turn.counted else "lost its turn"
        lane.append(Bar(turn.granted, turn.ended, kind, ""))
    if one.turn is not None and one.reported is not None:
        kind = "switches" if one.turn.phase == "Loading" else "has the turn"
        began = one.reported - one.turn.seconds
        bars.setdefault(one.turn.job, []).append(Bar(began, one.reported, kind, ""))
    if one.unanswered is not None and one.reported is not None:
        first = min((bar.begin for lane in bars.values() for bar in lane), default=one.reported)
        end = min(now - now % DRAWN_ANEW, 2 * one.reported - first)
        for lane in bars.values() if end > one.reported else ():
            lane.append(Bar(one.reported, end, "does not answer", ""))
    found = tuple(Lane(job, tuple(lane)) for job, lane in bars.items())
    return Lanes(found, f"Turns in worker group {one.name} over time") if any(bars.values()) else None
