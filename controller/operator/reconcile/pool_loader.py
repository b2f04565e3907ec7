"""Input of a pass over a pool: its jobs, its nodes and the pods of others, as they are now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from controller import delegates, log, workloads
from controller.api import convert, sharing_terms
from controller.api import fleet as fleet_status
from controller.api.gpupool import GPUPool
from controller.api.workergroup import group_record
from controller.frozen import dataclass
from controller.kube import nodes as kube_nodes
from controller.kube.cache import Cache, key_of
from controller.kube.resources import GPUPOOLS, NODES, PODS
from controller.operator.reconcile import estimates, fleet, pool_status
from controller.operator.reconcile.fleet import PoolCondition
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.planned_job import PlannedJob
from controller.operator.state import nodes
from controller.operator.state.cluster import ClusterState
from controller.operator.state.devices import Devices
from controller.operator.state.groups import Groups
from controller.operator.state.taints import Taints
from controller.operator.state.unmanaged_pods import UnmanagedPods
from controller.policy.group_types import GroupView, PoolSharing
from controller.policy.job import residency, waits_outside
from controller.policy.pool import closed, group_view
from controller.policy.types import JobKey, JobView, NodeView, PoolSnapshot

_logger = log.get("evalstop.pool")

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedPool:
    """A pool as a pass sees it at ``now`` (s).

    Attributes:
        obj: the GPUPool.
        jobs: all of its jobs that can be planned.
        views: how those stand that compete for GPUs or hold some.
        overdue: when (s) the next run has run for longer than it was to take; None: its policy does not ask.
    """

    pool: GPUPool
    obj: Object
    now: float
    jobs: Mapping[JobKey, PlannedJob]
    views: Mapping[JobKey, JobView]
    overdue: float | None

    def without(self, keys: Collection[JobKey]) -> LoadedPool:
        """Return the pool without these jobs' views."""
        views = {key: view for key, view in self.views.items() if key not in keys}
        return replace(self, views=views) if keys else self


