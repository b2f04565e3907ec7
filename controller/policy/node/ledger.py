"""Ledger of each node's reserved GPUs, by gang: the extender's accounts, pure, in memory, without a clock.

These things keep GPUs from everybody else. A gang's admission keeps the planned node of each member until its
pod is bound there. A reservation keeps what a stop is still freeing for the job that the pool has chosen.
An actor's entry keeps the GPUs of its node until its pod is bound there, and what was recalled for a job is
kept for that one (`actor_claims`). Ownership is all that is judged: whether a pod fits is kube-scheduler's to
say, which alone knows the pods it has placed and not yet bound.

The ledger takes in objects one by one, in any order, and forgets them the same way: what it answers depends
on what it holds, never on how it came to hold it, so that replicas agree and a restart loses nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from controller.frozen import dataclass
from controller.policy.actor_types import Actor, Reserved
from controller.policy.node.actor_claims import ActorClaims, Claim
from controller.policy.node.planned_nodes import remaining_nodes, still_open
from controller.policy.types import JobKey, Reservation
from controller.policy.wording import ELSEWHERE

SIGNATURE = "evalstop: "  # begins every refusal, so that a pod's status tells who refused it

_NOTHING: Mapping[str, str] = {"": ""}
_EVER = (float("-inf"), float("inf"))


class PodRequest(NamedTuple):
    """A pod that is being scheduled."""

    name: str  # namespace/name
    gpus: int
    gang: JobKey | None = None  # the RLHFJob whose admission it was made for
    admission: int = 0  # that admission's number
    member: int | None = None  # its index in the gang; None: unknown
    actor: int | None = None  # its number, of a rollout actor; None: it is none


@dataclass(frozen=True, slots=True)
class Gang:
    """The admission of a gang, as long as it lasts.

    Attributes:
        expires: when GPUs that its pods have not taken are given up (s); None: never, since all its pods ran
            once and one that is made again must find its place.
    """

    key: JobKey
    admission: int
    nodes: tuple[str, ...]  # planned node of each member, by index
    gpus: int  # of each member
    expires: float | None = None
    ended: tuple[int, ...] = ()  # members that ended well: nothing is kept for them


class Bound(NamedTuple):
    """A pod of an RLHFJob that is bound to a node and is not terminal."""

    gang: JobKey
    admission: int
    node: str
    gpus: int
    actor: int | None = None  # its number, of a rollout actor, which is no member of the gang


@dataclasses.dataclass(slots=True)
class _Keep:
    """GPUs of one node that are reserved for one gang beyond those its pods have taken."""

    gpus: int
    expires: float | None
    end: str  # until when, in words
    admission: int

    def reserved_for(self, key: JobKey, reader: str) -> str:
        """Return the sentence for pods of the namespace ``reader``."""
        return f"{self.gpus} GPUs kept for {_named(key, reader, self.admission)} until {self.end}"


class GpuLedger:
    """Nodes, admissions, reservations and bound pods, and what follows for a pod that is being scheduled.

    Invariant: equal contents give equal answers, whatever the order in which they were put in.
    """

    def __init__(self, when: Callable[[float], str] = "{:.0f} s".format) -> None:
        """``when``: how a time (s) is written in refusals."""
        self._when = when
        self._gpus: dict[str, int] = {}
        self._racks: dict[str, str] = {}
        self._gangs: dict[JobKey, Gang] = {}
        self._bound: dict[str, Bound] = {}  # by uid of the pod
        self._bound_of: dict[JobKey, dict[str, Bound]] = {}
        self._used: Counter[str] = Counter()  # node -> GPUs of bound pods
        self._keeps: dict[str, dict[JobKey, _Keep]] = {}  # node -> what each gang keeps there
        self._kept_of: dict[JobKey, tuple[str, ...]] = {}
        self._reservations: dict[str, tuple[Reservation, ...]] = {}  # by pool
        self._reserved: dict[str, list[Reservation]] = {}  # by node
        self._sizes: dict[JobKey, int] = {}  # GPUs of a member, of every job known
        self._actors = ActorClaims()
        # What was worked out for a node, until something there changes: GPUs kept, and the sentences about
        # them, all of it true from ``_window[0]`` to just before ``_window[1]`` (s). A sentence stands in the
        # status of the pod that was refused: of another namespace's jobs it has no names. So there is one for
        # each namespace that has something there, and one ("") for all others.
        self._kept: dict[str, int] = {}
        self._sentences: dict[str, Mapping[str, str]] = {}
        self._window = _EVER

    # -- taking in -----------------------------------------------------------------------------------------

    def put_node(self, name: str, gpus: int, rack: str = "") -> None:
        self._gpus[name] = gpus
        if rack:
            self._racks[name] = rack
        else:
            self._racks.pop(name, None)

    def drop_node(self, name: str) -> None:
        self._gpus.pop(name, None)
        self._racks.pop(name, None)
        self._forget((name,))

    def put_job(self, key: JobKey, gpus_per_member: int, gang: Gang | None) -> None:
        """Record a job and its admission; ``gang`` is None while it has none."""
        self._sizes[key] = gpus_per_member
        if gang is None:
            self._gangs.pop(key, None)
        else:
            self._gangs[key] = gang
        self._settle(key)

    def drop_job(self, key: JobKey) -> None:
        self._sizes.pop(key, None)
        self._gangs.pop(key, None)
        self.put_actors(key, ())
        self._settle(key)

    def put_actors(self, key: JobKey, actors: Iterable[Actor]) -> None:
        """Take in all entries of a job's rollout actors."""
        self._forget(self._actors.put(key, actors))

    def put_recalled(self, pool: str, reserved: Iterable[Reserved]) -> None:
        """Take in all that a pool keeps for those for whom actors were recalled."""
        self._forget(self._actors.put_reserved(pool, reserved))

    def put_reservations(self, pool: str, reservations: Iterable[Reservation]) -> None:
        """Take in all that a pool reserves now."""
        before, now = self._reservations.get(pool, ()), tuple(reservations)
        self._reservations[pool] = now
        if before == now:
            return
        for reservation in (*before, *now):
            self._forget(reservation.nodes)
        self._reserved = {}
        for held in self._reservations.values():
            for reservation in held:
                for node in dict.fromkeys(reservation.nodes):
                    self._reserved.setdefault(node, []).append(reservation)

    def drop_reservations(self, pool: str) -> None:
        self.put_reservations(pool, ())
        del self._reservations[pool]

    def put_bound(self, uid: str, pod: Bound) -> None:
        self.drop_bound(uid)
        self._bound[uid] = pod
        self._bound_of.setdefault(pod.gang, {})[uid] = pod
        self._used[pod.node] += pod.gpus
        self._forget((pod.node,))
        self._settle(pod.gang)

    def drop_bound(self, uid: str) -> None:
        pod = self._bound.pop(uid, None)
        if pod is None:
            return
        self._forget((pod.node,))
        members = self._bound_of[pod.gang]
        del members[uid]
        if not members:
            del self._bound_of[pod.gang]
        self._used[pod.node] -= pod.gpus
        if not self._used[pod.node]:
            del self._used[pod.node]
        self._settle(pod.gang)

    def _settle(self, key: JobKey) -> None:
        """Work out anew what a gang keeps: its planned nodes less those its pods have taken."""
        for reservation in (p for held in self._reservations.values() for p in held if p.target == key):
            self._forget(reservation.nodes)  # superseded now, or no more
        self._forget(self._actors.kept_for(key))
        for node in self._forget(self._kept_of.pop(key, ())):
            keeps = self._keeps[node]
            del keeps[key]
            if not keeps:
                del self._keeps[node]
        gang = self._gangs.get(key)
        if gang is None or gang.gpus == 0:
            return
        open_ = Counter(self._open(gang))
        for node, members in open_.items():
            end = "its admission ends" if gang.expires is None else self._when(gang.expires)
            keep = _Keep(members * gang.gpus, gang.expires, end, gang.admission)
            self._keeps.setdefault(node, {})[key] = keep
        self._kept_of[key] = self._forget(tuple(open_))

    def _forget(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        for node in nodes:
            if self._sentences.pop(node, None) is not None:
                del self._kept[node]
        return nodes

    def _open(self, gang: Gang) -> list[str]:
        """Planned nodes, one per member, that no bound pod of this admission has taken."""
        members = self._bound_of.get(gang.key, {}).values()
        # A pod without a number is of a run that was adopted, not admitted.
        taken = (b.node for b in members if b.actor is None and b.admission in (0, gang.admission))
        return still_open(remaining_nodes(gang.nodes, gang.ended), taken)

    # -- answers -------------------------------------------------------------------------------------------

    def gang(self, key: JobKey) -> Gang | None:
        return self._gangs.get(key)

    def size(self, key: JobKey) -> int | None:
        """Return GPUs of each member of a job's gang; None: no such job is known."""
        return self._sizes.get(key)

    def pod(self, uid: str) -> Bound | None:
        """Return a bound pod of an RLHFJob by its uid."""
        return self._bound.get(uid)

    def actors(self, key: JobKey) -> tuple[Actor, ...]:
        """Return the entries of a job's rollout actors that are known."""
        return self._actors.of(key)

    def actor_node(self, key: JobKey, number: int) -> str | None:
        """Return the node that an actor's entry names; None: no such entry is known."""
        return self._actors.node_of(key, number)

    @property
    def capacity(self) -> Mapping[str, int]:
        """Allocatable GPUs of each node that is known."""
        return self._gpus

    def untouched(self, node: str) -> bool:
        """Return whether no gang has anything on a node, neither pods nor a claim: most nodes, most of the
        time."""
        return not (
            node in self._keeps or node in self._reserved or node in self._used or self._actors.any_on(node)
        )

    def rack(self, node: str) -> str | None:
        return self._racks.get(node)

    def planned(self, request: PodRequest) -> tuple[str, ...]:
        """Return nodes that the plan gives to this pod; none if it is of no admission that lasts."""
        gang = self._gangs.get(request.gang) if request.gang is not None else None
        if gang is None or gang.admission != request.admission:
            return ()
        if request.member is None:
            return tuple(dict.fromkeys(self._open(gang)))
        return gang.nodes[request.member : request.member + 1]

    def kept(self, node: str, now: float, reader: str = "") -> tuple[int, str]:
        """Return GPUs of a node that are kept at ``now`` (s), and for whom until when, in a sentence for pods
        of the namespace ``reader``."""
        self._at(now)
        sentences = self._sentences.get(node)
        if sentences is not None:
            return self._kept[node], sentences.get(reader) or sentences[""]
        gpus, sentences = self._work_out(node, now)
        if node in self._gpus:  # names that only a request knows are not collected
            self._kept[node], self._sentences[node] = gpus, sentences
        return gpus, sentences.get(reader) or sentences[""]

    def reserved_for(self, nodes: Sequence[str], now: float, reader: str = "") -> list[str]:
        """Return the sentence of `kept` for each of many nodes, empty where nothing is kept."""
        self._at(now)
        found = list(map(self._sentences.get, nodes))
        return [
            self.kept(node, now, reader)[1]
            if reserved_for is None
            else reserved_for.get(reader) or reserved_for[""]
            for node, reserved_for in zip(nodes, found, strict=True)
        ]

    def _at(self, now: float) -> None:
        since, until = self._window
        if not since <= now < until:
            self._forget(tuple(self._sentences))
            self._window = _EVER

    def _work_out(self, node: str, now: float) -> tuple[int, Mapping[str, str]]:
        if node not in self._keeps and node not in self._reserved and not self._actors.any_on(node):
            return 0, _NOTHING
        total, ends = 0, []
        reasons: list[Callable[[str], str]] = []
        named: list[JobKey] = []
        lasting: dict[JobKey, int] = {}
        for key, keep in self._keeps.get(node, {}).items():
            ends += [] if keep.expires is None else [keep.expires]
            if keep.expires is None or keep.expires > now:
                lasting[key] = keep.gpus
                total += keep.gpus
                reasons.append(partial(keep.reserved_for, key))
                named.append(key)
        for claim in self._actors.on(node, self._bound_of, self._gangs):
            ends += [] if claim.expires is None else [claim.expires]
            if claim.expires is None or claim.expires > now:
                total += claim.gpus
                last_until = "" if claim.expires is None else self._when(claim.expires)
                reasons.append(partial(_claimed, claim, last_until))
                named.append(claim.key)
            if not claim.recalled:
                lasting[claim.key] = lasting.get(claim.key, 0) + claim.gpus
        reserved: dict[JobKey, list[Reservation]] = {}
        for reservation in self._reserved.get(node, ()):
            ends.append(reservation.expires)
            if reservation.expires > now and not self._superseded(reservation):
                reserved.setdefault(reservation.source, []).append(reservation)
        for source, reservations in reserved.items():
            # What the source still holds is in no danger, and is counted as its own.
            held = sum(b.gpus for b in self._bound_of.get(source, {}).values() if b.node == node)
            wanted = sum(p.nodes.count(node) * self._sizes.get(p.target, 0) for p in reservations)
            freed = wanted - held - lasting.get(source, 0)
            if freed > 0:
                total += freed
                # Two pools may reserve the same: the later end, whichever was heard of last.
                last = {p.target: p.expires for p in sorted(reservations, key=lambda p: p.expires)}
                ends_at = {target: self._when(at) for target, at in last.items()}
                reasons += [partial(_reserved, source, target, at) for target, at in ends_at.items()]
                named += [source, *ends_at]
        since, until = self._window
        since = max([since, *(end for end in ends if end <= now)])
        until = min([until, *(end for end in ends if end > now)])
        self._window = since, until
        if not reasons:
            return total, _NOTHING
        readers = {"", *(key.partition("/")[0] for key in named)}
        return total, {
            reader: SIGNATURE + "; ".join(sorted(reason(reader) for reason in reasons)) for reader in readers
        }

    def keeping(self, now: float) -> dict[str, int]:
        """Node -> GPUs kept there at ``now``, of every node where there are any."""
        nodes = {*self._keeps, *self._reserved, *self._actors.nodes}
        return {node: gpus for node in sorted(nodes) if (gpus := self.kept(node, now)[0])}

    def next_expiry(self, now: float) -> float | None:
        """Return when (s) the next keep or reservation runs out after ``now``."""
        ends = [k.expires for keeps in self._keeps.values() for k in keeps.values() if k.expires is not None]
        ends += [p.expires for held in self._reservations.values() for p in held]
        ends += self._actors.ends()
        return min((end for end in ends if end > now), default=None)

    def left_by_gangs(self, node: str) -> int | None:
        """Return GPUs of a node that no bound pod of an RLHFJob holds; None: no such node is known, or none
        of its GPUs is (they are given out by claims)."""
        total = self._gpus.get(node)
        return total - self._used[node] if total else None

    def _superseded(self, reservation: Reservation) -> bool:
        """Return whether the target was admitted meanwhile, so that its own plan reserves its GPUs."""
        gang = self._gangs.get(reservation.target)
        return gang is not None and gang.admission >= reservation.admission


def _named(key: JobKey, reader: str, admission: int | None = None) -> str:
    if key.partition("/")[0] != reader:
        return ELSEWHERE
    return key if admission is None else f"{key} (admission {admission})"


def _reserved(source: JobKey, target: JobKey, until: str, reader: str) -> str:
    return f"GPUs of {_named(source, reader)} reserved for {_named(target, reader)} until {until}"


def _claimed(claim: Claim, until: str, reader: str) -> str:
    what = f"{claim.gpus} GPUs kept for {'' if claim.recalled else 'rollout actors of '}"
    if claim.recalled:
        return f"{what}{_named(claim.key, reader)}, for which actors were recalled, until {until}"
    return f"{what}{_named(claim.key, reader)}"
