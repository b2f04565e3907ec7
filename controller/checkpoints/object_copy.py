"""A copy into an object store: objects written whole or in parts, then read back piece by piece.

Whatever is written under a token has been compared with the plan that the token is made of, so objects and
parts that an earlier try has brought there stay. What was read back is noted in an object beside, and is not
read again.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from controller.checkpoints.errors import (
    AccessError,
    Damaged,
    Reason,
    Vanished,
    check_interrupted,
    store_errors,
)
from controller.checkpoints.plan import Piece, Plan
from controller.checkpoints.progress import METER
from controller.checkpoints.store import read_json
from controller.checkpoints.uploads import Upload
from controller.checkpoints.workers import each

if TYPE_CHECKING:
    from controller.checkpoints.object_store import ObjectStage, ObjectStore
    from controller.checkpoints.s3 import Bucket
    from controller.checkpoints.store import Read

CHECKED = ".checked.json"  # after a token: pieces that were read back
CHECKED_LIMIT = 16 << 20  # bytes read of it
NOTED_EVERY = 15.0  # s between two writes of that object
WORKERS = 3
GONE_ON_WITH = (Reason.INTERRUPTED, Reason.STORE_UNREACHABLE)


class ObjectCopy:
    """A staged copy of a plan's files in an object store; see `store.Copy`."""

    def __init__(self, store: ObjectStore, stage: ObjectStage, plan: Plan, inner: str) -> None:
        self.stage, self.folder, self.over = stage, stage.folder, False
        self._store, self._plan = store, plan
        self._files = f"{stage.folder}/{inner}".rstrip("/")
        try:
            there = store.files(self._files)
        except Vanished:
            there = {}
        sizes = {name: file.size for name, file in plan.manifest.items()}
        self._there = {name for name, size in there.items() if sizes.get(name) == size}
        kept = {piece.index for piece in plan.pieces() if piece.name in self._there}
        self._checked = self._load() & kept if kept else set()
        self._lock, self._noted = threading.Lock(), time.monotonic()

    @property
    def missing(self) -> int:
        """Bytes of the objects that are not there yet; of those under way all."""
        return sum(file.size for name, file in self._plan.manifest.items() if name not in self._there)

    def fill(self, read: Read) -> None:
        """See `store.Copy`."""
        try:
            self._write(read)
            self._read_back(read)
        except Exception as error:
            self.over = not (isinstance(error, AccessError) and error.reason in GONE_ON_WITH)
            raise
        finally:
            self._save()

    def final(self, suffix: str = "") -> str:
        return self.stage.final(suffix)

    def beside(self) -> list[str]:
        return self.stage.beside()

    def publish(self, suffix: str = "") -> str:
        return self.stage.publish(suffix)

    # -- writing ---------------------------------------------------------------------------------------

    def _write(self, read: Read) -> None:
        METER.begin("Copying", self._plan.size, self._plan.size - self.missing)
        pieces: dict[str, list[Piece]] = {name: [] for name in self._plan.manifest}
        for piece in self._plan.pieces():
            pieces[piece.name].append(piece)
        todo = [name for name in sorted(self._plan.manifest) if name not in self._there]
        bucket = self._store.s3
        large = [name for name in todo if bucket is not None and len(pieces[name]) > 1]
        # Large ones one after the other, their parts side by side; the others side by side.
        for name in large:
            assert bucket is not None
            self._in_parts(bucket, name, pieces[name], read)
        small = [name for name in todo if name not in large]
        each(small, lambda name: self._whole(name, pieces[name], read), WORKERS)

    def _whole(self, name: str, pieces: list[Piece], read: Read) -> None:
        target = f"{self._files}/{name}"
        if len(pieces) <= 1:
            self._store.write(target, bytes(read(pieces[0])) if pieces else b"")
            METER.advance(pieces[0].size if pieces else 0)
            return
        with self._store.create(target) as file:
            for piece in pieces:
                check_interrupted()
                file.write(read(piece))
                METER.advance(piece.size)

    def _in_parts(self, bucket: Bucket, name: str, pieces: list[Piece], read: Read) -> None:
        key, size = self._store.bucket_key(f"{self._files}/{name}"), self._plan.manifest[name].size

        def send(upload: str, number: int, start: int, length: int) -> str:
            first = start // self._plan.piece
            data = bytearray()
            for piece in pieces[first : first + -(-length // self._plan.piece)]:
                got = read(piece)
                data = bytearray(got) if not data and len(got) == length else data + got
            tag = bucket.put_part(key, upload, number, data)
            METER.advance(length)
            return tag

        with store_errors(self._store.path(f"{self._files}/{name}"), foreign=True):
            record = Upload.of(self._store, self.folder, name)
            bucket.in_parts(key, size, self._plan.piece, send, record)

    # -- reading back ----------------------------------------------------------------------------------

    def _read_back(self, read: Read) -> None:
        todo = [piece for piece in self._plan.pieces() if piece.index not in self._checked]
        METER.begin("Checking", self._plan.size, self._plan.size - sum(piece.size for piece in todo))
        wrong: set[str] = set()

        def check(piece: Piece) -> None:
            check_interrupted()
            name = f"{self._files}/{piece.name}"
            data = self._store.read_piece(name, piece.start, piece.size)
            if hashlib.sha256(data).hexdigest() != piece.sha256:
                if piece.name not in self._there:
                    raise AccessError(
                        Reason.COPY_DAMAGED,
                        f"{self._store.path(name)} reads back otherwise than it was written: the store did "
                        "not keep it",
                    )
                wrong.add(piece.name)
                return
            METER.advance(piece.size)
            self._note(piece)

        each(todo, check, WORKERS)
        if wrong:  # what an earlier try is said to have brought there is not right: once more
            for name in wrong:
                self._store.delete(f"{self._files}/{name}")
            self._there -= wrong
            self._checked -= {piece.index for piece in self._plan.pieces() if piece.name in wrong}
            self._write(read)
            self._read_back(read)

    def _note(self, piece: Piece) -> None:
        with self._lock:
            self._checked.add(piece.index)
            due = time.monotonic() - self._noted > NOTED_EVERY
            if due:
                self._noted = time.monotonic()
        if due:
            self._save()

    def _load(self) -> set[int]:
        try:
            raw = read_json(self._store, self.folder + CHECKED, CHECKED_LIMIT)
            return {index for index in raw["checked"] if type(index) is int}
        except (Vanished, Damaged, ValueError, KeyError, TypeError):
            return set()

    def _save(self) -> None:
        """Write down which files were read back and are right, so that the next try need not read them again.

        A small copy is not recorded: to read it again takes less time than to write this.
        """
        with self._lock:
            checked = sorted(self._checked)
        if self.over or not checked or self._plan.size <= self._plan.piece:
            return
        with suppress(AccessError):  # read again then
            self._store.write(self.folder + CHECKED, json.dumps({"checked": checked}).encode())
