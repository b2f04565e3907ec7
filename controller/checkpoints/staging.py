"""Staging folders on a volume: whose each is, and when one may be taken over or cleared.

No file lock says so: locks are local to a node on some file systems, and two workers of one RLHFJob may be on
two nodes, one of them thought dead. A staging folder carries its writer's token in its *name*, and everything
that matters is one rename of that name:

- to take a folder over is to rename it to one's own name; of two who try, one succeeds;
- to publish is to rename the tree inside it, by its path: a writer that lost the folder finds nothing there;
- to clear is to rename it away first, so that its writer loses it before anything in it goes.

Renames are of names in one open folder, and a name is never followed where it is a symbolic link.

So a writer that lost its folder, and does not know yet, publishes nothing. What it may still write into a
file that it has open is the piece that everybody else would write there too: pieces are compared with their
plan before they are written, and only writers of one plan meet in one folder (its key is in the name).

Whose request is newer is told by its serial number, which the policy recorded before the request was made,
and not by anybody's clock. A folder of an older request is superseded. One of the same or of a newer request
is waited for, for as long as its heartbeat is seen to change, by the clock of the one who waits.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from controller.checkpoints.errors import AccessError, Reason, check_interrupted
from controller.checkpoints.rooted import Folder

TEMPORARY = ".tmp-"
TREE = "tree"  # what is published: a folder inside the staging folder
BEAT = "beat"
BEAT_SECONDS = 10.0
DEAD_SECONDS = 120.0  # without a new heartbeat; file systems over a network show a change after up to 60 s
LINKS = "links"  # the key of a folder that is no copy: nothing in it is worth being gone on with

_NAME = re.compile(
    re.escape(TEMPORARY)
    + r"(?P<last>.+)\.(?P<key>[0-9a-f]{16}|links)\.(?P<serial>\d+)-(?P<token>[0-9a-f]{8})\Z"
)
_SERIAL = re.compile(r"-(\d{1,12})\Z")


@dataclass(frozen=True)
class Writer:
    """One worker.

    Attributes:
        serial: of its request, 0 where it has none.
        token: of this very process.
    """

    serial: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    @staticmethod
    def of(request: str) -> Writer:
        """Return the writer of a request, whose id ends with its serial number: ``retain-40-7``."""
        found = _SERIAL.search(request)
        return Writer(int(found[1]) if found else 0)


@dataclass(frozen=True)
class Name:
    """Fields of a staging folder's name."""

    last: str  # name of the folder that it is to become
    key: str
    serial: int
    token: str

    def __str__(self) -> str:
        return f"{TEMPORARY}{self.last}.{self.key}.{self.serial}-{self.token}"

    @staticmethod
    def parse(name: str) -> Name | None:
        match = _NAME.match(name)
        return Name(match["last"], match["key"], int(match["serial"]), match["token"]) if match else None


class Lost(AccessError):
    """The staging folder is another worker's by now."""

    def __init__(self, path: str) -> None:
        super().__init__(
            Reason.INTERRUPTED, f"{path} is another worker's by now: it goes on where this one was"
        )


def enter(
    parent: Folder,
    last: str,
    key: str,
    writer: Writer,
    *,
    published: Callable[[], bool] = lambda: False,
    dead_seconds: float = DEAD_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return a staging folder of one's own in ``parent``: that of an earlier try with the same key, else a
    new one.

    What is superseded is cleared. A worker of the same or a newer request that lives is waited for.

    Args:
        parent: the open folder.
        last: name of the folder that the staging folder is to become.
        key: of the plan; `LINKS` for what is made in one go.
        writer: the worker that asks.
        published: returns whether somebody has published since this worker began.
        dead_seconds: a worker without a heartbeat for so long counts as dead (s).
        monotonic: the clock (s).
        sleep: waits for so many seconds.

    Returns:
        Its name; None: what is wanted has been published by the one waited for.
    """
    own = Name(last, key, writer.serial, writer.token)
    seen: dict[str, tuple[bytes, float]] = {}
    while True:
        others = _others(parent, own)
        for name, found in others:
            if found is None or (found.serial < writer.serial and not _same_work(found, own)):
                clear(parent, name)
        mine = [(name, found) for name, found in others if found is not None and _same_work(found, own)]
        waiting = False
        for name, found in mine:
            if found.serial >= writer.serial and not _dead(parent, name, seen, dead_seconds, monotonic()):
                waiting = True
            elif _taken(parent, name, str(own)):
                return str(own)
        if published():
            return None
        if not waiting:
            parent.mkdir(str(own))
            return str(own)
        check_interrupted()
        sleep(min(1.0, dead_seconds / 10.0))


def clear(parent: Folder, name: str) -> None:
    """Remove a staging folder, its writer's claim to it first."""
    trash = f"{TEMPORARY}gone-{secrets.token_hex(4)}"
    with suppress(FileNotFoundError):
        parent.rename(name, trash)
        parent.remove(trash)


class Heartbeat:
    """Shows that this process lives, in a staging folder of ``parent``, while the block runs."""

    def __init__(self, parent: Folder, name: str, seconds: float = BEAT_SECONDS) -> None:
        self._parent, self._name, self._seconds = parent, name, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=self._seconds)

    def _beat(self) -> None:
        count = 0
        while not self._stop.wait(self._seconds if count else 0.0):
            count += 1
            # The folder may be another's by now, or the disk full: the worker finds out for itself.
            with suppress(OSError):
                beat(self._parent, self._name)


def beat(parent: Folder, name: str) -> None:
    """Write a new heartbeat into a staging folder."""
    with parent.folder(name) as folder:
        descriptor = folder.open(BEAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{secrets.token_hex(4)}\n".encode())


def _others(parent: Folder, own: Name) -> list[tuple[str, Name | None]]:
    # A temporary file beside is somebody's small write under way: folders only.
    names = [name for name in parent.folders() if name.startswith(TEMPORARY)]
    return [(name, Name.parse(name)) for name in names if name != str(own)]


def _same_work(found: Name, own: Name) -> bool:
    return own.key != LINKS and (found.last, found.key) == (own.last, own.key)


def _taken(parent: Folder, name: str, own: str) -> bool:
    try:
        parent.rename(name, own)
    except FileNotFoundError:
        return False  # another one was faster, or its writer has just published it
    return True


def _dead(parent: Folder, name: str, seen: dict[str, tuple[bytes, float]], limit: float, now: float) -> bool:
    """Return whether a folder's heartbeat has been the same for so long, as we saw it."""
    try:
        with parent.folder(name) as folder:
            heartbeat = folder.read(BEAT, 64)
    except OSError:
        heartbeat = b""
    known = seen.get(name)
    if known is None or known[0] != heartbeat:
        seen[name] = (heartbeat, now)
        return False
    return now - known[1] > limit