class PoolLoader:
    """Loads pools, and makes of each the planner's input. Loading is pure reading."""

    def __init__(
        self,
        cache: Cache,
        cluster: ClusterState,
        plans: PlanCache,
        taints: Taints,
        unmanaged: UnmanagedPods,
        devices: Devices | None,
        groups: Groups,
        clock: Callable[[], float],
    ) -> None:
        self._cache, self._cluster, self._plans, self._clock = cache, cluster, plans, clock
        self._taints, self._unmanaged, self._devices = taints, unmanaged, devices
        self._groups = groups

    def load(self, pool: GPUPool, obj: Object) -> LoadedPool:
        """Return a pool with all its jobs, as they stand now."""
        found = {key: self._plans.cached_plan(key) for key in self._cluster.members(pool.metadata.name)}
        jobs = {key: planned_job for key, planned_job in found.items() if planned_job is not None}
        now = self._clock()
        views = {key: view for key, job in jobs.items() if (view := _view(job, now)) is not None}
        policy = convert.policy(pool).name
        if policy not in estimates.TIMED:
            return LoadedPool(pool, obj, now, jobs, views, None)
        past = estimates.history(jobs.values(), now)
        timed = {key: estimates.timed(view, jobs[key], past, policy, now) for key, view in views.items()}
        overdue = min((at for _, at in timed.values() if at is not None), default=None)
        return LoadedPool(pool, obj, now, jobs, {key: view for key, (view, _) in timed.items()}, overdue)

    def surroundings(self, loaded: LoadedPool) -> pool_status.Surroundings:
        """Return what concerns a pool besides the jobs of which it has views."""
        pool = loaded.pool
        name = pool.metadata.name
        known = {pod for key in loaded.views for pod in loaded.jobs[key].pods}
        known.update(key_of(pod) for obj in self._groups.of_pool(name) for pod in self._groups.pods(obj))
        # Our own labelled pods are watched, all others looked at now and then; a uid counts once.
        pods = {p["metadata"]["uid"]: p for p in self._unmanaged.pods() if key_of(p) not in known}
        pods.update((p["metadata"]["uid"], p) for p in self._cache.values(PODS, besides=known))
        claims = self._taints.claims()
        mine = frozenset(node for node, pools in claims.items() if pools[0] == name)
        contested = {n: pools for n, pools in claims.items() if len(pools) > 1 and name in pools}
        unmanaged = nodes.with_gpus_on(pods.values(), mine)
        if self._devices is not None:
            unmanaged += self._devices.held_on(mine, known)
        named = (namespace for quota in pool.spec.quotas for namespace in quota.namespaces)
        shut_out = sorted(namespace for namespace in named if not pool.allows(namespace))
        unserved = sum(1 for job in loaded.jobs.values() if job.record.pod_trouble is not None)
        outside = sum(
            key not in loaded.views and waits_outside(job.desired, job.record)
            for key, job in loaded.jobs.items()
        )
        queue = self._queue_ready(pool)
        return pool_status.Surroundings(contested, unmanaged, queue, shut_out, mine, unserved, outside)

    def snapshot(self, loaded: LoadedPool, around: pool_status.Surroundings) -> PoolSnapshot:
        """Return the input of the pool's plan.

        Raises:
            StatusError: the GPUPool's status does not read.
        """
        pool, status = loaded.pool, loaded.obj.get("status")
        there = [node for node in self._cache.values(NODES) if node["metadata"]["name"] in around.nodes]
        tolerated = []
        if any(kube_nodes.closed_by(node) for node in there):
            children = (loaded.jobs[key].child for key in loaded.views)
            tolerated = [
                t for child in children if child is not None for t in workloads.tolerations(child.open())
            ]
        used = nodes.gpus_by_node(around.unmanaged)
        leaving = nodes.gpus_by_node(pool_status.leaving(around.unmanaged, loaded.now))
        usable: list[NodeView] = []
        closed: list[NodeView] = []
        for node in sorted(there, key=lambda n: str(n["metadata"]["name"])):
            name = str(node["metadata"]["name"])
            gpus = kube_nodes.node_gpus(node)
            if not gpus and self._devices is not None:
                gpus = self._devices.capacity(name)
            view = NodeView(name, gpus, used.get(name, 0), leaving.get(name, 0), nodes.rack(node))
            (usable if kube_nodes.usable(node, tolerated) else closed).append(view)
        stops = fleet_status.stops(status)
        recalled = convert.recalled(status)
        lends = recalled or any(view.rollout is not None for view in loaded.views.values())
        return PoolSnapshot(
            pool=pool.metadata.name,
            policy=convert.policy(pool),
            nodes=tuple(usable),
            closed=tuple(closed),
            jobs=tuple(loaded.views.values()),
            reservations=convert.reservations(status),
            reservation_seconds=float(pool.spec.reservation_seconds),
            delegate=pool.spec.delegate,
            offer_seconds=float(pool.spec.gang_timeout_seconds),
            limits=convert.stop_limits(pool),
            stopped=fleet.past_stops(
                ((key, t.written) for key, t in loaded.jobs.items()),
                stops.granted,
                loaded.now,
            ),
            ended=fleet.ended_today(loaded.jobs.values(), loaded.now),
            breaker_since=stops.breaker_since,
            noise=fleet_status.noise(status),
            falls=fleet_status.shared_falls(status),
            quotas=convert.quotas(pool),
            lending=replace(convert.lending(pool), reserved=recalled) if lends else None,
            sharing=self._sharing(loaded),
        )

    def _sharing(self, loaded: LoadedPool) -> PoolSharing | None:
        """Return a pool's terms of sharing, its groups, and what was measured; None: it shares nothing."""
        name, status = loaded.pool.metadata.name, loaded.obj.get("status")
        objects = self._groups.of_pool(name)
        if loaded.pool.spec.sharing is None and not objects:
            return None
        residents: dict[str, list[str]] = {}
        for key, view in loaded.views.items():
            if view.sharing is not None and view.sharing.group:
                resident = residency.name_of(loaded.jobs[key].desired.uid, view.sharing.number)
                residents.setdefault(view.sharing.group, []).append(resident)
        views = tuple(self._group_view(obj, residents) for obj in objects)
        numbers = [sharing_terms.next_group(pool.get("status")) for pool in self._cache.values(GPUPOOLS)]
        return sharing_terms.sharing(
            loaded.pool,
            views,
            self._groups.profiles(sharing_terms.profiles(status), [view.name for view in views]),
            max(numbers, default=1),
        )

    def _group_view(self, obj: Object, residents: Mapping[str, list[str]]) -> GroupView:
        name, spec = str(obj["metadata"]["name"]), obj["spec"]
        bound = tuple(
            sorted(
                (str(pod["spec"]["nodeName"]), workloads.gpus(pod["spec"]))
                for pod in self._groups.pods(obj)
                if pod["spec"].get("nodeName")
            )
        )
        record = group_record(obj)
        if obj["metadata"].get("deletionTimestamp"):
            record = closed(record, "Deleted", "it was deleted")
        return group_view(
            name,
            str(spec["family"]),
            int(spec["replicas"]),
            int(spec["gpusPerReplica"]),
            record,
            bound,
            residents.get(name, ()),
            self._groups.unanswered(name, record),
            outdated=self._groups.outdated(obj, record, self._cluster.pool(str(spec["pool"]))),
            failing=bool(self._groups.failing(name, record.number)),
        )

    def _queue_ready(self, pool: GPUPool) -> PoolCondition | None:
        """Return condition QueueReady of a pool; None: it delegates to no external queue."""
        asked = delegates.queue_of_pool(pool)
        if asked is None:
            return None
        return pool_status.queue_ready(asked.pool_problem(pool, self._cluster.queues))


def _view(planned_job: PlannedJob, now: float) -> JobView | None:
    try:
        return planned_job.view_at(now)
    except Exception:
        _logger.exception("a job's view fails; its pool goes on without it", job=planned_job.key)
        return None
