"""Layers of an image as archives that depend on their content alone.

Members in the order of their names, owned by root, all of one time, modes 0755 or 0644: the same files give
the same bytes, and so the same digest, wherever and whenever they were made.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MTIME = 0  # files of an image are told apart by content: pycs carry a hash of their source, not its time
# What people and programs start commands with; busybox is all of them in one.
SHELLS = ("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "rbash", "sh", "tcsh", "zsh")
_PROGRAMS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
_REMOVED = ".wh."  # OCI image specification, "Whiteouts"


@dataclass(frozen=True)
class Layer:
    """An uncompressed archive on this machine. ``digest``: its sha256, which OCI calls DiffID."""

    name: str
    path: Path
    digest: str
    size: int


class Writer:
    """Write members into an archive and learn its digest on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self._size = 0
        self._tar = tarfile.TarFile(fileobj=self, mode="w", format=tarfile.PAX_FORMAT)  # type: ignore[arg-type]

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._size += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._size

    def add(self, member: tarfile.TarInfo, content: IO[bytes] | None = None) -> None:
        self._tar.addfile(member, content)

    def close(self, name: str) -> Layer:
        self._tar.close()
        self._file.close()
        return Layer(name, self.path, self._hash.hexdigest(), self._size)


def normal(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    """Return a member like this one, of nobody's and of no time.

    Raises:
        ValueError: it is neither a file nor a symbolic link.
    """
    if not (member.isfile() or member.issym()):
        raise ValueError(f"{member.name}: neither a file nor a symbolic link")
    made = tarfile.TarInfo(name)
    made.type, made.mtime, made.linkname = member.type, MTIME, member.linkname if member.issym() else ""
    made.size = member.size if member.isfile() else 0
    runs = member.issym() or member.mode & 0o111
    made.mode = 0o755 if runs else 0o644
    return made


def from_archive(
    name: str, source: tarfile.TarFile, root: str, path: Path, base: Mapping[str, tarfile.TarInfo]
) -> Layer:
    """Write a layer of everything below ``root`` in ``source``.

    Args:
        name: of the layer.
        source: an archive of a file system.
        root: folder in ``source``.
        path: file to write.
        base: path within the base image -> what is there; a folder of it keeps its mode and owner.

    Raises:
        ValueError: a member of a kind that no layer has, or nothing is there.
    """
    below = f"{root}/"
    found = {m.name.removeprefix(below): m for m in source.getmembers() if m.name.startswith(below)}
    if not found:
        raise ValueError(f"layer {name}: nothing in {root}")
    writer = Writer(path)
    for inside in sorted(found):
        member = found[inside]
        if member.isdir():
            writer.add(like(base, inside))
        else:
            writer.add(normal(member, inside), source.extractfile(member) if member.isfile() else None)
    return writer.close(name)


def without_shells(base: Mapping[str, tarfile.TarInfo], path: Path) -> Layer | None:
    """Write a layer that takes the base's shells away; None: it has none.

    Args:
        base: path within the base -> what is there (`BaseImage.files`).
        path: file to write.
    """
    removed = sorted(
        inside
        for inside in base
        if posixpath.dirname(inside) in _PROGRAMS and posixpath.basename(inside) in SHELLS
    )
    if not removed:
        return None
    members: dict[str, tarfile.TarInfo] = {}
    for inside in removed:
        folder = posixpath.dirname(inside)
        marker = tarfile.TarInfo(f"{folder}/{_REMOVED}{posixpath.basename(inside)}")
        marker.mtime, marker.mode = MTIME, 0o644
        members[marker.name] = marker
        while folder:
            # As the base has it: a layer's folder stands before those below it, modes and all.
            members[folder] = like(base, folder)
            folder = posixpath.dirname(folder)
    writer = Writer(path)
    for inside in sorted(members):
        writer.add(members[inside])
    return writer.close("without-shells")


def like(base: Mapping[str, tarfile.TarInfo], folder: str) -> tarfile.TarInfo:
    """Return a folder with mode and owner of the one in the base image."""
    made = tarfile.TarInfo(folder)
    made.type, made.mtime, made.mode = tarfile.DIRTYPE, MTIME, 0o755
    if (there := base.get(folder)) is not None:
        made.mode, made.uid, made.gid = there.mode, there.uid, there.gid
    return made
