"""States in a member's host memory: a folder `<resident>/<version>` with a file per region, on a memory
volume that outlives the container.

A version is whole or not there: it is written beside, and renamed. Regions that did not change are hard links
to the version before. What may lie here is counted before anything is written: with cgroup v2 a full memory
kills the whole container.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from controller import bounded

_NEWEST, _PART = "newest", ".part"
_LINE = 64  # bytes of `newest`
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


class HostMemory:
    """One member's states.

    Args:
        folder: on the memory volume.
        most: bytes.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._states, self._newest, self.most = folder / "states", folder / _NEWEST, most
        self._dropped, self._number = folder / "dropped", 0
        shutil.rmtree(self._dropped, ignore_errors=True)
        for one in (self._states, self._dropped):
            one.mkdir(parents=True, exist_ok=True)
        for part in self._states.glob(f"*/*{_PART}"):
            shutil.rmtree(part)
        if not self._newest.exists():
            written = self._newest.with_suffix(_PART)
            written.write_bytes(_line((0, 0)))
            written.replace(self._newest)

    def versions(self) -> tuple[tuple[str, int], ...]:
        """Return (resident, version) of each state."""
        found = []
        for path in self._states.glob("*/*"):
            version = bounded.whole(path.name)
            if version is not None:
                found.append((path.parent.name, version))
        return tuple(sorted(found))

    def newest(self) -> tuple[int, int]:
        """Return start and sequence of the newest turn that this member has begun."""
        start, sequence = self._newest.read_text().split()
        return int(start), int(sequence)

    def set_newest(self, newest: tuple[int, int]) -> None:
        """Keep it: before anything of that turn is done.

        In place, as on a full volume there is no page for a new file. One write within a page is there whole
        or not at all when the process is killed, and the volume does not outlive the machine.
        """
        file = os.open(self._newest, os.O_WRONLY)
        try:
            os.pwrite(file, _line(newest), 0)
        finally:
            os.close(file)

    def folder(self, resident: str, version: int) -> Path:
        """Return where a version is."""
        return self._states / resident / str(version)

    def begin(self, resident: str, version: int, size: int) -> Path:
        """Return a new folder in which a version is to be written; `done` makes it one.

        Raises:
            MemoryError: it may not fit, or the volume is full.
        """
        used = self.used()
        if used + size > self.most:
            raise MemoryError(
                f"host memory: {size} bytes more than {used} of {self.most} that a member may have"
            )
        part = self.folder(resident, version).with_suffix(_PART)
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
        except OSError as error:
            if error.errno in _FULL:
                raise MemoryError(f"host memory: {error.strerror}") from None
            raise
        return part

    def done(self, part: Path) -> None:
        """Let what was written be the version."""
        whole = part.with_suffix("")
        shutil.rmtree(whole, ignore_errors=True)  # of an attempt that nobody recorded
        part.rename(whole)

    def drop(self, resident: str, version: int | None = None) -> Path | None:
        """Take a version, None: all of a resident's, away, and return what `erase` is to be called with."""
        taken = self._states / resident if version is None else self.folder(resident, version)
        self._number += 1
        away = self._dropped / str(self._number)
        try:
            taken.rename(away)
        except FileNotFoundError:
            return None
        return away

    @staticmethod
    def erase(dropped: Path) -> None:
        """Give the memory of what was dropped back; takes a while where it is large."""
        shutil.rmtree(dropped, ignore_errors=True)

    def regions(self, resident: str, version: int) -> dict[str, int] | None:
        """Return bytes by region; None: that version is not here."""
        try:
            with os.scandir(self.folder(resident, version)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries}
        except FileNotFoundError:
            return None

    def used(self) -> int:
        """Return bytes of all regions, those that versions share once."""
        seen: dict[int, int] = {}
        for folder, _, names in (one for top in (self._states, self._dropped) for one in os.walk(top)):
            for name in names:
                try:
                    stat = os.stat(os.path.join(folder, name))
                except FileNotFoundError:
                    continue  # erased meanwhile
                seen[stat.st_ino] = stat.st_size
        return sum(seen.values())


def _line(newest: tuple[int, int]) -> bytes:
    return f"{newest[0]} {newest[1]}".ljust(_LINE).encode()
