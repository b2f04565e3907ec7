"""One small interface over the two kinds of place a checkpoint can lie in: volumes and object stores.

All names are relative to the store's root, '/'-separated, without '.' and '..'. What is published is
complete: work goes to a staging folder that no reader takes for a checkpoint, and `Stage.publish` makes it
visible in one step (volume: a rename; object store: a marker object written last).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, BinaryIO, Protocol, TypeVar

from controller import bounded
from controller.checkpoints.digest import FileDigest
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.plan import Piece, Plan

Read = Callable[[Piece], bytes | bytearray]  # a piece's content, compared with the plan


class Readable(Protocol):
    """A place whose small files are read whole: a store, or the content of one checkpoint."""

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        """Return a small file whole. Raises `Damaged` if it is larger than ``limit`` bytes."""
        ...


def read_json(source: Readable, name: str, limit: int = bounded.BYTES, *, python: bool = False) -> Any:
    """Return the value of a small JSON file.

    Args:
        source: where the file is.
        name: of the file.
        limit: largest number of bytes.
        python: whether to accept what Python's own ``json`` writes (`bounded.load`).

    Raises:
        Vanished, Damaged: as ``source`` says.
        Unbounded: it is no JSON, or more than is read; names the file.
    """
    return bounded.load(source.read(name, limit), name, limit, python=python)


class Stage(Protocol):
    """A staging folder, gone again if the block that holds it ends without `publish`."""

    folder: str  # relative to the store's root

    def final(self, suffix: str = "") -> str:
        """Return the relative folder that `publish` would make it visible under."""
        ...

    def beside(self) -> list[str]:
        """Relative folders that are published under the name that it was opened for."""
        ...

    def publish(self, suffix: str = "") -> str:
        """Make it visible under the folder it was opened for; returns the final relative folder.

        Args:
            suffix: put after that name, for content that finds its place taken by other content.

        Raises:
            Taken: something is published there already; it is never overwritten.
        """
        ...


class Copy(Stage, Protocol):
    """A staged copy of a plan's files, of which earlier tries may have made a part. It stays where it is if
    the block that holds it ends without `publish`, unless it is ``over``."""

    over: bool

    @property
    def missing(self) -> int:
        """Bytes that are still to be copied."""
        ...

    def fill(self, read: Read) -> None:
        """Copy what is missing, and read back what was written.

        Raises:
            AccessError: INTERRUPTED, also where another worker has taken it over; OUT_OF_SPACE;
                STORE_UNREACHABLE; COPY_DAMAGED: what was written does not read back. What ``read`` raises.
        """
        ...


class Store(Readable, Protocol):
    """A place for checkpoints, rooted at a job's location or at its retention folder.

    Reading raises `Vanished` for what is not there (any more) and `Damaged` for what may not be followed.
    """

    root: str  # absolute path or URI, as given

    def exists(self) -> bool:
        """Is the root itself there? (An object store's prefix counts as there.)"""
        ...

    def folders(self, folder: str = "") -> list[str]:
        """Return names of the direct sub-folders, sorted; symbolic links are not among them."""
        ...

    def files(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of all files below a folder, by their name relative to it."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return names directly in a folder, sorted, of whatever kind; nothing is looked at but the names."""
        ...

    def written(self, name: str) -> int | None:
        """Return when a file was last written (ns); None where the store does not know."""
        ...

    def signatures(self, folder: str) -> dict[str, str]:
        """Of all files below a folder, a text that changes whenever the file is written or replaced.

        Size, time of the last write and inode; in an object store size and etag or time.
        """
        ...

    def folder_times(self, folder: str) -> dict[str, int] | None:
        """Return when entries of a folder and of those below it were last added or removed (ns), by relative
        name; not the arrival of a file that was renamed to its name.

        None where the store does not know.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete one file; nothing there is fine."""
        ...

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start``; a negative ``start`` counts from the end."""
        ...

    def read_piece(self, name: str, start: int, size: int) -> bytes | bytearray:
        """Up to ``size`` bytes from ``start``, held in memory once; fewer at the file's end."""
        ...

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Return a file to be read in order."""
        ...

    def hash(self, name: str, fresh: bool = False) -> FileDigest:
        """Return the content of a file; ``fresh``: as the device has it, not this machine's memory of it."""
        ...

    def duplicate(self, source: str, target: str) -> str:
        """Give a file's content a second name the cheapest safe way; returns ``"clone"``, ``"link"`` or
        ``"copy"``. A link is overwritten with the file, when that is written in place."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Write a file's content to a new file that shares nothing with it, and flush it."""
        ...

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Return a new file to write in order; at the block's end it is durable, on an error it is gone."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a small file at once: a reader sees the former file of that name or the whole new one."""
        ...

    def share(self, *folders: tuple[str, int]) -> None:
        """Make folders, each with its mode, in which other users write too. Object stores have none."""
        ...

    def published(self, folder: str) -> list[str]:
        """Return the sorted published folders of a name that `staging` was opened for."""
        ...

    def staging(self, folder: str, key: str = "") -> AbstractContextManager[Stage]:
        """Return a staging folder for ``folder``; remains of superseded workers are cleared away first.

        ``key``: from `fingerprint`, so that what an earlier try has copied is not copied again.
        """
        ...

    def fingerprint(self, names: Iterable[str]) -> str:
        """16 hex digits that change with the content of the files; "": this store has no use for them."""
        ...

    def copying(
        self, folder: str, plan: Plan, inner: str, published: Callable[[], bool]
    ) -> AbstractContextManager[Copy | None]:
        """Return a copy of a plan's files for ``folder``, in its sub-folder ``inner`` ("": itself).

        An earlier try's is gone on with, whether its worker is dead or is only thought to be: from then on
        that one ends with INTERRUPTED. A living worker of the same or a newer request is waited for, until
        ``published``; then there is nothing to do: None.
        """
        ...

    def remove(self, folder: str) -> None:
        """Delete a folder with all it holds; nothing there is fine."""
        ...

    def free(self) -> int | None:
        """Bytes left for this process; None where the store does not say."""
        ...

    def path(self, name: str) -> str:
        """Return the absolute path or URI of a name."""
        ...


class Taken(Exception):
    """Something else is published under that name."""


KeptT = TypeVar("KeptT")


def publish(
    stage: Stage,
    digest: str,
    same: Callable[[], KeptT | None],
    kept: Callable[[str], KeptT],
    note: Callable[[str], None] = lambda _: None,
) -> tuple[KeptT, bool]:
    """Publish a staged folder, unless the same content is published already.

    Args:
        stage: holds content of that digest.
        digest: of the content; distinguishes the name where the plain one is taken.
        same: looks for published content of that digest.
        kept: makes the answer from the final folder.
        note: writes beside the final folder what must be there as soon as it is seen; never asked for a
            folder that is published already.

    Returns:
        What is published, and whether it was done now. Workers that do this at the same time agree.

    Raises:
        AccessError: STORE_UNREACHABLE, both names are taken by content that cannot be read.
    """
    for suffix in ("", f".{digest.rpartition(':')[2][:8]}"):
        found = same()
        if found is not None:
            return found, False
        final = stage.final(suffix)
        if final in stage.beside():
            continue
        note(final)
        with suppress(Taken):
            return kept(stage.publish(suffix)), True
    found = same()
    if found is None:
        raise AccessError(
            Reason.STORE_UNREACHABLE,
            f"{stage.folder}: its place is taken by other content; remove it by hand",
        )
    return found, False


def away(store: Store) -> AccessError:
    """Says that the root itself is not there, which tells nothing about what should be in it."""
    return AccessError(Reason.STORE_UNREACHABLE, f"folder {store.root} is not there; is its volume mounted?")


def withdraw(store: Store, folder: str) -> None:
    """Remove whatever is published under a name, and what killed workers left of it."""
    for published in store.published(folder):
        store.remove(published)
    store.remove(folder)


def clean(name: str) -> str:
    """Return the name, if it stays inside the root.

    Raises:
        AccessError: BAD_REQUEST, the name is absolute or steps out of its folder.
    """
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") for part in parts) or "\x00" in name:
        raise AccessError(Reason.BAD_REQUEST, f"path {name!r} leaves its folder; expected a relative path")
    return name


def relative(root: str, path: str) -> str:
    """``path`` relative to ``root`` (both absolute paths, or both URIs).

    Raises:
        AccessError: BAD_REQUEST, it does not lie below.
    """
    prefix = root.rstrip("/") + "/"
    if not path.startswith(prefix):
        raise AccessError(Reason.BAD_REQUEST, f"path {path!r} does not lie below {root!r}")
    return clean(path[len(prefix) :].rstrip("/"))
