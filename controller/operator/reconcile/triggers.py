"""Triggers of pool passes, by what has changed; a job's own changes come from `ClusterState`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, NODES, PODS, Resource
from controller.kube.trim import Object
from controller.operator.process.workqueue import WorkQueue
from controller.operator.reconcile.planned_job import PlannedJob
from controller.operator.state.nodes import place
from controller.operator.state.ownership import pool_of
from controller.policy.types import JobKey

# Key of the pass that only sees to the nodes' taints, for when there is no pool left to have one.
NO_POOL = ""

# s within which a pool looks at what its jobs' new evals tell of the noise: with many jobs they always do.
LEARN_DELAY = 30.0


class _Shown(NamedTuple):
    """A job as its pool last saw it (`JobView.wakes_pool`, `JobView.informs_pool`)."""

    pool: str = ""
    wakes: tuple[object, ...] | None = None
    informs: tuple[object, ...] | None = None
    unserved: bool = False  # nobody schedules its pods


class Triggers:
    """Has pools looked at: soon, so that a burst of changes makes one pass.

    Args:
        cache: its nodes and pods are followed.
        owner_of: the pool of a node; None: it is in none.
        pools: where pools wait for their passes.
        delay: s, within which a pool is looked at.
    """

    def __init__(
        self, cache: Cache, owner_of: Callable[[str], str | None], pools: WorkQueue, delay: float
    ) -> None:
        self._cache, self._owner_of, self._pools, self._delay = cache, owner_of, pools, delay
        self._shown: dict[JobKey, _Shown] = {}
        cache.subscribe(self._on_change)

    def pool_changed(self, name: str) -> None:
        """Have a pool looked at."""
        self._pools.sooner(name, self._delay)

    def gpus_moved(self, node: str) -> None:
        """Have the pool of a node looked at: GPUs of it came, went, or changed hands."""
        if (pool := self._owner_of(node)) is not None:
            self.pool_changed(pool)

    def job_planned(self, planned_job: PlannedJob) -> None:
        """Have a job's pool looked at if the job stands otherwise before it than it did.

        Service attained and estimates grow all the time: policies that go by them ask to be woken.
        """
        key, pool, view = planned_job.key, pool_of(planned_job.obj), planned_job.view
        known = self._shown.get(key, _Shown())
        if view is None:
            self._shown.pop(key, None)
            now = _Shown(pool)
        else:
            unserved = planned_job.record.pod_trouble is not None
            now = self._shown[key] = _Shown(pool, view.wakes_pool(), view.informs_pool(), unserved)
            if now[2:] != known[2:]:
                self._pools.sooner(pool, LEARN_DELAY)
        if now[:2] != known[:2]:
            self._job_changed(known.pool, pool)

    def job_deleted(self, key: JobKey) -> None:
        """Have a job's pool looked at, if it knew the job."""
        self._job_changed(self._shown.pop(key, _Shown()).pool)

    def _job_changed(self, *pools: str) -> None:
        for name in {*pools} - {""}:
            self.pool_changed(name)

    def _on_change(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Look at nodes that changed, and at pods that have taken or left a node.

        The pool would not always hear of these from a job: pods of a deleted job hold their GPUs until they
        are gone.
        """
        if resource == NODES:
            for name in [pool["metadata"]["name"] for pool in self._cache.values(GPUPOOLS)] or [NO_POOL]:
                self.pool_changed(name)
        elif resource == PODS:
            places = {place(obj) for obj in (old, new)}
            for node in (places - {None}) if len(places) > 1 else ():
                if node is not None:
                    self.gpus_moved(node)
