"""Schedule of scrapes: when each target is due. A heap of (due, key), at a fixed rate, without a clock.

Slots of a key lie at ``phase + n * interval``, so that rates do not drift and thousands of jobs stay spread
out. A key whose scrapes take long has only every second of them, or every fourth (`stretched`): what a scrape
takes, somebody else waits for. The phase of a new key is a hash of it, so that jobs met together are not due
together.
"""

from __future__ import annotations

import heapq
import math
import zlib
from dataclasses import dataclass

# s: a trainer that comes back is seen at most this late (or one interval, if that is longer).
MAX_BACKOFF = 120.0
# A scrape that took t seconds is begun again COST * t after its begin at the earliest: one target has at most
# a tenth of the time.
COST = 10.0


@dataclass(slots=True, eq=False)
class Turn:
    """A key's place in the schedule; ``pop`` hands it out, ``done`` takes it back."""

    key: str
    interval: float
    phase: float  # s: some slot of the key
    due: float  # s
    stretch: int = 1  # every how many slots it is due
    took: float = 0.0  # s, its last scrape that succeeded
    failures: int = 0
    busy: bool = False
    hastened: bool = False  # while busy: due again at once


class Schedule:
    """Keys with intervals; times are seconds of any one monotonic clock, given by the caller."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._heap: list[tuple[float, str]] = []  # stale unless the key's turn is idle and due just then

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, key: str, interval: float, now: float) -> None:
        """Add a key, first due within one interval, or give a known key a new interval.

        Raises:
            ValueError: the interval is not a positive finite number.
        """
        if not (math.isfinite(interval) and interval > 0):
            raise ValueError(f"interval of {key!r} is {interval} s: expected a positive number")
        turn = self._turns.get(key)
        if turn is not None and turn.interval == interval:
            return
        first = now + jitter(key) * interval
        if turn is None:
            turn = self._turns[key] = Turn(key, interval, first, first)
        turn.interval, turn.phase, turn.due, turn.stretch = interval, first, first, 1
        if not turn.busy:
            heapq.heappush(self._heap, (first, key))

    def discard(self, key: str) -> None:
        """Forget a key; unknown ones are fine."""
        self._turns.pop(key, None)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._turns):
            self._heap = [(turn.due, turn.key) for turn in self._turns.values() if not turn.busy]
            heapq.heapify(self._heap)

    def record_duration(self, turn: Turn, took: float) -> None:
        """Note how long (s) a scrape took that succeeded. One that takes long by chance, or because this
        process was held up, changes nothing: two in a row do."""
        turn.stretch = stretched(turn.interval, min(took, turn.took), turn.stretch)
        turn.took = took

    def hasten(self, key: str, now: float) -> None:
        """Make a known key due now and forget its failures: its target is new, or said to be ready."""
        turn = self._turns.get(key)
        if turn is None:
            return
        turn.failures = 0
        turn.due = min(turn.due, now)
        turn.hastened = turn.busy
        if not turn.busy:
            heapq.heappush(self._heap, (turn.due, key))

    def next_due(self) -> float | None:
        """Return when the next idle key is due; None: there is none."""
        while self._heap:
            due, key = self._heap[0]
            turn = self._turns.get(key)
            if turn is not None and not turn.busy and turn.due == due:
                return due
            heapq.heappop(self._heap)
        return None

    def pop(self, now: float) -> Turn | None:
        """Take the idle key that has been due longest and mark it busy; None: nothing is due."""
        due = self.next_due()
        if due is None or due > now:
            return None
        turn = self._turns[heapq.heappop(self._heap)[1]]
        turn.busy = True
        return turn

    def holds(self, turn: Turn) -> bool:
        """Return whether the turn's key is still wanted, and was not forgotten and added anew."""
        return self._turns.get(turn.key) is turn

    def done(self, turn: Turn, ok: bool, now: float) -> None:
        """Give back a turn from ``pop``: next comes its next slot; after failures, ever later slots.

        The first failure costs no delay; each further one doubles the wait, up to ``MAX_BACKOFF``.
        """
        if not self.holds(turn):
            return
        turn.busy = False
        if turn.hastened:
            turn.hastened, turn.failures, turn.due = False, 0, now
        else:
            turn.failures = 0 if ok else turn.failures + 1
            extra = max(0.0, (turn.stretch - 1) * turn.interval - max(0.0, now - turn.due))
            if turn.failures > 1:
                wait = turn.interval * 2.0 ** min(turn.failures - 1, 16)
                extra = max(extra, min(wait, max(MAX_BACKOFF, turn.interval)) - turn.interval)
            slot = math.floor((now + extra - turn.phase) / turn.interval) + 1
            turn.due = turn.phase + max(slot, 0) * turn.interval
        heapq.heappush(self._heap, (turn.due, turn.key))


def stretched(interval: float, took: float, before: int = 1) -> int:
    """Return every how many intervals a target is scraped whose last scrape took ``took`` s: a power of two.

    So it changes seldom; it falls by one step only if twice the time would allow that.

    Never more than `MAX_BACKOFF` apart, or one interval, if that is longer.
    """
    wanted = _stretch(interval, took)
    if wanted >= before:
        return wanted
    return before // 2 if _stretch(interval, 2 * took) < before else before


def _stretch(interval: float, took: float) -> int:
    stretch = 1
    while stretch * interval < COST * took and 2 * stretch * interval <= MAX_BACKOFF:
        stretch *= 2
    return stretch


def jitter(key: str) -> float:
    """Return a number in [0, 1) by the key alone."""
    return zlib.crc32(key.encode()) / 2**32
