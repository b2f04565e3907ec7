"""Watches devices from outside: the kernel's log of who opens a device file and who closes it last (inotify).

Each worker has a hard link of its own, and one more that the test's family opens while a function runs: equal
events in a row would be merged. All devices are in one queue, so their order is the kernel's.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from pathlib import Path

_OPEN, _CLOSE_WRITE, _CLOSE_NOWRITE, _OVERFLOW = 0x20, 0x08, 0x10, 0x4000
_HEAD = struct.Struct("iIII")


class Onlooker:
    """Looks at devices from its making to `close`.

    Attributes:
        wrong: what must not have been.
        opens: how often a worker opened a device.
        calls: how often one was seen at a function.
    """

    def __init__(self, folders: list[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._member: dict[int, int] = {}
        for index, folder in enumerate(folders):
            folder.mkdir(parents=True, exist_ok=True)
            mask = _OPEN | _CLOSE_WRITE | _CLOSE_NOWRITE
            watch = self._libc.inotify_add_watch(self._file, os.fsencode(folder), mask)
            if watch < 0:
                raise OSError(ctypes.get_errno(), f"inotify: {folder}")
            self._member[watch] = index
        self.wrong: list[str] = []
        self.opens = self.calls = self.events = 0
        self._on: list[dict[str, int]] = [{} for _ in folders]
        self._at_work: list[dict[str, int]] = [{} for _ in folders]
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> list[str]:
        """Take what is in the queue, end, and return what was wrong."""
        os.write(self._end, b"x")
        self._thread.join()
        for file in (self._file, self._ends, self._end):
            os.close(file)
        return self.wrong

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._file, self._ends], [], [])
            if self._file in ready:
                self._take(os.read(self._file, 1 << 20))
            elif self._ends in ready:
                return

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0").decode()
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                self.wrong.append("events were lost")
                continue
            self.events += 1
            kind, _, resident = name.partition("-")
            if kind == "worker":
                self._count(self._on, self._member[watch], resident, mask)
            elif kind == "calls":
                self._count(self._at_work, self._member[watch], resident, mask)

    def _count(self, books: list[dict[str, int]], member: int, resident: str, mask: int) -> None:
        book = books[member]
        if mask & _OPEN:
            book[resident] = book.get(resident, 0) + 1
            if books is self._on:
                self.opens += 1
                if len(book) > 1:
                    self.wrong.append(f"member {member}: {' and '.join(sorted(book))} are on the device")
            else:
                self.calls += 1
            at_work = {one for each in self._at_work for one in each}
            if len(at_work) > 1:
                self.wrong.append(f"members are at work for {' and '.join(sorted(at_work))}")
        else:
            book[resident] = book.get(resident, 1) - 1
            if book[resident] <= 0:
                del book[resident]
