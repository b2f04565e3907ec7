"""Checkpoint folders of the RLHFJobs of a namespace, and which of them would write into each other's.

Two trainers in one folder, or in one inside the other, rotate each other's checkpoints away, and nobody can
tell whose a checkpoint is. One RLHFJob has the folder; the others are refused, and both are named. It is the
one that trains there or, where none does, the one whose claim on it succeeded or that has trained there: what
is secured there is its own, and the claim's file on the store refuses every other. Where none has it, the
older one goes first, and of two made in one second the one whose name sorts first; and after all of them one
whose own claim was refused, for that claim says that another has the folder.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from sys import intern
from typing import Any, NamedTuple

from controller.checkpoints.errors import Reason
from controller.checkpoints.places import normal_path
from controller.kube.packed import key_of
from controller.policy.types import JobKey, Problem

Object = Mapping[str, Any]


class _Place(NamedTuple):
    """The folder that a job writes into."""

    store: str  # its namespace, a space, and the store there
    path: str  # with '/' at its end


class _Turn(NamedTuple):
    """The order in which jobs come whose folders lie in each other: the smallest has it."""

    rank: int
    created: str
    key: JobKey


_TRAINS, _HAS_IT, _MAY_CLAIM, _REFUSED = range(4)  # ranks


class Locations:
    """Checkpoint locations of all RLHFJobs, kept up to date with the cache."""

    def __init__(self) -> None:
        self._there: dict[JobKey, tuple[_Place, _Turn]] = {}
        # By store, path -> who: nearly always one, and a tuple is the smallest that holds it.
        self._turns: dict[str, dict[str, tuple[_Turn, ...]]] = {}
        self._paths: dict[str, list[str]] = {}  # the same paths, sorted

    def put(self, obj: Object) -> list[str]:
        """Note an RLHFJob; names of others in its namespace that its news may concern."""
        key, place, turn = key_of(obj), _place(obj), _turn(obj)
        known = self._there.get(key)
        if known == (place, turn) or (known is None and place is None):
            return []
        touched = self.drop(obj)
        if place is None:
            return touched
        self._there[key] = place, turn
        paths = self._turns.setdefault(place.store, {})
        if place.path not in paths:
            insort(self._paths.setdefault(place.store, []), place.path)
        paths[place.path] = (*paths.get(place.path, ()), turn)
        now = [_name(other.key) for other in self._beside(place) if other.key != key]
        return list(dict.fromkeys(touched + now))

    def drop(self, obj: Object) -> list[str]:
        """Forget an RLHFJob; names of others that its end may concern."""
        key = key_of(obj)
        if key not in self._there:
            return []
        place, _ = self._there.pop(key)
        paths, known = self._turns[place.store], self._paths[place.store]
        paths[place.path] = tuple(turn for turn in paths[place.path] if turn.key != key)
        touched = [_name(other.key) for other in self._beside(place)]
        if not paths[place.path]:
            del paths[place.path]
            known.pop(bisect_left(known, place.path))
        return touched

    def clash(self, obj: Object) -> Problem | None:
        """Return why an RLHFJob may not use its location: another one of its namespace has it, or it is of a
        kind of which nobody can tell that; None: it may."""
        known = self._there.get(key_of(obj))
        if known is None:
            return _unknown(obj) if _place(obj) is None else None
        place, own = known
        first = min((turn for turn in self._beside(place) if turn < own), default=None)
        if first is None:
            return None
        theirs = self._there[first.key][0].path
        how = (
            "the same as" if theirs == place.path else "inside" if place.path.startswith(theirs) else "around"
        )
        mine, others = (path.rstrip("/") or "/" for path in (place.path, theirs))
        store = place.store.partition(" ")[2]
        return Problem(
            "LocationShared",
            f"spec.checkpoints.location: {mine} of {store} is {how} that of RLHFJob {_name(first.key)} "
            f"({others}), {_why(first, own)}; {_name(own.key)} needs a folder of its own, or the other "
            "one is to be deleted",
        )

    def _beside(self, place: _Place) -> list[_Turn]:
        """Return all that lie there, around it or inside it."""
        paths, known = self._turns.get(place.store, {}), self._paths.get(place.store, [])
        found: list[_Turn] = []
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


def _turn(obj: Object) -> _Turn:
    created = str(obj["metadata"].get("creationTimestamp") or "")
    return _Turn(_rank(obj.get("status") or {}), created, key_of(obj))


def _rank(status: Object) -> int:
    """Return how much of the folder is the job's, by its record."""
    if status.get("admission"):
        return _TRAINS
    claim = status.get("claim") or {}
    if claim.get("problem") == Reason.LOCATION_TAKEN:
        return _REFUSED
    claimed = bool(claim) and not claim.get("problem")
    return _HAS_IT if claimed or status.get("attempt") else _MAY_CLAIM


def _why(first: _Turn, own: _Turn) -> str:
    """Return in words why ``first`` comes before ``own``."""
    if first.rank != own.rank:
        return "which is to claim it" if first.rank == _MAY_CLAIM else "which has it already"
    if first.created == own.created:
        return "which was made in the same second and goes first by its name"
    return "which was there first"
