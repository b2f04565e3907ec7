"""Names of RLHFJobs in the statuses of others.

Whoever may read an RLHFJob may not therefore know what other teams run. So where one job's status tells of
another, of whom it has its GPUs, who got them or an actor's, it has the name only of one in its own
namespace, and else ``uid:`` with that job's uid, which says nothing to anybody who may not list it. In
memory, in the decision log and in GPUPools, whose readers see all who wait there anyway, jobs have their
names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from controller.kube.cache import Cache, key_of
from controller.kube.resources import RLHFJOBS, Resource
from controller.policy.job import JobRecord
from controller.policy.types import JobKey
from controller.policy.wording import UID, same_namespace

DELETED_KEPT = 10_000
# Stands for the uid of a job that was deleted before this process began: who it was is known to nobody.
UNKNOWN = "unknown"


class JobNames:
    """The uids of the jobs that exist."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._keys: dict[str, JobKey] = {}
        self._deleted: dict[JobKey, str] = {}  # uids of jobs that are deleted, the last `DELETED_KEPT`
        cache.subscribe(self._changed)

    def hidden(self, record: JobRecord, key: JobKey) -> JobRecord:
        """Return the record as the status of the job ``key`` has it."""
        return _with(record, lambda other: other if same_namespace(other, key) else self._uid(other))

    def shown(self, record: JobRecord) -> JobRecord:
        """Return the record of a status, with the names of those jobs that are still there."""
        return _with(record, lambda other: self._keys.get(other.removeprefix(UID), other))

    def _uid(self, key: JobKey) -> JobKey:
        if key.startswith(UID):
            return key
        obj = self._cache.get(RLHFJOBS, key)
        return UID + (str(obj["metadata"]["uid"]) if obj is not None else self._deleted.get(key, UNKNOWN))

    def _changed(
        self, resource: Resource, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
    ) -> None:
        if resource is not RLHFJOBS:
            return
        before, after = (str(obj["metadata"]["uid"]) if obj is not None else "" for obj in (old, new))
        if before != after:
            self._keys.pop(before, None)
            if old is not None:
                self._deleted.pop(key_of(old), None)
                self._deleted[key_of(old)] = before
                while len(self._deleted) > DELETED_KEPT:
                    del self._deleted[next(iter(self._deleted))]
            if new is not None:
                self._keys[after] = key_of(new)


def _with(record: JobRecord, rename: Callable[[JobKey], JobKey]) -> JobRecord:
    admission, decision = record.admission, record.decision
    if admission is not None and admission.source is not None:
        name = rename(admission.source)
        if name != admission.source:
            record = replace(record, admission=replace(admission, source=name))
    if decision is not None and decision.handed_to is not None:
        name = rename(decision.handed_to)
        if name != decision.handed_to:
            record = replace(record, decision=replace(decision, handed_to=name))
    if any(actor.for_whom for actor in record.actors):
        actors = tuple(
            replace(actor, for_whom=rename(actor.for_whom)) if actor.for_whom else actor
            for actor in record.actors
        )
        if actors != record.actors:
            record = replace(record, actors=actors)
    return record
