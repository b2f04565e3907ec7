"""Which RLHFJobs of a namespace would write checkpoints into each other's folders.

Two trainers in one folder, or in one inside the other, rotate each other's checkpoints away, and nobody can
tell whose a checkpoint is. The older RLHFJob has the folder; the younger is refused, and both are named.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

from controller.checkpoints.places import normal_path
from controller.policy.types import Problem

Object = Mapping[str, Any]
_Place = tuple[str, str, str]  # namespace, store, path with '/' at its end
_Age = tuple[str, str]  # creation time, name: the smaller one was there first


class Locations:
    """Checkpoint locations of all RLHFJobs, kept up to date with the cache."""

    def __init__(self) -> None:
        self._there: dict[tuple[str, str], _Place] = {}  # namespace and name -> where
        self._ages: dict[tuple[str, str], dict[str, set[_Age]]] = {}  # namespace, store -> path -> who
        self._paths: dict[tuple[str, str], list[str]] = {}  # the same paths, sorted

    def put(self, obj: Object) -> list[str]:
        """Note an RLHFJob; names of others in its namespace that its news may concern."""
        metadata = obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        place = _place(obj)
        if self._there.get(key) == place:
            return []
        touched = self.drop(obj)
        if place is None:
            return touched
        self._there[key] = place
        namespace, store, path = place
        paths = self._ages.setdefault((namespace, store), {})
        if path not in paths:
            insort(self._paths.setdefault((namespace, store), []), path)
        paths.setdefault(path, set()).add(_age(obj))
        return touched + [name for _, name in self._beside(place) if name != key[1]]

    def drop(self, obj: Object) -> list[str]:
        """Forget an RLHFJob; names of others that its end may concern."""
        metadata = obj["metadata"]
        place = self._there.pop((metadata["namespace"], metadata["name"]), None)
        if place is None:
            return []
        namespace, store, path = place
        paths, known = self._ages[namespace, store], self._paths[namespace, store]
        paths[path] = {age for age in paths[path] if age[1] != metadata["name"]}
        touched = [name for _, name in self._beside(place)]
        if not paths[path]:
            del paths[path]
            known.pop(bisect_left(known, path))
        return touched

    def clash(self, obj: Object) -> Problem | None:
        """Return why an RLHFJob may not use its location: an older one of its namespace has it, or it is of a
        kind of which nobody can tell that; None: it may."""
        metadata = obj["metadata"]
        place = self._there.get((metadata["namespace"], metadata["name"]))
        if place is None:
            return _unknown(obj) if _place(obj) is None else None
        own = _age(obj)
        older = min((age for age in self._beside(place) if age < own), default=None)
        if older is None:
            return None
        theirs = self._there[place[0], older[1]][2]
        how = "the same as" if theirs == place[2] else "inside" if place[2].startswith(theirs) else "around"
        mine, others = (path.rstrip("/") or "/" for path in (place[2], theirs))
        return Problem(
            "LocationShared",
            f"spec.checkpoints.location: {mine} of {place[1]} is {how} that of RLHFJob {older[1]} "
            f"({others}), which was there first; {metadata['name']} needs a folder of its own, or the other "
            "one is to be deleted",
        )

    def _beside(self, place: _Place) -> list[_Age]:
        """Return all that lie there, around it or inside it."""
        namespace, store, path = place
        paths, known = self._ages.get((namespace, store), {}), self._paths.get((namespace, store), [])
        found: list[_Age] = []
        parts = path.split("/")
        for depth in range(1, len(parts)):  # around it, and itself
            found += paths.get("/".join(parts[:depth]) + "/", ())
        index = bisect_left(known, path)
        while index < len(known) and known[index].startswith(path):
            found += paths[known[index]] if known[index] != path else ()
            index += 1
        return found


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
        return namespace, f"claim {claim.get('claimName')}", _path(str(claim.get("path") or "/"))
    if isinstance(store, Mapping):
        scheme, _, rest = str(store.get("uri") or "").partition("://")
        bucket, _, path = rest.partition("/")
        return namespace, f"{scheme}://{bucket}", _path(path)
    return None


def _path(text: str) -> str:
    return normal_path(text).rstrip("/") + "/"


def _age(obj: Object) -> _Age:
    metadata = obj["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["name"])
