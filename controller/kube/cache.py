"""The operator's copy of the cluster: trimmed objects that only ever move forward.

Three sources feed it: the watch, a full LIST now and then (mends what the watch missed), and the answers
to the operator's own writes (so that a pass counts what it has just done, before the watch tells). They
arrive in any order; resourceVersions, which Kubernetes lets clients compare as numbers within a kind
(KEP-5504, stable since 1.35), decide which one is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from controller import log
from controller.kube import wire
from controller.kube.packed import Key, Packer, Plain, Stored, job_key, key_of, version_of
from controller.kube.resources import GPUPOOLS, NODES, WATCHED, WORKERGROUPS, Resource
from controller.kube.trim import Object, bare, failure, picked, trim

__all__ = ["Cache", "Key", "Listener", "Store", "WentBack", "job_key", "key_of", "version_of"]

Listener = Callable[[Resource, Object | None, Object | None], None]  # (resource, old, new)

_logger = log.get("evalstop.kube.cache")

# Few beside the jobs, and all of them looked at in each pool pass: kept as they are.
_PLAIN = frozenset({NODES, GPUPOOLS, WORKERGROUPS})

_Change = tuple[Stored | None, Stored | None]  # (old, new)


class WentBack(Exception):
    """The cluster's clock of changes ran backwards: the process must start anew with an empty cache."""


class Store:
    """Objects of one kind by key.

    Invariant: for each key, what is shown never goes back to an older resourceVersion, and an object once
    seen deleted at version v never comes back in a state older than v.
    """

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.listed = False
        self._objects: dict[Key, Stored] = {}
        self._deleted: dict[Key, int] = {}  # deleted at this version; forgotten once a LIST is newer
        # A LIST at this version has been seen: whatever it lacked was not there. By namespace; "": of all.
        self._floors: dict[str, int] = {}
        self._unlisted: set[str] = {""}  # namespaces whose first LIST is due

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Stored | None:
        return self._objects.get(key)

    def values(self) -> Iterator[Stored]:
        return iter(self._objects.values())

    def knows(self, key: Key, version: int) -> bool:
        """Return whether an object's state at this version is no news: it, or what came after it, was taken
        in."""
        old = self._objects.get(key)
        return version <= (
            old.version if old is not None else max(self._deleted.get(key, 0), self._floor(key))
        )

    def _floor(self, key: Key) -> int:
        floors = self._floors
        return max(floors.get("", 0), floors.get(key.partition("/")[0], 0) if len(floors) > 1 else 0)

    def spread(self, namespaces: Iterable[str]) -> None:
        """Expect a LIST of each of these namespaces; the store is complete after the last of them."""
        self._unlisted = set(namespaces)
        self._floors = dict.fromkeys(("", *self._unlisted), 0)

    def put(self, new: Stored) -> tuple[bool, Stored | None]:
        """Take in a state of an object. Returns (taken, what it replaced)."""
        key = new.key
        old = self._objects.get(key)
        if self.knows(key, new.version):
            return False, old
        self._objects[key] = new
        self._deleted.pop(key, None)
        return True, old

    def drop(self, key: Key, version: int) -> tuple[bool, Stored | None]:
        """Take in a deletion at this version."""
        old = self._objects.get(key)
        if old is not None and old.version > version:
            return False, old  # already created anew
        self._deleted[key] = max(version, self._deleted.get(key, 0))
        return self._objects.pop(key, None) is not None, old

    def replace(self, objects: Iterable[Stored], version: int, namespace: str = "") -> list[_Change]:
        """Take in a LIST that was true at ``version``, of one namespace or of all. Returns what changed, as
        (old, new).

        Raises:
            WentBack: an earlier LIST was true at a later version, which only a restored etcd explains.
        """
        floor = self._floors.get(namespace, 0)
        if version < floor:
            raise WentBack(
                f"{self.resource}: a LIST at resourceVersion {version} after one at {floor}; the "
                "cluster was restored from a backup, and what is cached is not to be compared with it"
            )
        changes: list[_Change] = []
        seen: set[Key] = set()
        for new in objects:
            seen.add(new.key)
            taken, old = self.put(new)  # before the floor is raised: it must not reject this very LIST
            if taken:
                changes.append((old, new))
        within = f"{namespace}/" if namespace else ""
        for key in [
            k
            for k, o in self._objects.items()
            if k not in seen and o.version <= version and k.startswith(within)
        ]:
            changes.append((self._objects.pop(key), None))
        self._floors[namespace] = version
        self._deleted = {key: at for key, at in self._deleted.items() if at > self._floor(key)}
        self._unlisted.discard(namespace)
        self.listed = not self._unlisted
        return changes


