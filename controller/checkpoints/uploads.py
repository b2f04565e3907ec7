"""Uploads in parts to an object store: what is remembered of one, so that another try can go on with it."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any, Protocol

from controller.checkpoints.errors import AccessError, Damaged, Vanished
from controller.checkpoints.staging import Writer
from controller.checkpoints.store import Store, read_json

UPLOADS = ".uploads/"  # after a token: records of uploads in parts
RECORD_LIMIT = 1 << 20  # bytes read of one


class Records(Store, Protocol):
    """Object store that holds the records of uploads."""

    writer: Writer

    def write(self, name: str, data: bytes) -> None: ...


class Upload:
    """A record of an upload in parts: a small object."""

    def __init__(self, store: Records, record: str) -> None:
        self._store, self._record = store, record

    @staticmethod
    def of(store: Records, folder: str, name: str) -> Upload:
        """Of an object ``name`` below a staged folder."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return Upload(store, f"{folder}{UPLOADS}{digest}.json")

    def load(self) -> dict[str, Any] | None:
        """Return the record of the upload; None: there is none, or it cannot be read."""
        try:
            entry = read_json(self._store, self._record, RECORD_LIMIT)
        except (Vanished, Damaged, ValueError):
            return None
        return entry if isinstance(entry, dict) else None

    def save(self, entry: dict[str, Any]) -> None:
        document = {**entry, "serial": self._store.writer.serial}
        self._store.write(self._record, json.dumps(document).encode())

    def forget(self) -> None:
        with suppress(AccessError, Vanished):
            self._store.delete(self._record)
