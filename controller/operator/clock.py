"""What time it is, for everything that is written into a status: the API server's time, and it never goes
back.

Replicas write times for each other: when a stop was decided, until when a hold lasts. If each went by its own
machine's clock, a takeover by a machine twenty minutes behind would find decisions from the future. So all go
by one clock, the API server's, which every answer carries (header Date, in whole seconds).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from controller import log
from controller.api.values import seconds

_logger = log.get("evalstop.clock")

TOLERANCE = 2.0  # s by which the own clock may differ before the API server's is used: Date tells no better
SAMPLES = 16  # answers remembered: an answer that was long under way says too early a time
BELIEVED = 60.0  # s ahead of the API server up to which a status' time is believed
_FUTURE = frozenset({"expires", "until", "notBefore"})  # fields that name a time to come


class ServerClock:
    """Seconds since the epoch when called.

    Args:
        wall: the own clock, used as long as it is right. monotonic: bridges the time between answers.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offsets: deque[float] = deque(maxlen=SAMPLES)  # the server's time less our monotonic one
        self._latest = float("-inf")
        self._strange = float("-inf")
        self._told = False

    def __call__(self) -> float:
        now = self._wall()
        server = self._server()
        if server is not None and abs(now - server) > TOLERANCE:
            now = server
        self._latest = max(self._latest, now)
        return self._latest

    @property
    def skew(self) -> float | None:
        """Seconds by which the own clock is ahead of the API server's; None: it has not answered yet."""
        server = self._server()
        return None if server is None else self._wall() - server

    def heard(self, headers: Mapping[str, str]) -> None:
        """Note the headers of an answer that came just now."""
        try:
            said = parsedate_to_datetime(headers["Date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return
        self._offsets.append(said - self._monotonic())
        skew = self.skew
        if skew is not None and (abs(skew) > TOLERANCE) != self._told:
            self._told = not self._told
            if self._told:
                _logger.warning(
                    "this machine's clock is wrong: the API server's is used", ahead_s=round(skew, 1)
                )

    def not_before(self, status: Mapping[str, Any]) -> None:
        """Go on from the newest time that an earlier leader wrote here, to the fraction of a second that Date
        does not tell. A time far ahead of the API server's is not believed: it was never this cluster's."""
        now = self()
        for at in _times(status):
            if at <= now + BELIEVED:
                self._latest = max(self._latest, at)
            elif at > self._strange:
                self._strange = at
                _logger.warning("a status carries a time from the future", ahead_s=round(at - now, 1))

    def _server(self) -> float | None:
        # Whole seconds are cut off and answers take time: each says too early a time, the latest is nearest.
        return max(self._offsets) + self._monotonic() if self._offsets else None


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
