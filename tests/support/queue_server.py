"""The operator's queue API on loopback, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from fastapi import FastAPI

from controller.web.dashboard.queues import FixedAddress
from controller.web.server import WebServer


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[FixedAddress]:
    """Serve it while the block runs; gives the way to it."""
    way, begun = FixedAddress(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    over = asyncio.Event()

    async def serve() -> None:
        server = WebServer(app, "127.0.0.1", 0)
        await server.start()
        way.address = f"http://127.0.0.1:{server.port}"
        loops.append(asyncio.get_running_loop())
        begun.set()
        await over.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="queue API")
    thread.start()
    assert begun.wait(45)
    try:
        yield way
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(45)
