"""The base image: which one is meant, and what is in it.

A tag names another image tomorrow; a digest names one for ever. So an image is built from a name with a
digest, and from a tag alone only where the caller says that it is for a trial.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_REMOVED, _OPAQUE = ".wh.", ".wh..wh..opq"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Reference:
    """An image by name. ``tag`` and ``digest`` ("sha256:…") may be empty."""

    name: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def reference(text: str, variable: str, trial: bool) -> Reference:
    """Read ``NAME[:TAG]@sha256:…``; with ``trial``, ``NAME[:TAG]`` as well.

    Args:
        text: the reference.
        variable: what to call it in an error.
        trial: whether a tag alone will do.

    Raises:
        ValueError: it is neither; the message says what would be right.
    """
    named, at, digest = text.partition("@")
    folder, slash, last = named.rpartition("/")
    last, colon, tag = last.partition(":")
    name = folder + slash + last
    if not last or (colon and not tag) or re.search(r"\s", text):
        raise ValueError(f"{variable}={text!r}: expected NAME@sha256:DIGEST")
    if at and not _DIGEST.match(digest):
        raise ValueError(f"{variable}={text!r}: {digest!r} is no digest, expected sha256: and 64 hex digits")
    if not at and not trial:
        raise ValueError(
            f"{variable}={text!r} names a tag alone, which may be another image tomorrow: expected "
            "NAME@sha256:DIGEST (`docker image inspect --format '{{.RepoDigests}} {{.Id}}' NAME`), "
            "or TRIAL=1 for images that nobody else is to run"
        )
    return Reference(name, tag, digest)


def matches(wanted: Reference, inspected: Mapping[str, Any]) -> bool:
    """Return whether what docker found is the image meant: by the digest of a registry, or by the image's own
    id."""
    if not wanted.digest:
        return True
    known = {str(inspected.get("Id", ""))}
    known |= {repository.partition("@")[2] for repository in inspected.get("RepoDigests") or ()}
    return wanted.digest in known


class BaseImage:
    """The base image in an archive that `docker save` wrote.

    Raises:
        ValueError: the archive holds no image, or several.
    """

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        with tarfile.open(archive) as tar:
            self._names = set(tar.getnames())
            manifest = json.loads(_read(tar, "manifest.json"))
            if len(manifest) != 1:
                raise ValueError(f"{archive} holds {len(manifest)} images, expected one")
            self.layers: Sequence[str] = manifest[0]["Layers"]
            self.config: dict[str, Any] = json.loads(_read(tar, manifest[0]["Config"]))

    @property
    def diff_ids(self) -> list[str]:
        return list(self.config["rootfs"]["diff_ids"])

    @cached_property
    def files(self) -> dict[str, tarfile.TarInfo]:
        """Path -> what is there once all layers lie upon each other."""
        return self._walk(_itself)

    def contents(self, paths: Collection[str]) -> dict[str, bytes]:
        """Return the content of those of these paths that are files, in one walk of the archive."""
        wanted = frozenset(paths)

        def read(layer: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> bytes | None:
            file = layer.extractfile(member) if path in wanted and member.isfile() else None
            return file.read() if file is not None else None

        return self._walk(read)

    def _walk(self, value: Callable[[tarfile.TarFile, str, tarfile.TarInfo], _T | None]) -> dict[str, _T]:
        """Return path -> value of what is there once all layers lie upon each other (`upon`)."""
        found: dict[str, _T] = {}
        with tarfile.open(self.archive) as tar:
            for layer in self.layers:
                with tarfile.open(fileobj=tar.extractfile(layer)) as members:
                    upon(found, members, value)
        return found


def _itself(layer: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member


def upon(
    found: dict[str, _T],
    layer: tarfile.TarFile,
    value: Callable[[tarfile.TarFile, str, tarfile.TarInfo], _T | None],
) -> None:
    """Lay a layer upon what is there: OCI image specification, "Applying Changesets".

    Args:
        found: path -> its value; changed.
        layer: the archive of the layer.
        value: returns the value of a member of the layer, given with its path; None: none is kept for that
            path.
    """
    for member in layer:
        name = _plain(member.name)
        folder, _, last = name.rpartition("/")
        if last == _OPAQUE:
            _take_away(found, folder, itself=False)
        elif last.startswith(_REMOVED):
            _take_away(found, f"{folder}/{last.removeprefix(_REMOVED)}".lstrip("/"), itself=True)
        elif name:
            made = value(layer, name, member)
            if made is None:
                found.pop(name, None)
            else:
                found[name] = made


def _take_away(found: dict[str, _T], path: str, itself: bool) -> None:
    for name in [n for n in found if n.startswith(f"{path}/") or (itself and n == path)]:
        del found[name]


def _plain(name: str) -> str:
    return name.removeprefix("./").strip("/") if name != "." else ""


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise ValueError(f"{tar.name!s}: no {name} in it, expected an archive of `docker save`")
    return file.read()
