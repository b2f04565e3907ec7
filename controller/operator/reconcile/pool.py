"""One pass over one pool: taints, snapshot, plan, and its outcomes written into the jobs' statuses.

Pool passes are made one at a time. Reservations are written before the grants they announce, grants before
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

from controller import log
from controller.api import convert, newer, sharing_terms
from controller.api.gpupool import GPUPool
from controller.api.workergroup import group_record, group_status, manifest
from controller.frozen import dataclass
from controller.kube.cache import Cache
from controller.kube.errors import AlreadyExists, NotFound, Refused
from controller.kube.events import Recorder
from controller.kube.resources import GPUPOOLS, RLHFJOBS, WORKERGROUPS
from controller.kube.versioned import Stale
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import Locks
from controller.operator.reconcile import fleet, pool_status
from controller.operator.reconcile.failing_jobs import PutAside
from controller.operator.reconcile.passes import Partly, Result
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.planned_job import FullPlan
from controller.operator.reconcile.pool_loader import LoadedPool, PoolLoader
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.state.cluster import ClusterState
from controller.operator.state.ownership import generation
from controller.operator.state.taints import Taints
from controller.policy.group_types import group_key
from controller.policy.pool import (
    Verb,
    Write,
    after,
    closed,
    newest_handovers,
    outcomes,
    reservations,
    shares,
)
from controller.policy.types import Admission, Grant, HeldBack, JobKey, PoolPlan, PoolSnapshot

_logger = log.get("evalstop.pool")

WRITES_AT_ONCE = 16
RESTS, REST_MOST = 3.0, 1.0  # after a plan: times as long as it took, and at most (s)
PAST = 1.0  # s until a plan is made again that asks for it at a time that is over
TELLING = 1.0  # s of a pass for reasons why jobs wait: the next one goes on, after what moves GPUs by then
MESSAGE_REFRESH = 60.0  # s between writes of a waiting reason of which only the numbers changed


@dataclass(frozen=True, slots=True)
class FullPoolPlan:
    """A pool as loaded, and the plan made of it."""

    loaded: LoadedPool
    around: pool_status.Surroundings
    snapshot: PoolSnapshot
    plan: PoolPlan


class PoolReconciler:
    """Reconciles pools. A job whose record is changed here is planned again because the cache reports it.

    ``rest``: for how long (s) the pool of the last pass need not be looked at again. A pool of thousands of
    jobs takes half a second to plan, beside which nothing else of the process goes on, and while jobs start
    or end something of it changes all the time.
    """

    def __init__(
        self,
        cache: Cache,
        cluster: ClusterState,
        plans: PlanCache,
        loader: PoolLoader,
        writer: StatusWriter,
        recorder: Recorder,
        taints: Taints,
        metrics: Metrics,
        locks: Locks,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._cache, self._cluster, self._plans, self._loader = cache, cluster, plans, loader
        self._writer, self._recorder, self._taints, self._metrics = writer, recorder, taints, metrics
        self._locks, self._clock, self._now = locks, clock, monotonic
        self.rest = 0.0
        self._reason_written: dict[JobKey, float] = {}  # when a waiting job's reason was last written
        self._put_aside: defaultdict[str, PutAside] = defaultdict(PutAside)  # by pool

    async def reconcile(self, name: str) -> Result:
        """Make one pass.

        Raises:
            Stale: something that it goes by has changed meanwhile.
            Partly: some jobs' records could not be written; all others were.
            ApiError: a call failed.
            StatusError: the GPUPool's status does not read.
        """
        self.rest = 0.0
        await self._taints.ensure()
        obj, pool = self._cache.get(GPUPOOLS, name), self._cluster.pool(name)
        if obj is None or pool is None:
            self._put_aside.pop(name, None)
            return Result("gone")
        if not isinstance(pool, GPUPool):
            status = pool_status.unusable(obj, pool, self._clock(), self._counted(obj))
            await self._writer.pool(obj, status)
            await self._post_ready(obj, status)
            return Result("invalid")
        newer.refuse_newer_pool(obj.get("status"))
        started = time.perf_counter()
        planned = await self._plan(self._loader.load(pool, obj))
        status = self._status(planned)
        self.rest = min(REST_MOST, RESTS * (time.perf_counter() - started))
        wrote = await self._writer.pool(obj, status)
        await self._post_ready(obj, status)
        await self._post_events(planned)
        changed, left = await self._carry_out(planned)
        return self._result(planned, wrote, changed, left)

    async def _plan(self, loaded: LoadedPool) -> FullPoolPlan:
        """Return the plan of a pool: without those jobs with which it fails."""
        aside = self._put_aside[loaded.pool.metadata.name]
        loaded = loaded.without(aside.left_out(loaded.jobs))
        while True:
            around = self._loader.surroundings(loaded)
            snapshot = self._loader.snapshot(loaded, around)
            try:
                return FullPoolPlan(loaded, around, snapshot, self._plans.plan_pool(snapshot, loaded.now))
            except Exception as error:
                key = aside.find(snapshot, loaded.jobs, loaded.now)
                if key is None:
                    raise
                if aside.is_news(key):
                    await self._report_put_aside(key, error)
                loaded = loaded.without({key})

    async def _report_put_aside(self, key: JobKey, error: Exception) -> None:
        problem = "a job cannot be planned beside others; its pool goes on without it"
        _logger.error(problem, job=key, exc_info=error)
        if (obj := self._cache.get(RLHFJOBS, key)) is not None:
            message = (
                f"the pool's plan fails with this job in it ({type(error).__name__}), so it is planned "
                "without: it keeps what it holds, and nothing is decided for it until it changes; please "
                "report this"
            )
            await self._recorder.post(obj, "PutAside", message, warning=True)

    def _status(self, planned: FullPoolPlan) -> dict[str, Any]:
        loaded, now = planned.loaded, planned.loaded.now
        # Of the records only what is written: a stop that is announced must be the very one carried out.
        of_groups = shares(planned.snapshot)
        stored = [
            (job.key, job.gpus + of_groups.get(job.key, 0), job.written) for job in loaded.jobs.values()
        ]
        stops = newest_handovers(convert.handovers(loaded.obj.get("status")), stored)
        current = reservations.current(planned.snapshot, now)
        return pool_status.planned(loaded.obj, current, planned.plan, planned.around, stops, now)

    def _counted(self, obj: dict[str, Any]) -> PoolSnapshot | None:
        """Return the nodes and jobs of a pool whose policy cannot be used; None: more of it is wrong."""
        pool = convert.parse_pool_without_policy(obj)
        if pool is None:
            return None
        loaded = self._loader.load(pool, obj)
        return self._loader.snapshot(loaded, self._loader.surroundings(loaded))

    async def _post_ready(self, obj: dict[str, Any], status: dict[str, Any]) -> None:
        """Post an Event when a pool cannot be planned for another reason than before, and when it can
        again."""
        before, now = _ready_of(obj.get("status") or {}), _ready_of(status)
        if now is None or (before is not None and before[:2] == now[:2]):
            return
        ready, reason, message = now
        if not ready or (before is not None and not before[0]):
            await self._recorder.post(obj, reason, message, warning=not ready)

    async def _post_events(self, planned: FullPoolPlan) -> None:
        for event in fleet.events(planned.snapshot, planned.plan, planned.loaded.now):
            await self._recorder.post(planned.loaded.obj, event.reason, event.message, warning=event.warning)

    async def _carry_out(self, planned: FullPoolPlan) -> tuple[bool, bool]:
        """Write the plan's outcomes into the jobs' records. Returns whether GPUs changed hands, and whether
        reasons to wait are left to be written.

        Raises:
            Partly: some jobs' records could not be written; all others were.
        """
        recent = self._now() - MESSAGE_REFRESH
        self._reason_written = {key: at for key, at in self._reason_written.items() if at > recent}
        failures: dict[JobKey, Exception] = {}
        changed, left = False, False
        loaded = planned.loaded
        changed |= await self._close_groups(planned)
        missing = await self._open_groups(planned)
        writes = tuple(
            write
            for write in outcomes(planned.plan, loaded.jobs, loaded.now, self._reason_written)
            if not (isinstance(write.what, Admission) and write.what.group in missing)
        )
        for verb, some in groupby(writes, key=lambda write: write.verb):
            if verb is Verb.WAITING:
                left = await self._tell_waiting(some, loaded, failures)
                continue
            # A hundred gangs are often admitted at once.
            slots = asyncio.Semaphore(WRITES_AT_ONCE if verb is Verb.ADMISSION else 1)
            made = [self._make(write, loaded, failures, slots) for write in some]
            changed |= any(await _all(made)) and verb.moves_gpus
        if failures:
            raise Partly(failures)
        return changed, left

    async def _tell_waiting(
        self, writes: Iterable[Write], loaded: LoadedPool, failures: dict[JobKey, Exception]
    ) -> bool:
        """Write why jobs wait, as far as there is time for it. Returns whether some are left.

        A hundred jobs that come at once would else keep the next plan waiting, and with it those whose GPUs
        have become free meanwhile.
        """
        until, slot = self._now() + TELLING, asyncio.Semaphore(1)
        for write in writes:
            if self._now() >= until:
                return True
            await self._make(write, loaded, failures, slot)
        return False

    async def _close_groups(self, planned: FullPoolPlan) -> bool:
        """Write why worker groups close. Returns whether any does."""
        sharing, done = planned.plan.sharing, False
        for closing in sharing.closings if sharing is not None else ():
            obj = self._cache.get(WORKERGROUPS, group_key(closing.name))
            if obj is None:
                continue
            record = closed(group_record(obj), closing.reason, closing.message)
            most = sharing_terms.most_residents(planned.loaded.pool)
            done |= await self._writer.group(obj, group_status(record, generation(obj), most))
            _logger.info("a worker group closes", group=closing.name, why=closing.reason)
        return done

    async def _open_groups(self, planned: FullPoolPlan) -> frozenset[str]:
        """Make the WorkerGroups that open, before anybody is admitted to them. Returns the names of those
        that could not be made: their names are taken, or the API server refuses them."""
        sharing, missing = planned.plan.sharing, set[str]()
        if sharing is None or not sharing.openings:
            return frozenset()
        terms = planned.snapshot.sharing
        families = {family.name: family for family in terms.families} if terms is not None else {}
        for opening in sharing.openings:
            family = families[opening.family]
            made = manifest(opening, planned.snapshot.pool, family.replicas, family.gpus)
            try:
                self._cache.put(WORKERGROUPS, await self._writer.make_group(made))
                _logger.info("a worker group opens", group=opening.name, first=opening.first)
            except (AlreadyExists, NotFound, Refused) as error:
                missing.add(opening.name)
                message = f"worker group {opening.name} cannot be made: {error.message}"
                await self._recorder.post(planned.loaded.obj, "GroupRefused", message, warning=True)
        return frozenset(missing)

    async def _make(
        self, write: Write, loaded: LoadedPool, failures: dict[JobKey, Exception], slots: asyncio.Semaphore
    ) -> bool:
        """Make one write. Returns whether anything was written.

        One that finds its job changed, or that the server refuses, keeps no other from being made: a plan's
        outcomes are of GPUs that are free already, whatever becomes of each. Whoever changes his job all the
        time, or has made it one that no status fits into, would else keep all that come after him from
        theirs. A server that does not answer ends the pass.
        """
        async with slots:
            if write.verb is Verb.HANDOVER and write.what in failures:
                return False  # who was to get the GPUs did not
            try:
                async with self._locks.hold(write.key):
                    full = self._to_write(write, loaded)
                    record = after(write, full.plan.record, full.loaded.desired, loaded.now)
                    wrote = await self._writer.record(full.loaded, record, loaded.now)
            except (Stale, Refused) as error:
                failures.setdefault(write.key, error)
                return False
        if wrote:
            self._metrics.outcomes.labels(write.verb).inc()
            _logger.info(write.verb, job=write.key)
        if isinstance(write.what, HeldBack):
            self._metrics.held_back.labels(write.what.reason).inc()
        elif write.verb is Verb.WAITING:
            self._reason_written[write.key] = self._now()
        return wrote

    def _to_write(self, write: Write, loaded: LoadedPool) -> FullPlan:
        """Return the newest plan of the job whose record is written.

        Raises:
            Stale: it is not the job that the pool was planned with. A job that is to be stopped may be
                written meanwhile, but must still ask for that, by the same numbers: evals may have come in
                since, even those of an attempt that resumed before the fall. The pool is planned anew.
        """
        key, full = write.key, self._plans.newest_plan(write.key)
        judged = write.verb in (Verb.GRANT, Verb.HANDOVER)
        if full is None or not (judged or full.planned_job.version == loaded.jobs[key].version):
            raise Stale(f"{key} changed since the snapshot")
        if isinstance(write.what, Grant) and full.plan.proposal != write.what.proposal:
            raise Stale(f"{key} was judged anew since it asked to be stopped")
        return full

    def _result(self, planned: FullPoolPlan, wrote: bool, changed: bool, left: bool) -> Result:
        plan, now = planned.plan, planned.loaded.now
        stuck, asks = pool_status.stuck_at(planned.around.unmanaged, now), fleet.ask_again_at(plan, now)
        again = (plan.wake_at, stuck, asks, planned.loaded.overdue if plan.waiting else None)
        wake = min((at for at in again if at is not None), default=None)
        return Result(
            "wrote" if wrote or changed or left else "quiet", woken_in(wake, now), requeue=changed or left
        )


def woken_in(at: float | None, now: float) -> float | None:
    """Return in how many seconds a pool is planned again that asks for it at a time (s); None: never.

    A time that is over is what this plan was made for. One that asks for it again would have it made without
    end: it waits for `PAST`.
    """
    return None if at is None else at - now if at > now else PAST


def _ready_of(status: Mapping[str, Any]) -> tuple[bool, str, str] | None:
    """Return status, reason and message of a GPUPool's condition Ready; None: it has none."""
    found = [one for one in status.get("conditions") or () if one.get("type") == "Ready"]
    return (found[0].get("status") == "True", found[0]["reason"], found[0]["message"]) if found else None


async def _all(writes: Iterable[Awaitable[bool]]) -> list[bool]:
    """Make independent writes; what went wrong with one of them is raised once all are through."""
    results = await asyncio.gather(*writes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result is True for result in results]
