"""A copy on a volume: pieces written at their places, each read back from the device before it counts.

A journal in the staging folder says which pieces are there and right. A line is written only after its piece
was flushed and read back, so whatever a kill or a node's end leaves of the journal is true; a line that is
missing costs that piece once more.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from controller.checkpoints.digest import CHUNK
from controller.checkpoints.errors import (
    UNREADABLE_REASONS,
    AccessError,
    Damaged,
    Reason,
    check_interrupted,
    store_errors,
)
from controller.checkpoints.plan import Piece, Plan
from controller.checkpoints.progress import METER
from controller.checkpoints.rooted import Folder
from controller.checkpoints.staging import TREE, Lost
from controller.checkpoints.workers import each

if TYPE_CHECKING:
    from controller.checkpoints.store import Read
    from controller.checkpoints.volume import VolumeStage

JOURNAL = "journal"
GONE_ON_WITH = (Reason.INTERRUPTED, *UNREADABLE_REASONS)  # failures after which a copy is worth it
WORKERS = 3  # each holds one piece in memory, which the access pod has little of


class VolumeCopy:
    """A staged copy of a plan's files, of which an earlier try may have made a part.

    ``inner``: the checkpoint's own folder in the tree, "": itself.
    """

    def __init__(self, stage: VolumeStage, plan: Plan, inner: str) -> None:
        self.stage, self.folder = stage, stage.folder
        self.over = False  # nothing in it is worth being gone on with
        self._path, self._plan = stage.path, plan
        # From the staging folder by its name: who has lost it finds nothing there.
        self._inner = [TREE, *inner.split("/")] if inner else [TREE]
        self._pieces = {piece.index: piece for piece in plan.pieces()}
        with store_errors(self._path):
            whole = self._prepare()
            with stage.own() as own:
                noted = self._journal(own)
                self._notes = own.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._done = {index for index in noted if self._pieces[index].name in whole}
        self._unsynced = 0

    @property
    def missing(self) -> int:
        """Bytes that are still to be copied."""
        return sum(p.size for p in self._pieces.values() if p.index not in self._done)

    def fill(self, read: Read) -> None:
        """Copy what is missing.

        Raises:
            AccessError: INTERRUPTED (`Lost` among it), OUT_OF_SPACE, STORE_UNREACHABLE, COPY_DAMAGED: what
                was written does not read back. What ``read`` raises.
        """
        METER.begin("Copying", self._plan.size, self._plan.size - self.missing)
        try:
            todo = (p for p in self._plan.pieces() if p.index not in self._done)
            each(todo, lambda piece: self._copy(piece, read), WORKERS)
            self._check_whole()
        except Exception as error:
            # A full disk may be the trainer's; and what is damaged is nothing to go on from.
            self.over = not (isinstance(error, AccessError) and error.reason in GONE_ON_WITH)
            raise

    def final(self, suffix: str = "") -> str:
        return self.stage.final(suffix)

    def beside(self) -> list[str]:
        return self.stage.beside()

    def publish(self, suffix: str = "") -> str:
        target = self.stage.publish(suffix)
        self.over = True
        return target

    def _copy(self, piece: Piece, read: Read) -> None:
        check_interrupted()
        with store_errors(self._path):
            self.stage.check()
        data = read(piece)
        with store_errors(self._path):
            self.stage.check()
            found = self._write(piece, data)
            if found != piece.sha256:
                raise AccessError(
                    Reason.COPY_DAMAGED,
                    f"{piece.name} from byte {piece.start} on reads back otherwise than it was written: "
                    f"{self._path} did not keep it",
                )
            self._note(piece)
        METER.advance(piece.size)

    def _write(self, piece: Piece, data: bytes | bytearray) -> str:
        """Write, flush, and read back from the device; the digest of what came back."""
        *folders, last = piece.name.split("/")
        with self._folder(folders) as folder:
            try:
                # Without O_CREAT: a folder that was taken away must not come into being again.
                descriptor = folder.open(last, os.O_RDWR)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise Lost(self._path) from error
        try:
            if os.fstat(descriptor).st_nlink > 1:  # not one that we made: what is written would be in both
                raise Damaged(f"{self._path}: {piece.name} has a second name somewhere")
            view, at = memoryview(data), piece.start
            while view:
                count = os.pwrite(descriptor, view, at)
                view, at = view[count:], at + count
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, piece.start, piece.size, os.POSIX_FADV_DONTNEED)
            return _hash_back(descriptor, piece.start, piece.size)
        finally:
            os.close(descriptor)

    def _note(self, piece: Piece) -> None:
        os.write(self._notes, f"{piece.index} {piece.sha256}\n".encode())
        self._unsynced += piece.size
        if self._unsynced >= self._plan.piece:
            self._unsynced = 0
            os.fsync(self._notes)

    def _folder(self, names: list[str], make: bool = False) -> Folder:
        """Return a folder of the copy. Symbolic links are not followed: there is none that we made.

        Raises: Lost, it is gone, or something else has its name.
        """
        folder = self.stage.own()
        for name in [*self._inner, *names]:
            try:
                if make:
                    with suppress(FileExistsError):
                        folder.mkdir(name)
                below = folder.folder(name)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise Lost(self._path) from error
            finally:
                folder.close()
            folder = below
        return folder

    def _prepare(self) -> set[str]:
        """Folders and empty files of the right sizes; names of the files that were there already."""
        by_folder: dict[str, list[str]] = {}
        for name in self._plan.manifest:
            inside, _, last = name.rpartition("/")
            by_folder.setdefault(inside, []).append(last)
        self._folder([], make=True).close()
        self._clear_others()
        whole = set()
        for inside, names in sorted(by_folder.items()):
            with self._folder(inside.split("/") if inside else [], make=True) as folder:
                for last in names:
                    name = f"{inside}/{last}" if inside else last
                    if self._size(folder, last, self._plan.manifest[name].size):
                        whole.add(name)
        return whole

    def _clear_others(self) -> None:
        """Files that are not the plan's: those that a try wrote beside, and did not come to publish."""
        for prefix, names, folder in self._walk():
            for name in names:
                if prefix + name not in self._plan.manifest:
                    os.unlink(name, dir_fd=folder)

    def _walk(self) -> Iterator[tuple[str, list[str], int]]:
        """Yield each folder of the copy: its name with '/' at the end, the files in it, its descriptor."""
        with self._folder([]) as top:
            for folder, _, names, descriptor in os.fwalk(".", dir_fd=top.descriptor):
                yield f"{folder[2:]}/" if folder != "." else "", names, descriptor

    def _size(self, folder: Folder, name: str, size: int) -> bool:
        """Give a file its size; whether it had it already."""
        try:
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise Lost(self._path) from error
            raise
        try:
            status = os.fstat(descriptor)
            if status.st_nlink > 1:
                raise Damaged(f"{self._path}: {name} has a second name somewhere")
            if status.st_size != size:
                os.ftruncate(descriptor, size)
            return status.st_size == size
        finally:
            os.close(descriptor)

    def _journal(self, own: Folder) -> set[int]:
        """Pieces that an earlier try has noted; a line that is cut off says nothing."""
        try:
            lines = own.read(JOURNAL).split(b"\n")[:-1]
        except FileNotFoundError:
            return set()
        noted = set()
        for line in lines:
            index, _, sha256 = line.partition(b" ")
            piece = self._pieces.get(int(index)) if index.isdigit() and len(index) < 12 else None
            if piece is not None and piece.sha256.encode() == sha256:
                noted.add(piece.index)
        return noted

    def _check_whole(self) -> None:
        """Check that the tree holds exactly the plan's files, in their sizes.

        Raises:
            Damaged: it holds others.
        """
        found = {
            prefix + name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            for prefix, names, folder in self._walk()
            for name in names
        }
        if found != {name: file.size for name, file in self._plan.manifest.items()}:
            self.stage.check()
            raise Damaged(f"{self._path}/{'/'.join(self._inner)} holds other files than were written")

    def close(self) -> None:
        os.close(self._notes)


def _hash_back(descriptor: int, start: int, size: int) -> str:
    content, end = hashlib.sha256(), start + size
    while start < end:
        data = os.pread(descriptor, min(CHUNK, end - start), start)
        if not data:
            break
        content.update(data)
        start += len(data)
    return content.hexdigest()


def read_into(descriptor: int, start: int, size: int) -> bytearray:
    """``size`` bytes from ``start``, fewer at the file's end; in one buffer, for memory is short."""
    buffer = bytearray(size)
    view, got = memoryview(buffer), 0
    while got < size:
        count = os.preadv(descriptor, [view[got : got + CHUNK]], start + got)
        if count == 0:
            break
        got += count
    view.release()
    del buffer[got:]
    return buffer
