"""Keep the ledger of reserved GPUs in step with the watch cache, change by change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.api import convert
from controller.extender import views
from controller.kube.cache import Cache, key_of
from controller.kube.nodes import node_gpus
from controller.kube.resources import GPUPOOLS, NODES, PODS, RLHFJOBS, WORKERGROUPS, Resource
from controller.kube.trim import Object
from controller.policy.actor_types import Actor
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.node import GpuLedger
from controller.policy.wording import UID

WATCHED: tuple[Resource, ...] = (NODES, PODS, GPUPOOLS, WORKERGROUPS, RLHFJOBS)


class LedgerSync:
    """Keeps a ledger equal to what the cache shows.

    Args:
        rack_label: label of a node that names its rack.
        changed: called after each change that may let somebody pass who was refused.
        removed: called with the uid of a pod that no longer looks for a node.
    """

    def __init__(
        self,
        cache: Cache,
        ledger: GpuLedger,
        rack_label: str,
        changed: Callable[[], None],
        removed: Callable[[str], None],
    ) -> None:
        self._cache, self._ledger, self._rack_label = cache, ledger, rack_label
        self._changed, self._removed = changed, removed
        self._takers = {
            NODES: self._node,
            PODS: self._pod,
            GPUPOOLS: self._pool,
            WORKERGROUPS: self._group,
            RLHFJOBS: self._job,
        }
        cache.subscribe(self._take)

    def _take(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        self._takers[resource](old, new)

    def _node(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            rack = (new["metadata"].get("labels") or {}).get(self._rack_label, "")
            self._ledger.put_node(new["metadata"]["name"], node_gpus(new), rack)
        elif old is not None:
            self._ledger.drop_node(old["metadata"]["name"])
        self._changed()

    def _pod(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        uid, found = pod["metadata"]["uid"], views.bound(new) if new is not None else None
        if old is not None and old["metadata"]["uid"] != uid:
            self._ledger.drop_bound(old["metadata"]["uid"])  # a namesake took its place between two LISTs
        if found is None:
            self._ledger.drop_bound(uid)
        elif self._ledger.pod(uid) != found:
            self._ledger.put_bound(uid, found)
        if new is None or found is not None:
            self._removed(uid)
        self._changed()

    def _pool(self, old: Object | None, new: Object | None) -> None:
        pool = new or old
        assert pool is not None
        name = pool["metadata"]["name"]
        if new is None:
            self._ledger.drop_reservations(name)
            self._ledger.put_recalled(name, ())
        else:
            self._ledger.put_reservations(name, convert.reservations(new.get("status")))
            self._ledger.put_recalled(name, convert.recalled(new.get("status")))
        if old is None or new is None or views.gang_timeout(old) != views.gang_timeout(new):
            for job in self._cache.values(RLHFJOBS):
                if (job.get("spec") or {}).get("pool") == name:
                    self._job(None, job)
            for group in self._cache.values(WORKERGROUPS):
                if (group.get("spec") or {}).get("pool") == name:
                    self._put_group(group)
        self._changed()

    def _group(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self._put_group(new)
        elif old is not None:
            self._ledger.drop_job(key_of(old))
        self._changed()

    def _put_group(self, group: Object) -> None:
        """Take in a worker group: to the ledger it is a gang like any other, of the groups' namespace."""
        pool = self._cache.get(GPUPOOLS, str((group.get("spec") or {}).get("pool")))
        gpus, gang = views.group(group, views.gang_timeout(pool))
        self._ledger.put_job(key_of(group), gpus, gang)

    def _job(self, old: Object | None, new: Object | None) -> None:
        if (new or old or {})["metadata"]["namespace"] == GROUPS_NAMESPACE:
            return  # a gang has one identity: there the name is a worker group's
        if new is not None:
            # Evals change often, and are nothing to the ledger.
            if (old is None or _judged(old) != _judged(new)) and self._put_job(new):
                self._changed()
        elif old is not None:
            self._ledger.drop_job(key_of(old))
            self._changed()

    def _put_job(self, job: Object) -> bool:
        """Return whether anything that the ledger knows of it changed."""
        pool = self._cache.get(GPUPOOLS, str((job.get("spec") or {}).get("pool")))
        key, (size, gang) = key_of(job), views.job(job, views.gang_timeout(pool))
        actors = () if size is None else tuple(map(self._named, views.actors(job)))
        moved = self._ledger.actors(key) != actors
        if moved:
            self._ledger.put_actors(key, actors)
        if self._ledger.gang(key) == gang and self._ledger.size(key) == size:
            return moved
        if size is None:
            self._ledger.drop_job(key)
        else:
            self._ledger.put_job(key, size, gang)
        return True

    def _named(self, actor: Actor) -> Actor:
        """Return the entry with the name of whom it was recalled for: the status has the uid of a job of
        another namespace, a pool's reserved GPUs have its name."""
        if not actor.for_whom.startswith(UID):
            return actor
        uid = actor.for_whom.removeprefix(UID)
        key = next((key_of(job) for job in self._cache.values(RLHFJOBS) if job["metadata"]["uid"] == uid), "")
        return replace(actor, for_whom=key)


def _judged(job: Object) -> tuple[Any, ...]:
    """Return the parts of an RLHFJob that the ledger goes by, as they are."""
    status = job.get("status") or {}
    return job.get("spec"), status.get("admission"), status.get("finished"), status.get("actors")
