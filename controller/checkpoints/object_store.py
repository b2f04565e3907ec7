"""Checkpoints in an object store, through fsspec (obstore's implementation for s3, gs, az). For users:
docs/use/checkpoints.md.

There are no links and no renames here, so pinning means copying, and a marker object written last is what
makes a copy complete: ``<folder>/<token>.complete.json`` beside the objects ``<folder>/<token>/...``. Two
writers may use the same token only if they would write identical content: pieces are compared with their plan
before they are written, and S3 copies an object only if its ETag is the expected one. A retry then resumes
the earlier upload. Otherwise each writer has its own token.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fsspec  # type: ignore[import-untyped]

from controller.checkpoints import endpoints
from controller.checkpoints.digest import FileDigest, hash_stream
from controller.checkpoints.errors import (
    AccessError,
    Damaged,
    Reason,
    Vanished,
    check_interrupted,
    store_errors,
)
from controller.checkpoints.object_copy import CHECKED, ObjectCopy
from controller.checkpoints.plan import SUFFIX, Plan
from controller.checkpoints.progress import METER
from controller.checkpoints.staging import Writer
from controller.checkpoints.store import clean
from controller.checkpoints.uploads import UPLOADS, Upload

if TYPE_CHECKING:
    from controller.checkpoints.s3 import Bucket

MARKER = ".complete.json"

# Schemes that may be opened, one for each kind of store. With s3a as well as s3, one bucket would have two
# URIs.
BY_OBSTORE = ("s3", "gs", "az")
LOCAL: tuple[str, ...] = ()  # in tests: file, memory. A file:// of a pod is whatever that pod has mounted


class ObjectStore:
    """A prefix of a bucket. Credentials are found in the environment, as the libraries look for them.

    It implements the protocol `store.Store`, and `uploads.Records`. The access program loads this module:
    import no API client and no pydantic here (import-linter). Tests: test_checkpoints_layouts,
    test_checkpoints_gateway and test_checkpoints_endpoints in tests/checkpoints.

    ``writer``: who works on it, as other workers see it.
    """

    def __init__(self, filesystem: Any, prefix: str, uri: str, writer: Writer | None = None) -> None:
        self.root = uri.rstrip("/")
        self.writer = writer or Writer()
        self._fs, self._prefix = filesystem, prefix.rstrip("/")
        self._scheme = uri.partition("://")[0]
        self._bucket: Bucket | None = None
        self._stages: list[str] = []  # staged folders under way
        self._tags: dict[str, tuple[int, str]] = {}  # size and ETag by name, as `fingerprint` found them

    @classmethod
    def at(cls, uri: str, writer: Writer | None = None) -> ObjectStore:
        """Return the store for a URI such as ``s3://bucket/prefix``.

        Raises:
            AccessError: BAD_REQUEST for a scheme that is not supported, STORE_UNREACHABLE if its library
                cannot be set up.
        """
        scheme = uri.partition("://")[0]
        if scheme not in BY_OBSTORE + LOCAL:
            known = ", ".join(BY_OBSTORE + LOCAL)
            raise AccessError(Reason.BAD_REQUEST, f"scheme {scheme!r} of {uri!r}: expected one of {known}")
        if scheme in BY_OBSTORE:
            endpoints.check(os.environ)
        with store_errors(uri, foreign=True):
            if scheme in BY_OBSTORE:
                from obstore.fsspec import register

                register(scheme)
            options: dict[str, Any] = {"auto_mkdir": True} if scheme == "file" else {}
            filesystem, prefix = fsspec.core.url_to_fs(uri, **options)
        return cls(filesystem, prefix, uri, writer)

    @property
    def s3(self) -> Bucket | None:
        """The same bucket for what needs S3's own calls; None: the store is of another kind."""
        if self._scheme != "s3":
            return None
        if self._bucket is None:
            from controller.checkpoints.s3 import Bucket  # imports minio: only where it is needed

            self._bucket = Bucket.of_environment(self._prefix.partition("/")[0])
        return self._bucket

    @property
    def whole_objects(self) -> bool:
        """Return whether objects appear atomically: readers never see a partial overwrite."""
        return self._scheme in BY_OBSTORE

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

    def names(self, folder: str) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.files(folder)})

    def written(self, name: str) -> int | None:
        return None

    def signatures(self, folder: str) -> dict[str, str]:
        with self._call(folder) as key:
            found = {_below(key, name): info for name, info in self._fs.find(key, detail=True).items()}
            found.pop("", None)
            if not found:
                raise Vanished(f"{self.path(folder)} holds no objects")
            return {name: _signature(info) for name, info in found.items()}

    def folder_times(self, folder: str) -> dict[str, int] | None:
        return None  # folders are only names here

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

    def read_piece(self, name: str, start: int, size: int) -> bytes | bytearray:
        with self._call(name) as key:
            data = self._fs.cat_file(key, start=start, end=start + size)
            return data if isinstance(data, bytes) else bytes(data)

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
            bucket = self.s3
            if bucket is None:
                self._fs.cp_file(old, new)
                return "copy"
            size, tag = self._tags.get(source) or bucket.head(_in_bucket(old))
            record = Upload.of(self, self._staged(target), target)
            bucket.copy(_in_bucket(old), _in_bucket(new), size, tag, record)
        METER.advance(size)
        return "copy"

    def copy(self, source: str, target: str) -> None:
        self.duplicate(source, target)

    def fingerprint(self, names: Iterable[str]) -> str:
        bucket = self.s3
        if bucket is None:
            return ""
        text = hashlib.sha256()
        for name in sorted(names):
            with self._call(name) as key:
                self._tags[name] = size, tag = bucket.head(_in_bucket(key))
            text.update(f"{size} {tag} {name}\n".encode("utf-8", "surrogateescape"))
        return text.hexdigest()[:16]

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
    def staging(self, folder: str, key: str = "") -> Iterator[ObjectStage]:
        stage = ObjectStage(self, f"{clean(folder)}/{self.token(folder, key)}")
        self.abort_superseded(folder, stage.folder)
        self._stages.append(stage.folder)
        try:
            yield stage
        except BaseException as error:
            resumable = isinstance(error, AccessError) and error.reason in (
                Reason.INTERRUPTED,
                Reason.STORE_UNREACHABLE,
            )
            if not (key and resumable):
                # Report the first error. A folder without its marker is ignored by readers.
                with suppress(AccessError, Vanished):
                    self.discard(stage.folder)
            raise
        finally:
            self._stages.remove(stage.folder)
        if not stage.published:
            self.discard(stage.folder)

    @contextmanager
    def copying(
        self, folder: str, plan: Plan, inner: str, published: Callable[[], bool]
    ) -> Iterator[ObjectCopy | None]:
        token = self.token(folder, plan.key() if self.whole_objects else "")
        stage = ObjectStage(self, f"{clean(folder)}/{token}")
        self.abort_superseded(folder, stage.folder)
        copy = ObjectCopy(self, stage, plan, inner)
        try:
            yield copy
        finally:
            if not stage.published and (copy.over or not self.whole_objects):
                with suppress(AccessError, Vanished):
                    self.discard(stage.folder)

    def token(self, folder: str, key: str) -> str:
        """Return a token under which nothing is published: one's own, or the first of those that
        ``key`` has."""
        if not key:
            return secrets.token_hex(4)
        taken = {name.rpartition("/")[2] for name in self.published(folder)}
        tokens = (hashlib.sha256(f"{key} {n}".encode()).hexdigest()[:16] for n in range(1000))
        return next((token for token in tokens if token not in taken), secrets.token_hex(8))

    def abort_superseded(self, folder: str, own: str) -> None:
        """Abort abandoned multipart uploads of superseded requests."""
        bucket = self.s3
        if bucket is None:
            return
        with suppress(Vanished):
            for name in self.files(folder):
                stem, found, _ = name.partition(UPLOADS)
                if found and f"{folder}/{stem}" != own:
                    upload = Upload(self, f"{folder}/{name}")
                    entry = upload.load()
                    if entry is not None and int(entry.get("serial", 0)) < self.writer.serial:
                        bucket.abort(str(entry.get("key")), str(entry.get("upload")))
                        upload.forget()

    def discard(self, folder: str) -> None:
        """Remove what was staged, unless another worker has published it."""
        if folder not in self.published(folder.rpartition("/")[0]):
            self.remove(folder)

    def remove(self, folder: str) -> None:
        # Markers first: readers ignore a folder without its marker.
        with self._call(folder) as key:
            names = [str(name) for name in self._fs.find(key)]
            for beside in (MARKER, SUFFIX, CHECKED):
                if self._fs.exists(key + beside):
                    names.append(key + beside)
            bucket = self.s3
            for name in self._records(key):
                entry = Upload(self, _below(self._prefix, name)).load()
                if bucket is not None and entry is not None:
                    bucket.abort(str(entry.get("key")), str(entry.get("upload")))
                names.append(name)
            for name in sorted(names, key=lambda n: not n.endswith(MARKER)):
                self._fs.rm_file(name)
            if "file" in self._protocols() and self._fs.isdir(key):
                self._fs.rm(key, recursive=True)  # the folders that held them

    def free(self) -> int | None:
        return None

    def share(self, *folders: tuple[str, int]) -> None:
        pass  # rights are those of the bucket

    def write(self, name: str, data: bytes) -> None:
        with self._call(name) as key:
            self._fs.pipe_file(key, data)

    def bucket_key(self, name: str) -> str:
        """Return an object's key in its bucket."""
        return _in_bucket(f"{self._prefix}/{name}" if name else self._prefix)

    # -- inside ----------------------------------------------------------------------------------------

    def _staged(self, name: str) -> str:
        """Return the staged folder that an object belongs to; its own folder where it belongs to none."""
        inside = [folder for folder in self._stages if name.startswith(f"{folder}/")]
        return inside[0] if inside else name.rpartition("/")[0]

    def _records(self, key: str) -> list[str]:
        """Return records of uploads in parts into a folder."""
        if self.s3 is None:
            return []
        try:
            return [str(name) for name in self._fs.find(key + UPLOADS.rstrip("/"))]
        except FileNotFoundError:
            return []

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

    def final(self, suffix: str = "") -> str:
        return self.folder

    def beside(self) -> list[str]:
        return self._store.published(self.folder.rpartition("/")[0])

    def publish(self, suffix: str = "") -> str:
        # The token makes every name its own; the suffix only tells a person why there are two.
        self._store.write(self.folder + MARKER, json.dumps({"complete": True}).encode() + b"\n")
        self.published = True
        return self.folder


def _signature(info: Any) -> str:
    """Return what tells an object's versions apart: size, and ETag or time of its last write (and inode)."""
    for field in ("ETag", "etag", "e_tag", "mtime", "LastModified", "last_modified", "created"):
        if info.get(field) is not None:
            return f"{info['size']}:{info[field]}:{info.get('ino', '')}"
    return f"{info['size']}::"


def _in_bucket(path: str) -> str:
    """Return the key in its bucket, of a path that begins with the bucket's name."""
    return path.lstrip("/").partition("/")[2]


def _below(key: str, name: str) -> str:
    # Both without the leading '/' that some implementations put before names.
    base, full = key.strip("/"), str(name).strip("/")
    return full[len(base) :].strip("/") if full.startswith(base) else full
