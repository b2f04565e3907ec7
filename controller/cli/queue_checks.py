"""Check of the queue outside in which a job is to wait, by what its pool's delegate asks of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from controller import delegates
from controller.api.gpupool import GPUPool
from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, note, ok, unknown, wrong
from controller.kube.cache import key_of
from controller.kube.errors import ApiError
from controller.kube.resources import WORKLOADS, Resource
from controller.policy.job import Desired, cure_of
from controller.policy.wording import some

Object = Mapping[str, Any]

_PASSING = frozenset({"ClusterQueueInactive", "ClusterQueueStopped", "QueueStopped"})  # it waits until then


class Looked:
    """An external queue's objects as the caller may read them (`delegates.Known`)."""

    def __init__(self) -> None:
        self._found: dict[Resource, dict[str, Object]] = {}
        self._absent: set[Resource] = set()
        self.refused: list[str] = []  # kinds that the caller may not list

    async def look(self, api: CallerApi, resource: Resource, namespace: str) -> None:
        """List a kind; of those in namespaces, the ones of this.

        Raises:
            ApiError: the API server does not answer.
        """
        try:
            listed, _ = await api.list(resource, namespace if resource.namespaced else None)
        except ApiError as error:
            if error.status == 404:
                self._absent.add(resource)
            elif error.status == 403:
                self.refused.append(f"{resource.kind}s")
            else:
                raise
            return
        self._found[resource] = {key_of(obj): obj for obj in listed}

    def get(self, resource: Resource, key: str) -> Object | None:
        return self._found.get(resource, {}).get(key)

    def values(self, resource: Resource) -> Iterable[Object]:
        return self._found.get(resource, {}).values()

    def of_job(self, resource: Resource, job: str) -> Iterable[Object]:
        return ()

    def listed(self, resource: Resource) -> bool:
        return resource in self._found

    def absent(self, resource: Resource) -> bool:
        return resource in self._absent


async def queue(api: CallerApi, pool: GPUPool, asked: Desired, own: str = "") -> AsyncIterator[Finding]:
    """Yield whether the queue that a job is to wait in could ever give it its turn; nothing where the pool
    delegates to none.

    Args:
        api: of the caller.
        pool: the job's.
        asked: of the job.
        own: the queue that its workload names, where that is somebody's own Job; "": the pool's.
    """
    outside, name = delegates.queue_of_pool(pool), own or asked.queue
    if outside is None or not name:
        return
    known, (namespace, _, job) = Looked(), asked.key.partition("/")
    for resource in outside.resources:
        if resource != WORKLOADS:  # nothing is asked of the jobs that wait there
            await known.look(api, resource, namespace)
    gpus = asked.replicas * asked.gpus_per_replica
    if (found := outside.queue_problem(namespace, name, gpus, pool, known)) is not None:
        cure = cure_of(found.reason).filled(job, namespace, pool.metadata.name, "", found.message)
        yield (note if found.reason in _PASSING else wrong)("queue", found.message, cure)
    elif known.refused:
        which = f"{some(known.refused, 4)}, which say whether queue {name!r} can give it its turn"
        yield unknown("queue", f"you may not list {which}")
    else:
        yield ok("queue", f"queue {name!r} of namespace {namespace} can give it its turn")
