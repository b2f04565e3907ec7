"""The one scrape loop that all jobs share.

A task per job would cost memory and, worse, could die alone and unseen. Here one coroutine takes what is due
from a heap and starts at most ``concurrency`` scrapes at a time, of one namespace at most ``per_namespace``,
of these of one host at most ``per_host``. Where not all that is due can begin, the namespace goes first of
which the fewest are under way: slow trainers make their own neighbours wait, and no others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from controller.frozen import dataclass
from controller.metrics.schedule import Schedule, Turn
from controller.metrics.scrape import Target
from controller.policy.job import ScrapeOutcome, ScrapeView
from controller.policy.types import JobKey

logger = logging.getLogger(__name__)

Scrape = Callable[[Target], Awaitable[ScrapeView]]
Deliver = Callable[[JobKey, ScrapeView], None]
Host = tuple[str, str]  # namespace and IP
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class LoopStats:
    """State of the loop. ``lag`` (s): how late the last scrape began; ``max_lag``: worst of 256. Scrapes that
    waited for others of their own namespace do not count in these."""

    targets: int
    in_flight: int
    waiting: int  # due, but held back by a concurrency cap
    crowded: int  # of these, by their own namespace's
    started: int
    lag: float
    max_lag: float
    beat: float  # s, monotonic: when the loop last went round


class ScrapeLoop:
    """Scrapes every target at its interval and delivers each result, until its task is cancelled.

    Targets come and go at any time by ``put``, ``discard`` or ``sync``, from the loop's own thread. A result
    is delivered only if its key still has the target that was scraped: a replaced pod speaks no more.

    Args:
        scrape: reads one target; ``Scraper.scrape``.
        deliver: called with each result in the loop's thread; it should only note it down. An exception in it
            is logged and ends nothing.
        concurrency: scrapes at the same time, over all.
        per_namespace: of the same namespace; None: a quarter of all.
        per_host: of the same namespace at the same IP. Pods on the host network share their node's: those of
            another namespace must not be kept waiting by them.
        grain: what is due within this many s is due, far less than an interval. With less than 2 ms the loop
            would go round and round before each scrape: uvloop's timers round to whole ms and fire early.
            With more it wakes up less often, for several scrapes at a time, which is cheaper.
        monotonic: clock for due times, s.
    """

    def __init__(
        self,
        scrape: Scrape,
        deliver: Deliver,
        *,
        concurrency: int = 64,
        per_namespace: int | None = None,
        per_host: int = 2,
        grain: float = 0.002,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if concurrency < 1 or per_host < 1:
            raise ValueError(f"concurrency {concurrency} and per_host {per_host} must be at least 1")
        self._scrape = scrape
        self._deliver = deliver
        self._concurrency = concurrency
        self._per_namespace = per_namespace or max(1, concurrency // 4)
        self._per_host = per_host
        self._grain = grain
        self._now = monotonic
        self._schedule = Schedule()
        self._targets: dict[JobKey, Target] = {}
        self._ready: dict[str, deque[Turn]] = {}  # by namespace, due and not begun
        self._namespaces: Counter[str] = Counter()  # under way
        self._held: dict[Host, deque[Turn]] = {}  # due but over per_host
        self._hosts: Counter[Host] = Counter()
        self._crowded: set[str] = set()  # keys that wait, or waited, for a scrape of their own namespace
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._until = 0.0  # when the sleep under way ends by itself
        self._lags: deque[float] = deque(maxlen=256)
        self._started = 0
        self._beat = monotonic()

    def put(self, key: JobKey, target: Target) -> None:
        """Scrape this target from now on; another pod in a key's place is scraped at once, and so is a gang
        whose pods are others. A speaker that moved within its gang was found by a scrape."""
        known = self._targets.get(key)
        if known == target:
            return
        self._targets[key] = target
        self._schedule.put(key, target.interval, self._now())
        if known is not None and _asked(known) != _asked(target):
            self._schedule.hasten(key, self._now())
        self._wake.set()

    def discard(self, key: JobKey) -> None:
        """Scrape this key no more; unknown ones are fine. A scrape under way ends undelivered."""
        if self._targets.pop(key, None) is not None:
            self._schedule.discard(key)

    def sync(self, targets: Mapping[JobKey, Target]) -> None:
        """Make the targets exactly these."""
        for key in self._targets.keys() - targets.keys():
            self.discard(key)
        for key, target in targets.items():
            self.put(key, target)

    def hasten(self, key: JobKey) -> None:
        """Scrape this key next, out of turn; unknown ones are fine."""
        self._schedule.hasten(key, self._now())
        self._wake.set()

    def touch(self) -> None:
        """Its `LoopStats.beat` is now: it is about to `run`."""
        self._beat = self._now()

    @property
    def stats(self) -> LoopStats:
        return LoopStats(
            targets=len(self._targets),
            in_flight=len(self._tasks),
            waiting=sum(map(len, (*self._held.values(), *self._ready.values()))),
            crowded=len(self._crowded),
            started=self._started,
            lag=self._lags[-1] if self._lags else 0.0,
            max_lag=max(self._lags, default=0.0),
            beat=self._beat,
        )

    async def run(self) -> None:
        """Go on until cancelled; scrapes under way are then cancelled, too."""
        try:
            while True:
                self._beat = self._now()
                self._wake.clear()
                while turn := self._schedule.pop(self._now() + self._grain):
                    self._ready.setdefault(_namespace(turn.key), deque()).append(turn)
                self._begin()
                await self._sleep()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sleep(self) -> None:
        """Until something is due and may start, a scrape's end or new targets change that; at most 1 s."""
        now, wait = self._now(), 1.0
        due = self._schedule.next_due()  # what is due and has no slot waits for a scrape's end
        wait = min(wait, max(due - now, 0.0)) if due is not None else wait
        self._until = now + wait
        timer = asyncio.get_running_loop().call_later(wait, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _begin(self) -> None:
        """Start what is due, as far as there are slots for it."""
        while self._ready and len(self._tasks) < self._concurrency:
            free = [n for n in self._ready if self._may_begin(n)]
            if not free:
                break
            namespace = min(free, key=self._namespaces.__getitem__)
            queue = self._ready[namespace]
            turn = queue.popleft()
            if not queue:
                del self._ready[namespace]
            target = self._targets.get(turn.key)
            if target is None or not self._schedule.holds(turn):
                self._crowded.discard(turn.key)
            elif self._hosts[namespace, target.ip] >= self._per_host:
                self._held.setdefault((namespace, target.ip), deque()).append(turn)
            else:
                self._start(turn, target, namespace)
        for namespace, queue in self._ready.items():
            if self._namespaces[namespace] >= self._per_namespace:
                self._crowded.update(turn.key for turn in queue)

    def _may_begin(self, namespace: str) -> bool:
        """Return whether a namespace has a slot. The last quarter is for those that have next to nothing
        under way, or a few namespaces of slow trainers would together have them all."""
        under_way = self._namespaces[namespace]
        kept = self._concurrency // 4 if under_way >= 2 else 0
        return under_way < self._per_namespace and len(self._tasks) < self._concurrency - kept

    def _start(self, turn: Turn, target: Target, namespace: str) -> None:
        self._hosts[namespace, target.ip] += 1
        self._namespaces[namespace] += 1
        self._started += 1
        late = max(self._now() - turn.due, 0.0)
        crowded = turn.key in self._crowded
        self._crowded.discard(turn.key)
        if not crowded:
            self._lags.append(late)
        notes = [_CROWDED] if crowded and late >= turn.interval else []
        task = asyncio.create_task(self._one(turn, target, notes), name=f"scrape {turn.key}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, (namespace, target.ip)))

    async def _one(self, turn: Turn, target: Target, notes: list[str]) -> None:
        begun = self._now()
        ok, past_due = False, begun + 2 * self._grain
        try:
            view = await self._scrape(target)
            current = self._schedule.holds(turn) and self._targets.get(turn.key) == target
            # The failure of a target that was replaced meanwhile is not held against the new one.
            ok = view.outcome is ScrapeOutcome.OK or view.searching or not current
            if current and view.outcome is ScrapeOutcome.OK:
                self._schedule.record_duration(turn, self._now() - begun)
                if turn.stretch > 1:
                    notes.append(_slow(turn))
            if current:
                self._deliver(turn.key, _noted(view, notes))
        except Exception:
            logger.exception("scrape of %s failed in a way it should not", turn.key)
        finally:
            # A scrape may even end before it is due; its slot is used all the same.
            self._schedule.done(turn, ok, max(self._now(), past_due))

    def _ended(self, task: asyncio.Task[None], host: Host) -> None:
        self._tasks.discard(task)
        _less(self._hosts, host)
        _less(self._namespaces, host[0])
        if (held := self._held.get(host)) is not None:
            turn = held.popleft()
            self._ready.setdefault(_namespace(turn.key), deque()).appendleft(turn)
            if not held:
                del self._held[host]
        due = self._schedule.next_due()
        if self._ready or (due is not None and due < self._until):
            self._wake.set()


def _less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _asked(target: Target) -> object:
    """Return who is asked, whoever of them is asked first."""
    return (target.gang, target.port) if target.gang is not None else (target.ip, target.port)


_CROWDED = "read late: the scrapes that its namespace may have at the same time are taken by slow answers"


def _slow(turn: Turn) -> str:
    return (
        f"its page takes long to answer, so it is read every {turn.stretch * turn.interval:g} s "
        f"instead of every {turn.interval:g} s"
    )


def _noted(view: ScrapeView, notes: list[str]) -> ScrapeView:
    if not notes:
        return view
    return dataclasses.replace(view, message="; ".join(filter(None, [view.message, *notes])))


def _namespace(key: JobKey) -> str:
    return key.partition("/")[0]
