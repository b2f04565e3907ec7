"""Checkpoints on a mounted volume: hard links to secure, copies with new inodes to retain.

A trainer writes to the same volume at the same time, so nothing here trusts a name twice: what goes away
raises `Vanished`, symbolic links are followed only inside the root, anything but a regular file is refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from controller.checkpoints import staging
from controller.checkpoints.digest import FileDigest, chunks, hash_stream
from controller.checkpoints.errors import (
    AccessError,
    Damaged,
    Reason,
    Vanished,
    check_interrupted,
    store_errors,
)
from controller.checkpoints.plan import SUFFIX, Plan
from controller.checkpoints.staging import TREE, Heartbeat, Lost, Writer
from controller.checkpoints.store import Taken, clean
from controller.checkpoints.volume_copy import VolumeCopy, read_into, sync

# A file that cannot be linked can often still be copied: other device, no links on this file system, too
# many links, or the kernel's rule that one may only link what one owns (fs.protected_hardlinks).
NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


class Volume:
    """A folder of a mounted file system. Paths in errors are the ones the container sees.

    ``writer``: who works on it, as other workers on the same volume see it.
    """

    def __init__(self, root: str, writer: Writer | None = None) -> None:
        if not os.path.isabs(root) or ".." in root.split("/"):
            raise AccessError(Reason.BAD_REQUEST, f"folder {root!r}: expected an absolute path without '..'")
        self.root = root.rstrip("/") or "/"
        self._real = os.path.realpath(self.root)
        self._writer = writer or Writer()

    def exists(self) -> bool:
        with store_errors(self.root):
            try:
                return stat.S_ISDIR(os.stat(self._real).st_mode)
            except FileNotFoundError:
                return False

    def path(self, name: str) -> str:
        name = clean(name)
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    # -- reading ---------------------------------------------------------------------------------------

    def folders(self, folder: str = "") -> list[str]:
        with self._reading(folder) as path, os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))

    def files(self, folder: str) -> dict[str, int]:
        with self._reading(folder) as path:
            return {name: found.st_size for name, found in self._walk(path, "")}

    def names(self, folder: str) -> list[str]:
        with self._reading(folder) as path:
            return sorted(os.listdir(path))

    def written(self, name: str) -> int | None:
        with self._reading(name) as path:
            return os.stat(path).st_mtime_ns

    def signatures(self, folder: str) -> dict[str, str]:
        with self._reading(folder) as path:
            return {
                name: f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
                for name, found in self._walk(path, "")
            }

    def folder_times(self, folder: str) -> dict[str, int] | None:
        with self._reading(folder) as path:
            return {os.path.relpath(below, path): os.stat(below).st_mtime_ns for below, _, _ in os.walk(path)}

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        with self.open(name) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise Damaged(f"{name} is larger than the {limit} bytes it may have")
        return data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self.open(name) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size + start) if start < 0 else start)
            return file.read(length)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with self._reading(name) as path:
            # O_NONBLOCK: opening a pipe that a trainer left there must not hang.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with _file(descriptor, name) as file:
                yield file

    def hash(self, name: str, fresh: bool = False) -> FileDigest:
        with self.open(name) as file:
            if fresh:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return hash_stream(file)

    def read_piece(self, name: str, start: int, size: int) -> bytearray:
        with self._reading(name) as path:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise Damaged(f"{name} is not a regular file")
                return read_into(descriptor, start, size)
            finally:
                os.close(descriptor)

    # -- writing ---------------------------------------------------------------------------------------

    def duplicate(self, source: str, target: str) -> str:
        check_interrupted()
        with self._reading(source) as path, self._writing(target) as new:
            try:
                # The file itself, never a link: a link's target may be exchanged under our pin.
                os.link(os.path.realpath(path), new, follow_symlinks=False)
                sync(new)  # trainers seldom do, and a pin must survive the node
                return "link"
            except FileNotFoundError as error:  # the target's folder was just made: it is the source
                raise Vanished(f"{path} is not there any more") from error
            except OSError as error:
                if error.errno not in NO_LINK:
                    raise
        with self.open(source) as old, self.create(target) as copy:
            for piece in chunks(old):
                copy.write(piece)
        return "copy"

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with self._writing(name) as path:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    yield file
                    os.fsync(descriptor)
            except BaseException:
                os.unlink(path)
                raise

    def delete(self, name: str) -> None:
        with suppress(Vanished), self._reading(name) as path:
            os.unlink(path)

    def share(self, *folders: tuple[str, int]) -> None:
        for folder, mode in folders:
            path = self.path(folder)
            with store_errors(path):
                self._make(folder)
                found = os.stat(path).st_mode
                if found & mode != mode:
                    # Somebody else's, or a file system without modes: then rights are as they are.
                    with suppress(OSError):
                        os.chmod(path, mode | (found & stat.S_ISGID))

    def published(self, folder: str) -> list[str]:
        parent, _, last = clean(folder).rpartition("/")
        try:
            names = self.folders(parent)
        except Vanished:
            return []
        beside = [name for name in names if name == last or name.startswith(f"{last}.")]
        return [f"{parent}/{name}" if parent else name for name in beside]

    def write(self, name: str, data: bytes) -> None:
        with self._writing(name) as path:
            temporary = f"{path}.{secrets.token_hex(4)}.new"
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise

    @contextmanager
    def staging(self, folder: str, key: str = "") -> Iterator[VolumeStage]:
        parent, _, last = clean(folder).rpartition("/")
        with store_errors(self.path(parent)):
            self._make(parent)
            path = staging.enter(self.path(parent), last, staging.LINKS, self._writer)
            assert path is not None  # only copies are waited for
            os.mkdir(f"{path}/{TREE}")
        stage = VolumeStage(self, folder, path)
        try:
            with Heartbeat(path):
                yield stage
        finally:
            staging.clear(path)

    def fingerprint(self, names: Iterable[str]) -> str:
        return ""  # links are made anew in no time

    @contextmanager
    def copying(
        self, folder: str, plan: Plan, inner: str, published: Callable[[], bool]
    ) -> Iterator[VolumeCopy | None]:
        parent, _, last = clean(folder).rpartition("/")
        with store_errors(self.path(parent)):
            self._make(parent)
            path = staging.enter(self.path(parent), last, plan.key(), self._writer, published=published)
        if path is None:
            yield None
            return
        copy = VolumeCopy(VolumeStage(self, folder, path), path, plan, inner)
        try:
            with Heartbeat(path):
                yield copy
        finally:
            copy.close()
            if copy.over:  # what came to no end stays: the next try goes on with it
                staging.clear(path)

    def remove(self, folder: str) -> None:
        path = self.path(folder)
        with store_errors(path):
            self._inside(os.path.dirname(path))
            staging.clear(path)  # away first, so that a half-deleted pin never looks like a whole one
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path + SUFFIX)

    def free(self) -> int | None:
        path = self._real
        while not os.path.isdir(path) and path != "/":
            path = os.path.dirname(path)
        with store_errors(self.root):
            return shutil.disk_usage(path).free

    # -- inside ----------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, name: str) -> Iterator[str]:
        path = self.path(name)
        with store_errors(path):
            try:
                self._inside(path)
                yield path
            except (FileNotFoundError, NotADirectoryError) as error:
                raise Vanished(f"{path} is not there") from error
            except OSError as error:
                # ESTALE is no absence: of a network file system whose server was away, all files say it.
                if error.errno == errno.ELOOP:
                    raise Damaged(f"{path} leads in a circle of symbolic links") from error
                raise

    @contextmanager
    def _writing(self, name: str) -> Iterator[str]:
        path = self.path(name)
        with store_errors(path):
            self._make(clean(name).rpartition("/")[0])
            yield path

    def _make(self, folder: str) -> None:
        path = self.path(folder)
        os.makedirs(path, exist_ok=True)
        self._inside(path)

    def _inside(self, path: str) -> None:
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._real.rstrip("/") + "/"):
            raise Damaged(f"{path} leads out of {self.root} (to {real}); symbolic links may not leave it")

    def _walk(self, path: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                name = prefix + entry.name
                if entry.is_symlink():
                    self._inside(entry.path)
                    found = self._target(entry.path, name)
                    if not stat.S_ISREG(found.st_mode):
                        raise Damaged(f"{name} is a symbolic link to something other than a file")
                    yield name, found
                elif entry.is_dir(follow_symlinks=False):
                    yield from self._walk(entry.path, f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry.stat(follow_symlinks=False)
                else:
                    raise Damaged(f"{name} is neither a file nor a folder")

    def _target(self, path: str, name: str) -> os.stat_result:
        try:
            return os.stat(path)
        except FileNotFoundError as error:
            if os.path.islink(path):
                raise Damaged(f"{name} is a symbolic link to nothing") from error
            raise


def _file(descriptor: int, name: str) -> BinaryIO:
    """An open descriptor as a file. Raises: Damaged, it is of something else; then it is closed."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(f"{name} is not a regular file")
    return os.fdopen(descriptor, "rb")


