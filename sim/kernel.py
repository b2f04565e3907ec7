"""A discrete-event kernel: a heap of (time, order, ticket), a feed of arrivals, and nothing else.

Everything that is to happen at one instant happens before anybody decides: first the events of the heap, by
their order and then as they were scheduled, then the arrivals of that instant, then ``settle``, once. What
settling schedules for the same instant (a release without delay) makes another round of the same instant.
The order is the caller's (the engine takes a job's row), so that a tie does not hang on who scheduled when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

# Returns True when nothing came of the event that anybody need decide about.
Handler = Callable[[Any], bool | None]

_NEVER = math.inf


class Kernel:
    """Virtual time. Times may be ints or floats; ints stay exact."""

    __slots__ = ("_cancelled", "_heap", "_ticket", "events", "now")

    def __init__(self) -> None:
        self.now: float = 0.0
        self.events = 0  # handled so far, arrivals among them
        self._heap: list[tuple[float, int, int, Handler, Any]] = []
        self._ticket = 0
        self._cancelled: set[int] = set()

    def at(self, time: float, order: int, handler: Handler, subject: Any) -> int:
        """Call ``handler(subject)`` at ``time``; the ticket is for `cancel`.

        ``order``: at one time, lower ones first.

        Raises:
            ValueError: ``time`` has passed, or is no finite number.
        """
        if not self.now <= time < _NEVER:
            raise ValueError(f"time: {time!r}, expected a finite time of at least now, {self.now!r}")
        self._ticket = ticket = self._ticket + 1
        heappush(self._heap, (time, order, ticket, handler, subject))
        return ticket

    def cancel(self, ticket: int) -> None:
        """Cancel the event of this ticket, if it has not happened yet."""
        self._cancelled.add(ticket)

    def run(
        self,
        times: Iterator[float],
        subjects: Iterator[Any],
        arrive: Callable[[Any, float], None],
        settle: Callable[[float], None],
    ) -> None:
        """Until nothing is left to happen.

        Args:
            times: of the arrivals, in order.
            subjects: who arrives, in the same order.
            arrive: called with the subject and the time of each arrival.
            settle: called with the time, after all that happened at it, unless all of it was quiet.
        """
        heap, cancelled = self._heap, self._cancelled
        coming = next(times, _NEVER)
        events = 0
        while True:
            if heap and heap[0][0] <= coming:
                now, _, ticket, handler, subject = heappop(heap)
                if cancelled and ticket in cancelled:
                    cancelled.remove(ticket)
                    continue
                self.now = now
                events += 1
                quiet = handler(subject)
                while heap and heap[0][0] == now:
                    _, _, ticket, handler, subject = heappop(heap)
                    if cancelled and ticket in cancelled:
                        cancelled.remove(ticket)
                    else:
                        events += 1
                        if not handler(subject):
                            quiet = False
            elif coming < _NEVER:
                self.now = now = coming
                quiet = False
            else:
                self.events += events
                return
            while coming == now:
                events += 1
                quiet = False
                arrive(next(subjects), now)
                coming = next(times, _NEVER)
            if not quiet:
                settle(now)
