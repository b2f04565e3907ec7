"""Checkpoint folders of the RLHFJobs of a namespace, and which of them would write into each other's.

Two trainers in one folder, or in one inside the other, rotate each other's checkpoints away, and nobody can
tell whose a checkpoint is. The older RLHFJob has the folder; the younger is refused, and both are named.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from sys import intern
from typing import Any, NamedTuple

from controller.checkpoints.places import normal_path
from controller.kube.packed import key_of
from controller.policy.types import JobKey, Problem

Object = Mapping[str, Any]


class _Place(NamedTuple):
    """The folder that a job writes into."""

    store: str  # its namespace, a space, and the store there
    path: str  # with '/' at its end


_Age = tuple[str, JobKey]  # creation time, key: the smaller one was there first


class Locations:
    """Checkpoint locations of all RLHFJobs, kept up to date with the cache."""

    def __init__(self) -> None:
        self._there: dict[JobKey, _Place] = {}
        # By store, path -> who: nearly always one, and a tuple is the smallest that holds it.
        self._ages: dict[str, dict[str, tuple[_Age, ...]]] = {}
        self._paths: dict[str, list[str]] = {}  # the same paths, sorted

    def put(self, obj: Object) -> list[str]:
        """Note an RLHFJob; names of others in its namespace that its news may concern."""
        key, place = key_of(obj), _place(obj)
        if self._there.get(key) == place:
            return []
        touched = self.drop(obj)
        if place is None:
            return touched
        self._there[key] = place
        paths = self._ages.setdefault(place.store, {})
        if place.path not in paths:
            insort(self._paths.setdefault(place.store, []), place.path)
        paths[place.path] = (*paths.get(place.path, ()), _age(obj))
        return touched + [_name(other) for _, other in self._beside(place) if other != key]

    def drop(self, obj: Object) -> list[str]:
        """Forget an RLHFJob; names of others that its end may concern."""
        key = key_of(obj)
        place = self._there.pop(key, None)
        if place is None:
            return []
        paths, known = self._ages[place.store], self._paths[place.store]
        paths[place.path] = tuple(age for age in paths[place.path] if age[1] != key)
        touched = [_name(other) for _, other in self._beside(place)]
        if not paths[place.path]:
            del paths[place.path]
            known.pop(bisect_left(known, place.path))
        return touched

    def clash(self, obj: Object) -> Problem | None:
        """Return why an RLHFJob may not use its location: an older one of its namespace has it, or it is of a
        kind of which nobody can tell that; None: it may."""
        place = self._there.get(key_of(obj))
        if place is None:
            return _unknown(obj) if _place(obj) is None else None
        own = _age(obj)
        older = min((age for age in self._beside(place) if age < own), default=None)
        if older is None:
            return None
        theirs, first = self._there[older[1]].path, _name(older[1])
        how = (
            "the same as" if theirs == place.path else "inside" if place.path.startswith(theirs) else "around"
        )
        mine, others = (path.rstrip("/") or "/" for path in (place.path, theirs))
        store = place.store.partition(" ")[2]
        return Problem(
            "LocationShared",
            f"spec.checkpoints.location: {mine} of {store} is {how} that of RLHFJob {first} "
            f"({others}), which was there first; {_name(own[1])} needs a folder of its own, or the other "
            "one is to be deleted",
        )

    def _beside(self, place: _Place) -> list[_Age]:
        """Return all that lie there, around it or inside it."""
        paths, known = self._ages.get(place.store, {}), self._paths.get(place.store, [])
        found: list[_Age] = []
        parts = place.path.split("/")
        for depth in range(1, len(parts)):  # around it, and itself
            found += paths.get("/".join(parts[:depth]) + "/", ())
        index = bisect_left(known, place.path)
        while index < len(known) and known[index].startswith(place.path):
            found += paths[known[index]] if known[index] != place.path else ()
            index += 1
        return found


def _name(key: JobKey) -> str:
    return key.partition("/")[2]


def _location(obj: Object) -> Object:
    found: Object = ((obj.get("spec") or {}).get("checkpoints") or {}).get("location") or {}
    return found


def _unknown(obj: Object) -> Problem | None:
    """Return the problem if the location is of no known kind; None: it is, or there is no location."""
    location = _location(obj)
    if not location:
        return None
    kinds = ", ".join(sorted(location))
    return Problem(
        "PlaceMissing",
        f"spec.checkpoints.location: {kinds} is no kind of place, expected volumeClaim or objectStore",
    )


def _place(obj: Object) -> _Place | None:
    """Return where an RLHFJob writes; None: nowhere, or in a place of another kind (`_unknown`)."""
    location = _location(obj)
    namespace = str(obj["metadata"]["namespace"])
    claim, store = location.get("volumeClaim"), location.get("objectStore")
    if isinstance(claim, Mapping):
        return _in(namespace, f"claim {claim.get('claimName')}", str(claim.get("path") or "/"))
    if isinstance(store, Mapping):
        scheme, _, rest = str(store.get("uri") or "").partition("://")
        bucket, _, path = rest.partition("/")
        return _in(namespace, f"{scheme}://{bucket}", path)
    return None


def _in(namespace: str, store: str, path: str) -> _Place:
    return _Place(intern(f"{namespace} {store}"), normal_path(path).rstrip("/") + "/")


def _age(obj: Object) -> _Age:
    return str(obj["metadata"].get("creationTimestamp") or ""), key_of(obj)
