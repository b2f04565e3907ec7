"""Requests over asyncio's own streams, for commands: HTTP/1.1 without a proxy, and nothing to load for it.

A command asks one server some few things and ends; loading aiohttp would take longer than all of them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Self
from urllib.parse import urlsplit

from controller.kube.connection import Connection
from controller.kube.transport import BrokenConnection, Limits

_HEAD = 1 << 18  # bytes of an answer's head, and of a line of a body in chunks
_PIECE = 1 << 16  # bytes that are read at a time
_NO_BODY = frozenset((204, 304))


class Headers(Mapping[str, str]):
    """Headers of an answer, whatever the case of their names; of several of a name the last."""

    def __init__(self, lines: list[str]) -> None:
        parts = (line.partition(":") for line in lines)
        self._found = {name.strip().lower(): value.strip() for name, _, value in parts}

    def __getitem__(self, name: str) -> str:
        return self._found[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class _Line:
    """A connection, with how often it was used."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.used = reader, writer, 0

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.transport.abort()  # nothing of ours is on its way, and no answer is waited for


class DirectTransport:
    """Connections to one API server, opened as they are needed; an idle one is used again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        parts = urlsplit(connection.server)
        self._host, self._root = parts.hostname or "", parts.path
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._named = parts.netloc.rpartition("@")[2]
        self._lines: set[_Line] = set()
        self._idle: list[_Line] = []

    async def close(self) -> None:
        """End all connections."""
        for line in self._lines:
            line.close()
        self._lines.clear()
        self._idle.clear()

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: Limits
    ) -> DirectAnswer:
        """Send a request and return its answer's head. Raises as `Transport.send`."""
        given = {"Host": self._named, "Accept-Encoding": "gzip", **headers}
        if authorization := self._connection.authorization():
            given["Authorization"] = authorization
        if body is not None or method not in ("GET", "DELETE"):
            given["Content-Length"] = str(len(body or b""))
        head = "".join(f"{name}: {_one_line(value)}\r\n" for name, value in given.items())
        request = f"{method} {self._root}{target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b"")
        while True:
            line = await self._line(limits.connect)
            try:
                return await self._ask(line, request, limits.quiet)
            except BaseException as error:
                self.drop(line)
                # The server ends idle connections: what is only read may be asked for once more.
                if not (isinstance(error, ConnectionError) and line.used and method == "GET"):
                    raise

    async def _line(self, patience: float) -> _Line:
        while self._idle:
            line = self._idle.pop()
            if line.usable:
                return line
            self.drop(line)
        context = self._connection.tls
        name = self._connection.server_name or self._host
        async with asyncio.timeout(patience):
            streams = await asyncio.open_connection(
                self._host,
                self._port,
                ssl=context,
                server_hostname=name if context else None,
                limit=_HEAD,
            )
        line = _Line(*streams)
        self._lines.add(line)
        return line

    async def _ask(self, line: _Line, request: bytes, quiet: float | None) -> DirectAnswer:
        line.writer.write(request)
        await line.writer.drain()
        status = 100
        while status < 200:  # 1xx announce the answer
            try:
                async with asyncio.timeout(quiet):
                    head = await line.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                raise BrokenConnection("the server ended the connection without an answer") from error
            except asyncio.LimitOverrunError as error:
                raise BrokenConnection(f"an answer's head of more than {_HEAD} bytes") from error
            first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            version, _, rest = first.partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise BrokenConnection(f"no HTTP answer: {first[:60]!r}")
            status = int(rest[:3])
        return DirectAnswer(self, line, status, Headers(lines), quiet, kept=version != "HTTP/1.0")

    def drop(self, line: _Line) -> None:
        """End a connection."""
        line.close()
        self._lines.discard(line)

    def give_back(self, line: _Line) -> None:
        """Keep a connection, over which an answer came in full, for the next request."""
        line.used += 1
        self._idle.append(line)


class DirectAnswer:
    """An answer whose head is read, as `Answer` says it."""

    def __init__(
        self,
        owner: DirectTransport,
        line: _Line,
        status: int,
        headers: Headers,
        quiet: float | None,
        *,
        kept: bool,
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = headers
        sockets = (line.writer.get_extra_info(end) for end in ("sockname", "peername"))
        self.came_over = " ".join(map(str, sockets))
        self._owner, self._line, self._quiet = owner, line, quiet
        self._kept = kept and headers.get("Connection", "").lower() != "close"
        self._whole = False  # all of it has come, and the next answer can begin

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._whole and self._kept:
            self._owner.give_back(self._line)
        else:
            self._owner.drop(self._line)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        try:
            if self.headers.get("Content-Encoding", "").lower() != "gzip":
                async for part in self._raw():
                    yield part
                return
            unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
            async for part in self._raw():
                while part:  # a piece of a page may hold a thousand times its size
                    yield unpack.decompress(part, _PIECE)
                    part = unpack.unconsumed_tail
        except asyncio.IncompleteReadError as error:
            raise BrokenConnection("the connection ended within an answer") from error
        except (asyncio.LimitOverrunError, ValueError, zlib.error) as error:
            raise BrokenConnection(f"no HTTP answer: {error}") from error

    async def _raw(self) -> AsyncIterator[bytes]:
        reader = self._line.reader
        if self.status in _NO_BODY:
            pass
        elif "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while size := int((await self._until(b"\r\n")).partition(b";")[0], 16):
                async for part in self._exactly(size):
                    yield part
                await self._until(b"\r\n")
            while await self._until(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "Content-Length" in self.headers:
            async for part in self._exactly(int(self.headers["Content-Length"])):
                yield part
        else:
            while part := await self._piece(reader.read(_PIECE)):
                yield part
            return  # the connection's end ends it
        self._whole = True

    async def _until(self, end: bytes) -> bytes:
        return await self._piece(self._line.reader.readuntil(end))

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            part = await self._piece(self._line.reader.read(min(size, _PIECE)))
            if not part:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(part)
            yield part

    async def _piece(self, reading: Awaitable[bytes]) -> bytes:
        async with asyncio.timeout(self._quiet):
            return await reading


def _one_line(value: str) -> str:
    """Return a header's value. Raises ValueError: it would begin another header."""
    if "\r" in value or "\n" in value:
        raise ValueError("a header's value of several lines (is the token whole?)")
    return value
