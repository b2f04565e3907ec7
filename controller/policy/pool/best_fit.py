"""Best fit of a whole gang: each member goes to the node with the fewest free GPUs that are enough.

Where nodes name their racks, a gang of several members goes into one rack if one holds it whole: the one with
room for the fewest such members. Ties go by name. `fit` is the rule in its plain form, for one question about
a mapping; `FreeGpus` gives the same answers to many questions while nodes change, without sorting all of them
each time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence

NO_RACKS: Mapping[str, str] = {}


def fit(
    free: Mapping[str, int],
    replicas: int,
    gpus_per_replica: int,
    avoid: Collection[str] = (),
    racks: Mapping[str, str] = NO_RACKS,
) -> tuple[str, ...] | None:
    """Return the node of each member, or None if the gang does not fit whole. ``racks``: node -> its rack, if
    known.

    A gang without GPUs fits anywhere and gets no nodes. One that fits without the nodes to ``avoid`` gets
    none of them, any other is placed as though there were none to avoid.
    """
    if avoid:
        others = {name: gpus for name, gpus in free.items() if name not in avoid}
        found = fit(others, replicas, gpus_per_replica, racks=racks)
        if found is not None:
            return found
    if gpus_per_replica == 0:
        return ()
    if racks and replicas > 1:
        room: Counter[str] = Counter()
        for name, gpus in free.items():
            if name in racks:
                room[racks[name]] += gpus // gpus_per_replica if gpus > 0 else 0
        holding = [(members, rack) for rack, members in room.items() if members >= replicas]
        if holding:
            inside = {name: gpus for name, gpus in free.items() if racks.get(name) == min(holding)[1]}
            return fit(inside, replicas, gpus_per_replica)
    nodes: list[str] = []
    for name in sorted(free, key=lambda n: (free[n], n)):
        members = free[name] // gpus_per_replica
        nodes += [name] * min(members, replicas - len(nodes))
        if len(nodes) == replicas:
            return tuple(nodes)
    return None


class FreeGpus(MutableMapping[str, int]):
    """Free GPUs by node, as a mapping that also finds nodes by the number of their free GPUs.

    Nodes have few different numbers of free GPUs, so a question looks at these, and at the nodes that it
    answers with. What was changed since the last question is put in its place when the next one comes.
    """

    __slots__ = ("_amounts", "_gpus", "_nodes", "_place", "_racked", "_racks", "_stale")

    _gpus: dict[str, int]
    _place: dict[str, int]  # node -> the amount under which it is in ``_nodes``
    _nodes: dict[int, list[str]]  # free GPUs -> names in order, never empty
    _amounts: list[int]  # the keys of ``_nodes`` in order
    _racks: Mapping[str, str]  # node -> rack, of those that name one
    _racked: dict[int, dict[str, list[str]]]  # free GPUs -> rack -> names in order, never empty
    _stale: set[str]  # nodes that may have another amount than they are under

    def __init__(self, free: Mapping[str, int], racks: Mapping[str, str] = NO_RACKS) -> None:
        """Copy ``free``.

        Args:
            free: node -> GPUs; a `FreeGpus` may know racks itself.
            racks: node -> rack.
        """
        if isinstance(free, FreeGpus) and not racks:
            free._tidy()
            self._racks = free._racks
            self._racked = {
                gpus: {rack: nodes.copy() for rack, nodes in held.items()}
                for gpus, held in free._racked.items()
            }
            self._gpus = free._gpus.copy()
            self._place = free._place.copy()
            self._nodes = {gpus: nodes.copy() for gpus, nodes in free._nodes.items()}
            self._amounts = free._amounts.copy()
            self._stale = set()
        else:
            self._gpus = dict(free)
            self._racks, self._racked = racks, {}
            self._place, self._nodes, self._amounts = {}, {}, []
            self._stale = set(self._gpus)

    def __getitem__(self, node: str) -> int:
        return self._gpus[node]

    def __setitem__(self, node: str, gpus: int) -> None:
        self._gpus[node] = gpus
        self._stale.add(node)

    def __delitem__(self, node: str) -> None:
        del self._gpus[node]
        self._stale.add(node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._gpus)

    def __len__(self) -> int:
        return len(self._gpus)

    def __contains__(self, node: object) -> bool:
        return node in self._gpus

    def __repr__(self) -> str:
        return f"FreeGpus({self._gpus!r})"

    def add(self, node: str, gpus: int) -> bool:
        """Let a node have so many more, or fewer; False, and nothing, if there is no such node."""
        if node not in self._gpus:
            return False
        self._gpus[node] += gpus
        self._stale.add(node)
        return True

    def cap(self, node: str, gpus: int) -> int:
        """Let a node have so many at most; return how many it has."""
        now = self._gpus[node]
        if now <= gpus:
            return now
        self._gpus[node] = gpus
        self._stale.add(node)
        return gpus

    def members(self, gpus_per_replica: int) -> int:
        """Return how many members of so many GPUs (at least 1) find room."""
        if self._stale:
            self._tidy()
        enough = self._amounts[bisect_left(self._amounts, gpus_per_replica) :]
        return sum([len(self._nodes[a]) * (a // gpus_per_replica) for a in enough])

    def fit(
        self, replicas: int, gpus_per_replica: int, avoid: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        """As the function `fit` of this mapping and its racks."""
        if gpus_per_replica == 0:
            return ()
        if self._stale:
            self._tidy()
        enough = self._amounts[bisect_left(self._amounts, gpus_per_replica) :]
        if sum([len(self._nodes[a]) * (a // gpus_per_replica) for a in enough]) < replicas:
            return None
        if avoid and (found := self._fill(enough, replicas, gpus_per_replica, frozenset(avoid))) is not None:
            return found
        return self._fill(enough, replicas, gpus_per_replica)

    def _fill(
        self,
        amounts: Sequence[int],
        replicas: int,
        gpus_per_replica: int,
        without: Collection[str] = (),
    ) -> tuple[str, ...] | None:
        """Return nodes with these amounts, in order, until all members have one; of one rack if it
        holds all."""
        rack = None
        if self._racks and replicas > 1:
            rack = self._rack(amounts, replicas, gpus_per_replica, without)
        nodes: list[str] = []
        for amount in amounts:
            names = self._nodes[amount] if rack is None else self._racked.get(amount, {}).get(rack, ())
            for name in names:
                if name in without:
                    continue
                nodes += [name] * min(amount // gpus_per_replica, replicas - len(nodes))
                if len(nodes) == replicas:
                    return tuple(nodes)
        return None

    def _rack(
        self, amounts: Iterable[int], replicas: int, gpus_per_replica: int, without: Collection[str]
    ) -> str | None:
        """Return the rack with the least room of those that hold the gang whole."""
        room: Counter[str] = Counter()
        for amount in amounts:
            members = amount // gpus_per_replica
            for rack, names in self._racked.get(amount, {}).items():
                room[rack] += len(names) * members
        for name in without:
            if name in self._racks and (amount := self._place.get(name, 0)) >= gpus_per_replica:
                room[self._racks[name]] -= amount // gpus_per_replica
        return min(((n, rack) for rack, n in room.items() if n >= replicas), default=(0, None))[1]

    def _tidy(self) -> None:
        """Put the nodes that have changed where they belong."""
        # In order, so that the first time, when it is all of them, each goes to the end of its list.
        for node in sorted(self._stale):
            before, now = self._place.get(node), self._gpus.get(node)
            if before == now:
                continue
            if before is not None:
                nodes = self._nodes[before]
                del nodes[bisect_left(nodes, node)], self._place[node]
                if not nodes:
                    del self._nodes[before], self._amounts[bisect_left(self._amounts, before)]
                self._unrack(node, before)
            if now is not None:
                if now not in self._nodes:
                    self._nodes[now] = []
                    insort(self._amounts, now)
                insort(self._nodes[now], node)
                self._place[node] = now
                if node in self._racks:
                    insort(self._racked.setdefault(now, {}).setdefault(self._racks[node], []), node)
        self._stale.clear()

    def _unrack(self, node: str, gpus: int) -> None:
        """Remove a node from its rack's list of nodes with ``gpus`` free GPUs."""
        rack = self._racks.get(node)
        if rack is None:
            return
        held = self._racked[gpus]
        del held[rack][bisect_left(held[rack], node)]
        if not held[rack]:
            del held[rack]
            if not held:
                del self._racked[gpus]
