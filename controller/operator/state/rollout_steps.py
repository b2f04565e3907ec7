"""Between the operator's passes and the step API: what passes observe goes in, what steps want comes out.

In memory: the step API learns all of it again from trainers and sidecars (`controller.steps`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from controller import names
from controller.api import convert
from controller.api.rlhfjob import RLHFJob, Rollout
from controller.kube.resources import GPUPOOLS
from controller.objects import Object, completion_index, is_terminal, parse_time
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot
from controller.operator.state.steps import NO_WANTS, StepAddress
from controller.policy.actor_types import ActorState
from controller.policy.job import DeleteActor, JobRecord, Plan, RolloutView, StepAside, StepMeasured, StepPlan
from controller.policy.rollout import (
    ActorLaw,
    Rooms,
    StepTime,
    actor_room,
    lasting_room,
    measured_gain,
)
from controller.policy.stored import MESSAGE_MAX
from controller.policy.types import JobKey
from controller.steps.directory import ActorPod, Demand, Directory, RolloutJob
from controller.workloads.actor_jobs import actor_number

START_SECONDS = 30.0  # that a start takes, before one was seen
REMEMBERED = 16  # of the newest starts of a job, and ends of a pool's actors


class RolloutSteps:
    """Keeps a `Directory` equal to what passes observe, and reads wishes from it.

    Starts and recalls are planned with as they were measured: from an actor's entry until it was ready, and
    from the moment at which it had to go until its GPUs were free.
    """

    def __init__(
        self, directory: Directory, cluster: ClusterState, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._cluster, self._now = directory, cluster, monotonic
        self._keys: dict[str, JobKey] = {}  # by uid
        self._starts: dict[str, dict[int, float]] = {}  # by uid and actor: s that its start took
        self._leaving: dict[str, dict[int, float]] = {}  # by uid and actor: since when it has to go (s)
        self._ends: dict[str, deque[float]] = {}  # by pool: s until an actor that had to go was gone
        self._spare: dict[str, tuple[str, int]] = {}  # by uid: pool, and GPUs of its spare actors
        self._rooms: dict[str, Rooms] = {}  # by uid
        self._specs: dict[str, tuple[int, Rollout]] = {}  # by uid: as of a generation
        self._going: dict[str, frozenset[int]] = {}  # by uid: actors whose deletion was asked for
        self._bound: dict[str, dict[int, float]] = {}  # by uid: when actors' pods got their nodes (s)
        directory.wanted = self._wanted
        cluster.wants = self.wants

    def put(self, loaded: JobSnapshot, plan: Plan, now: float) -> None:
        """Take in a job as a pass has planned it at ``now`` (s), before anything of that is carried out: no
        step is to begin with an actor that is about to be deleted."""
        record = plan.record
        terms, admission = loaded.desired.rollout, record.admission
        if terms is None or admission is None or loaded.pool is None or loaded.desired.deleting:
            self.drop(loaded.uid)
            return
        spec = self._spec(loaded)
        if spec is None:
            return
        self._keys[loaded.uid] = loaded.key
        pods = list(_running(loaded))
        ready = {
            number: at
            for pod in pods
            if (number := actor_number(pod)) is not None and (at := _ready_at(pod)) is not None
        }
        registered = self._directory.demand(loaded.uid).ready
        self._note_starts(loaded.uid, record, dict.fromkeys(registered, now) | ready)
        pool = loaded.pool.metadata.name
        settings = convert.rollout_settings(spec)
        carried_out = convert.rollout_settings(spec, shadow=terms.shadow)
        at_hand, staying = self._at_hand(loaded, record), sum(actor.stays for actor in record.actors)
        self._spare[loaded.uid] = pool, max(0, staying - terms.base) * terms.gpus
        most = at_hand
        if at_hand is not None and loaded.pool.spec.lending.enabled:
            room = actor_room(at_hand, terms.base, self._spare_of_others(loaded.uid, pool), terms.gpus)
            rooms = lasting_room(self._rooms.get(loaded.uid, ()), self._now(), room)
            self._rooms[loaded.uid], most = rooms, rooms[0][1]
        self._directory.put_job(
            RolloutJob(
                loaded.uid,
                loaded.key,
                admission.number,
                _speaker(loaded, admission.number),
                carried_out,
                ActorLaw(slots=spec.slots),
                median(self._starts.get(loaded.uid, {}).values() or [START_SECONDS]),
                median(self._ends.get(pool) or [terms.recall_seconds]),
                most,
                settings if terms.shadow else None,
                sum(
                    actor.state is ActorState.STARTING
                    and actor.number not in ready
                    and actor.number not in registered
                    for actor in record.actors
                ),
                at_hand,
            )
        )
        stays = {actor.number: actor.stays for actor in record.actors}
        since = {actor.number: actor.since for actor in record.actors}
        deleted = {action.number for action in plan.actions if isinstance(action, DeleteActor)}
        actors = loaded.observed.rollout.actors if loaded.observed.rollout is not None else ()
        seen = {one.number for one in actors if one.deleting}
        going = (self._going.get(loaded.uid, frozenset()) | deleted | seen) & stays.keys()
        self._going[loaded.uid] = going
        self._note_ends(loaded.uid, pool, stays, going)
        bound = self._bound.setdefault(loaded.uid, {})
        bound.update({one.number: one.bound for one in actors if one.bound is not None})
        self._bound[loaded.uid] = {number: at for number, at in bound.items() if number in stays}
        self._directory.put_actors(
            loaded.uid,
            [
                ActorPod(
                    pod["metadata"]["uid"],
                    number,
                    _ip(pod),
                    not stays[number] or number in going,
                    since[number],
                )
                for pod in pods
                if (number := actor_number(pod)) in stays
            ],
        )

    def renew(self, steps: StepAddress) -> None:
        """Have trainers and actors of runs under way be told of another authority of the step API."""
        self._cluster.steps = steps
        for key in self._keys.values():
            self._cluster.touch(key)

    def drop(self, uid: str) -> None:
        """Forget a job that has no actors, or is gone."""
        self._keys.pop(uid, None)
        self._starts.pop(uid, None)
        self._leaving.pop(uid, None)
        self._spare.pop(uid, None)
        self._rooms.pop(uid, None)
        self._specs.pop(uid, None)
        self._going.pop(uid, None)
        self._bound.pop(uid, None)
        self._directory.drop_job(uid)

    def forget(self, key: JobKey) -> None:
        """Forget a job whose RLHFJob is gone."""
        for uid in [uid for uid, known in self._keys.items() if known == key]:
            self.drop(uid)

    def wants(self, uid: str) -> RolloutView:
        """Return what a job's steps want of its actors."""
        job = self._directory.job(uid)
        if job is None:
            return NO_WANTS
        demand, steps = self._directory.demand(uid), self._directory.steps(uid)
        plan, gpus = demand.plan, job.settings.gpus_per_actor
        planned = None
        if plan is not None:
            planned = StepPlan(
                demand.step,
                plan.actors,
                plan.dispatch.value,
                plan.reason.value,
                plan.message[:MESSAGE_MAX],
                plan.seconds,
                plan.gpu_seconds,
            )
        return RolloutView(
            planned=planned,
            generating=demand.generating,
            released=tuple(sorted(demand.released)),
            going=tuple(sorted(self._going.get(uid, ()))),
            bound=tuple(sorted(self._bound.get(uid, {}).items())),
            ended=_measured(steps[-1], gpus) if steps else None,
            gain=measured_gain([_time(step) for step in steps if step["wholeSeconds"] is not None], gpus),
            due=demand.due,
            aside=_aside(demand),
        )

    def _wanted(self, uid: str) -> None:
        if (key := self._keys.get(uid)) is not None:
            self._cluster.touch(key)

    def _spec(self, loaded: JobSnapshot) -> Rollout | None:
        number = int(loaded.obj["metadata"].get("generation") or 0)
        known = self._specs.get(loaded.uid)
        if known is None or known[0] != number:
            job = convert.parse_job(loaded.obj)
            if not isinstance(job, RLHFJob) or job.spec.rollout is None:
                return None
            known = self._specs[loaded.uid] = number, job.spec.rollout
        return known[1]

    def _at_hand(self, loaded: JobSnapshot, record: JobRecord) -> int | None:
        """Return how many actors there are GPUs for: those that stay, and what the pool had free."""
        assert loaded.pool is not None
        assert loaded.desired.rollout is not None
        terms = loaded.desired.rollout
        staying = sum(actor.stays for actor in record.actors)
        if not loaded.pool.spec.lending.enabled:
            return max(terms.base, staying)
        status = (self._cluster.cache.get(GPUPOOLS, loaded.pool.metadata.name) or {}).get("status") or {}
        free = status.get("free")
        return None if free is None else staying + int(free) // terms.gpus

    def _spare_of_others(self, uid: str, pool: str) -> int:
        """Return the GPUs that spare actors of a pool's other jobs hold."""
        return sum(gpus for other, (of, gpus) in self._spare.items() if other != uid and of == pool)

    def _note_starts(self, uid: str, record: JobRecord, ready: Mapping[int, float]) -> None:
        """``ready``: since when each actor takes prompts (s); its pod says so a moment late."""
        known = self._starts.setdefault(uid, {})
        for actor in record.actors:
            if actor.number in ready and actor.number not in known:
                known[actor.number] = max(0.0, ready[actor.number] - actor.since)
        for old in sorted(known)[:-REMEMBERED]:
            del known[old]

    def _note_ends(self, uid: str, pool: str, stays: Mapping[int, bool], going: frozenset[int]) -> None:
        now, leaving = self._now(), self._leaving.setdefault(uid, {})
        for number in [number for number in leaving if number not in stays]:
            ends = self._ends.setdefault(pool, deque(maxlen=REMEMBERED))
            ends.append(now - leaving.pop(number))
        for number, remains in stays.items():
            if not remains or number in going:
                leaving.setdefault(number, now)