class VolumeStage:
    """A staging folder of ours at ``path``; ``folder`` is the tree in it, relative to the volume."""

    def __init__(self, volume: Volume, target: str, path: str) -> None:
        self.folder = f"{target.rpartition('/')[0]}/{os.path.basename(path)}/{TREE}".lstrip("/")
        self._volume, self._target, self._path = volume, target, path
        # A folder that was taken away and made anew, by our own writing into it, has no such file.
        self._mark = f"{path}/own-{os.path.basename(path)[-8:]}"
        with store_errors(path), open(self._mark, "x"):
            pass

    def check(self) -> None:
        """Raises: Lost, it is another worker's by now."""
        if not os.path.exists(self._mark):
            raise Lost(self._path)

    def final(self, suffix: str = "") -> str:
        return f"{self._target}{suffix}"

    def beside(self) -> list[str]:
        return self._volume.published(self._target)

    def publish(self, suffix: str = "") -> str:
        source, target = self._volume.path(self.folder), self.final(suffix)
        with store_errors(source):
            self.check()
            try:
                for folder, _, _ in os.walk(source):
                    sync(folder)
                os.rename(source, self._volume.path(target))
            except FileNotFoundError as error:
                raise Lost(self._path) from error
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise Taken(target) from error
                raise
            sync(os.path.dirname(self._path))
        return target
