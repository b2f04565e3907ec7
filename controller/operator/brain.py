"""The one place where the operator asks the brain: timed, logged, and not asked twice for the same input."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from controller import log
from controller.api import convert
from controller.kube.cache import key_of
from controller.kube.resources import GPUPOOLS
from controller.operator.declogfile import DecisionLog
from controller.operator.metrics import Metrics
from controller.operator.world import Loaded, World
from controller.policy import declog, lifecycle, pool
from controller.policy.jobs import Plan
from controller.policy.types import JobKey, JobView, Mode, PoolPlan, PoolSnapshot
from controller.web.positions import Moment

_logger = log.get("evalstop.brain")


@dataclass(frozen=True, slots=True)
class Thought:
    """A job as loaded, and the plan made of it at ``now`` (s)."""

    loaded: Loaded
    plan: Plan
    now: float

    @property
    def view(self) -> JobView | None:
        """How the job stood before its pool when the plan was made."""
        return self.view_at(self.now)

    def view_at(self, now: float) -> JobView | None:
        """How the job stands before its pool: since the plan its service has gone on."""
        loaded = self.loaded
        return lifecycle.job_view(
            loaded.desired,
            loaded.observed,
            self.plan.record,
            self.plan,
            submitted=_submitted(loaded),
            priority=_priority(loaded),
            weight=_weight(loaded),
            preemptible=_preemptible(loaded),
            now=now,
        )


class Brain:
    """Plans jobs and pools.

    A plan of a job is kept until anything it was made of changes: a pool pass looks at all its jobs, of
    which nearly all are as they were.
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
        self._unreadable: set[JobKey] = set()
        self._moments: dict[str, Moment] = {}

    def think(self, key: JobKey) -> Thought | None:
        """Plan a job anew; None if there is no such job, or its status does not read as a record."""
        revision = self._world.revision(key)
        try:
            loaded = self._world.load(key)
        except convert.StatusError as error:
            if key not in self._unreadable:
                _logger.error("status is unreadable; the job is left alone", job=key, error=str(error))
                self._unreadable.add(key)
            self._kept.pop(key, None)
            return None
        self._unreadable.discard(key)
        if loaded is None:
            self._kept.pop(key, None)
            return None
        now = self._clock()
        started = time.perf_counter()
        planned = lifecycle.plan(loaded.desired, loaded.observed, loaded.record, now)
        self._metrics.plan_seconds.labels("job").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(
                declog.job_line(loaded.desired, loaded.observed, loaded.record, now, planned)
            )
        thought = Thought(loaded, planned, now)
        self._kept[key] = (revision, thought)
        return thought

    def recall(self, key: JobKey) -> Thought | None:
        """The last plan if nothing has changed since, else a new one."""
        kept = self._kept.get(key)
        if kept is not None and kept[0] == self._world.revision(key):
    @property
    def unreadable_count(self) -> int:
        """Jobs that are left alone because their status does not read back."""
        return len(self._unreadable)

            return kept[1]
        return self.think(key)

    def unreadable(self, key: JobKey) -> bool:
        return key in self._unreadable

    def plan_pool(self, snapshot: PoolSnapshot, now: float) -> PoolPlan:
        """Plan a pool as it is at ``now`` (s)."""
        started = time.perf_counter()
        planned = pool.plan(snapshot, now)
        self._metrics.plan_seconds.labels("pool").observe(time.perf_counter() - started)
        if self._decisions is not None:
            self._decisions.append(declog.pool_line(snapshot, now, planned))
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


def _submitted(loaded: Loaded) -> float:
    created = loaded.obj["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(created).timestamp() if created else 0.0


def _preemptible(loaded: Loaded) -> bool:
    """Where the pool's cap is below Enforce nothing that runs is touched; nor is, below it, a workload that
    somebody else made and started."""
    if loaded.pool is not None and loaded.pool.spec.mode_cap is not Mode.ENFORCE:
        return False
    return loaded.desired.mode is Mode.ENFORCE or not loaded.desired.workload_ref


def _weight(loaded: Loaded) -> float:
    return 1.0 if loaded.pool is None else float(loaded.pool.weight(loaded.obj["metadata"]["namespace"]))


def _priority(loaded: Loaded) -> int:
    """The spec's, at most the pool's ceiling, which may have been lowered while the job ran."""
    wanted = int((loaded.obj.get("spec") or {}).get("priority") or 0)
    ceiling = None
    if loaded.pool is not None:
        ceiling = loaded.pool.ceiling(loaded.obj["metadata"]["namespace"])
    return wanted if ceiling is None else min(wanted, ceiling)
