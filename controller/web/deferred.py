"""An app that is made when it is first asked.

With FastAPI it takes 6 MB of the operator, and most operators are never asked for a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send


class Deferred:
    """An ASGI app that stands for another.

    Args:
        make: makes the other, in a thread: its imports take a while, in which the event loop has other work.
            An error of it is that request's; the next one tries again.
    """

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make, self._lock = make, asyncio.Lock()
        self._made: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._made is None:
            async with self._lock:  # one makes it, the others wait
                if self._made is None:
                    self._made = await asyncio.to_thread(self._make)
        await self._made(scope, receive, send)
