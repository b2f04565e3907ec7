"""Checkpoint folders of the RLHFJobs of a namespace, and which of them would write into each other's.

Two trainers in one folder, or in one inside the other, rotate each other's checkpoints away, and nobody can
tell whose a checkpoint is. One RLHFJob has the folder (`policy.job.folder_order`); the others are refused,
and both are named.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from sys import intern
from typing import Any, NamedTuple

from controller.checkpoints.places import normal_path
from controller.kube.packed import key_of
from controller.policy.job import FolderTurn, folder_turn, why_before
from controller.policy.types import JobKey, Problem

Object = Mapping[str, Any]


class _Place(NamedTuple):
    """The folder that a job writes into."""

    store: str  # its namespace, a space, and the store there
    path: str  # with '/' at its end


class Locations:
    """Checkpoint locations of all RLHFJobs, kept up to date with the cache."""

    def __init__(self) -> None:
        self._there: dict[JobKey, tuple[_Place, FolderTurn]] = {}
        # By store, path -> who: nearly always one, and a tuple is the smallest that holds it.
        self._turns: dict[str, dict[str, tuple[FolderTurn, ...]]] = {}
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
            f"({others}), {why_before(first, own)}; {_name(own.key)} needs a folder of its own, or the other "
            "one is to be deleted",
        )

    def _beside(self, place: _Place) -> list[FolderTurn]:
        """Return all that lie there, around it or inside it."""
        paths, known = self._turns.get(place.store, {}), self._paths.get(place.store, [])
        found: list[FolderTurn] = []
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


def _turn(obj: Object) -> FolderTurn:
    created, status = str(obj["metadata"].get("creationTimestamp") or ""), obj.get("status") or {}
    claim = status.get("claim")
    return folder_turn(
        key_of(obj),
        created,
        admitted=bool(status.get("admission")),
        begun=bool(status.get("attempt")),
        claim_problem=str(claim.get("problem") or "") if claim else None,
    )
