"""The order of turns: who asked first is next, and the loaded resident a few times in a row.

The order is first come, first served. Only the resident that is loaded may go before the first of the queue,
because it needs no switch, and only until it has had ``cap`` turns in a row. With a cap of 1 the order is
plain first come, first served. Response ratio, shortest turn first and round robin came out equal within half
a point for up to 3 residents (`evalstop sim sharing curve`), and bound no wait by themselves.

**The bound.** A group has ``k`` residents, each with at most one request at a time. A turn ends after at most
``L`` (its workers are killed then), and a switch, with the reaping of those, takes at most ``S``. Then a
resident that asks is at its turn, loaded, after at most

    (k - 1) (cap L + S) + S

Proof. Let ``x`` ask while ``h`` holds the group (if nobody does, nobody waits, and ``x`` is next after one
switch). `choose` returns the first of the queue, or the loaded resident with fewer than ``cap`` turns in a
row. Whoever asks after ``x`` stands behind it, so it goes before ``x`` only as the loaded resident. Whoever
stood before ``x`` becomes the first of the queue once, and if it asks again it stands behind ``x``. The same
goes for ``h``, which waits for nothing while it holds. So before ``x``, each of the ``k - 1`` others is
loaded for at most one row of turns that ends after ``cap`` of them while ``x`` waits: ``cap L``. There is at
most one switch before each such row (the one to ``h`` may still be under way), and one to ``x``. A resident
that leaves only makes it shorter; one that comes asks later than ``x``. ∎
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

_Who = TypeVar("_Who", bound=Hashable)


def choose(waiting: Sequence[_Who], loaded: _Who | None, row: int, cap: int) -> int:
    """Return the place in ``waiting``, which is not empty, of the one whose turn is next.

    Args:
        waiting: who waits, in the order in which they asked.
        loaded: whose state is on the device; None: nobody's.
        row: turns in a row that it has had.
        cap: of them while somebody else waits.
    """
    if row < cap and loaded is not None and loaded in waiting:
        return waiting.index(loaded)
    return 0


def longest_wait(residents: int, cap: int, turn: int, switch: int) -> int:
    """Return the bound on a wait: from the request until the resident is loaded, in the unit given.

    Args:
        residents: of the group, at least 1.
        cap: turns in a row.
        turn: the longest one.
        switch: the longest one.
    """
    return (residents - 1) * (cap * turn + switch) + switch


class TurnQueue(Generic[_Who]):
    """The queue for turns of one group.

    Attributes:
        loaded: the resident whose turn is or was the last one; its state stays loaded until another's turn.
        row: turns that it has had in a row.
    """

    __slots__ = ("cap", "loaded", "row", "waiting")

    def __init__(self, cap: int = 1) -> None:
        if cap < 1:
            raise ValueError(f"cap: {cap} is not allowed, expected at least 1 turn")
        self.cap = cap
        self.waiting: list[_Who] = []
        self.loaded: _Who | None = None
        self.row = 0

    def ask(self, resident: _Who) -> None:
        """Let a resident wait for a turn.

        Raises:
            ValueError: it waits already.
        """
        if resident in self.waiting:
            raise ValueError(f"{resident} waits already: a resident has one request at a time")
        self.waiting.append(resident)

    def grant(self) -> _Who | None:
        """Take the next one out of the queue and return it; None: nobody waits."""
        waiting = self.waiting
        if not waiting:
            return None
        who = waiting.pop(choose(waiting, self.loaded, self.row, self.cap))
        if who == self.loaded:
            self.row += 1
        else:
            self.loaded, self.row = who, 1
        return who

    def leave(self, resident: _Who) -> None:
        """Forget a resident: it waits no longer, and nothing of it is loaded."""
        if resident in self.waiting:
            self.waiting.remove(resident)
        if self.loaded == resident:
            self.loaded, self.row = None, 0
