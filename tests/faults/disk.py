"""The disk under the checkpoint store: every call of the store to the operating system is an operation that
can be delayed by somebody else's act, refused, or be the last one before a kill.

A killed program does not clean up: once `Disk.dead` is set, every further operation ends in `Killed`, those
of `finally` blocks too: what a killed access pod leaves behind is what SIGKILL would leave.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import controller.checkpoints.access
import controller.checkpoints.volume  # noqa: F401
from controller.checkpoints import arrivals, staging, workers
from controller.checkpoints.rooted import Folder

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
        self.broken: Callable[[], int | None] = lambda: None  # errno of every operation now
        self.free: Callable[[str], int] = lambda path: 1 << 40  # bytes

    def begin(self, at: int | None = None, then: Callable[[], None] | None = None) -> None:
        self.count, self.dead, self.at, self.then = 0, False, at, then

    def kill(self) -> None:
        self.dead = True
        raise Killed

    def operation(self, path: Callable[[], str], counted: bool = True) -> None:
        """One operation begins. ``path``: of what it is, asked for where it is refused."""
        if self.dead:
            raise Killed
        self.count += counted
        if self.at is not None and self.count >= self.at:
            self.at, then = None, self.then
            if then is not None:
                then()
        if (code := self.broken()) is not None:
            raise OSError(code, os.strerror(code), path())


class _System:
    """A module whose named functions are operations of a `Disk`."""

    def __init__(self, module: Any, disk: Disk, names: Iterable[str]) -> None:
        vars(self).update(vars(module))
        for name in names:
            if hasattr(module, name):
                setattr(self, name, self._watched(getattr(module, name), disk))
        self.fsync = lambda descriptor: None  # nothing here loses its memory

    @staticmethod
    def _watched(call: Callable[..., Any], disk: Disk) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            # To come by a folder on the way to a file is a part of what is done with the file.
            passing = call is os.open and args[1] & os.O_PATH
            disk.operation(lambda: _path(args, more), counted=not passing)
            return call(*args, **more)

        return watched


def _path(args: tuple[Any, ...], more: Mapping[str, Any]) -> str:
    """Of what an operation is: also where it is named by an open folder, or relative to one."""
    name = args[0] if args else "."
    folder = next((more[key] for key in ("dir_fd", "src_dir_fd") if key in more), None)
    if isinstance(name, int):
        return os.readlink(f"/proc/self/fd/{name}")
    return str(name) if folder is None else f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}"


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


class _Heartbeat:
    """In place of a thread that shows from time to time that the program lives."""

    def __init__(self, parent: Folder, name: str, seconds: float = 0.0) -> None:
        self._parent, self._name = parent, name

    def __enter__(self) -> _Heartbeat:
        with suppress(OSError):  # as the thread does: the folder may be another worker's by now
            staging.beat(self._parent, self._name)
        return self

    def __exit__(self, *_: object) -> None:
        return


def _each(items: Iterable[Any], work: Callable[[Any], None], workers: int) -> None:
    del workers
    for item in items:
        work(item)


class _Moments:
    """A clock that goes on by what is slept."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """The store's operations are those of ``disk``, and it does one thing after the other."""
    files = _System(shutil, disk, ("rmtree", "copyfileobj", "copyfile"))
    files.disk_usage = lambda path: SimpleNamespace(free=disk.free(path))  # type: ignore[attr-defined]
    moments = _Moments()
    instead: dict[str, tuple[object, object]] = {
        "os": (os, _System(os, disk, OPERATIONS)),
        "shutil": (shutil, files),
        "each": (workers.each, _each),
        "Heartbeat": (staging.Heartbeat, _Heartbeat),
        "ThreadPoolExecutor": (ThreadPoolExecutor, _OneAfterTheOther),
    }
    changed = []
    for name, module in list(sys.modules.items()):
        if name.startswith("controller.checkpoints.") and module is not None:
            for attribute, (real, other) in instead.items():
                if getattr(module, attribute, None) is real:
                    setattr(module, attribute, other)
                    changed.append((module, attribute, real))
    defaults, soon = dict(staging.enter.__kwdefaults__), arrivals.SOON_NS
    # Hours of this world take milliseconds of the disk's clock: how long ago a save was does not tell a
    # rotation from what ends it. No trainer here renames a file.
    arrivals.SOON_NS = -1
    staging.enter.__kwdefaults__.update(monotonic=moments.monotonic, sleep=moments.sleep)
    try:
        yield
    finally:
        for module, attribute, real in changed:
            setattr(module, attribute, real)
        staging.enter.__kwdefaults__.update(defaults)
        arrivals.SOON_NS = soon
