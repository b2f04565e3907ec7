"""Checkpoints in an object store, through fsspec (obstore's implementation for s3, gs, az; see docs).

There are no links and no renames here, so to secure is to copy, and a marker object written last is what
makes a copy complete: ``<folder>/<token>.complete.json`` beside the objects ``<folder>/<token>/...``. Every
writer has a token of its own, so that two of them can never mix.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import fsspec  # type: ignore[import-untyped]

from controller.checkpoints.digest import FileDigest, hash_stream
from controller.checkpoints.errors import (
    AccessError,
    Damaged,
    Reason,
    Vanished,
    check_interrupted,
    store_errors,
)
from controller.checkpoints.store import clean

MARKER = ".complete.json"

# Schemes that may be opened. file is for shared mounts that several programs name by URI; memory for tests.
BY_OBSTORE = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")
LOCAL = ("file", "memory")


class ObjectStore:
    """A prefix of a bucket. Credentials are found in the environment, as the libraries look for them."""

    def __init__(self, filesystem: Any, prefix: str, uri: str) -> None:
        self.root = uri.rstrip("/")
        self._fs, self._prefix = filesystem, prefix.rstrip("/")

    @classmethod
    def at(cls, uri: str) -> ObjectStore:
        """The store for a URI such as ``s3://bucket/prefix``.

        Raises:
            AccessError: BAD_REQUEST for a scheme that is not supported, STORE_UNREACHABLE if its library
                cannot be set up.
        """
        scheme = uri.partition("://")[0]
        if scheme not in BY_OBSTORE + LOCAL:
            known = ", ".join(BY_OBSTORE + LOCAL)
            raise AccessError(Reason.BAD_REQUEST, f"scheme {scheme!r} of {uri!r}: expected one of {known}")
        with store_errors(uri, foreign=True):
            if scheme in BY_OBSTORE:
                from obstore.fsspec import register

                register(scheme)
            options: dict[str, Any] = {"auto_mkdir": True} if scheme == "file" else {}
            filesystem, prefix = fsspec.core.url_to_fs(uri, **options)
        return cls(filesystem, prefix, uri)

    def exists(self) -> bool:
        return True  # a prefix without objects is an empty folder, not a missing one

    def path(self, name: str) -> str:
        name = clean(name)
        return f"{self.root}/{name}" if name else self.root

    # -- reading ---------------------------------------------------------------------------------------

    def folders(self, folder: str = "") -> list[str]:
        with self._call(folder) as key:
            try:
                entries = self._fs.ls(key, detail=True, refresh=True)
            except FileNotFoundError:
                return []  # a prefix exists by its objects only
            return sorted(
                name.rstrip("/").rpartition("/")[2]
                for name in (str(entry["name"]) for entry in entries if entry["type"] == "directory")
                if name.rstrip("/") != key
            )

    def files(self, folder: str) -> dict[str, int]:
        with self._call(folder) as key:
            found = self._fs.find(key, detail=True)
            sizes = {_below(key, name): int(info["size"]) for name, info in found.items()}
            sizes.pop("", None)
            if not sizes:
                raise Vanished(f"{self.path(folder)} holds no objects")
            return sizes

    def signatures(self, folder: str) -> dict[str, str]:
        with self._call(folder) as key:
            found = self._fs.find(key, detail=True)
            return {
                name: _signature(info)
                for name, info in ((_below(key, name), info) for name, info in found.items())
                if name
            }

    def folder_times(self, folder: str) -> dict[str, int] | None:
        return None  # folders are only names here

    def replace(self, name: str, data: bytes) -> None:
        if "file" in self._protocols():
            with self._call(name.rpartition("/")[0]) as key:
                self._fs.makedirs(key, exist_ok=True)
        self.write(name, data)

    def delete(self, name: str) -> None:
        with suppress(Vanished), self._call(name) as key:
            self._fs.rm_file(key)

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        data = self.read_range(name, 0, limit + 1)
        if len(data) > limit:
            raise Damaged(f"{name} is larger than the {limit} bytes it may have")
        return data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self._call(name) as key:
            size = int(self._fs.info(key)["size"])
            first = max(0, size + start) if start < 0 else min(start, size)
            last = min(size, first + length)
            if first == last:
                return b""
            return bytes(self._fs.cat_file(key, start=first, end=last))

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with self._call(name) as key, self._fs.open(key, "rb") as file:
            yield cast(BinaryIO, file)

    def hash(self, name: str, fresh: bool = False) -> FileDigest:
        with self.open(name) as file:
            return hash_stream(file)

    # -- writing ---------------------------------------------------------------------------------------

    def duplicate(self, source: str, target: str) -> str:
        check_interrupted()
        with self._call(source) as old, self._call(target) as new:
            self._fs.cp_file(old, new)
        return "copy"

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with self._call(name) as key:
            file = self._fs.open(key, "wb")
            try:
                yield cast(BinaryIO, file)
            except BaseException:
                # Not closed, it never becomes an object; where it does, the staging folder is cleared anyway.
                with suppress(Exception):
                    file.discard()
                raise
            file.close()

    def published(self, folder: str) -> list[str]:
        with self._call(folder) as key:
            try:
                names = [
                    str(name).rpartition("/")[2] for name in self._fs.ls(key, detail=False, refresh=True)
                ]
            except FileNotFoundError:
                return []
        tokens = sorted(name.removesuffix(MARKER) for name in names if name.endswith(MARKER))
        return [f"{folder}/{token}" for token in tokens]

    @contextmanager
    def staging(self, folder: str) -> Iterator[ObjectStage]:
        stage = ObjectStage(self, f"{clean(folder)}/{secrets.token_hex(4)}")
        try:
            yield stage
        except BaseException:
            # What went wrong first is what is told; remains without a marker are no checkpoint to anybody.
            with suppress(AccessError, Vanished):
                self.remove(stage.folder)
            raise
        if not stage.published:
            self.remove(stage.folder)

    def remove(self, folder: str) -> None:
        # Markers first: without its marker what is left is no checkpoint to anybody.
        with self._call(folder) as key:
            names = [str(name) for name in self._fs.find(key)]
            if self._fs.exists(key + MARKER):
                names.append(key + MARKER)
            for name in sorted(names, key=lambda n: not n.endswith(MARKER)):
                self._fs.rm_file(name)
            if "file" in self._protocols() and self._fs.isdir(key):
                self._fs.rm(key, recursive=True)  # the folders that held them

    def free(self) -> int | None:
        return None

    def write(self, name: str, data: bytes) -> None:
        with self._call(name) as key:
            self._fs.pipe_file(key, data)

    # -- inside ----------------------------------------------------------------------------------------

    def _protocols(self) -> tuple[str, ...]:
        protocol = self._fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    @contextmanager
    def _call(self, name: str) -> Iterator[str]:
        clean(name)
        with store_errors(self.path(name), foreign=True):
            try:
                yield f"{self._prefix}/{name}" if name else self._prefix
            except FileNotFoundError as error:
                raise Vanished(f"{self.path(name)} is not there") from error


class ObjectStage:
    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.folder = folder
        self.published = False
        self._store = store

    def publish(self, suffix: str = "") -> str:
        # The token makes every name its own; the suffix only tells a person why there are two.
        self._store.write(self.folder + MARKER, json.dumps({"complete": True}).encode() + b"\n")
        self.published = True
        return self.folder


def _signature(info: Any) -> str:
    """Of an object, by what its store tells: size, and etag or time of the last write (and inode of
    files).
    """
    for field in ("ETag", "etag", "e_tag", "mtime", "LastModified", "last_modified", "created"):
        if info.get(field) is not None:
            return f"{info['size']}:{info[field]}:{info.get('ino', '')}"
    return f"{info['size']}::"


def _below(key: str, name: str) -> str:
    # Both without the leading '/' that some implementations put before names.
    base, full = key.strip("/"), str(name).strip("/")
    return full[len(base) :].strip("/") if full.startswith(base) else full
