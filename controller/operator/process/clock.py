"""The API server's time, for everything that is written into a status.

It never goes back, never jumps, and never stands still.

Replicas write times for each other: when a stop was decided, until when a reservation lasts. If each went by
its own machine's clock, a takeover by a machine twenty minutes behind would find decisions from the future.
So all go by one clock, the API server's, which every answer carries (header Date, in whole seconds).

An API server may be wrong, too, and so may a single answer (a proxy's cache, a server whose clock is being
set). So no answer is believed alone: what counts is the median of each connection's newest answers, and the
median of those over all connections, which a load balancer spreads over the servers. Where that leads is
approached at a bounded rate: a fault that deceives this clock for a minute moves it by less than a minute.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from controller import log
from controller.api.values import seconds

_logger = log.get("evalstop.clock")

TOLERANCE = 2.0  # s by which the own clock may differ before the API server's is used: Date tells no better
SAMPLES = 9  # newest answers of a connection that count
SERVERS = 32  # connections remembered, those heard of last
REMEMBERED = 900.0  # s for which a connection that brings nothing new still has its say
FREE = 5  # answers until which time may be set: nothing is decided before more than those have come
FASTEST, SLOWEST = 2.0, 0.5  # seconds that this clock may tell in one second
BELIEVED = 60.0  # s ahead of the API server up to which a status' time is believed
_CUT_OFF = 0.5  # s, on the average, that Date lacks: it is cut off to whole seconds
_FUTURE = frozenset({"expires", "until", "notBefore"})  # fields that name a time to come


class _Readings(NamedTuple):
    """Clock readings from one server's answers.

    Newest last, each the server's time less our monotonic time; and when the last one came (monotonic s).
    """

    offsets: deque[float]
    at: float


class ServerClock:
    """Seconds since the epoch when called.

    Until `FREE` answers have come it may be set, forwards and back; from then on it never goes back, and
    between two calls it advances by `SLOWEST` to `FASTEST` times what has passed.

    Args:
        wall: the own clock, used as long as it is right.
        monotonic: bridges the time between answers.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._readings: OrderedDict[str, _Readings] = OrderedDict()  # by server, the newest last
        self._answers = 0
        self._last: tuple[float, float] | None = None  # (monotonic, the time given then)
        self._strange = float("-inf")
        self._skew_logged = False

    def __call__(self) -> float:
        at, aim = self._monotonic(), self._aim()
        if self._last is not None and self._answers >= FREE:
            passed = max(0.0, at - self._last[0])
            aim = min(max(aim, self._last[1] + SLOWEST * passed), self._last[1] + FASTEST * passed)
        self._last = at, aim
        return aim

    @property
    def skew(self) -> float | None:
        """Seconds by which the own clock is ahead of the API server's; None: it has not answered yet."""
        server = self._server()
        return None if server is None else self._wall() - server

    def observe(self, headers: Mapping[str, str], server: str = "") -> None:
        """Note the headers of an answer that came just now.

        Args:
            headers: of the answer.
            server: what tells servers apart: behind one address there may be several, but a connection is
                always to the same.
        """
        try:
            server_time = parsedate_to_datetime(headers["Date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            return
        at = self._monotonic()
        offsets = self._readings[server].offsets if server in self._readings else deque(maxlen=SAMPLES)
        offsets.append(server_time + _CUT_OFF - at)
        self._readings[server] = _Readings(offsets, at)
        self._readings.move_to_end(server)
        while len(self._readings) > SERVERS or next(iter(self._readings.values())).at < at - REMEMBERED:
            self._readings.popitem(last=False)
        if self._answers < FREE:
            self._answers += 1
        self._log_skew()

    def _log_skew(self) -> None:
        skew = self.skew
        if skew is not None and (abs(skew) > TOLERANCE) != self._skew_logged:
            self._skew_logged = not self._skew_logged
            if self._skew_logged:
                _logger.warning(
                    "this machine's clock is wrong: the API server's is used", ahead_s=round(skew, 1)
                )

    def not_before(self, status: Mapping[str, Any]) -> None:
        """Go on from the newest time that an earlier leader wrote here, to the fraction of a second that Date
        does not tell. A time far ahead of the API server's is not believed: it was never this cluster's.

        To be called before anything is decided: this is the one time that the clock is put forward at once.
        """
        now = self()
        for at in _times(status):
            if at <= now + BELIEVED:
                if self._last is None or at > self._last[1]:
                    self._last = self._monotonic(), at
            elif at > self._strange:
                self._strange = at
                _logger.warning("a status carries a time from the future", ahead_s=round(at - now, 1))

    def _aim(self) -> float:
        """Return the time, as far as it is known now."""
        wall, server = self._wall(), self._server()
        return wall if server is None or abs(wall - server) <= TOLERANCE else server

    def _server(self) -> float | None:
        if not self._readings:
            return None
        at = self._monotonic()
        near = (self._last[1] - self._last[0]) if self._last is not None else self._wall() - at
        return middle([middle(readings.offsets, near) for readings in self._readings.values()], near) + at


class Advance:
    """A check that the clock goes on.

    Args:
        clock: the one that is looked at.
        monotonic: the one that it is compared with (s).
    """

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._newest = float("-inf")
        self._at = monotonic()

    def beat(self) -> float:
        """Return when (monotonic s) the clock was last found later than ever before."""
        now = self._clock()
        if now > self._newest:
            self._newest, self._at = now, self._monotonic()
        return self._at


def middle(values: Sequence[float], near: float) -> float:
    """Return the median; of the two in the middle of an even number that which is nearer to ``near``.

    A mean of the two would be a time that nobody told: of two servers that are a year apart, half a year.

    Raises:
        IndexError: no values.
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return min(ordered[half - 1 : half + 1], key=lambda value: abs(value - near))


def _times(value: Any, field: str = "") -> Iterable[float]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _times(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _times(item, field)
    elif isinstance(value, str) and value[-1:] == "Z" and value[10:11] == "T" and field not in _FUTURE:
        with contextlib.suppress(ValueError):  # a text that only looks like a time
            yield seconds(value)
