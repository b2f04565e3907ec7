"""Container logs: written a line at a time with its moment, read back as `kubectl logs` asks.

A line in the file is ``<RFC 3339 time> <F or P> <content>``; P marks a part of a line: it goes on in the
next, or the container ended without a line end.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

_MAX_BYTES = 10 << 20  # of one file; then it becomes `<name>.1` and a new one is begun, as kubelet does
_MAX_LINE = 16 << 10


class LogFile:
    """The log of one container instance, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`
        self._rest = b""
        self._followers: set[asyncio.Event] = set()
        self.closed = False

    def feed(self, chunk: bytes) -> None:
        """Append output as it comes."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        stamp = _stamp()
        for line in lines:
            self._file.write(stamp + b" F " + line + b"\n")
        while len(rest) > _MAX_LINE:
            self._file.write(stamp + b" P " + rest[:_MAX_LINE] + b"\n")
            rest = rest[_MAX_LINE:]
        self._rest = rest
        self._file.flush()
        if self._file.tell() > _MAX_BYTES:
            self._file.close()
            self.path.replace(f"{self.path}.1")
            self._file = open(self.path, "ab")  # noqa: SIM115
        self._wake_followers()

    def close(self) -> None:
        """Record that the container has ended: write the rest that has no line end, and end the followers."""
        if self._rest:
            self._file.write(_stamp() + b" P " + self._rest + b"\n")
            self._rest = b""
        self._file.close()
        self.closed = True
        self._wake_followers()

    def follow(self) -> asyncio.Event:
        """Return an event that is set whenever there may be more to read."""
        event = asyncio.Event()
        self._followers.add(event)
        return event

    def leave(self, event: asyncio.Event) -> None:
        self._followers.discard(event)

    def _wake_followers(self) -> None:
        for event in self._followers:
            event.set()


@dataclass(frozen=True)
class Options:
    """Options of a request for a log, in the terms of the API's PodLogOptions."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None  # lines
    since: datetime | None = None
    limit_bytes: int | None = None


async def read(path: Path, options: Options, writer: LogFile | None) -> AsyncIterator[bytes]:
    """Yield the log's content in chunks; with `follow`, until `writer` (None: the container has ended)
    closes."""
    left = options.limit_bytes if options.limit_bytes is not None else 1 << 62
    show = _shower(options)
    following = writer if options.follow and writer is not None and not writer.closed else None
    event = following.follow() if following is not None else None
    try:
        file, head = await asyncio.to_thread(_opening, path, options, show)
        try:
            while True:
                if head:
                    yield head[:left]
                    left -= len(head)
                    if left <= 0:
                        return
                if following is None or event is None:
                    return
                closed = following.closed
                head = b"".join(show(line) for line in _whole_lines(file))
                if head:
                    continue
                if _rotated(path, file):
                    file = _next_file(path, file)
                elif closed:
                    return
                else:
                    event.clear()
                    await event.wait()
        finally:
            file.close()
    finally:
        if following is not None and event is not None:
            following.leave(event)


def last_output(path: Path, lines: int, limit: int) -> str:
    """Return the end of a log as text: at most `lines` lines and `limit` bytes."""
    show = _shower(Options())
    try:
        with open(path, "rb") as file:
            text = b"".join(deque((show(line) for line in file), maxlen=lines))
    except FileNotFoundError:
        return ""
    return text[-limit:].decode(errors="replace")


def _opening(path: Path, options: Options, show: Callable[[bytes], bytes]) -> tuple[BinaryIO, bytes]:
    """Return what there is now, and the file positioned behind it."""
    found: deque[bytes] = deque(maxlen=options.tail)
    rotated = Path(f"{path}.1")
    if rotated.exists():
        with open(rotated, "rb") as before:
            found.extend(before)
    path.touch()
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    found.extend(_whole_lines(file))
    return file, b"".join(show(line) for line in found)


def _whole_lines(file: BinaryIO) -> list[bytes]:
    lines = []
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            break
        lines.append(line)
    return lines


def _rotated(path: Path, file: BinaryIO) -> bool:
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _next_file(path: Path, before: BinaryIO) -> BinaryIO:
    before.close()
    return open(path, "rb")


def _shower(options: Options) -> Callable[[bytes], bytes]:
    """Return a function from a line of the file to what is shown of it."""
    since = b"" if options.since is None else _stamp(options.since.timestamp())

    begins = True  # a line, not the rest of one

    def show(line: bytes) -> bytes:
        nonlocal begins
        stamp, kind, content = line.split(b" ", 2)
        if stamp < since:
            return b""
        text = content if kind == b"F" else content[:-1]
        shown = stamp + b" " + text if options.timestamps and begins else text
        begins = kind == b"F"
        return shown

    return show


def _stamp(at: float | None = None) -> bytes:
    nanoseconds = time.time_ns() if at is None else int(at * 1e9)
    seconds, part = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{part:09d}Z".encode()
