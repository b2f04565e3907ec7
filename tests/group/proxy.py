"""A cable to member 0 that can be cut, slow, or lose what is on it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any


class Proxy:
    """Passes connections on to a port of this machine, from a port of its own."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._losing, self._flows = False, asyncio.Event()
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End all connections."""
        self._do(self._cut())

    def late(self, on: bool) -> None:
        """Hold everything back, or let it go on."""
        self._loop.call_soon_threadsafe(self._flows.clear if on else self._flows.set)

    def lose(self, on: bool) -> None:
        """Swallow what comes; at the end all connections are cut, for what follows would make no sense."""
        self._losing = on
        if not on:
            self.cut()

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._server.close)
        self.late(False)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        await asyncio.gather(self._pass(reader, onward), self._pass(there, writer))
        self._writers -= {writer, onward}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 18):
                await self._flows.wait()
                if not self._losing:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
