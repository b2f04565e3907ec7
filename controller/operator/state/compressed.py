"""Values kept compressed until they are looked at: twenty evals take 5 kB as objects, 0.5 at most compressed.

Of a run that trains for hours between two evals, nothing of it is looked at in the meantime.
"""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from controller.kube.deflated import Deflated, Deflater

T = TypeVar("T")


class Compressed(Deflated, Generic[T]):
    """A value of plain data, compressed; it never leaves the process."""

    __slots__ = ("_digest",)

    def __init__(self, value: T, deflater: Deflater) -> None:
        plain = _plain(value)
        super().__init__(*deflater(plain))
        self._digest = _digest(plain)

    def open(self) -> T:
        """Return a copy that is the caller's own."""
        value: T = pickle.loads(self.inflated())
        return value

    def holds(self, value: T) -> bool:
        """Return whether ``value`` is equal to what was compressed."""
        return _digest(_plain(value)) == self._digest or bool(self.open() == value)


def _plain(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _digest(plain: bytes) -> bytes:
    return blake2b(plain, digest_size=16).digest()
