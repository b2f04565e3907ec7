"""Trainers of every bad manner: real servers on loopback that speak raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

Manner = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PAGE = b'rlhf_eval_score{metric="gold",step="10",attempt="1-1"} 0.5\nrlhf_step 12\n'


@contextlib.asynccontextmanager
async def serving(manner: Manner, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server whose every connection is treated by ``manner``; yields its port."""
    tasks: set[asyncio.Task[None] | None] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await manner(reader, writer)
        writer.close()

    server = await asyncio.start_server(connection, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            if task is not None:
                task.cancel()


def answer(
    body: bytes = PAGE, *, status: str = "200 OK", headers: str = "", kind: str = "text/plain"
) -> Manner:
    """An HTTP answer with a length."""

    async def manner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return manner


def raw(*parts: bytes, pause: float = 0.0, forever: bytes = b"") -> Manner:
    """Bytes as they are, ``pause`` s between them, then ``forever`` again and again."""

    async def manner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        while forever:
            writer.write(forever)
            await writer.drain()
            await asyncio.sleep(pause)

    return manner


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the request and never answers."""
    await reader.read()


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = b"10000\r\n" + b"# nothing to see here, move on.\n" * 2048 + b"\r\n"
BOMB = gzip.compress(b"\n" * (64 << 20), 9)
MILLION_SAMPLES = b'rlhf_eval_score{metric="gold",step="1",attempt="1-1"} 1\n' * 1_000_000
