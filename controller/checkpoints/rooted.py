"""Paths below an open folder, walked one name at a time: on a volume that somebody hostile writes to, too.

A path that is checked and then used by its text can lead elsewhere by then: a trainer swaps a file or folder
for a symbolic link in between. So no text is used twice here. A path is walked from the open root, each name
opened relative to the folder before it (``dir_fd``) and never followed by the kernel (``O_NOFOLLOW``). A link
that is met is read, and walked from where it lies; one that leads out of the root is refused. What is reached
is worked with by its descriptor. (Linux has openat2 with RESOLVE_BENEATH for that; Python has not.)
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from controller.checkpoints.errors import Damaged

# Folders on the way: to search them is enough, as it is for the kernel's own walk.
ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that a trainer left there must not hang.
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
LINKS_MOST = 40  # on the way to one file, as in Linux
NAMES_MOST = 4096  # walked on the way to one file, those of links among them


class Found(NamedTuple):
    """An open file, with the folder that it was opened in and its name there, all links resolved."""

    descriptor: int
    folder: int
    name: str


class Folder:
    """An open folder, whose entries are named by single names: no such call can lead out of it.

    ``path``: for messages. It is closed with the object, or by `close`.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor, self.path = descriptor, path
        self.close = weakref.finalize(self, os.close, descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Return the descriptor of an entry; a symbolic link raises OSError (ELOOP, or ENOTDIR for a
        folder)."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.descriptor)

    def folder(self, name: str) -> Folder:
        """Return a folder in it. Raises: NotADirectoryError, also for a symbolic link to one."""
        return Folder(self.open(name, ON_THE_WAY), f"{self.path}/{name}")

    def folders(self) -> list[str]:
        """Return names of the folders in it, sorted; symbolic links are not among them."""
        with listing(self.descriptor) as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def mkdir(self, name: str) -> None:
        os.mkdir(name, dir_fd=self.descriptor)

    def rename(self, name: str, new: str) -> None:
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.descriptor)

    def read(self, name: str, limit: int = -1) -> bytes:
        """Return the first bytes of a regular file, or all; what is none holds nothing."""
        descriptor = self.open(name, READ)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file whole, in the place of another of that name: readers see one or the other."""
        temporary = f"{name}.{secrets.token_hex(4)}.new"
        descriptor = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            with suppress(OSError):
                self.unlink(temporary)
            raise

    def remove(self, name: str) -> None:
        """Delete an entry with all it holds, as far as it can be deleted; what links lead to stays."""
        shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)
        with suppress(OSError):
            self.unlink(name)  # it was a link, which is not gone into

    def sync(self) -> None:
        """Make its entries durable."""
        with listing(self.descriptor) as descriptor:
            sync(descriptor)


class Rooted:
    """Everything below one folder. It is opened when it is first needed, and stays the same from then on.

    Args:
        path: absolute, of the root.
        within: absolute, of a folder around it that no stranger can exchange (a mount point), where ``path``
            itself is not to be trusted: then it is walked from there, in the same way. "": it is trusted.
    """

    def __init__(self, path: str, within: str = "") -> None:
        self.path, self._within = path, within
        self._root: Folder | None = None
        self._opening = threading.Lock()  # of two roots opened at once, one would be closed while it is used
        self._names: tuple[str, ...] = (path,)

    def there(self) -> bool:
        """Return whether the root can be reached now, by its path."""
        try:
            self._open().close()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def root(self, make: bool = False) -> Folder:
        """Return the open root. Raises: FileNotFoundError, NotADirectoryError."""
        with self._opening:
            if self._root is None:
                self._root = self._open(make)
                with suppress(OSError):  # the name that it has when links of its path are resolved
                    real = os.readlink(f"/proc/self/fd/{self._root.descriptor}")
                    self._names = (self.path, real)
            return self._root

    def folder(self, name: str, make: bool = False) -> Folder:
        """Return a folder below the root; ``make``: with all that is missing of it.

        Raises:
            FileNotFoundError, NotADirectoryError.
            Damaged: a symbolic link leads out of the root, or in a
            circle.
        """
        return Folder(self._walk(_names(name), [], make), self._text(name))

    @contextmanager
    def open(self, name: str, flags: int = READ) -> Iterator[Found]:
        """Open a file below the root and follow the links that lead to it.

        Raises: as `folder`.
        """
        way = _names(name)
        for _ in range(LINKS_MOST):
            parents, last = (way[:-1], way[-1]) if way and way[-1] != ".." else (way, ".")  # of a folder
            reached: list[str] = []
            folder = self._walk(parents, reached, False)
            try:
                try:
                    descriptor = os.open(last, flags, 0o666, dir_fd=folder)
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                    way = self._target(name, reached, last, folder)
                    continue
                try:
                    yield Found(descriptor, folder, last)
                finally:
                    os.close(descriptor)
                return
            finally:
                os.close(folder)
        raise self._circle(name)

    # -- inside ----------------------------------------------------------------------------------------

    def _open(self, make: bool = False) -> Folder:
        if self._within and self._within.rstrip("/") != self.path.rstrip("/"):
            inside = self.path.removeprefix(self._within.rstrip("/") + "/")
            return Rooted(self._within).folder(inside, make)
        if make:
            os.makedirs(self.path, exist_ok=True)
        return Folder(os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), self.path)

    def _walk(self, names: list[str], reached: list[str], make: bool) -> int:
        """Return a descriptor of the folder that the names lead to. ``reached``: its own names, without
        links."""
        root = self.root(make).descriptor
        way, walked, links = names[::-1], 0, 0
        current = os.dup(root)
        try:
            while way:
                name = way.pop()
                walked += 1
                if walked > NAMES_MOST:
                    raise self._circle("/".join(names))
                if name == "..":  # only of links; by the names, for a folder may be moved while one is in it
                    if not reached:
                        raise self._outside("/".join(names))
                    way.extend(reached[-2::-1])
                    reached.clear()
                    new = os.dup(root)
                else:
                    try:
                        new = self._step(name, current, make)
                    except OSError as error:
                        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                            raise
                        links += 1
                        if links > LINKS_MOST:
                            raise self._circle("/".join(names)) from error
                        way.extend(self._target("/".join(names), reached, name, current)[::-1])
                        reached.clear()
                        new = os.dup(root)
                    else:
                        reached.append(name)
                os.close(current)
                current = new
        except BaseException:
            os.close(current)
            raise
        return current

    def _step(self, name: str, folder: int, make: bool) -> int:
        try:
            return os.open(name, ON_THE_WAY, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        return os.open(name, ON_THE_WAY, dir_fd=folder)

    def _target(self, asked: str, reached: list[str], name: str, folder: int) -> list[str]:
        """Return the names, from the root, that a symbolic link stands for.

        Raises:
            NotADirectoryError: it is none.
            Damaged: it is absolute, and leads elsewhere.
        """
        try:
            text = os.readlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._text(asked)) from error
        if not text.startswith("/"):
            return [*reached, *_names(text)]
        for root in self._names:
            if text == root or text.startswith(root.rstrip("/") + "/"):
                return _names(text[len(root) :])
        raise self._outside(asked, text)

    def _text(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}" if name else self.path

    def _outside(self, name: str, target: str = "") -> Damaged:
        to = f" (to {target[:200]})" if target else ""
        return Damaged(f"{self._text(name)} leads out of {self.path}{to}; symbolic links may not leave it")

    def _circle(self, name: str) -> Damaged:
        return Damaged(f"{self._text(name)} leads in a circle of symbolic links")


@contextmanager
def listing(folder: int) -> Iterator[int]:
    """Open a folder a second time, to list its entries; the descriptor is closed at the end of the block.

    A descriptor has a position that moves while it lists; so the listing gets one of its own.
    """
    descriptor = os.open(".", LISTED, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Make a file's data or a folder's entries durable."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EACCES):
            raise  # not every file system syncs folders


def same(one: int, other: int) -> bool:
    """Return whether two descriptors are of the same file."""
    return os.path.samestat(os.fstat(one), os.fstat(other))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
