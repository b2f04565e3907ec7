"""The one place that calls the planner: timed, logged, and not called twice for the same input."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from controller import log
from controller.api import convert
from controller.kube.cache import key_of
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.kube.versioned import Stale
from controller.operator.process.decision_log import DecisionLog
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.planned_job import PlannedJob
from controller.operator.state.cluster import ClusterState, JobSnapshot, Unreadable
from controller.policy import decision_log
from controller.policy.job import Plan, plan_job
from controller.policy.pool import plan_pool
from controller.policy.types import JobKey, PoolPlan, PoolSnapshot
from controller.web.positions import PlannedPool

_logger = log.get("evalstop.plans")


KEPT_WHOLE = 32  # plans kept whole: those of the passes under way


class PlanCache:
    """Plans jobs and pools, and remembers the plans.

    A plan of a job is kept until anything it was made of changes: a pool pass looks at all its jobs, of
    which nearly all are as they were. Of most, only what the pool asks of it is kept (`PlannedJob`).
    """

    def __init__(
        self,
        cluster: ClusterState,
        metrics: Metrics,
        clock: Callable[[], float],
        decisions: DecisionLog | None = None,
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._decisions = decisions
        self._kept: dict[JobKey, tuple[int, PlannedJob]] = {}
        self._warm: OrderedDict[JobKey, PlannedJob] = OrderedDict()
        self._unreadable: dict[JobKey, str] = {}  # why
        self._failed: dict[JobKey, tuple[int, int]] = {}  # revision and version at which planning raised
        self._moments: dict[str, PlannedPool] = {}

    def plan(self, key: JobKey) -> PlannedJob | None:
        """Plan a job anew; None if there is no such job, or it is `unreadable`."""
        revision = self._cluster.revision(key)
        try:
            loaded = self._cluster.load(key)
        except (convert.StatusError, Unreadable) as error:
            if key not in self._unreadable:
                what = "status is" if isinstance(error, convert.StatusError) else "an object of it is"
                _logger.error(f"{what} unreadable; the job is left alone", job=key, error=str(error))
            self._unreadable[key] = str(error)
            self._kept.pop(key, None)
            return None
        self._unreadable.pop(key, None)
        if loaded is None:
            self._failed.pop(key, None)
            self._kept.pop(key, None)
            return None
        now = self._clock()
        planned_job = PlannedJob(loaded, self._plan(loaded, now), now, self._again)
        self._kept[key] = (revision, planned_job)
        self._keep_warm(planned_job)
        return planned_job

    def cached_plan(self, key: JobKey) -> PlannedJob | None:
        """Return the last plan if nothing has changed since, else a new one; None also where planning it
        fails.

        Nothing: not the RLHFJob's version either. It grows by changes that nobody is told of (whose field it
        is, what was applied last), and a record is written only over the version that was loaded.
        """
        kept, stored = self._kept.get(key), self._cluster.cache.find(RLHFJOBS, key)
        if kept is not None and stored is not None:
            revision, planned_job = kept
            if (revision, planned_job.version) == (self._cluster.revision(key), str(stored.version)):
                return planned_job
        state = (self._cluster.revision(key), stored.version) if stored is not None else None
        if state is not None and self._failed.get(key) == state:
            return None
        try:
            planned = self.plan(key)
        except Exception:
            # Whatever is wrong with it is for its own pass to fail at: here others wait, too.
            if state is not None:
                self._failed[key] = state
            self._kept.pop(key, None)
            _logger.exception("a job cannot be planned; its pool goes on without it", job=key)
            return None
        self._failed.pop(key, None)
        return planned

    def _plan(self, loaded: JobSnapshot, now: float) -> Plan:
        """Whatever is planned is in the log: records are written by it."""
        started = time.perf_counter()
        planned = plan_job(loaded.desired, loaded.observed, loaded.record, now)
        self._metrics.plan_seconds.labels("job").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(
                decision_log.job_line(loaded.desired, loaded.observed, loaded.record, now, planned)
            )
        return planned

    def _again(self, planned_job: PlannedJob) -> tuple[JobSnapshot, Plan]:
        """Return what a plan was made of, and the plan that follows from it now."""
        loaded = self._cluster.load_quietly(planned_job.key)
        if loaded is None or loaded.version != planned_job.version:
            raise Stale(f"{planned_job.key} changed since it was planned")
        self._keep_warm(planned_job)
        return loaded, self._plan(loaded, self._clock())

    def _keep_warm(self, planned_job: PlannedJob) -> None:
        """Keep the newest plans whole; of an older one the pool's extract is enough."""
        before = self._warm.pop(planned_job.key, None)
        if before is not None and before is not planned_job:
            before.evict()
        self._warm[planned_job.key] = planned_job
        while len(self._warm) > KEPT_WHOLE:
            self._warm.popitem(last=False)[1].evict()

    def unreadable(self, key: JobKey) -> str:
        """Return why a job is left alone, as far as it was looked at; "": it is not."""
        return self._unreadable.get(key, "")

    @property
    def unreadable_count(self) -> int:
        """Jobs that are left alone because their status does not read back, or they were put aside."""
        return len(self._unreadable)

    def plan_pool(self, snapshot: PoolSnapshot, now: float) -> PoolPlan:
        """Plan a pool as it is at ``now`` (s)."""
        started = time.perf_counter()
        planned = plan_pool(snapshot, now)
        self._metrics.plan_seconds.labels("pool").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(decision_log.pool_line(snapshot, now, planned))
        there = self.pools()
        self._moments = {name: moment for name, moment in self._moments.items() if name in there}
        self._moments[snapshot.pool] = PlannedPool(snapshot, planned, now)
        return planned

    # -- for the queue API (controller.web) --------------------------------------------------------------

    def pools(self) -> list[str]:
        """Return names of all GPUPools, usable or not."""
        return sorted(key_of(obj) for obj in self._cluster.cache.values(GPUPOOLS))

    def problem(self, pool: str) -> str | None:
        """Return why a GPUPool cannot be used; None: it can."""
        found = self._cluster.pool(pool)
        return found[1] if isinstance(found, tuple) else None

    def moment(self, pool: str) -> PlannedPool | None:
        """Return a pool's newest plan and what it was made of."""
        return self._moments.get(pool)
