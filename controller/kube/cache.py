"""The operator's copy of the cluster: trimmed objects that only ever move forward.

Three sources feed it: the watch, a full LIST now and then (mends what the watch missed), and the answers
to the operator's own writes (so that a pass counts what it has just done, before the watch tells). They
arrive in any order; resourceVersions, which Kubernetes lets clients compare as numbers within a kind
(KEP-5504, stable since 1.35), decide which one is newer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from controller import names
from controller.kube.resources import WATCHED, Resource
from controller.kube.trim import Object, same, trim

Key = str  # "namespace/name", or "name" for a cluster-scoped kind
Listener = Callable[[Resource, Object | None, Object | None], None]  # (resource, old, new)


def key_of(obj: Mapping[str, Any]) -> Key:
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def version_of(obj: Mapping[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])


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
        self._objects: dict[Key, Object] = {}
        self._gone: dict[Key, int] = {}  # deleted at this version; forgotten once a LIST is newer
        self._floor = 0  # a LIST at this version has been seen: whatever it lacked was not there

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def values(self) -> Iterator[Object]:
        return iter(self._objects.values())

    def put(self, obj: Object) -> tuple[bool, Object | None]:
        """Take in a state of an object. Returns (taken, what it replaced)."""
        key, version = key_of(obj), version_of(obj)
        old = self._objects.get(key)
        known = version_of(old) if old is not None else max(self._gone.get(key, 0), self._floor)
        if version <= known:
            return False, old
        self._objects[key] = obj
        self._gone.pop(key, None)
        return True, old

    def drop(self, obj: Object) -> tuple[bool, Object | None]:
        """Take in a deletion; ``obj`` is the last state, at the version of the deletion."""
        key, version = key_of(obj), version_of(obj)
        old = self._objects.get(key)
        if old is not None and version_of(old) > version:
            return False, old  # already created anew
        self._gone[key] = max(version, self._gone.get(key, 0))
        return self._objects.pop(key, None) is not None, old

    def replace(self, objects: Iterable[Object], version: int) -> list[tuple[Object | None, Object | None]]:
        """Take in a LIST that was true at ``version``. Returns what changed, as (old, new).

        Raises:
            WentBack: an earlier LIST was true at a later version, which only a restored etcd explains.
        """
        if version < self._floor:
            raise WentBack(
                f"{self.resource}: a LIST at resourceVersion {version} after one at {self._floor}; the "
                "cluster was restored from a backup, and what is cached is not to be compared with it"
            )
        changes: list[tuple[Object | None, Object | None]] = []
        seen: set[Key] = set()
        for obj in objects:
            seen.add(key_of(obj))
            taken, old = self.put(obj)  # before the floor is raised: it must not reject this very LIST
            if taken:
                changes.append((old, obj))
        for key in [k for k, o in self._objects.items() if k not in seen and version_of(o) <= version]:
            changes.append((self._objects.pop(key), None))
        self._floor = max(self._floor, version)
        self._gone = {key: at for key, at in self._gone.items() if at > self._floor}
        self.listed = True
        return changes


class Cache:
    """One store per watched kind, an index of a job's objects, and listeners told of each change.

    Not thread-safe: it lives in the engine's event loop, the watcher hands events over by
    ``call_soon_threadsafe``.
    """

    def __init__(self, resources: Iterable[Resource] = WATCHED) -> None:
        self.stores = {resource: Store(resource) for resource in resources}
        self._by_job: dict[Resource, dict[Key, dict[Key, Object]]] = {
            resource: defaultdict(dict) for resource in resources
        }
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, resource: Resource, key: Key) -> Object | None:
        return self.stores[resource].get(key)

    def values(self, resource: Resource) -> Iterator[Object]:
        return self.stores[resource].values()

    def of_job(self, resource: Resource, job: Key) -> list[Object]:
        """Objects of a kind that carry the job's label in its namespace, oldest name first."""
        found = self._by_job[resource].get(job, {})
        return [found[key] for key in sorted(found)]

    @property
    def complete(self) -> bool:
        """Whether every kind has been listed at least once."""
        return all(store.listed for store in self.stores.values())

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> bool:
        """A state of an object, from the watch or from the answer to a write."""
        trimmed = trim(resource, obj)
        taken, old = self.stores[resource].put(trimmed)
        if taken:
            self._changed(resource, old, trimmed)
        return taken

    def drop(self, resource: Resource, obj: Mapping[str, Any]) -> bool:
        taken, old = self.stores[resource].drop(trim(resource, obj))
        if taken:
            self._changed(resource, old, None)
        return taken

    def replace(self, resource: Resource, objects: Iterable[Mapping[str, Any]], version: str) -> int:
        """A full LIST. Returns how many objects it changed: what the watch had not told."""
        changes = self.stores[resource].replace((trim(resource, o) for o in objects), int(version))
        for old, new in changes:
            self._changed(resource, old, new)
        return len(changes)

    def _changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        for obj, present in ((old, False), (new, True)):
            job = job_key(obj) if obj is not None else None
            if obj is None or job is None:
                continue
            if present:
                self._by_job[resource][job][key_of(obj)] = obj
            else:
                members = self._by_job[resource][job]
                members.pop(key_of(obj), None)
                if not members:
                    del self._by_job[resource][job]
        if old is not None and new is not None and same(old, new):
            return
        for listener in self._listeners:
            listener(resource, old, new)


def job_key(obj: Mapping[str, Any]) -> Key | None:
    """The RLHFJob an object claims by its label; whether the claim holds is for others to check."""
    metadata = obj["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    return f"{metadata.get('namespace')}/{name}" if name else None
