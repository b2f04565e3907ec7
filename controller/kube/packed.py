"""Compressed objects for the cache: each stays small until somebody looks at it.

Parsed into dicts, the four objects of one job take 20 kB; as JSON that is compressed with another object of
its kind as dictionary, 0.6 kB. Most are not looked at for hours: only what changed is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from sys import intern
from typing import Any, Protocol

from controller import names
from controller.kube.deflated import Deflated, Deflater

Object = dict[str, Any]
Key = str  # "namespace/name", or "name" for a cluster-scoped kind

OBJECT_MOST = 256 << 10  # bytes of one object as JSON; an RLHFJob of usual size has 10 kB
_OPENED = 96  # objects kept open, 20 to 40 kB each: those of the passes under way, several times over


def key_of(obj: Mapping[str, Any]) -> Key:
    """Return an object's key. Of each there is one text, however many tables it is a key of."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return intern(f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"]))


def version_of(obj: Mapping[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])


def job_key(obj: Mapping[str, Any]) -> Key | None:
    """Return the RLHFJob an object claims by its label; whether the claim holds is for others to check."""
    metadata = obj["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    return intern(f"{metadata.get('namespace')}/{name}") if name else None


class TooLarge(ValueError):
    """An object is larger than the cache takes."""


class Stored(Protocol):
    """A state of an object as the cache holds it: immutable, and shared by all who refer to it."""

    @property
    def key(self) -> Key: ...

    @property
    def version(self) -> int:
        """Its resourceVersion."""
        ...

    @property
    def job(self) -> Key | None:
        """The RLHFJob that its label names."""
        ...

    def open(self) -> Object:
        """Return the object; not to be changed, others have the same."""
        ...

    def same(self, other: Stored) -> bool:
        """Return whether both differ in nothing but their resourceVersion (a heartbeat, say)."""
        ...


class Plain:
    """An object as it is."""

    __slots__ = ("_object", "job", "key", "version")

    def __init__(self, obj: Object) -> None:
        self.key, self.version, self.job, self._object = key_of(obj), version_of(obj), job_key(obj), obj

    def open(self) -> Object:
        return self._object

    def same(self, other: Stored) -> bool:
        return _without_version(self._object) == _without_version(other.open())


class Packed(Deflated):
    """An object as compressed JSON."""

    __slots__ = ("job", "key", "version")

    def __init__(self, key: Key, version: int, job: Key | None, deflated: bytes, dictionary: bytes) -> None:
        super().__init__(deflated, dictionary)
        self.key, self.version, self.job = key, version, job

    def open(self) -> Object:
        return _opened(self)

    def same(self, other: Stored) -> bool:
        if isinstance(other, Packed) and other._dictionary is self._dictionary:
            return self._bytes == other._bytes
        return _without_version(self.open()) == _without_version(other.open())

    def unpack(self) -> Object:
        """Return a copy of its own for the caller."""
        obj: Object = json.loads(self.inflated())
        metadata = obj["metadata"]
        metadata["resourceVersion"] = str(self.version)
        if isinstance(uid := metadata.get("uid"), str):  # it goes into many tables, from each copy anew
            metadata["uid"] = intern(uid)
        return obj


class Packer:
    """Compresses objects of one kind."""

    def __init__(self) -> None:
        self._deflater = Deflater()

    def __call__(self, obj: Object) -> Packed:
        """Return the object compressed; ``obj`` is left as it is. Raises `TooLarge`."""
        metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
        text = json.dumps({**obj, "metadata": metadata}, separators=(",", ":"))
        encoded = text.encode("ascii")
        if len(encoded) > OBJECT_MOST:
            raise TooLarge(f"{len(encoded)} bytes, at most {OBJECT_MOST} are kept of an object")
        return Packed(key_of(obj), version_of(obj), job_key(obj), *self._deflater(encoded))


@lru_cache(maxsize=_OPENED)
def _opened(packed: Packed) -> Object:
    return packed.unpack()


def _without_version(obj: Mapping[str, Any]) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return {**obj, "metadata": metadata}
