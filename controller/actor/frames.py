"""Frames: new token ids of all responses, one frame every 100 ms, kept until the client has the next one.

A frame is a line of JSON: ``{"frame": n, "version": v, "tokens": {id: [ids]}, "ended": {id: why}, "live":
n}``. A client whose connection broke names the last frame that it has and gets the ones after it; if they
are gone, it has to ask for its responses again, from the tokens that it has. ``error``: the engine is gone.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from controller import log
from controller.actor.engines import Engine, EngineError, News

PERIOD = 0.1  # s between frames
BEAT = 1.0  # s after which a frame is sent although nothing is new: the client sees that the actor lives
MOST_KEPT = 8 << 20  # bytes of frames that wait for a client
MOST_LIVE = 8192  # responses that a client may have here
_RETRY = 0.5  # s after the engine did not answer

_logger = log.get("evalstop.actor")


class Gone(Exception):
    """The frames after that one are not here any more."""


class Frames:
    """Takes what is new from the engine, and gives it to the one client that reads.

    Args:
        engine: the engine.
        monotonic: clock, s.
    """

    def __init__(self, engine: Engine, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._now = engine, monotonic
        self._kept: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._number = 0
        self._reader = 0  # whose turn it is: a new reader ends the one before
        self._changed = asyncio.Condition()
        self.live: set[str] = set()  # ids that were asked for and have not ended
        self.tokens = 0  # that were passed on
        self.engine_error = ""
        self._over = False

    async def run(self) -> None:
        """Take and frame until cancelled."""
        last = self._now()
        while True:
            begun = self._now()
            try:
                news = await self._engine.take(PERIOD if self.live else BEAT)
                self.engine_error = ""
            except EngineError as error:
                if not self.engine_error:
                    _logger.warning("the engine does not answer", why=str(error))
                elif self.live:  # the second time in a row: the client had better go elsewhere
                    self.live.clear()
                    await self._frame(News(), str(error))
                self.engine_error = str(error)
                await asyncio.sleep(_RETRY)
                continue
            if news.tokens or news.ended or self._now() - last >= BEAT:
                await self._frame(news)
                last = self._now()
            await asyncio.sleep(max(0.0, PERIOD - (self._now() - begun)))

    def reset(self) -> None:
        """Forget responses and frames: other weights are served."""
        self.live.clear()
        self._kept.clear()
        self._bytes = 0

    async def close(self) -> None:
        """Let whoever reads go at once: the process ends, and its GPUs are waited for."""
        self._over = True
        async with self._changed:
            self._changed.notify_all()

    async def _frame(self, news: News, error: str = "") -> None:
        self.live.difference_update(news.ended)
        self.tokens += sum(map(len, news.tokens.values()))
        self._number += 1
        line = json.dumps(
            {"frame": self._number, "version": news.version, "tokens": news.tokens, "ended": news.ended,
             "live": len(self.live), **({"error": error} if error else {})},
            separators=(",", ":"),
        ).encode() + b"\n"  # fmt: skip
        async with self._changed:
            self._kept.append((self._number, line))
            self._bytes += len(line)
            while self._bytes > MOST_KEPT:
                self._bytes -= len(self._kept.popleft()[1])
            self._changed.notify_all()

    def read(self, after: int | None, seconds: float) -> AsyncIterator[bytes]:
        """Return frames after this one, for so many seconds or until another reader comes; None: new ones
        only.

        Raises:
            Gone: some of them are not here any more.
        """
        at = self._number if after is None else after
        if at > self._number or (at < self._number and (not self._kept or self._kept[0][0] > at + 1)):
            raise Gone
        self._reader += 1
        return self._lines(at, self._reader, self._now() + seconds)

    async def _lines(self, at: int, mine: int, until: float) -> AsyncIterator[bytes]:
        async with self._changed:
            self._changed.notify_all()  # whoever read before sees that its turn is over
        while not self._over and self._reader == mine and (left := until - self._now()) > 0:
            async with self._changed:
                while self._kept and self._kept[0][0] <= at:
                    self._bytes -= len(self._kept.popleft()[1])  # the client has it
                if not self._kept:
                    try:  # no `wait_for`: cancelled twice, it leaves before the lock is taken again
                        async with asyncio.timeout(left):
                            await self._changed.wait()
                    except TimeoutError:
                        return
                    continue
                if self._kept[0][0] > at + 1:
                    return  # too slow: it asks again, and hears that they are gone
                at = self._kept[-1][0]
                lines = [line for _, line in self._kept]
            yield b"".join(lines)
