"""The lives of a job's rollout actors: Jobs that are made and deleted, entries that end.

An actor's entry is on record before its Job is made, and stays until its pod is gone or terminal. So a pass
can be cut off anywhere: the GPUs of every pod are charged to somebody, a Job without entry is one that nobody
may have, and an entry without Job is made again under the same name. An actor gets one pod and no second: one
that was ready once and is gone is over, and so is one that is not ready in time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.actor_types import Actor, ActorStart, ActorState, Recall
from controller.policy.job.record import PodTrouble


@dataclass(frozen=True, slots=True)
class ActorSeen:
    """An actor's Job, and its pod, as the cluster shows them.

    Attributes:
        ready: its pod takes prompts.
        over: its pod is terminal, or its Job has ended without one.
        deleting: its deletion was asked for.
        bound: when its pod got its node (s); None: it has none yet.
        trouble: why its pod does not run, or how a container of it last ended; None: neither.
        away: the kubelet of its pod's node is not heard of.
    """

    number: int
    ready: bool = False
    over: bool = False
    deleting: bool = False
    bound: float | None = None
    trouble: PodTrouble | None = None
    away: bool = False


@dataclass(frozen=True, slots=True)
class ActorFailure:
    """An actor that ended, or was put aside, without having been asked to leave; ``why`` as a clause."""

    number: int
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class ActorDeletion:
    """A Job to delete. ``grace``: s that its pod may take to end."""

    number: int
    grace: float


@dataclass(frozen=True, slots=True)
class ActorsPlan:
    """The next acts upon a job's actors.

    Attributes:
        actors: the entries, to be written before anything else is done.
        make: those whose Jobs are to be made.
        delete: Jobs to delete.
        failures: those that ended, or were put aside, without having been asked to leave.
        settled: no actor has GPUs any more, nor will have.
        wake_at: when to look again though nothing happens (s).
    """

    actors: tuple[Actor, ...]
    make: tuple[Actor, ...] = ()
    delete: tuple[ActorDeletion, ...] = ()
    failures: tuple[ActorFailure, ...] = ()
    settled: bool = True
    wake_at: float | None = None

    @property
    def failed(self) -> tuple[int, ...]:
        """Numbers of those that failed."""
        return tuple(one.number for one in self.failures)


def with_starts(actors: Sequence[Actor], starts: Iterable[ActorStart], now: float) -> tuple[Actor, ...]:
    """Return the entries with those that are to start. One that is there already is not started again."""
    known = {actor.number for actor in actors}
    new = (start for start in starts if start.number not in known)
    return (*actors, *(Actor(one.number, one.node, one.gpus, since=now) for one in new))


def with_recalls(actors: Sequence[Actor], recalls: Iterable[Recall]) -> tuple[Actor, ...]:
    """Return the entries with those that have to go. The first recall of an actor is the one that counts."""
    by_number = {recall.number: recall for recall in recalls}
    found = []
    for actor in actors:
        recall = by_number.get(actor.number)
        if recall is not None and actor.stays:
            actor = replace(actor, state=ActorState.RECALLED, for_whom=recall.for_whom, until=recall.until)
        found.append(actor)
    return tuple(found)


def plan_actors(
    actors: Sequence[Actor],
    seen: Mapping[int, ActorSeen],
    now: float,
    *,
    leaves: bool,
    grace: float,
    start_timeout: float,
    released: Collection[int] = (),
    bind_timeout: float = math.inf,
) -> ActorsPlan:
    """Return what is to happen to a job's actors.

    Args:
        actors: the entries on record.
        seen: the Jobs that are there, by number.
        now: time (s).
        leaves: the job is on its way off its GPUs, or has none: no actor stays.
        grace: s that a pod may take to end, at most the pool's ``recallSeconds``.
        start_timeout: s from an entry to its pod being ready.
        bind_timeout: s from an entry to its pod having a node.
        released: numbers of those that have nothing more to do: they end at once, as nobody is to wait for
            them.
    """
    kept: list[Actor] = []
    make: list[Actor] = []
    delete: list[ActorDeletion] = []
    failed: list[ActorFailure] = []
    wakes: list[float] = []
    for actor in actors:
        job = seen.get(actor.number)
        goes = leaves or actor.number in released
        if job is None:
            if goes or actor.state is not ActorState.STARTING:
                # Of one that was ready, or has to go, nothing more comes.
                if not goes and actor.state is ActorState.RUNNING:
                    failed.append(ActorFailure(actor.number, actor.node, "its Job and pod are gone"))
                continue
            if now >= actor.since + start_timeout:  # it cannot be made
                why = f"its Job could not be made within {start_timeout:g} s"
                failed.append(ActorFailure(actor.number, actor.node, why))
                continue
            kept.append(actor)
            make.append(actor)
            wakes.append(actor.since + start_timeout)
            continue
        if job.over:
            if not goes and actor.stays:
                why = "its pod ended" + _last_words(job.trouble)
                failed.append(ActorFailure(actor.number, actor.node, why))
            if not job.deleting:
                delete.append(ActorDeletion(actor.number, grace))
            continue
        if actor.bound is None and job.bound is not None:
            actor = replace(actor, bound=job.bound)
        most = start_timeout if actor.bound is not None else min(start_timeout, bind_timeout)
        late = actor.state is ActorState.STARTING and not job.ready and now >= actor.since + most
        if late:
            what = "it took no prompts" if actor.bound is not None else "its pod had no node"
            why = f"{what} within {most:g} s" + _last_words(job.trouble)
            failed.append(ActorFailure(actor.number, actor.node, why))
            actor = replace(actor, state=ActorState.RECALLED, until=now)
        elif actor.state is ActorState.STARTING and job.ready:
            actor = replace(actor, state=ActorState.RUNNING)
        if job.away and actor.stays and not (goes or job.deleting):
            # Nothing ends its pod while the node is away: another is to start elsewhere meanwhile.
            why = "the node is down, or cut off from the cluster"
            failed.append(ActorFailure(actor.number, actor.node, why))
            actor = replace(actor, state=ActorState.RECALLED, until=now)
        due = goes or (actor.until is not None and actor.until <= now)
        if due and not job.deleting:
            delete.append(ActorDeletion(actor.number, grace))
        elif not due and actor.until is not None:
            wakes.append(actor.until)
        elif actor.state is ActorState.STARTING:
            wakes.append(actor.since + most)
        kept.append(actor)
    known = {actor.number for actor in actors}
    delete += [
        ActorDeletion(number, grace)
        for number, job in sorted(seen.items())
        if number not in known and not job.deleting
    ]
    strays = any(number not in known and not job.over for number, job in seen.items())
    return ActorsPlan(
        tuple(kept),
        tuple(make),
        tuple(delete),
        tuple(failed),
        settled=not kept and not strays,
        wake_at=min(wakes, default=None),
    )


def _last_words(trouble: PodTrouble | None) -> str:
    """Return what its pod says of why it does not run, or ended, for the end of a clause."""
    if trouble is None:
        return ""
    how = f"{trouble.waits}" if trouble.exit_code is None else f"exit code {trouble.exit_code}"
    return ", " + ": ".join(filter(None, (how, trouble.message)))
