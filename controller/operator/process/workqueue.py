"""A work queue of keys: each key waits at most once, and is worked on by one worker at a time.

The rules are those of client-go's workqueue: a key added while it is being worked on is worked on once more
afterwards, however often it was added. Delays and back-off are per key. Where client-go's has one line, this
one has one for each namespace and takes from them in turns: whoever has a thousand objects changed at once
delays another namespace's by one pass.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Closed(Exception):
    """The queue is closed: it takes and gives no more keys."""


class WorkQueue:
    """A queue of keys in the order in which they became due; namespaces take turns.

    A key's namespace is what stands before its first slash; keys without one share a line.

    ``later`` keeps one timer per key: a newer one replaces it, because the newest plan knows best when the
    key is to be looked at again. ``retry`` waits ``first`` seconds, doubled each time, at most ``most``.
    """

    def __init__(self, monotonic: Callable[[], float], *, first: float = 0.2, most: float = 60.0) -> None:
        self._now = monotonic
        self._first, self._most = first, most
        self._ready: dict[str, float] = {}  # key -> since when it waits
        # Namespace -> these keys, each in one line; whose turn it is comes first.
        self._lines: OrderedDict[str, deque[str]] = OrderedDict()
        self._active: set[str] = set()
        self._again: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._rests: dict[str, float] = {}  # key -> until when
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys that wait to be worked on now, without those on timers."""
        return len(self._ready) + len(self._again)

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being worked on; timers may be running."""
        return not self._ready and not self._active

    def add(self, key: str) -> None:
        """Have ``key`` worked on as soon as possible; forgets its timer."""
        if self._closed:
            return
        self._due.pop(key, None)
        if key in self._active:
            self._again.setdefault(key, self._now())
        elif key not in self._ready:
            self._line_up(key, self._now())
            self._wake.set()

    def later(self, key: str, delay: float | None) -> None:
        """Have ``key`` worked on in ``delay`` seconds unless it is before; None: no timer."""
        if self._closed:
            return
        if delay is None:
            self._due.pop(key, None)
            return
        due = self._now() + max(delay, 0.0)
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._wake.set()

    def sooner(self, key: str, delay: float) -> None:
        """Have ``key`` worked on in ``delay`` seconds at the latest: for events of which one pass sees many.

        A key that is being worked on is worked on once more right afterwards: a timer would be replaced by
        the one that the work ends with. A key that rests (``done``) does so to the end.
        """
        delay = max(delay, self._rests.get(key, 0.0) - self._now())
        if key in self._active:
            self.add(key)
        elif key not in self._ready and self._due.get(key, math.inf) > self._now() + delay:
            self.later(key, delay)

    def retry(self, key: str) -> float:
        """Have a key that failed worked on again after its back-off. Returns the delay (s)."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._most, self._first * 2.0 ** min(failures, 30))
        self.later(key, delay)
        return delay

    def forget(self, key: str) -> None:
        """Note that the key succeeded: its next failure starts the back-off from the beginning."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """Return the next key; call ``done`` when its work is over.

        Raises:
            Closed: by ``close``.
        """
        while True:
            if self._closed:
                raise Closed
            self._wake.clear()
            wait = self._ripen()
            if self._ready:
                key = self._next()
                self._active.add(key)
                self._rests.pop(key, None)
                if self._ready:
                    self._wake.set()  # there is one for the next worker, too
                return key
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: str, rest: float = 0.0) -> None:
        """End the work on ``key``. Events since then, and calls of ``sooner``, wait for ``rest`` (s).

        A timer that ends before ``rest`` is over does not wait, nor does ``add``.
        """
        self._active.discard(key)
        since = self._again.pop(key, None)
        if rest > 0.0:
            self._rests[key] = self._now() + rest
        if since is not None and not self._closed:
            if rest > 0.0:
                self.later(key, min(rest, self._due.get(key, math.inf) - self._now()))
            else:
                self._line_up(key, since)
        self._wake.set()

    def close(self) -> None:
        """Give no more keys out. What is being worked on may end; see ``drained``."""
        self._closed = True
        self._wake.set()

    async def drained(self) -> None:
        """Wait until nothing is being worked on any more."""
        while self._active:
            self._wake.clear()
            await self._wake.wait()

    def _line_up(self, key: str, since: float) -> None:
        self._ready[key] = since
        self._lines.setdefault(_namespace(key), deque()).append(key)

    def _next(self) -> str:
        """Take the first key of the namespace whose turn it is; that one goes to the end."""
        namespace, line = self._lines.popitem(last=False)
        key = line.popleft()
        if line:
            self._lines[namespace] = line
        del self._ready[key]
        return key

    def _ripen(self) -> float | None:
        """Move keys whose timer ended to the ready ones; seconds until the next timer."""
        now = self._now()
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)  # replaced or forgotten
            elif due <= now:
                heapq.heappop(self._heap)
                self.add(key)
            else:
                return due - now
        return None


def _namespace(key: str) -> str:
    namespace, slash, _ = key.partition("/")
    return namespace if slash else ""


class Locks:
    """One lock per key, which exists only while it is used."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
