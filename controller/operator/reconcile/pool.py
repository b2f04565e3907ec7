"""One pass over one pool: taints, snapshot, plan, and its outcomes written into the jobs' statuses.

Pool passes are made one at a time. Holds are written before the grants they announce, grants before
admissions, which are made side by side. What of one job cannot be planned or written is that job's: the
others get what they are due, and the next pass starts from what is.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import structlog

from controller import delegates, log, workloads
from controller.api import convert, newer
from controller.api import fleet as fleet_status
from controller.api.gpupool import GPUPool
from controller.kube import nodes as kube_nodes
from controller.kube.cache import Cache, key_of
from controller.kube.errors import ApiError, Refused
from controller.kube.events import Recorder
from controller.kube.resources import GPUPOOLS, NODES, PODS, RLHFJOBS
from controller.kube.versioned import Stale
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import Locks, WorkQueue
from controller.operator.reconcile import estimates, fleet, pool_status
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.planned_job import PlannedJob
from controller.operator.reconcile.put_aside import PutAside
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.state import nodes
from controller.operator.state.cluster import ClusterState
from controller.operator.state.devices import Devices
from controller.operator.state.taints import Taints
from controller.operator.state.unmanaged_pods import ForeignPods
from controller.policy.job import JobRecord
from controller.policy.pool import Verb, Write, after, newest_handovers, outcomes, reservations
from controller.policy.types import Grant, HeldBack, JobKey, JobView, NodeView, PoolPlan, PoolSnapshot

_logger = log.get("evalstop.pool")

WRITES_AT_ONCE = 16
RESTS, REST_MOST = 3.0, 1.0  # after a plan: times as long as it took, and at most (s)
MESSAGE_REFRESH = 60.0  # s between writes of a waiting reason of which only the numbers changed


class PoolReconciler:
    """Reconciles pools. A job whose record is changed here is planned again because the cache reports it."""

    def __init__(
        self,
        cache: Cache,
        cluster: ClusterState,
        plans: PlanCache,
        writer: StatusWriter,
        recorder: Recorder,
        taints: Taints,
        foreign: ForeignPods,
        metrics: Metrics,
        queue: WorkQueue,
        locks: Locks,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._cache, self._cluster, self._plans = cache, cluster, plans
        self._writer, self._recorder = writer, recorder
        self._taints, self._foreign, self._metrics = taints, foreign, metrics
        self._queue, self._locks, self._clock, self._now = queue, locks, clock, monotonic
        self._overdue: float | None = None  # s, when the next run has run for longer than it was to take
        self._took = 0.0  # s, the last plan: what of a pass nothing else of the process can go on beside
        self.devices: Devices | None = None  # GPUs given out by claims; None: there are none
        self._told: dict[JobKey, float] = {}  # when a waiting job's reason was last written
        self._put_aside: defaultdict[str, PutAside] = defaultdict(PutAside)  # by pool
        self._failing: dict[str, tuple[float, str]] = {}  # since when (s) no pass of a pool succeeds, and why

    async def run(self, name: str) -> float:
        """Make one pass; never raises, a pass that failed is made again after its back-off.

        Returns: how long (s) the pool need not be looked at again. A pool of thousands of jobs takes half a
        second to plan, and while they start or end something of it changes all the time.
        """
        started, self._took = time.perf_counter(), 0.0
        with structlog.contextvars.bound_contextvars(pool=name):
            problem = ""
            try:
                result = await self._pass(name)
                self._queue.forget(name)
            except Partly as error:
                result = "partly"
                self._put_off(name, error)
            except Stale as error:
                result = "stale"
                _logger.debug("made again: what was read has changed", error=str(error))
                self._queue.later(name, 0.05)
            except ApiError as error:
                result, problem = "unavailable", str(error)
                delay = self._queue.retry(name)
                _logger.warning("pass failed at an API call", error=str(error), again_in=delay)
            except convert.StatusError as error:
                result, problem = "failed", str(error)
                delay = self._queue.retry(name)
                said = "status is unreadable; the pool is left alone"
                _logger.error(said, error=str(error), again_in=delay)
            except Exception as error:
                result, problem = "failed", type(error).__name__
                delay = self._queue.retry(name)
                _logger.exception("pass failed in a way it should not", again_in=delay)
        if result == "stale":
            pass  # things move: no failure, and no success
        elif problem:
            since, _ = self._failing.get(name, (self._now(), ""))
            self._failing[name] = since, problem
        else:
            self._failing.pop(name, None)
        self._metrics.passes.labels("pool", result).inc()
        self._metrics.pass_seconds.labels("pool").observe(time.perf_counter() - started)
        return min(REST_MOST, RESTS * self._took)

    def failing(self) -> list[tuple[str, float, str]]:
        """Pools of which no pass has succeeded: name, for how long (s), and why the last one did not."""
        now = self._now()
        return [(name, now - since, why) for name, (since, why) in sorted(self._failing.items())]

    def _put_off(self, name: str, error: Partly) -> None:
        """Make the pass again for those jobs whose writes failed."""
        if all(isinstance(failure, Stale) for failure in error.failures.values()):
            _logger.debug("made again for some: what was read has changed", jobs=sorted(error.failures))
            self._queue.later(name, 0.05)
            return
        delay = self._queue.retry(name)
        for key, failure in error.failures.items():
            _logger.warning("a write failed; the pool went on", job=key, error=str(failure), again_in=delay)

    async def _pass(self, name: str) -> str:
        await self._taints.ensure()
        obj, pool = self._cache.get(GPUPOOLS, name), self._cluster.pool(name)
        if obj is None or pool is None:
            self._put_aside.pop(name, None)
            return "gone"
        if not isinstance(pool, GPUPool):
            reason, message = pool
            await self._writer.pool(obj, pool_status.unusable(obj, reason, message, self._clock()))
            return "invalid"
        newer.refuse_newer_pool(obj.get("status"))
        began = time.perf_counter()
        planned_jobs = self._planned_jobs(name)
        now = self._clock()
        views = self._views(pool, planned_jobs, now)
        aside = self._put_aside[name]
        aside.leave_out(views, planned_jobs)
        while True:
            around = self._surroundings(pool, planned_jobs, views)
            snapshot = self._snapshot(pool, obj, planned_jobs, views, around, now)
            try:
                plan = self._plans.plan_pool(snapshot, now)
                break
            except Exception as error:
                key = aside.find(snapshot, planned_jobs, now)
                if key is None:
                    raise
                if aside.is_news(key):
                    await self._tell_put_aside(key, error)
                del views[key]
        status = self._status(obj, snapshot, plan, around, planned_jobs, now)
        self._took = time.perf_counter() - began
        wrote = await self._writer.pool(obj, status)
        for event in fleet.events(snapshot, plan, now):
            await self._recorder.post(obj, event.reason, event.message, warning=event.warning)
        changed = await self._carry_out(plan, planned_jobs, now)
        if changed:
            self._queue.add(name)  # count what was just written
        stuck, asks = pool_status.stuck_at(around.guests, now), fleet.ask_again_at(plan, now)
        again = (plan.wake_at, stuck, asks, self._overdue if plan.waiting else None)
        wakes = [at for at in again if at is not None]
        self._queue.later(name, max(0.0, min(wakes) - now) if wakes else None)
        return "wrote" if wrote or changed else "quiet"

    async def _tell_put_aside(self, key: JobKey, error: Exception) -> None:
        said = "a job cannot be planned beside others; its pool goes on without it"
        _logger.error(said, job=key, exc_info=error)
        if (obj := self._cache.get(RLHFJOBS, key)) is not None:
            message = (
                f"the pool's plan fails with this job in it ({type(error).__name__}), so it is planned "
                "without: it keeps what it holds, and nothing is decided for it until it changes; please "
                "report this"
            )
            await self._recorder.post(obj, "PutAside", message, warning=True)

    # -- what is ---------------------------------------------------------------------------------------

    def _planned_jobs(self, name: str) -> dict[JobKey, PlannedJob]:
        found = {key: self._plans.cached_plan(key) for key in self._cluster.members(name)}
        return {key: planned_job for key, planned_job in found.items() if planned_job is not None}

    def _views(
        self, pool: GPUPool, planned_jobs: Mapping[JobKey, PlannedJob], now: float
    ) -> dict[JobKey, JobView]:
        """Return how the jobs stand that compete for GPUs or hold some."""
        found = {key: view for key, t in planned_jobs.items() if (view := self._view(t, now)) is not None}
        self._overdue = None
        policy = convert.policy(pool).name
        if policy not in estimates.TIMED:
            return found
        past = estimates.history(planned_jobs.values(), now)
        timed = {
            key: estimates.timed(view, planned_jobs[key], past, policy, now) for key, view in found.items()
        }
        self._overdue = min((at for _, at in timed.values() if at is not None), default=None)
        return {key: view for key, (view, _) in timed.items()}

    def _view(self, planned_job: PlannedJob, now: float) -> JobView | None:
        try:
            return planned_job.view_at(now)
        except Exception:
            _logger.exception("a job's view fails; its pool goes on without it", job=planned_job.key)
            return None

    def _surroundings(
        self, pool: GPUPool, planned_jobs: Mapping[JobKey, PlannedJob], views: Iterable[JobKey]
    ) -> pool_status.Surroundings:
        name = pool.metadata.name
        known = {pod for key in views for pod in planned_jobs[key].pods}
        # Our own labelled pods are watched, all others looked at now and then; a uid counts once.
        pods = {p["metadata"]["uid"]: p for p in self._foreign.pods() if key_of(p) not in known}
        pods.update((p["metadata"]["uid"], p) for p in self._cache.values(PODS, besides=known))
        mine = self._taints.nodes_of(name)
        contested = {n: pools for n, pools in self._taints.contested().items() if name in pools}
        guests = nodes.guests(pods.values(), mine)
        if self.devices is not None:
            guests += self.devices.guests(mine, known)
        named = (namespace for quota in pool.spec.quotas for namespace in quota.namespaces)
        shut_out = sorted(namespace for namespace in named if not pool.allows(namespace))
        return pool_status.Surroundings(contested, guests, self._queue_problem(pool), shut_out)

    def _snapshot(
        self,
        pool: GPUPool,
        obj: Mapping[str, Any],
        planned_jobs: Mapping[JobKey, PlannedJob],
        views: Mapping[JobKey, JobView],
        around: pool_status.Surroundings,
        now: float,
    ) -> PoolSnapshot:
        mine = self._taints.nodes_of(pool.metadata.name)
        there = [node for node in self._cache.values(NODES) if node["metadata"]["name"] in mine]
        tolerated = []
        if any(kube_nodes.closed_by(node) for node in there):
            children = (planned_jobs[key].child for key in views)
            tolerated = [
                t for child in children if child is not None for t in workloads.tolerations(child.open())
            ]
        used = nodes.gpus_by_node(around.guests)
        leaving = nodes.gpus_by_node(pool_status.leaving(around.guests, now))
        usable: list[NodeView] = []
        closed: list[NodeView] = []
        for node in sorted(there, key=lambda n: str(n["metadata"]["name"])):
            name = str(node["metadata"]["name"])
            gpus = kube_nodes.node_gpus(node)
            if not gpus and self.devices is not None:
                gpus = self.devices.capacity(name)
            view = NodeView(name, gpus, used.get(name, 0), leaving.get(name, 0), nodes.rack(node))
            (usable if kube_nodes.usable(node, tolerated) else closed).append(view)
        return PoolSnapshot(
            pool=pool.metadata.name,
            policy=convert.policy(pool),
            nodes=tuple(usable),
            closed=tuple(closed),
            jobs=tuple(views.values()),
            holds=convert.holds(obj.get("status")),
            hold_seconds=float(pool.spec.hold_seconds),
            delegate=pool.spec.delegate,
            offer_seconds=float(pool.spec.gang_timeout_seconds),
            limits=convert.stop_limits(pool),
            stopped=fleet.past_stops(
                ((key, t.written) for key, t in planned_jobs.items()),
                fleet_status.granted(obj.get("status")),
                now,
            ),
            ended=fleet.ended_today(planned_jobs.values(), now),
            breaker_since=fleet_status.breaker_since(obj.get("status")),
            noise=fleet_status.noise(obj.get("status")),
            falls=fleet_status.shared_falls(obj.get("status")),
            quotas=convert.quotas(pool),
        )

    def _queue_problem(self, pool: GPUPool) -> tuple[str, str] | None:
        """Return whether the external queue that the pool delegates to is there; None: it delegates to
        none."""
        asked = delegates.queue_of_pool(pool)
        if asked is None:
            return None
        return asked.pool_problem(pool, self._cluster.queues) or pool_status.QUEUE_FOUND

    def _status(
        self,
        obj: Mapping[str, Any],
        snapshot: PoolSnapshot,
        plan: PoolPlan,
        around: pool_status.Surroundings,
        planned_jobs: Mapping[JobKey, PlannedJob],
        now: float,
    ) -> dict[str, Any]:
        # Of the records only what is written: a stop that is announced must be the very one carried out.
        stored = [(t.key, t.gpus, t.written) for t in planned_jobs.values()]
        stops = newest_handovers(convert.handovers(obj.get("status")), stored)
        return pool_status.planned(obj, reservations.current(snapshot, now), plan, around, stops, now)

    # -- what is to be -----------------------------------------------------------------------------------

    async def _carry_out(self, plan: PoolPlan, planned_jobs: Mapping[JobKey, PlannedJob], now: float) -> bool:
        """Write the plan's outcomes into the jobs' records. Returns whether GPUs changed hands.

        Raises:
            Partly: some jobs' records could not be written; all others were.
        """
        recent = self._now() - MESSAGE_REFRESH
        self._told = {key: at for key, at in self._told.items() if at > recent}
        failures: dict[JobKey, Exception] = {}
        changed = False
        writes = tuple(outcomes(plan, planned_jobs, now, self._told))
        for verb, some in groupby(writes, key=lambda write: write.verb):
            # A hundred gangs are often admitted at once.
            slots = asyncio.Semaphore(WRITES_AT_ONCE if verb is Verb.ADMISSION else 1)
            made = [self._make(write, planned_jobs, now, failures, slots) for write in some]
            changed |= any(await _all(made)) and verb.moves_gpus
        if failures:
            raise Partly(failures)
        return changed

    async def _make(
        self,
        write: Write,
        planned_jobs: Mapping[JobKey, PlannedJob],
        now: float,
        failures: dict[JobKey, Exception],
        slots: asyncio.Semaphore,
    ) -> bool:
        """Make one write. Returns whether anything was written.

        One that finds its job changed, or that the server refuses, keeps no other from being made: a plan's
        outcomes are of GPUs that are free already, whatever becomes of each. Whoever changes his job all the
        time, or has made it one that no status fits into, would else keep all that come after him from
        theirs. A server that does not answer ends the pass.
        """
        async with slots:
            try:
                if write.verb is Verb.HANDOVER and write.what in failures:
                    return False  # who was to get the GPUs did not
                planned_job = self._to_write(write, planned_jobs)
                record = after(write, planned_job.plan.record, planned_job.desired, now)
                wrote = await self._write(planned_job, record, now, write.verb)
            except (Stale, Refused) as error:
                failures.setdefault(write.key, error)
                return False
        if isinstance(write.what, HeldBack):
            self._metrics.held_back.labels(write.what.reason).inc()
        elif write.verb is Verb.WAITING:
            self._told[write.key] = self._now()
        return wrote

    def _to_write(self, write: Write, planned_jobs: Mapping[JobKey, PlannedJob]) -> PlannedJob:
        """Return the plan of the job whose record is written.

        Raises:
            Stale: a job that is to be stopped does not ask for that any more, or by other numbers: evals may
                have come in since its pool was planned, even those of an attempt that resumed before the
                fall. The pool is planned anew.
        """
        if write.verb not in (Verb.GRANT, Verb.HANDOVER):
            return planned_jobs[write.key]
        newest = self._plans.cached_plan(write.key)
        asks = newest.plan.proposal if newest is not None else None
        if newest is None or (isinstance(write.what, Grant) and asks != write.what.proposal):
            raise Stale(f"{write.key} was judged anew since it asked to be stopped")
        return newest

    async def _write(self, planned_job: PlannedJob, record: JobRecord, now: float, verb: str) -> bool:
        async with self._locks.hold(planned_job.key):
            current = self._cache.find(RLHFJOBS, planned_job.key)
            if current is None or str(current.version) != planned_job.version:
                raise Stale(f"{planned_job.key} changed since the snapshot")
            wrote = await self._writer.record(planned_job.loaded, record, now)
        if wrote:
            self._metrics.outcomes.labels(verb).inc()
            _logger.info(verb, job=planned_job.key)
        return wrote


class Partly(Exception):
    """Some jobs' records could not be written, for the reasons in ``failures``; those of all others were."""

    def __init__(self, failures: Mapping[JobKey, Exception]) -> None:
        super().__init__(", ".join(sorted(failures)))
        self.failures = failures


async def _all(writes: Iterable[Awaitable[bool]]) -> list[bool]:
    """Make independent writes; what went wrong with one of them is raised once all are through."""
    results = await asyncio.gather(*writes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result is True for result in results]
