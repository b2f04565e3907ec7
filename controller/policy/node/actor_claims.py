"""GPUs that rollout actors keep of a node: of entries whose pods are not bound yet, and what was recalled.

An actor is no member of its job's gang: its entry names its node and its GPUs, by its number. What was
recalled for a job is kept for it until it is admitted, or its actor has its entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from controller.policy.actor_types import Actor, ActorState, JobKey, Reserved


class _Pod(Protocol):
    """A bound pod of a job."""

    @property
    def node(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def actor(self) -> int | None: ...


class Claim(NamedTuple):
    """GPUs of a node that are kept for a job. ``expires`` (s); None: as long as the entry lasts."""

    key: JobKey
    gpus: int
    expires: float | None
    recalled: bool


class ActorClaims:
    """Entries of actors by job, and what pools keep of recalled GPUs."""

    def __init__(self) -> None:
        self._entries: dict[JobKey, dict[int, Actor]] = {}
        self._on: Counter[str] = Counter()  # node -> entries and reserved places there
        self._reserved: dict[str, tuple[Reserved, ...]] = {}  # by pool

    def put(self, key: JobKey, actors: Iterable[Actor]) -> tuple[str, ...]:
        """Take in all entries of a job; return the nodes concerned."""
        before = self._entries.pop(key, {})
        now = {actor.number: actor for actor in actors}
        if now:
            self._entries[key] = now
        gone, come = [a.node for a in before.values()], [a.node for a in now.values()]
        return self._count(gone, come)

    def put_reserved(self, pool: str, reserved: Iterable[Reserved]) -> tuple[str, ...]:
        """Take in all that a pool keeps of what was recalled; return the nodes concerned."""
        before, now = self._reserved.pop(pool, ()), tuple(reserved)
        if now:
            self._reserved[pool] = now
        return self._count(_nodes(before), _nodes(now))

    def of(self, key: JobKey) -> tuple[Actor, ...]:
        """Return the entries of a job."""
        return tuple(self._entries.get(key, {}).values())

    def any_on(self, node: str) -> bool:
        return node in self._on

    @property
    def nodes(self) -> Iterable[str]:
        return self._on.keys()

    def node_of(self, key: JobKey, number: int) -> str | None:
        """Return the node of an actor; None: its entry is not known."""
        actor = self._entries.get(key, {}).get(number)
        return None if actor is None else actor.node

    def kept_for(self, key: JobKey) -> tuple[str, ...]:
        """Return the nodes on which a job's pods, or its admission, change what is kept."""
        mine = [actor.node for actor in self._entries.get(key, {}).values()]
        held = (one for held in self._reserved.values() for one in held if one.target == key)
        return (*mine, *_nodes(held))

    def ends(self) -> list[float]:
        """Return when (s) what was recalled is kept no longer."""
        return [one.expires for held in self._reserved.values() for one in held]

    def on(
        self, node: str, pods: Mapping[JobKey, Mapping[str, _Pod]], admitted: Iterable[JobKey]
    ) -> list[Claim]:
        """Return what is kept on a node beyond what pods have taken.

        Args:
            node: its name.
            pods: bound pods of each job, by uid.
            admitted: jobs with an admission: what was recalled for it is in its plan by now.
        """
        if node not in self._on:
            return []
        found = []
        leaving: Counter[JobKey] = Counter()  # whom GPUs will be free for that recalled actors still have
        for key, entries in self._entries.items():
            bound = {pod.actor for pod in pods.get(key, {}).values()}
            open_ = 0
            for actor in entries.values():
                if actor.node == node:
                    open_ += 0 if actor.number in bound else actor.gpus
                    if actor.state is ActorState.RECALLED:
                        leaving[actor.for_whom] += actor.gpus
            if open_:
                found.append(Claim(key, open_, None, False))
        here = set(admitted)
        for held in self._reserved.values():
            for one in held:
                if not one.returning and one.target in here:
                    continue
                gpus = sum(size for name, size in one.places if name == node)
                still = min(gpus, leaving[one.target])
                leaving[one.target] -= still
                if gpus > still:
                    found.append(Claim(one.target, gpus - still, one.expires, True))
        return found

    def _count(self, gone: Iterable[str], come: Iterable[str]) -> tuple[str, ...]:
        touched = (*gone, *come)
        self._on.subtract(gone)
        self._on.update(come)
        for node in touched:
            if self._on[node] <= 0:
                del self._on[node]
        return touched


def _nodes(reserved: Iterable[Reserved]) -> list[str]:
    return [node for one in reserved for node, _ in one.places]