def _running(loaded: JobSnapshot) -> Iterator[Object]:
    return (pod for stored in loaded.stored_actor_pods if not is_terminal(pod := stored.open()))


def _speaker(loaded: JobSnapshot, attempt: int) -> str:
    """Return the uid of member 0's pod in this attempt; "": there is none now."""
    found = [
        pod["metadata"]
        for pod in loaded.pods
        if completion_index(pod) == 0
        and not is_terminal(pod)
        and (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_ADMISSION) == str(attempt)
    ]
    newest = max(found, key=lambda metadata: str(metadata.get("creationTimestamp")), default=None)
    return str(newest["uid"]) if newest is not None else ""


def _ip(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _ready_at(pod: Object) -> float | None:
    """Return when a pod became ready (s); None: it is not."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = next((c for c in conditions if c.get("type") == "Ready" and c.get("status") == "True"), None)
    return None if ready is None else parse_time(ready.get("lastTransitionTime"))


def _aside(demand: Demand) -> StepAside | None:
    """Return what the step under way has lost or put aside so far; None: nothing."""
    if not demand.aside:
        return None
    failures = "; ".join(demand.aside)[:MESSAGE_MAX]
    return StepAside(demand.step, demand.aside_at, len(demand.aside), failures)


def _time(step: dict[str, Any]) -> StepTime:
    return StepTime(step["most"], step["wholeSeconds"], step["tokens"])


def _measured(step: dict[str, Any], gpus: int) -> StepMeasured:
    counts = step["counts"]
    return StepMeasured(
        step["step"],
        step["seconds"],
        step["wholeSeconds"],
        step["tokens"],
        step["most"],
        step["actorSeconds"] * gpus,
        step["wouldTake"],
        step["at"],
        counts.get("moved", 0),
        counts.get("lost", 0) + counts.get("faulty", 0),
        "; ".join(step["failures"])[:MESSAGE_MAX],
    )
