"""Statuses that the API server refuses to take from this process, again and again: a definition that lacks a
field, a webhook or a rule of the cluster, a status that is too large.

What is refused is recorded nowhere, so the object looks as it did before for as long as it lasts. A conflict
is none, since the object is read again; nor is a call without an answer, for a server that is away takes no
renewal of the Lease either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from controller.kube.cache import Cache, key_of, version_of
from controller.kube.errors import ApiError
from controller.kube.lease import UnwrittenNote
from controller.kube.resources import Resource

LASTING = 20.0  # s of refusals before anybody is told
TRIES = 3  # of one status, all refused, before anybody is told
LAPSED = 180.0  # s without another try, which a pass that fails makes each minute: it is wanted no more


class _Refusals(NamedTuple):
    """Of one object's status, without a success between: monotonic s but ``at`` (of the first, s since the
    epoch)."""

    uid: str
    first: float
    last: float
    at: float
    tries: int
    why: str
    version: int  # at which an object of that uid was there


class UnwrittenStatuses:
    """Objects whose status was refused, each with the time of its first and last refusal.

    Args:
        cache: what there is: of an object that is gone nothing is told.
        monotonic, clock: the process's clocks (s, s since the epoch).
    """

    def __init__(
        self,
        cache: Cache,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache, self._now, self._clock = cache, monotonic, clock
        self._found: dict[tuple[Resource, str], _Refusals] = {}

    def wrote(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """Note that an object's status is as it should be."""
        self._found.pop((resource, key_of(obj)), None)

    def refused(self, resource: Resource, obj: Mapping[str, Any], error: ApiError) -> None:
        """Note that a write of an object's status failed."""
        if error.status < 400 or error.status in (401, 404, 409, 429):
            return
        key, uid, now = (resource, key_of(obj)), str(obj["metadata"]["uid"]), self._now()
        before = self._found.get(key)
        if before is None or before.uid != uid or now - before.last > LAPSED:
            before = _Refusals(uid, now, now, self._clock(), 0, "", 0)
        self._found[key] = before._replace(
            last=now, tries=before.tries + 1, why=str(error), version=version_of(obj)
        )

    def lasting(self) -> UnwrittenNote | None:
        """Return which have been refused for long, and why the first of them is; None: none has."""
        if not (long := self._long()):
            return None
        first = min(long.values(), key=lambda one: one.first)
        names = sorted(f"{resource.kind}/{key}" for resource, key in long)
        return UnwrittenNote.of(first.at, names, first.why)

    def keys(self, resource: Resource) -> list[str]:
        """Return those of a kind that have been refused for long."""
        return [key for kind, key in self._long() if kind == resource]

    def _long(self) -> dict[tuple[Resource, str], _Refusals]:
        now = self._now()
        present = (
            (key, self._there(*key, one)) for key, one in self._found.items() if now - one.last <= LAPSED
        )
        self._found = {key: one for key, one in present if one is not None}
        return {
            key: one for key, one in self._found.items() if one.tries >= TRIES and now - one.first >= LASTING
        }

    def _there(self, resource: Resource, key: str, one: _Refusals) -> _Refusals | None:
        """Return the refusals of an object that is there; None: it is gone. It is unpacked only where it has
        changed since the last look: of thousands that would hold the process up for a second."""
        found = self._cache.find(resource, key)
        if found is None or found.version == one.version:
            return one if found is not None else None
        same = found.open()["metadata"]["uid"] == one.uid
        return one._replace(version=found.version) if same else None
