"""Member 0's memory on its disk volume: its start number, the versions that count, and what ended.

One file of a few kilobytes, written beside and renamed, with the file and then the folder synced: a version
counts from then on, whatever happens to the machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller import bounded

ENDED_KEPT = 256  # residencies that ended
_MOST = 1 << 20  # bytes


@dataclass(slots=True)
class Residency:
    """A resident as the operator announced it. ``bytes``: of its state on each member."""

    job: str
    bytes: int
    kind: str = ""
    since: int = 0  # when it came, microseconds


@dataclass(slots=True)
class Kept:
    """Contents of the file.

    Args:
        admission: of the group, as at its first start.
        start: how often member 0 has started.
        opened: when it did first, s since the epoch.
        versions: that count, by resident.
        residents: by name.
        leaving: residents whose states may still lie on members.
        gone: residencies that ended, oldest first; lost: those whose state was lost.
    """

    admission: int = 0
    start: int = 0
    opened: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    residents: dict[str, Residency] = field(default_factory=dict)
    leaving: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Disk:
    """The file.

    Args:
        folder: on the disk volume.
    """

    NAME = "group.json"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._path = folder, folder / self.NAME

    def read(self) -> Kept:
        """Return what is kept; nothing yet: the defaults.

        Raises:
            OSError: it is there and cannot be read: nothing may be made up then.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return Kept()
        try:
            found = bounded.load(text, str(self._path), _MOST)
            residents = {name: Residency(**one) for name, one in found.pop("residents").items()}
            return Kept(residents=residents, **found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OSError(f"{self._path}: not what was written there: {error}") from None

    def write(self, kept: bytes) -> None:
        """Write what `text` returned; it is on disk when this returns."""
        beside = self._path.with_suffix(".part")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, kept)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(self._path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def text(kept: Kept) -> bytes:
    """Return the file's contents."""
    values: dict[str, Any] = {name: getattr(kept, name) for name in Kept.__slots__}
    values["residents"] = {
        name: {part: getattr(one, part) for part in Residency.__slots__}
        for name, one in kept.residents.items()
    }
    return json.dumps(values, separators=(",", ":")).encode()
