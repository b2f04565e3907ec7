"""The one place that calls the planner: timed, logged, and not called twice for the same input."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from controller import log
from controller.api import convert
from controller.kube.cache import key_of
from controller.kube.resources import GPUPOOLS
from controller.operator.process.decision_log import DecisionLog
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.planned_job import FullPlan, PlannedJob, full_plan
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot, State, Unreadable
from controller.policy import decision_log
from controller.policy.job import Plan, plan_job
from controller.policy.pool import plan_pool
from controller.policy.types import JobKey, PoolPlan, PoolSnapshot
from controller.web.positions import PlannedPool

_logger = log.get("evalstop.plans")


KEPT_WHOLE = 32  # full plans: those of the passes under way


class PlanCache:
    """Loads jobs, plans jobs and pools, and remembers the plans.

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
        self._kept: dict[JobKey, PlannedJob] = {}
        self._full: OrderedDict[JobKey, FullPlan] = OrderedDict()  # the newest plans
        self._written: OrderedDict[JobKey, JobSnapshot] = OrderedDict()  # as their passes have written them
        self.unreadable: dict[JobKey, str] = {}  # jobs that are left alone, as far as looked at, and why
        self._failed: dict[JobKey, State] = {}  # in which planning raised
        self._planned: dict[str, PlannedPool] = {}

    def load(self, key: JobKey) -> JobSnapshot | None:
        """Return a job as it is known now; None if there is no such job, or it is `unreadable`: of one that
        is gone everything is forgotten."""
        try:
            loaded = self._cluster.load(key)
        except (convert.StatusError, Unreadable) as error:
            if key not in self.unreadable:
                what = "status is" if isinstance(error, convert.StatusError) else "an object of it is"
                _logger.error(f"{what} unreadable; the job is left alone", job=key, error=str(error))
            self.unreadable[key] = str(error)
            self._kept.pop(key, None)
            return None
        self.unreadable.pop(key, None)
        if loaded is None:
            self._failed.pop(key, None)
            self._kept.pop(key, None)
            self._cluster.forget(key)
        return loaded

    def plan(self, loaded: JobSnapshot) -> FullPlan:
        """Plan a job as it was loaded. Whatever is planned is in the log: records are written by it."""
        now = self._clock()
        last = self._full.get(loaded.key)
        if last is not None and (plan := last.still_at_rest(loaded, now)) is not None:
            made = full_plan(loaded, plan, now, last.decided)
        else:
            made = full_plan(loaded, self._planned_now(loaded, now), now)
        made.planned_job.share_view(self._kept.get(loaded.key))
        self._kept[loaded.key] = made.planned_job
        self._full[loaded.key] = made
        self._full.move_to_end(loaded.key)
        while len(self._full) > KEPT_WHOLE:
            self._full.popitem(last=False)
        return made

    def _planned_now(self, loaded: JobSnapshot, now: float) -> Plan:
        started = time.perf_counter()
        plan = plan_job(loaded.desired, loaded.observed, loaded.record, now)
        self._metrics.plan_seconds.labels("job").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(
                decision_log.job_line(loaded.desired, loaded.observed, loaded.record, now, plan)
            )
        return plan

    def written(self, full: FullPlan) -> None:
        """Take in that a plan's record is the job's status now: who plans the job next need not load it."""
        key, loaded = full.loaded.key, self._cluster.as_written(full.loaded, full.plan.record)
        self._written.pop(key, None)
        if loaded is not None:
            self._written[key] = loaded
            while len(self._written) > KEPT_WHOLE:
                self._written.popitem(last=False)

    def cached_plan(self, key: JobKey) -> PlannedJob | None:
        """Return what pools read of a job's plan: the last one's if nothing has changed since, else a new
        one's; None also where planning it fails.

        Nothing: not the RLHFJob's version either. It grows by changes that nobody is told of (whose field it
        is, what was applied last), and a record is written only over the version that was loaded.
        """
        kept, state = self._kept.get(key), self._cluster.state(key)
        if kept is not None and kept.state == state:
            return kept
        made = self._made_anew(key, state)
        return made.planned_job if made is not None else None

    def newest_plan(self, key: JobKey) -> FullPlan | None:
        """Return a job's full plan: the last one as it was made if nothing has changed since, else a new one;
        None also where planning it fails."""
        made, state = self._full.get(key), self._cluster.state(key)
        return made if made is not None and made.loaded.state == state else self._made_anew(key, state)

    def _made_anew(self, key: JobKey, state: State | None) -> FullPlan | None:
        if state is not None and self._failed.get(key) == state:
            return None
        try:
            loaded = self._written.pop(key, None)
            if loaded is None or not self._cluster.is_newest(loaded):
                loaded = self.load(key)
            made = self.plan(loaded) if loaded is not None else None
        except Exception:
            # Whatever is wrong with it is for its own pass to fail at: here others wait, too.
            if state is not None:
                self._failed[key] = state
            self._kept.pop(key, None)
            _logger.exception("a job cannot be planned; its pool goes on without it", job=key)
            return None
        self._failed.pop(key, None)
        return made

    def plan_pool(self, snapshot: PoolSnapshot, now: float) -> PoolPlan:
        """Plan a pool as it is at ``now`` (s)."""
        started = time.perf_counter()
        planned = plan_pool(snapshot, now)
        self._metrics.plan_seconds.labels("pool").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(decision_log.pool_line(snapshot, now, planned))
        there = self.pools()
        self._planned = {name: planned_pool for name, planned_pool in self._planned.items() if name in there}
        self._planned[snapshot.pool] = PlannedPool(snapshot, planned, now)
        return planned

    # -- for the queue API (controller.web) --------------------------------------------------------------

    def pools(self) -> list[str]:
        """Return names of all GPUPools, usable or not."""
        return sorted(key_of(obj) for obj in self._cluster.cache.values(GPUPOOLS))

    def problem(self, pool: str) -> str | None:
        """Return why a GPUPool cannot be used; None: it can."""
        found = self._cluster.pool(pool)
        return found[1] if isinstance(found, tuple) else None

    def planned(self, pool: str) -> PlannedPool | None:
        """Return a pool's newest plan and what it was made of."""
        return self._planned.get(pool)
