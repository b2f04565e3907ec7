"""The digest of a folder tree: one sha256 over sorted relative names, sizes and contents.

It is the sha256 of one line per file, ``<sha256 of its content> <size in bytes> <relative name>\\n``, in
the byte order of the names. So anybody can recompute it with coreutils alone (docs/use/checkpoints.md), and
files can be hashed in any order, in parallel and while they are being copied.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

from controller.checkpoints.errors import Damaged, check_interrupted
from controller.checkpoints.progress import METER

CHUNK = 4 << 20  # bytes read at a time
PIECE = 32 << 20  # bytes of which a large file's pieces are: what is copied again after a kill, at most
WORKERS = 4  # files hashed at a time: hashing lets go of the GIL, and volumes answer better to a few at once

DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FileDigest(NamedTuple):
    """One file's content: ``size`` in bytes, ``sha256`` as 64 hex digits.

    ``pieces``: the same of each piece of `PIECE` bytes, in their order; empty where the file is no longer
    than one. They are of the same read as ``sha256``.
    """

    size: int
    sha256: str
    pieces: tuple[str, ...] = ()


Manifest = Mapping[str, FileDigest]  # relative name, '/'-separated -> content


def tree_digest(files: Manifest) -> str:
    """``"sha256:<64 hex>"`` of a tree.

    Raises:
        Damaged: a name holds a control character (a line break in a name could imitate another file).
    """
    total = hashlib.sha256()
    for raw, name in sorted((name.encode("utf-8", "surrogateescape"), name) for name in files):
        if _CONTROL.search(name):
            raise Damaged(f"file name {name!r} holds a control character")
        content = files[name]
        total.update(f"{content.sha256} {content.size} ".encode() + raw + b"\n")
    return f"sha256:{total.hexdigest()}"


def chunks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in pieces of `CHUNK` bytes; ends early (AccessError) when interrupted."""
    while True:
        check_interrupted()
        piece = source.read(CHUNK)
        if not piece:
            return
        METER.advance(len(piece))
        yield piece


class Hasher:
    """Digests of a file and of its pieces, as its bytes come by in their order."""

    def __init__(self, piece: int | None = None) -> None:
        self._piece = piece or PIECE
        self._whole, self._current, self._size = hashlib.sha256(), hashlib.sha256(), 0
        self._pieces: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            room = self._piece - self._size % self._piece
            part, view = view[:room], view[room:]
            self._whole.update(part)
            if self._size >= self._piece:  # until then the whole's digest is the first piece's too
                self._current.update(part)
            self._size += len(part)
            if self._size % self._piece == 0:
                self._note()

    def digest(self) -> FileDigest:
        """Of all that has come by; nothing may come after."""
        if self._size <= self._piece:
            return FileDigest(self._size, self._whole.hexdigest())
        if self._size % self._piece:
            self._note()
        return FileDigest(self._size, self._whole.hexdigest(), tuple(self._pieces))

    def _note(self) -> None:
        first = self._size <= self._piece
        self._pieces.append((self._whole if first else self._current).hexdigest())
        self._current = hashlib.sha256()


def hash_stream(source: BinaryIO) -> FileDigest:
    """Digest of everything left in an open binary file."""
    hasher = Hasher()
    for chunk in chunks(source):
        hasher.update(chunk)
    return hasher.digest()


def hash_files(names: Iterable[str], hash_one: Callable[[str], FileDigest]) -> dict[str, FileDigest]:
    """``hash_one`` of each name, a few at a time. The first failure is raised."""
    ordered = sorted(names)
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        return dict(zip(ordered, pool.map(hash_one, ordered), strict=True))
