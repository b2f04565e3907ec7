"""External queues: copies of their objects, kept up to date, and what is written to them for all jobs.

Nothing here is waited for. A cluster without Kueue has none of its kinds: that is asked again now and then,
so that Kueue is found when it comes. Until a kind has been read, `Known.listed` says so, and nothing is
concluded from what is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from controller import delegates, log
from controller.api.gpupool import GPUPool
from controller.kube import wire
from controller.kube.cache import Cache, key_of
from controller.kube.client import Api
from controller.kube.errors import ApiError, Conflict, NotFound, Unavailable
from controller.kube.namespaced_watch import Follow, follow
from controller.kube.resources import ADMISSION_CHECKS, GPUPOOLS, LOCAL_QUEUES, WORKLOADS, Resource
from controller.operator.state.cluster import ClusterState

Object = Mapping[str, Any]

_logger = log.get("evalstop.external_queues")

KINDS = tuple(kind for queue in delegates.EXTERNAL_QUEUES.values() for kind in queue.resources)
_RESOURCES = {kind.kind: kind for kind in KINDS}
_NOTHING = (ADMISSION_CHECKS, "")  # what failed was none of what had changed
AGAIN = 5.0  # s after a sync that failed
SOON = 0.2  # s in which changes gather before it


class ExternalQueues:
    """Objects that the delegates' adapters can read (`delegates.Known`), and the watches on them.

    AdmissionChecks are watched always, because one that nobody answers is reported; the other kinds from the
    moment that a pool delegates.
    """

    def __init__(
        self, api: Api, cluster: ClusterState, clock: Callable[[], float], namespaces: Sequence[str] = ()
    ) -> None:
        self._api, self._cluster, self._clock = api, cluster, clock
        self.cache = Cache(KINDS)
        self.watches = {
            kind: follow(
                api, kind, self._event, self._listed, namespaces, keep=self.cache.stored, optional=True
            )
            for kind in KINDS
        }
        for kind in KINDS:
            if namespaces and kind.namespaced:
                self.cache.stores[kind].spread(namespaces)
        self._wanted = asyncio.Event()
        self._due = asyncio.Event()
        self._due.set()
        self._fresh: dict[tuple[Resource, str], None] = {}  # objects that the next sync looks at
        self.cache.subscribe(self._changed)
        cluster.cache.subscribe(self._pool_changed)

    # -- what adapters are shown ---------------------------------------------------------------------------

    def get(self, resource: Resource, key: str) -> Object | None:
        found = self.cache.get(resource, key)
        return None if found is None or wire.problem(found) else found

    def values(self, resource: Resource) -> Iterable[Object]:
        return (obj for obj in self.cache.values(resource) if not wire.problem(obj))

    def of_job(self, resource: Resource, job: str) -> Iterable[Object]:
        found = (stored.open() for stored in self.cache.of_job(resource, job))
        return [obj for obj in found if not wire.problem(obj)]

    def listed(self, resource: Resource) -> bool:
        return self.watches[resource].listed and not self.absent(resource)

    def absent(self, resource: Resource) -> bool:
        return isinstance(self.watches[resource].problem, NotFound)

    # -- the watches ---------------------------------------------------------------------------------------

    def _pool_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if resource == GPUPOOLS:
            self._look_at_pools()

    def _look_at_pools(self) -> None:
        if any(delegates.queue_of_pool(pool) for pool in self._cluster.pools()):
            self._wanted.set()
        self._due.set()

    async def run(self) -> None:
        """Follow the kinds and sync, until cancelled."""
        self._look_at_pools()
        async with asyncio.TaskGroup() as group:
            for kind, watch in self.watches.items():
                group.create_task(self._follow(kind, watch))
            group.create_task(self._keep_up())
            group.create_task(self._look_for_changes_of_presence())

    async def _follow(self, kind: Resource, watch: Follow) -> None:
        if kind != ADMISSION_CHECKS:
            await self._wanted.wait()
        await watch.run()

    def _event(self, resource: Resource, obj: Object, deleted: bool) -> None:
        if deleted:
            self.cache.drop(resource, obj)
        else:
            self.cache.put(resource, obj)

    def _listed(self, resource: Resource, objects: Iterable[Any], version: str, namespace: str = "") -> None:
        first = not self.watches[resource].listed
        self.cache.replace(resource, objects, version, namespace)
        if first:
            # Once this call is over the kind counts as read: who waited for that looks again.
            asyncio.get_running_loop().call_soon(self._everybody)

    async def _look_for_changes_of_presence(self) -> None:
        """Plan all jobs again whenever a kind begins or ceases to be served: that makes no watch event."""
        before: dict[Resource, bool] = {}
        while True:
            now = {kind: self.absent(kind) for kind in self.watches}
            if now != before and before:
                self._everybody()
            before = now
            await asyncio.sleep(1.0)

    def _changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self._fresh[resource, key_of(new)] = None
        self._due.set()
        if resource == WORKLOADS:
            self._cluster.touch_job_of(old, new)
        elif resource == LOCAL_QUEUES:
            namespaces = {o["metadata"]["namespace"] for o in (old, new) if o is not None}
            self._everybody(namespaces)
        else:
            if resource == ADMISSION_CHECKS:  # whose they are may have changed for every Workload
                self._fresh.update(((WORKLOADS, key_of(w)), None) for w in self.cache.values(WORKLOADS))
            self._everybody()

    def _everybody(self, namespaces: Iterable[str] | None = None) -> None:
        """Queues concern every job that waits in one of them, and its pool."""
        self._due.set()
        wanted = None if namespaces is None else set(namespaces)
        for pool in self._cluster.pools():
            if delegates.queue_of_pool(pool) is None:
                continue
            for key in self._cluster.members(pool.metadata.name):
                if wanted is None or key.partition("/")[0] in wanted:
                    self._cluster.touch(key)
            self._cluster.pool_changed(pool.metadata.name)

    # -- what is to be written for everybody ---------------------------------------------------------------

    async def _keep_up(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(SOON)
            self._due.clear()
            pools: list[GPUPool] = self._cluster.pools()
            fresh, self._fresh = self._fresh, {}
            found = (self.get(resource, key) for resource, key in fresh)
            changed = [obj for obj in found if obj is not None]
            if again := await self._sync(pools, changed):
                self._fresh = {key: None for key in fresh if key in again} | self._fresh
                await asyncio.sleep(AGAIN)
                self._due.set()

    async def _sync(self, pools: list[GPUPool], changed: list[Object]) -> set[tuple[Resource, str]]:
        """Sync these. Returns those for which it is to be done again: one of them that fails, or
        is refused, is none of the others' business."""
        try:
            for queue in delegates.EXTERNAL_QUEUES.values():
                for write in queue.sync(pools, changed, self, self._clock()):
                    await self._write(write)
        except Unavailable as error:
            _logger.warning("an external queue could not be written to", error=str(error), again_in=AGAIN)
        except ApiError as error:
            if len(changed) > 1:
                return await self._sync_each(pools, changed)
            _logger.warning("an external queue refuses to be written to", error=str(error), again_in=AGAIN)
        except Exception:  # an object of theirs that nobody foresaw
            if len(changed) > 1:
                return await self._sync_each(pools, changed)
            _logger.exception("sync failed in a way it should not", again_in=AGAIN)
        else:
            return set()
        return {(_RESOURCES[obj["kind"]], key_of(obj)) for obj in changed} or {_NOTHING}

    async def _sync_each(self, pools: list[GPUPool], changed: list[Object]) -> set[tuple[Resource, str]]:
        return set().union(*[await self._sync(pools, [obj]) for obj in changed])

    async def _write(self, write: delegates.Write) -> None:
        metadata = write.obj["metadata"]
        try:
            answer = await self._api.merge_patch(
                write.resource,
                metadata["name"],
                write.patch,
                metadata.get("namespace"),
                subresource=write.subresource,
                uid=metadata["uid"],
                version=metadata["resourceVersion"],
            )
        except (NotFound, Conflict):
            return  # its next state comes by the watch, and is looked at then
        self.cache.put(write.resource, answer)
