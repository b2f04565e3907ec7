"""Jobs with rollouts, the pod that speaks for each, its actors; and what its steps want.

The only thing that the step API and the operator's passes share: passes put in what they observe, and read
demands. In memory, of one event loop; everything here is observed again after a restart.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

from controller.frozen import dataclass
from controller.policy.rollout import ActorLaw, RolloutPlan, RolloutSettings

STEPS_KEPT = 32  # of a job, newest last


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """A job with rollouts, as its passes see it.

    Attributes:
        uid: of the RLHFJob.
        key: namespace/name, for logs and people.
        attempt: the present one's number.
        speaker: uid of member 0's pod of the child in this attempt; "": there is none now.
        settings: of ``spec.rollout``.
        law: of an actor while no report was seen; its slots are ``spec.rollout.slots``.
        start: s that a start takes, from its wish to being ready, by those that were seen.
        recall: s until GPUs are free again that were taken back, by those that were seen; at most the pool's
            ``lending.recallSeconds`` and the time that a pod takes to end.
        most: actors that there may be GPUs for when a step begins: those that stay, what is free, and what
            spare actors of others hold, who leave between their steps; None: not known.
        at_hand: of these, those that stay and what is free; None: not known.
        coming: actors that have been started and are not ready yet.
        shadow: with mode Shadow what steps would be planned by, for the account of what that would save;
            None: ``settings`` are carried out.
    """

    uid: str
    key: str
    attempt: int
    speaker: str
    settings: RolloutSettings
    law: ActorLaw = field(default_factory=ActorLaw)
    start: float = 30.0
    recall: float = 10.0
    most: int | None = None
    shadow: RolloutSettings | None = None
    coming: int = 0
    at_hand: int | None = None


@dataclass(frozen=True, slots=True)
class ActorPod:
    """An actor's pod. ``leaving``: it is recalled. ``ip``: where its sidecar must be; "": anywhere.
    ``since``: when its entry was written (s)."""

    pod: str
    number: int
    ip: str = ""
    leaving: bool = False
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Wishes of a job's steps about its actors now.

    ``plan``: of the newest step. ``step``: its number. ``generating``: between begin and end. ``released``:
    numbers of actors that have nothing more to do and are to end. ``ready``: numbers of those that have
    registered. ``due``: the step is under way, or so near that actors which are still to start for it have
    to start now. ``aside``: which actors its trainer lost or put aside in the step under way, and why.
    ``aside_at``: when it said so first (s).
    """

    step: int = -1
    plan: RolloutPlan | None = None
    generating: bool = False
    released: frozenset[int] = frozenset()
    ready: frozenset[int] = frozenset()
    due: bool = True
    aside: tuple[str, ...] = ()
    aside_at: float = 0.0


@dataclasses.dataclass(slots=True)
class _Entry:
    job: RolloutJob
    actors: dict[int, ActorPod] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    steps: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0  # pods at a time, and seconds of pods, since `Directory.account` was last asked
    held: float = 0.0
    at: float = 0.0


class Directory:
    """See the module.

    Attributes:
        leads: whether this process may answer.
        wanted: called with a job's uid when its demand changed.
        changed: called with a job's uid when its actors or the job changed; the step API listens.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self.leads: Callable[[], bool] = lambda: True
        self.wanted: Callable[[str], None] = lambda uid: None
        self.changed: Callable[[str], None] = lambda uid: None
        self._entries: dict[str, _Entry] = {}
        self._speakers: dict[str, str] = {}  # uid of pod -> uid of job
        self._pods: dict[str, tuple[str, int]] = {}  # uid of pod -> uid of job, number

    # What passes write.

    def put_job(self, job: RolloutJob) -> None:
        """Take in a job as it is now. In another attempt it has no actors and no demand."""
        entry = self._entries.get(job.uid)
        if entry is None or entry.job.attempt != job.attempt:
            self.drop_job(job.uid)
            entry = self._entries[job.uid] = _Entry(job, steps=entry.steps if entry else [], at=self._now())
        elif entry.job == job:
            return
        self._speakers.pop(entry.job.speaker, None)
        entry.job = job
        if job.speaker:
            self._speakers[job.speaker] = job.uid
        self.changed(job.uid)

    def put_actors(self, uid: str, actors: Iterable[ActorPod]) -> None:
        """Take in all actors' pods that a job has now."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        found = {actor.number: actor for actor in actors}
        if found == entry.actors:
            return
        for actor in entry.actors.values():
            self._pods.pop(actor.pod, None)
        self._count(entry)
        entry.actors, entry.most = found, max(entry.most, len(found))
        for actor in found.values():
            self._pods[actor.pod] = (uid, actor.number)
        self.changed(uid)

    def account(self, uid: str) -> tuple[int, float]:
        """Return how many actors a job had at most at a time since this was last asked, and seconds of all of
        them together."""
        entry = self._entries.get(uid)
        if entry is None:
            return 0, 0.0
        self._count(entry)
        found = entry.most, entry.held
        entry.most, entry.held = len(entry.actors), 0.0
        return found

    def _count(self, entry: _Entry) -> None:
        now = self._now()
        entry.held += len(entry.actors) * (now - entry.at)
        entry.at = now

    def drop_job(self, uid: str) -> None:
        """Forget a job."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._speakers.pop(entry.job.speaker, None)
            for actor in entry.actors.values():
                self._pods.pop(actor.pod, None)
            self.changed(uid)

    # What passes read.

    def demand(self, uid: str) -> Demand:
        """Return what a job's steps want; of one that has not asked: nothing."""
        entry = self._entries.get(uid)
        return entry.demand if entry is not None else Demand()

    def steps(self, uid: str) -> list[dict[str, Any]]:
        """Return the newest steps of a job, as they ended."""
        entry = self._entries.get(uid)
        return list(entry.steps) if entry is not None else []

    # What the step API reads and writes.

    def job(self, uid: str) -> RolloutJob | None:
        entry = self._entries.get(uid)
        return entry.job if entry is not None else None

    def job_of_speaker(self, pod: str) -> RolloutJob | None:
        """Return the job whose member 0 is this pod."""
        return self.job(self._speakers.get(pod, ""))

    def actor_of(self, pod: str) -> tuple[RolloutJob, ActorPod] | None:
        """Return whose actor this pod is."""
        uid, number = self._pods.get(pod, ("", -1))
        entry = self._entries.get(uid)
        return (entry.job, entry.actors[number]) if entry is not None else None

    def actors(self, uid: str) -> dict[int, ActorPod]:
        entry = self._entries.get(uid)
        return dict(entry.actors) if entry is not None else {}

    def want(self, uid: str, demand: Demand) -> None:
        entry = self._entries.get(uid)
        if entry is not None and entry.demand != demand:
            entry.demand = demand
            self.wanted(uid)

    def ended(self, uid: str, step: dict[str, Any]) -> None:
        entry = self._entries.get(uid)
        if entry is not None:
            entry.steps.append(step)
            del entry.steps[:-STEPS_KEPT]
            self.wanted(uid)
