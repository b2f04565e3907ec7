"""Count the connections to this process's servers; where there are too many, one that waits is closed.

A connection costs a file descriptor before anything is known of who opened it. So all servers of a process
share one book: so many connections in all, so many of each server, so many of each peer there. Where a new
one has no room, one that waits goes: of the peer that has most of them, the one that has waited longest. So
whoever opens hundreds and says nothing loses those, while a probe, which asks at once, is answered. Only
where every connection has a request under way is the new one refused.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field

from controller import file_descriptors
from controller.frozen import dataclass

MOST = 512  # connections to all servers of a process
FEWEST = 16  # also where descriptors are short: fewer would shut out probes
MOST_OF_A_SERVER = 256
MOST_OF_A_PEER = 64  # to one server; a proxy in front of many people is one peer, and what waits makes room


@dataclasses.dataclass(eq=False, slots=True)
class Connection:
    """One of them. Times are monotonic s.

    ``waits_since``: no request is under way since then; None: one is. ``close`` ends it at once.
    """

    server: str
    peer: str
    close: Callable[[], None]
    waits_since: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server: connections, in all and from one peer, and s for which one may be silent."""

    connections: int = MOST_OF_A_SERVER
    per_peer: int = MOST_OF_A_PEER
    head: float = 5.0  # from the first byte of a request's head, or from connecting, to the head's last byte
    request: float = 60.0  # from there to the last byte of the answer
    keep_alive: float = 5.0  # between an answer and the next request


@dataclasses.dataclass(slots=True)
class Connections:
    """All connections of a process's servers; ``most``: as many as there may be."""

    most: int = MOST
    monotonic: Callable[[], float] = time.monotonic
    refused: Counter[str] = field(default_factory=Counter)  # by server: new ones that found no room
    dropped: Counter[str] = field(default_factory=Counter)  # by server: those that left to make room
    slow: Counter[str] = field(default_factory=Counter)  # by server: those that took too long
    _held: dict[Connection, None] = field(default_factory=dict)
    _closing: set[Connection] = field(default_factory=set)  # made room, and still have their descriptors

    @staticmethod
    def of_process(reserve: int) -> Connections:
        """As many as descriptors allow, with ``reserve`` left for what the process itself opens."""
        return Connections(max(FEWEST, min(MOST, file_descriptors.left(reserve))))

    def enter(self, server: str, peer: str, limits: Limits, close: Callable[[], None]) -> Connection | None:
        """Return a new connection; others may be closed for it. None: there is no room, close it."""
        new = Connection(server, peer, close, self.monotonic())
        here = [c for c in self._held if c.server == server]
        of_peer = [c for c in here if c.peer == peer]
        groups = ((of_peer, limits.per_peer), (here, limits.connections), (self._held, self.most))
        for group, most in groups:
            room = most - sum(c in self._held for c in group)
            if room <= 0 and not self._drop_one(group):
                self.refused[server] += 1
                return None
        self._held[new] = None
        return new

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._held.pop(connection, None)
        self._closing.discard(connection)

    @property
    def closing(self) -> bool:
        """Return whether some that made room have not closed yet: until then nobody else is accepted."""
        return bool(self._closing)

    def of(self, server: str) -> int:
        """Return how many a server has."""
        return sum(c.server == server for c in self._held)

    def turned_away(self) -> list[tuple[tuple[str, str], float]]:
        """((server, why), how many so far): NoRoom, MadeRoom or TooSlow."""
        why = {"NoRoom": self.refused, "MadeRoom": self.dropped, "TooSlow": self.slow}
        return [((server, word), float(n)) for word, found in why.items() for server, n in found.items()]

    def _drop_one(self, group: Iterable[Connection]) -> bool:
        waiting = [c for c in group if c.waits_since is not None and c in self._held]
        if not waiting:
            return False
        held = Counter(c.peer for c in self._held)
        goes = max(waiting, key=lambda c: (held[c.peer], -(c.waits_since or 0.0)))
        del self._held[goes]
        self._closing.add(goes)
        self.dropped[goes.server] += 1
        goes.close()
        return True
