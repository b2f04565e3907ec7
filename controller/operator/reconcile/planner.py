"""The one place where the operator asks the brain: timed, logged, and not asked twice for the same input."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from controller import log
from controller.api import convert
from controller.kube.cache import key_of
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.operator.process.decision_log import DecisionLog
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.planned_job import Thought
from controller.operator.reconcile.status_writer import Stale
from controller.operator.state.cluster import Loaded, Unreadable, World
from controller.policy import decision_log
from controller.policy.job import Plan, plan_job
from controller.policy.pool import plan_pool
from controller.policy.types import JobKey, PoolPlan, PoolSnapshot
from controller.web.positions import Moment

_logger = log.get("evalstop.brain")


WARM = 32  # thoughts kept whole: those of the passes under way


class Brain:
    """Plans jobs and pools.

    A plan of a job is kept until anything it was made of changes: a pool pass looks at all its jobs, of
    which nearly all are as they were. Of most, only what the pool asks of it is kept (`Thought`).
    """

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        clock: Callable[[], float],
        decisions: DecisionLog | None = None,
    ) -> None:
        self._world = world
        self._metrics = metrics
        self._clock = clock
        self._decisions = decisions
        self._kept: dict[JobKey, tuple[int, Thought]] = {}
        self._warm: OrderedDict[JobKey, Thought] = OrderedDict()
        self._unreadable: dict[JobKey, str] = {}  # why
        self._failed: dict[JobKey, tuple[int, int]] = {}  # revision and version at which planning raised
        self._moments: dict[str, Moment] = {}

    def think(self, key: JobKey) -> Thought | None:
        """Plan a job anew; None if there is no such job, or it is `unreadable`."""
        revision = self._world.revision(key)
        try:
            loaded = self._world.load(key)
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
        thought = Thought(loaded, self._plan(loaded, now), now, self._again)
        self._kept[key] = (revision, thought)
        self._keep_warm(thought)
        return thought

    def recall(self, key: JobKey) -> Thought | None:
        """The last plan if nothing has changed since, else a new one; None also where planning it fails.

        Nothing: not the RLHFJob's version either. It grows by changes that nobody is told of (whose field it
        is, what was applied last), and a record is written only over the version that was loaded.
        """
        kept, stored = self._kept.get(key), self._world.cache.find(RLHFJOBS, key)
        if kept is not None and stored is not None:
            revision, thought = kept
            if (revision, thought.version) == (self._world.revision(key), str(stored.version)):
                return thought
        state = (self._world.revision(key), stored.version) if stored is not None else None
        if state is not None and self._failed.get(key) == state:
            return None
        try:
            planned = self.think(key)
        except Exception:
            # Whatever is wrong with it is for its own pass to fail at: here others wait, too.
            if state is not None:
                self._failed[key] = state
            self._kept.pop(key, None)
            _logger.exception("a job cannot be planned; its pool goes on without it", job=key)
            return None
        self._failed.pop(key, None)
        return planned

    def _plan(self, loaded: Loaded, now: float) -> Plan:
        """Whatever is planned is in the log: records are written by it."""
        started = time.perf_counter()
        planned = plan_job(loaded.desired, loaded.observed, loaded.record, now)
        self._metrics.plan_seconds.labels("job").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(
                decision_log.job_line(loaded.desired, loaded.observed, loaded.record, now, planned)
            )
        return planned

    def _again(self, thought: Thought) -> tuple[Loaded, Plan]:
        """What a thought was made of, and the plan that follows from it now."""
        loaded = self._world.load_quietly(thought.key)
        if loaded is None or loaded.version != thought.version:
            raise Stale(f"{thought.key} changed since it was planned")
        self._keep_warm(thought)
        return loaded, self._plan(loaded, self._clock())

    def _keep_warm(self, thought: Thought) -> None:
        """The newest thoughts are whole; of one that is older the pool's extract is enough."""
        before = self._warm.pop(thought.key, None)
        if before is not None and before is not thought:
            before.cool()
        self._warm[thought.key] = thought
        while len(self._warm) > WARM:
            self._warm.popitem(last=False)[1].cool()

    def unreadable(self, key: JobKey) -> str:
        """Why a job is left alone, as far as it was looked at; "": it is not."""
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
        self._moments[snapshot.pool] = Moment(snapshot, planned, now)
        return planned

    # -- for the queue API (controller.web) --------------------------------------------------------------

    def pools(self) -> list[str]:
        """Names of all GPUPools, usable or not."""
        return sorted(key_of(obj) for obj in self._world.cache.values(GPUPOOLS))

    def problem(self, pool: str) -> str | None:
        """Why a GPUPool cannot be used; None: it can."""
        found = self._world.pool(pool)
        return found[1] if isinstance(found, tuple) else None

    def moment(self, pool: str) -> Moment | None:
        """A pool's newest plan and what it was made of."""
        return self._moments.get(pool)
