"""Devices, behind one protocol: who asks gets to know whether their memory is free.

Nobody's word counts for that but the device's: an off-load that answers may have freed nothing, and the
driver frees a dead process's memory later. Where it cannot be told, it is not free.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import sys
from pathlib import Path
from typing import Protocol

from controller import bounded, log

ASK_SECONDS = 5.0  # for an answer of the driver's; then its process is killed and the next one asked
_PAUSES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)  # s between questions, the last again and again

_logger = log.get("evalstop.group")


class Device(Protocol):
    """One member's device memory."""

    async def free(self, sleepers: int) -> bool:
        """Return whether nothing lies on it but what so many sleeping workers keep."""
        ...

    def link(self, resident: str) -> str | None:
        """Return the path by which a resident's worker opens it; None: workers find it themselves."""
        ...

    def unlink(self, resident: str) -> None:
        """Forget a resident's path."""
        ...

    async def close(self) -> None:
        """End what asks."""
        ...


async def until_free(device: Device, sleepers: int, seconds: float | None = None) -> bool:
    """Ask a device until it is free, for so many seconds; None: for ever. Return whether it is."""
    until = None if seconds is None else asyncio.get_running_loop().time() + seconds
    turn = 0
    while not await device.free(sleepers):
        if until is not None and asyncio.get_running_loop().time() >= until:
            return False
        await asyncio.sleep(_PAUSES[min(turn, len(_PAUSES) - 1)])
        turn += 1
    return True


class LocalDevice:
    """A device of the local plane: a file of fixed size on a memory volume, of which each worker has a hard
    link. It is free when the kernel says that nobody has it open, by whatever link (a write lease is given
    only then), which a mapping counts for as well.

    Args:
        folder: of the file; the memory volume must know leases (tmpfs does).
        size: bytes, all of them taken now: the device's memory is there or it is not.

    Raises:
        OSError: there is no room, or no leases.
    """

    NAME = "device"

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._path = folder, folder / self.NAME
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise OSError(error.errno, f"{self._path}: no room for {size} bytes: {error.strerror}") from None
        finally:
            os.close(descriptor)
        self._unused()  # says at once if there are no leases

    async def free(self, sleepers: int) -> bool:
        """See `Device`. Sleeping workers keep nothing of it."""
        return self._unused()

    def _unused(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EBUSY):
                return False
            raise OSError(error.errno, f"{self._path}: no leases on this volume: {error.strerror}") from None
        finally:
            os.close(descriptor)
        return True

    def link(self, resident: str) -> str | None:
        """See `Device`."""
        path = self._folder / f"worker-{resident}"
        with contextlib.suppress(FileExistsError):
            os.link(self._path, path)
        return str(path)

    def unlink(self, resident: str) -> None:
        """See `Device`."""
        (self._folder / f"worker-{resident}").unlink(missing_ok=True)

    async def close(self) -> None:
        """See `Device`."""


class NvmlDevice:
    """The GPUs of a pod, asked through NVML by a process of its own, which may hang or die with the driver.

    Free is what lies on no GPU beyond what was there before the first worker and what sleepers keep.

    Args:
        residual: bytes that one sleeping worker keeps, on all GPUs together.
        command: the process that asks: writes a line of JSON for each line that it reads.
    """

    def __init__(
        self, residual: int, command: tuple[str, ...] = (sys.executable, "-m", "controller.group.nvml")
    ) -> None:
        self._residual, self._command = residual, command
        self._process: asyncio.subprocess.Process | None = None
        self._before: int | None = None
        self._asking = asyncio.Lock()

    async def begin(self) -> None:
        """Take what is used now as what nobody of the group's has taken.

        Raises:
            OSError: the driver does not answer.
        """
        self._before = await self.used()
        if self._before is None:
            raise OSError("NVML does not answer: is there a GPU, and its driver?")

    async def used(self) -> int | None:
        """Return bytes that are used on all GPUs; None: it cannot be told."""
        async with self._asking:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    return await self._ask()
            except (TimeoutError, OSError, ValueError) as error:
                _logger.warning("NVML does not answer", why=f"{type(error).__name__}: {error}")
                await self._end()
                return None

    async def _ask(self) -> int:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise OSError("the process that asks it ended")
        found = bounded.load(line, "NVML's answer")
        if not isinstance(found, dict) or type(found.get("used")) is not int:
            raise OSError(str(found.get("error")) if isinstance(found, dict) else "no answer")
        return int(found["used"])

    async def free(self, sleepers: int) -> bool:
        """See `Device`."""
        used = await self.used()
        return used is not None and used <= (self._before or 0) + self._residual * sleepers

    def link(self, resident: str) -> str | None:
        """See `Device`."""
        return None

    def unlink(self, resident: str) -> None:
        """See `Device`."""

    async def close(self) -> None:
        """See `Device`."""
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        # One that hangs in the driver cannot be reaped yet; nobody waits for it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await process.wait()
