"""The disk under the checkpoint store: every call of the store to the operating system is an operation that
can be delayed by somebody else's act, refused, or be the last one before a kill.

A killed program does not clean up: once `Disk.dead` is set, every further operation ends in `Killed`, those
of `finally` blocks too: what a killed access pod leaves behind is what SIGKILL would leave.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import controller.checkpoints.digest as digest
import controller.checkpoints.volume as volume

# What a program asks of the system, by the name of the function. Closing is always allowed.
OPERATIONS = (
    "link",
    "rename",
    "replace",
    "mkdir",
    "makedirs",
    "unlink",
    "rmdir",
    "open",
    "scandir",
    "listdir",
)


class Killed(BaseException):
    """The access program was killed (SIGKILL) at this operation."""


class Disk:
    """What happens at the operations of the access Job that runs now."""

    def __init__(self) -> None:
        self.count = 0
        self.dead = False
        self.at: int | None = None  # before which operation (1 is the first) ``then`` happens
        self.then: Callable[[], None] | None = None
        self.broken: Callable[[str], int | None] = lambda path: None  # errno of an operation on a path
        self.free: Callable[[str], int] = lambda path: 1 << 40  # bytes

    def begin(self, at: int | None = None, then: Callable[[], None] | None = None) -> None:
        self.count, self.dead, self.at, self.then = 0, False, at, then

    def kill(self) -> None:
        self.dead = True
        raise Killed

    def operation(self, path: object) -> None:
        if self.dead:
            raise Killed
        self.count += 1
        if self.at is not None and self.count >= self.at:
            self.at, then = None, self.then
            if then is not None:
                then()
        if isinstance(path, str) and (code := self.broken(path)) is not None:
            raise OSError(code, os.strerror(code), path)


class _System:
    """A module whose named functions are operations of a `Disk`."""

    def __init__(self, module: Any, disk: Disk, names: Iterable[str]) -> None:
        self._module = module
        for name in names:
            if hasattr(module, name):
                setattr(self, name, self._watched(getattr(module, name), disk))
        self.fsync = lambda descriptor: None  # nothing here loses its memory

    @staticmethod
    def _watched(call: Callable[..., Any], disk: Disk) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            disk.operation(args[0] if args else None)
            return call(*args, **more)

        return watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _OneAfterTheOther:
    """In place of a pool of threads: the same history must come out the same each time."""

    def __init__(self, max_workers: int = 1) -> None:
        del max_workers

    def __enter__(self) -> _OneAfterTheOther:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def map(self, call: Callable[..., Any], *what: Iterable[Any]) -> Iterator[Any]:
        return map(call, *what)


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """The store's operations are those of ``disk``."""
    kept = volume.os, volume.shutil, digest.ThreadPoolExecutor
    files = _System(shutil, disk, ("rmtree", "copyfileobj", "copyfile"))
    files.disk_usage = lambda path: SimpleNamespace(free=disk.free(path))  # type: ignore[attr-defined]
    volume.os = _System(os, disk, OPERATIONS)  # type: ignore[assignment]
    volume.shutil = files  # type: ignore[assignment]
    digest.ThreadPoolExecutor = _OneAfterTheOther  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        volume.os, volume.shutil, digest.ThreadPoolExecutor = kept  # type: ignore[misc]