class Cache:
    """One store per watched kind, an index of a job's objects, and listeners told of each change.

    An object that cannot be kept as it is (too deep, too large) is put aside: of it there is only what tells
    who it is and what it holds (`trim.bare`), with its `wire.problem`. A listener that fails at an object is
    none of the other listeners' business, nor of what feeds the cache.

    Not thread-safe: it lives in the engine's event loop, the watcher hands events over by
    ``call_soon_threadsafe``.
    """

    def __init__(self, resources: Iterable[Resource] = WATCHED) -> None:
        self.stores = {resource: Store(resource) for resource in resources}
        self._packers = {resource: Packer() for resource in self.stores if resource not in _PLAIN}
        # Keys of the objects that name a job; nearly always it is one, and stands alone.
        self._by_job: dict[Resource, dict[Key, Key | tuple[Key, ...]]] = {
            resource: {} for resource in self.stores
        }
        self._listeners: list[Listener] = []
        self._aside: dict[tuple[Resource, Key], str] = {}  # why

    @property
    def aside(self) -> Mapping[tuple[Resource, Key], str]:
        """Objects that are put aside, and why."""
        return self._aside

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, resource: Resource, key: Key) -> Object | None:
        """Return an object; not to be changed, others have the same."""
        found = self.stores[resource].get(key)
        return found.open() if found is not None else None

    def find(self, resource: Resource, key: Key) -> Stored | None:
        """Return an object as it is held, for those who keep it."""
        return self.stores[resource].get(key)

    def values(self, resource: Resource, besides: Container[Key] = ()) -> Iterator[Object]:
        """Return all objects of a kind but those of these keys."""
        return (stored.open() for stored in self.stores[resource].values() if stored.key not in besides)

    def of_job(self, resource: Resource, job: Key) -> list[Stored]:
        """Objects of a kind that carry the job's label in its namespace, oldest name first."""
        found = (self.find(resource, key) for key in sorted(_keys(self._by_job[resource].get(job, ()))))
        return [stored for stored in found if stored is not None]

    @property
    def complete(self) -> bool:
        """Return whether every kind has been listed at least once."""
        return all(store.listed for store in self.stores.values())

    def stored(self, resource: Resource, obj: Mapping[str, Any]) -> Stored:
        """Return what is kept of an object, in this state perhaps already; nothing of ``obj`` itself is.

        Raises only for what no API server sends: no name, no resourceVersion.
        """
        known = self.find(resource, key_of(obj))
        if known is not None and known.version == version_of(obj):
            return known
        why = wire.problem(obj)
        if not why:
            try:
                packer = self._packers.get(resource)
                return packer(picked(resource, obj)) if packer is not None else Plain(trim(resource, obj))
            except Exception as error:  # whatever is in it: it spoils nobody else's LIST or watch
                why = failure(error)
        _logger.warning("an object is put aside", resource=str(resource), object=key_of(obj), why=why)
        return Plain(bare(resource, obj, why))

    def knows(self, resource: Resource, obj: Mapping[str, Any]) -> bool:
        """Return whether `put` would leave this state alone. It only reads, and may be asked in another
        thread."""
        return self.stores[resource].knows(key_of(obj), version_of(obj))

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> bool:
        """Take in an object from a watch or from the answer to a write; return whether it was new."""
        new = self.stored(resource, obj)
        taken, old = self.stores[resource].put(new)
        if taken:
            self._changed(resource, old, new)
        return taken

    def drop(self, resource: Resource, obj: Mapping[str, Any]) -> bool:
        """Take in the deletion of an object, in its last state; return whether it was new."""
        taken, old = self.stores[resource].drop(key_of(obj), version_of(obj))
        if taken:
            self._changed(resource, old, None)
        return taken

    def replace(
        self,
        resource: Resource,
        objects: Iterable[Stored | Mapping[str, Any]],
        version: str,
        namespace: str = "",
    ) -> int:
        """Replace the objects of a kind by those of a LIST, of one namespace or of all.

        Returns:
            How many objects this changed: the changes that the watch had not reported.
        """
        given = (self.stored(resource, o) if isinstance(o, Mapping) else o for o in objects)
        changes = self.stores[resource].replace(given, int(version), namespace)
        for old, new in changes:
            self._changed(resource, old, new)
        return len(changes)

    def _changed(self, resource: Resource, old: Stored | None, new: Stored | None) -> None:
        self._index(self._by_job[resource], old, new)
        if isinstance(new, Plain) and (why := wire.problem(new.open())):
            self._aside[resource, new.key] = why
        elif self._aside and (known := new or old) is not None:
            self._aside.pop((resource, known.key), None)
        if not self._listeners or (old is not None and new is not None and new.same(old)):
            return
        was, now = (stored.open() if stored is not None else None for stored in (old, new))
        for listener in self._listeners:
            try:
                listener(resource, was, now)
            except Exception:
                key = stored.key if (stored := new or old) is not None else ""
                _logger.exception("an object cannot be gone by", resource=str(resource), object=key)

    def _index(
        self, by_job: dict[Key, Key | tuple[Key, ...]], old: Stored | None, new: Stored | None
    ) -> None:
        before, after = (stored.job if stored is not None else None for stored in (old, new))
        if before == after:
            return
        if old is not None and before is not None:
            rest = tuple(key for key in _keys(by_job[before]) if key != old.key)
            if rest:
                by_job[before] = rest
            else:
                del by_job[before]
        if new is not None and after is not None:
            others = _keys(by_job.get(after, ()))
            by_job[after] = (*others, new.key) if others else new.key


def _keys(found: Key | tuple[Key, ...]) -> tuple[Key, ...]:
    return (found,) if isinstance(found, str) else found
