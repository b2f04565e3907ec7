"""The place of a family's worker process: rank, device, states in host memory. Standard library only,
Python 3.9 (docs/understand/groups-wire.md).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Any

from evalstop_client.envelope import Array

__all__ = ["Array", "BadCall", "DeviceFull", "HostRegion", "LocalDevice", "Place"]

_PIECE = 64 << 20  # bytes of one read or write
_PAGE = mmap.PAGESIZE
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # all pages at once, not one by one when first touched


class BadCall(ValueError):
    """Arguments of a call are wrong, and nothing was changed yet: the job is told, and its turn goes on."""


class DeviceFull(MemoryError):
    """The device has not as many bytes left."""


class LocalDevice:
    """A device of the local plane: shared memory of fixed size, in a file of which each worker has a hard
    link. It is on this device from the first buffer until `close`.

    Args:
        path: this worker's link.
        most: bytes that it may take.
    """

    def __init__(self, path: str, most: int) -> None:
        self.path, self.most = path, most
        self.used = 0
        self._descriptor: int | None = None
        self._maps: list[tuple[mmap.mmap, memoryview]] = []

    def buffer(self, size: int) -> memoryview:
        """Return so many bytes of the device, writable; what is in them is anything.

        Raises:
            DeviceFull: there are not so many.
        """
        rounded = max(1, -(-size // _PAGE)) * _PAGE
        if self.used + rounded > self.most:
            raise DeviceFull(f"device: {size} bytes more than {self.used} of {self.most} that are allowed")
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        flags = mmap.MAP_SHARED | _POPULATE
        mapped = mmap.mmap(self._descriptor, rounded, flags=flags, offset=self.used)
        view = memoryview(mapped)[:size]
        self.used += rounded
        self._maps.append((mapped, view))
        return view

    def close(self) -> None:
        """Give everything back.

        Raises:
            BufferError: something still refers to it, such as an array of the family's.
        """
        while self._maps:
            mapped, view = self._maps[-1]
            view.release()
            mapped.close()
            self._maps.pop()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self.used = 0


class HostRegion:
    """One region of a state in host memory: a file on a memory volume."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self.size = descriptor, size

    def read_into(self, buffer: Any) -> None:
        """Fill a buffer of `size` bytes with the region.

        Raises:
            OSError: it is shorter.
        """
        view, at = memoryview(buffer).cast("B"), 0
        while at < self.size:
            count = os.preadv(self._descriptor, [view[at : at + _PIECE]], at)
            if not count:
                raise OSError(f"a region of {self.size} bytes ends after {at}")
            at += count

    def write_from(self, buffer: Any) -> None:
        """Write a buffer of `size` bytes to the region.

        Raises:
            OSError: host memory is full.
            ValueError: the buffer is shorter.
        """
        view, at = memoryview(buffer).cast("B"), 0
        if view.nbytes < self.size:
            raise ValueError(f"a buffer of {view.nbytes} bytes for a region of {self.size}")
        while at < self.size:
            at += os.pwrite(self._descriptor, view[at : at + _PIECE], at)

    def view(self) -> mmap.mmap:
        """Return the region, mapped: for devices that copy by themselves. The caller closes it.

        Raises:
            OSError: host memory is full.
        """
        os.posix_fallocate(self._descriptor, 0, max(1, self.size))  # else a write to a full volume kills
        return mmap.mmap(self._descriptor, max(1, self.size))


class Place:
    """A worker's rank, device and meeting point.

    Attributes:
        resident: whose state it has.
        rank, size: of this member, and how many there are.
        host, port: where rank 0 may listen for the others, to make their collectives.
        generation: another one once a worker of any rank is a new process: all meet anew then.
        device: of the local plane; None: GPUs, as the process sees them.
    """

    def __init__(self, given: Mapping[str, Any], device: LocalDevice | None = None) -> None:
        self.resident = str(given.get("resident", ""))
        self.rank, self.size = int(given.get("rank", 0)), int(given.get("size", 1))
        self.host, self.port = str(given.get("host", "127.0.0.1")), int(given.get("port", 0))
        self.generation = int(given.get("generation", 0))
        self.device = device
