"""Checkpoints on a mounted volume: clones or hard links to secure, copies with new inodes to retain.

A trainer writes to the same volume at the same time, so nothing here trusts a name twice: paths are walked
from the open root (rooted.py) and what they lead to is worked with by its descriptor; what goes away raises
`Vanished`, symbolic links are followed only inside the root, anything but a regular file is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from controller.checkpoints import staging
from controller.checkpoints.arrivals import entries_changed
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
from controller.checkpoints.rooted import ON_THE_WAY, READ, Folder, Found, Rooted, listing, same, sync
from controller.checkpoints.staging import TREE, Heartbeat, Lost, Writer
from controller.checkpoints.store import Taken, clean
from controller.checkpoints.volume_copy import VolumeCopy, read_into

DEPTH = 64  # folders in folders that a checkpoint may have

# A file that cannot be linked can often still be copied: other device, no links on this file system, too
# many links, or the kernel's rule that one may only link what one owns (fs.protected_hardlinks).
NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}

# linux/fs.h: the file of this descriptor gets the data of another one, shared until either is written to
# (btrfs, XFS, bcachefs; NFS 4.2 if its server can).
FICLONE = 0x40049409
NO_CLONE = {
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
}


class Volume:
    """A folder of a mounted file system. Paths in errors are the ones the container sees.

    Args:
        writer: who works on it, as other workers on the same volume see it.
        within: the mount point that the folder lies below, where the way from there to it is not to be
            trusted either; "": it is.
    """

    def __init__(self, root: str, writer: Writer | None = None, within: str = "") -> None:
        if not os.path.isabs(root) or ".." in root.split("/"):
            raise AccessError(Reason.BAD_REQUEST, f"folder {root!r}: expected an absolute path without '..'")
        self.root = root.rstrip("/") or "/"
        if within and not f"{self.root}/".startswith(f"{within.rstrip('/')}/"):
            raise AccessError(Reason.BAD_REQUEST, f"folder {root!r} does not lie below {within!r}")
        self._rooted = Rooted(self.root, within)
        self._clones = True  # until a file could not be cloned
        self._writer = writer or Writer()

    def exists(self) -> bool:
        with store_errors(self.root):
            try:
                return self._rooted.there()
            except Damaged as error:  # of the way to it, and nobody's checkpoint
                raise AccessError(Reason.STORE_UNREACHABLE, str(error)) from error

    def path(self, name: str) -> str:
        name = clean(name)
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    # -- reading ---------------------------------------------------------------------------------------

    def folders(self, folder: str = "") -> list[str]:
        with self._reading(folder), self._rooted.folder(folder) as found:
            return found.folders()

    def files(self, folder: str) -> dict[str, int]:
        with self._reading(folder), self._rooted.folder(folder) as found:
            return {name: status.st_size for name, status in self._files(found.descriptor, folder)}

    def names(self, folder: str) -> list[str]:
        with (
            self._reading(folder),
            self._rooted.folder(folder) as found,
            listing(found.descriptor) as descriptor,
        ):
            return sorted(os.listdir(descriptor))

    def status(self, name: str) -> os.stat_result:
        """Return what is known of a file or folder, which need not be readable. Raises: Vanished, Damaged."""
        parent, _, last = clean(name).rpartition("/")
        with self._reading(name), self._rooted.folder(parent) as found:
            if not last:
                return os.fstat(found.descriptor)
            return os.stat(last, dir_fd=found.descriptor, follow_symlinks=False)

    def statuses(self, folder: str) -> dict[str, os.stat_result]:
        """Return what is known of each file in a folder, as `files`."""
        with self._reading(folder), self._rooted.folder(folder) as found:
            return dict(self._files(found.descriptor, folder))

    def written(self, name: str) -> int | None:
        with self._reading(name), self._rooted.open(name) as found:
            return os.fstat(found.descriptor).st_mtime_ns

    def signatures(self, folder: str) -> dict[str, str]:
        with self._reading(folder), self._rooted.folder(folder) as found:
            return {
                name: f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
                for name, status in self._files(found.descriptor, folder)
            }

    def folder_times(self, folder: str) -> dict[str, int] | None:
        with self._reading(folder), self._rooted.folder(folder) as found:
            return {
                below[2:] or ".": entries_changed(descriptor, names)
                for below, _, names, descriptor in os.fwalk(".", dir_fd=found.descriptor)
            }

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
        with self._file(name) as found, os.fdopen(found.descriptor, "rb", closefd=False) as file:
            yield file

    def hash(self, name: str, fresh: bool = False) -> FileDigest:
        with self.open(name) as file:
            if fresh:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return hash_stream(file)

    def read_piece(self, name: str, start: int, size: int) -> bytearray:
        with self._file(name) as found:
            return read_into(found.descriptor, start, size)

    # -- writing ---------------------------------------------------------------------------------------

    def duplicate(self, source: str, target: str) -> str:
        check_interrupted()
        with self._file(source) as found, self._writing(target) as (folder, name):
            if self._clones and self._clone(found, folder, name):
                return "clone"
            try:
                self._link(found, folder, name, self.path(source))
                return "link"
            except OSError as error:
                if error.errno not in NO_LINK:
                    raise
        self.copy(source, target)
        return "copy"

    def copy(self, source: str, target: str) -> None:
        with self.open(source) as old, self.create(target) as new:
            for piece in chunks(old):
                new.write(piece)

    def _clone(self, found: Found, folder: Folder, name: str) -> bool:
        """Give an open file's data to a new file that shares it until either is written to; whether the file
        system can."""
        descriptor = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.ioctl(descriptor, FICLONE, found.descriptor)
            sync(descriptor)
        except BaseException as error:
            folder.unlink(name)
            if not isinstance(error, OSError) or error.errno not in NO_CLONE:
                raise
            self._clones = False
        finally:
            os.close(descriptor)
        return self._clones

    def _link(self, found: Found, folder: Folder, name: str, path: str) -> None:
        """Give an open file a second name and make the name durable: a pin must outlive the node.

        Raises:
            Vanished: it is gone.
            Damaged: another file had its name when it was linked.
        """
        # The file itself, never a link: a link's target may be exchanged under our pin.
        try:
            os.link(
                found.name,
                name,
                src_dir_fd=found.folder,
                dst_dir_fd=folder.descriptor,
                follow_symlinks=False,
            )
        except FileNotFoundError as error:  # the target's folder is open: it is the source
            raise Vanished(f"{path} is not there any more") from error
        try:
            linked = folder.open(name, READ)
            try:
                right = same(linked, found.descriptor)
                if right:
                    sync(linked)
            finally:
                os.close(linked)
        except FileNotFoundError as error:
            raise Vanished(f"{path} is not there any more") from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            right = False  # a symbolic link, which the file was exchanged for
        if not right:
            folder.unlink(name)
            raise Damaged(f"{path} was exchanged for another file while it was being linked")

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with self._writing(name) as (folder, last):
            descriptor = folder.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    yield file
                    os.fsync(descriptor)
            except BaseException:
                folder.unlink(last)
                raise

    def delete(self, name: str) -> None:
        parent, _, last = clean(name).rpartition("/")
        with suppress(Vanished), self._reading(name), self._rooted.folder(parent) as folder:
            folder.unlink(last)

    def share(self, *folders: tuple[str, int]) -> None:
        for name, mode in folders:
            with self._errors(name), self._rooted.folder(name, make=True) as folder:
                found = os.fstat(folder.descriptor).st_mode
                if found & mode != mode:
                    # Somebody else's, or a file system without modes: then rights are as they are.
                    with suppress(OSError), listing(folder.descriptor) as descriptor:
                        os.fchmod(descriptor, mode | (found & stat.S_ISGID))

    def published(self, folder: str) -> list[str]:
        parent, _, last = clean(folder).rpartition("/")
        try:
            names = self.folders(parent)
        except Vanished:
            return []
        beside = [name for name in names if name == last or name.startswith(f"{last}.")]
        return [f"{parent}/{name}" if parent else name for name in beside]

    def write(self, name: str, data: bytes) -> None:
        with self._writing(name) as (folder, last):
            folder.put(last, data)

    @contextmanager
    def staging(self, folder: str, key: str = "") -> Iterator[VolumeStage]:
        with self._stage(folder, staging.LINKS) as stage:
            assert stage is not None  # only copies are waited for
            try:
                with Heartbeat(stage.parent, stage.name):
                    yield stage
            finally:
                staging.clear(stage.parent, stage.name)

    def fingerprint(self, names: Iterable[str]) -> str:
        return ""  # links are made anew in no time

    @contextmanager
    def copying(
        self, folder: str, plan: Plan, inner: str, published: Callable[[], bool]
    ) -> Iterator[VolumeCopy | None]:
        with self._stage(folder, plan.key(), published) as stage:
            if stage is None:
                yield None
                return
            copy = VolumeCopy(stage, plan, inner)
            try:
                with Heartbeat(stage.parent, stage.name):
                    yield copy
            finally:
                copy.close()
                if copy.over:  # what came to no end stays: the next try goes on with it
                    staging.clear(stage.parent, stage.name)

    @contextmanager
    def _stage(
        self, folder: str, key: str, published: Callable[[], bool] = lambda: False
    ) -> Iterator[VolumeStage | None]:
        above, _, last = clean(folder).rpartition("/")
        with self._errors(above):
            parent = self._rooted.folder(above, make=True)
            name = staging.enter(parent, last, key, self._writer, published=published)
            stage = VolumeStage(self, parent, folder, name) if name is not None else None
        with parent:
            yield stage

    def remove(self, folder: str) -> None:
        above, _, last = clean(folder).rpartition("/")
        with suppress(Vanished), self._reading(folder), self._rooted.folder(above) as parent:
            staging.clear(parent, last)  # away first, so that a half-deleted pin never looks like a whole one
            with suppress(FileNotFoundError, NotADirectoryError):
                parent.unlink(last + SUFFIX)

    def free(self) -> int | None:
        path = os.path.realpath(self.root)
        while not os.path.isdir(path) and path != "/":
            path = os.path.dirname(path)
        with store_errors(self.root):
            return shutil.disk_usage(path).free

    # -- inside ----------------------------------------------------------------------------------------

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        path = self.path(name)
        with store_errors(path):
            yield

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        path = self.path(name)
        with store_errors(path):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError) as error:
                # ESTALE is no absence: of a network file system whose server was away, all files say it.
                raise Vanished(f"{path} is not there") from error

    @contextmanager
    def _writing(self, name: str) -> Iterator[tuple[Folder, str]]:
        """Open the folder of a file to be written, made if missing; yield it and the file's name in it."""
        parent, _, last = clean(name).rpartition("/")
        with self._errors(name), self._rooted.folder(parent, make=True) as folder:
            yield folder, last

    @contextmanager
    def _file(self, name: str) -> Iterator[Found]:
        """Open a regular file for reading.

        Raises:
            Vanished: it is gone.
            Damaged: it is not a regular file.
        """
        with self._reading(name), self._rooted.open(name) as found:
            if not stat.S_ISREG(os.fstat(found.descriptor).st_mode):
                raise Damaged(f"{name} is not a regular file")
            yield found

    def _files(
        self, folder: int, path: str, prefix: str = "", depth: int = DEPTH
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all files below an open folder, by their names in it. ``path``: of it, below the root."""
        if depth == 0:
            raise Damaged(f"{prefix[:100]}… lies {DEPTH} folders deep")
        with listing(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                name = prefix + entry.name
                if entry.is_symlink():
                    yield name, self._target(f"{path}/{name}".lstrip("/"), name)
                elif entry.is_dir(follow_symlinks=False):
                    with Folder(os.open(entry.name, ON_THE_WAY, dir_fd=folder), name) as below:
                        yield from self._files(below.descriptor, path, f"{name}/", depth - 1)
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry.stat(follow_symlinks=False)
                else:
                    raise Damaged(f"{name} is neither a file nor a folder")

    def _target(self, path: str, name: str) -> os.stat_result:
        """Return what a symbolic link inside a checkpoint leads to."""
        try:
            with self._rooted.open(path) as found:
                status = os.fstat(found.descriptor)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Damaged(f"{name} is a symbolic link to nothing") from error
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{name} is a symbolic link to something other than a file")
        return status


class VolumeStage:
    """A staging folder of ours, ``name`` in ``parent``. ``folder``: the tree in it, below the volume."""

    def __init__(self, volume: Volume, parent: Folder, target: str, name: str) -> None:
        self.parent, self.name = parent, name
        self.path = f"{parent.path}/{name}"
        self.folder = f"{target.rpartition('/')[0]}/{name}/{TREE}".lstrip("/")
        self._volume, self._target = volume, target
        # A folder that was taken away and made anew, by our own writing into it, has no such file.
        self._mark = f"own-{name[-8:]}"
        with store_errors(self.path), self.own() as own:
            os.close(own.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            with suppress(FileExistsError):
                own.mkdir(TREE)
            self.tree = own.folder(TREE)  # open until it is published: by its name it could be another then

    def own(self) -> Folder:
        """Return the staging folder. Raises: Lost, it is another worker's by now."""
        try:
            return self.parent.folder(self.name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Lost(self.path) from error

    def check(self) -> None:
        """Check that the folder still belongs to this worker.

        Raises:
            Lost: another worker has taken it over.
        """
        with self.own() as own:
            try:
                os.stat(self._mark, dir_fd=own.descriptor, follow_symlinks=False)
            except FileNotFoundError as error:
                raise Lost(self.path) from error

    def final(self, suffix: str = "") -> str:
        return f"{self._target}{suffix}"

    def beside(self) -> list[str]:
        return self._volume.published(self._target)

    def publish(self, suffix: str = "") -> str:
        target = self.final(suffix)
        last = target.rpartition("/")[2]
        with store_errors(self.path):
            self.check()
            try:
                for _, _, _, folder in os.fwalk(".", dir_fd=self.tree.descriptor):
                    sync(folder)
                # By its path: who has lost the staging folder finds nothing there.
                self.parent.rename(f"{self.name}/{TREE}", last)
            except FileNotFoundError as error:
                raise Lost(self.path) from error
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise Taken(target) from error
                raise
            self._must_be_ours(last)
            self.parent.sync()
        return target

    def _must_be_ours(self, last: str) -> None:
        """Check that the published folder is the tree that was filled, not one that took its name in between.

        Raises:
            Damaged: it is another folder.
        """
        try:
            with self.parent.folder(last) as published:
                if same(published.descriptor, self.tree.descriptor):
                    return
        except (FileNotFoundError, NotADirectoryError):
            pass
        with suppress(OSError):
            self.parent.rename(last, f"{self.name}/{TREE}")
        raise Damaged(f"{self.path}/{TREE} was exchanged for another folder while it was being published")
