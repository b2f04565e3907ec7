"""Signs of life of the engine: /readyz and /livez are told by them, and metrics of the process as a whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from controller.bounded import shown
from controller.kube.cache import Cache
from controller.kube.informer import Informer
from controller.kube.namespaced_watch import Follow
from controller.kube.refused_rights import RefusedRights
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.kube.unwritten_statuses import UnwrittenStatuses
from controller.metrics import ScrapeLoop
from controller.operator.process.clock import Advance, ServerClock
from controller.operator.process.leader_election import Term
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import WorkQueue
from controller.operator.reconcile.fleet import breaker_open
from controller.operator.reconcile.passes import Passes
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.state.unmanaged_pods import UnmanagedPods
from controller.policy.wording import counted
from controller.web.connections import Connections
from controller.web.health import Health

# s for which no pass of a pool may succeed, or nothing be heard of a kind, before /readyz says so.
FAILING = 60.0
DEAF = 300.0


@dataclass
class Sources:
    """The watches by which objects come in; the informers are there once kopf has been started."""

    watches: list[Follow] = field(default_factory=list)
    informers: tuple[Informer, ...] = ()

    def deaf(self) -> str | None:
        """Return of which kinds nothing has been heard for so long; None: of all something was."""
        now = time.monotonic()
        silent: Iterable[tuple[Any, str | None]] = [
            *((watch, watch.problem.message if watch.problem else None) for watch in self.watches),
            *((informer, informer.problem) for informer in self.informers),
        ]
        notes = [
            f"{source}: nothing heard for {now - source.last_answer:.0f} s" + (f" ({why})" if why else "")
            for source, why in silent
            if now - source.last_answer > DEAF
        ]
        return "; ".join(notes) or None


@dataclass
class VitalSigns:
    """Tells of the engine's parts; they are read when somebody asks."""

    health: Health
    metrics: Metrics
    term: Term
    cache: Cache
    sources: Sources
    queues: Mapping[str, WorkQueue]
    job_passes: Passes
    pool_passes: Passes
    plans: PlanCache
    unmanaged_pods: UnmanagedPods
    connections: Connections
    clock: Callable[[], float]
    server_clock: ServerClock
    refused: RefusedRights
    unwritten: UnwrittenStatuses
    working: bool = False  # passes and scrapes go on; before that nobody waits for them
    progress: dict[str, float] = field(default_factory=dict)  # monotonic s at which a queue's last pass ended

    def __post_init__(self) -> None:
        self.progress = dict.fromkeys(self.queues, time.monotonic())
        self._watch_health()
        self._show_process()
        self._show_work()

    def _watch_health(self) -> None:
        health = self.health
        for name, queue in self.queues.items():
            health.watch(name, partial(self._beat, name, queue))
        health.beat("loop")
        health.watch("time", Advance(self.clock).beat)
        health.standby, health.role = lambda: not self.term.leads, self.term.role
        health.require("leadership", self.term.problem, always=True)
        health.require("lists", lambda: None if self.cache.complete else "not every kind is listed yet")
        health.require("foreign pods", lambda: None if self.unmanaged_pods.looked else "not looked at yet")
        health.require("pools", self._failing_pools)
        health.require("watches", self.sources.deaf)
        health.require("rights", self._refused_rights)
        health.note(self._failing_jobs)
        health.note(self._unwritten_statuses)

    def _show_process(self) -> None:
        metrics = self.metrics
        metrics.counter(
            "evalstop_connections_turned_away",
            "Connections to this process's servers that found no room (NoRoom), made room for others "
            "(MadeRoom), or took too long (TooSlow)",
            self.connections.turned_away,
            "server",
            "why",
        )
        metrics.gauge("evalstop_leader", "1: acts; 0: standby", lambda: [((), float(self.term.leads))])
        metrics.gauge(
            "evalstop_leader_epoch",
            "Number of this process's term; nothing before it leads, or without an election",
            lambda: [((), float(self.term.epoch))] if self.term.epoch else [],
        )
        metrics.gauge(
            "evalstop_refused_seconds",
            "For how long the API server has refused a right that the operator needs; 0: it refuses none",
            lambda: [((), self.clock() - found.since if (found := self.refused.lasting()) else 0.0)],
        )
        metrics.gauge(
            "evalstop_clock_skew_seconds",
            "How far this process's clock is ahead of the API server's, to about a second",
            lambda: [((), skew)] if (skew := self.server_clock.skew) is not None else [],
        )
        metrics.gauge(
            "evalstop_objects",
            "Objects in the cache",
            lambda: [((r.plural,), float(len(s))) for r, s in self.cache.stores.items()],
            "resource",
        )
        metrics.gauge(
            "evalstop_queue_depth",
            "Keys that wait for a pass",
            lambda: [
                (("job",), float(len(self.queues["jobs"]))),
                (("pool",), float(len(self.queues["pools"]))),
            ],
            "kind",
        )

    def _show_work(self) -> None:
        metrics = self.metrics
        metrics.gauge(
            "evalstop_pools_with_scheduler",
            "GPUPools whose pods go through a scheduler of their own, and so through the extender",
            lambda: [((), float(sum(1 for pool in self.cache.values(GPUPOOLS) if _scheduler(pool))))],
        )
        metrics.gauge(
            "evalstop_unreadable_jobs",
            "RLHFJobs that are left alone: their status does not read back, or they are put aside",
            lambda: [((), float(len(self.plans.unreadable)))],
        )
        metrics.gauge(
            "evalstop_objects_put_aside",
            "Objects that are too deep or too large to be gone by",
            lambda: [((r.plural,), float(n)) for r, n in Counter(r for r, _ in self.cache.aside).items()],
            "resource",
        )
        metrics.gauge(
            "evalstop_failing_jobs",
            "RLHFJobs whose passes fail in a way they should not, or whose status the API server refuses",
            lambda: [((), float(len({*self.job_passes.unexpected(), *self.unwritten.keys(RLHFJOBS)})))],
        )
        metrics.gauge(
            "evalstop_pool_failing_seconds",
            "For how long no pass of the GPUPool that is worst off has succeeded; 0: each one's last did",
            lambda: [((), max((found.seconds for found in self.pool_passes.failing()), default=0.0))],
        )
        metrics.gauge(
            "evalstop_circuit_breaker_open",
            "GPUPools that stop nobody because too many ask",
            lambda: [((), float(sum(1 for pool in self.cache.values(GPUPOOLS) if breaker_open(pool))))],
        )

    def _refused_rights(self) -> str | None:
        if (found := self.refused.lasting()) is None:
            return None
        seconds = self.clock() - found.since
        return (
            f"the API server has refused for {seconds:.0f} s: {found.what}; apply deploy/manifests/rbac.yaml"
        )

    def _failing_pools(self) -> str | None:
        reported = [
            f"no pass of GPUPool {name} has succeeded for {seconds:.0f} s ({shown(why, 200)})"
            for name, seconds, why, _ in self.pool_passes.failing()
            if seconds > FAILING
        ]
        return "; ".join(reported) or None

    def _failing_jobs(self) -> str | None:
        """Return how many jobs' passes fail as none should, for people; None: none does.

        It does not make the operator unready, since the cause may lie in one tenant's job.
        """
        failing = self.job_passes.unexpected()
        return f"passes of {counted(len(failing), 'job')} fail; the log names them" if failing else None

    def _unwritten_statuses(self) -> str | None:
        """Return of how many objects the API server refuses the status, for people; None: of none.

        Like a failing job it does not make the operator unready. Anybody may ask here, so nobody is named.
        """
        if (found := self.unwritten.lasting()) is None:
            return None
        seconds = self.clock() - found.since
        whose = counted(found.number, "object")
        return f"the status of {whose} is refused, since {seconds:.0f} s ago: evalstop doctor names them"

    def begin_work(self, loop: ScrapeLoop) -> None:
        """From now on a lack of progress is a fault: however long it stood by, it begins afresh."""
        self.progress = dict.fromkeys(self.progress, time.monotonic())
        loop.touch()
        self.working = True

    def made_progress(self, name: str) -> None:
        """Note that a pass of this queue has ended."""
        self.progress[name] = time.monotonic()

    def _beat(self, name: str, queue: WorkQueue) -> float:
        """Return when this queue last made progress (monotonic s): now, while no pass is due."""
        return time.monotonic() if queue.idle or not self.working else self.progress[name]

    def watch_scrapes(self, loop: ScrapeLoop) -> None:
        self.health.watch("scrapes", lambda: loop.stats.beat if self.working else time.monotonic())
        self.metrics.gauge(
            "evalstop_scrape_targets", "Trainers being scraped", lambda: [((), float(loop.stats.targets))]
        )
        self.metrics.gauge(
            "evalstop_scrape_lag_seconds",
            "How late the latest scrape began that did not wait for others of its own namespace",
            lambda: [((), float(loop.stats.lag))],
        )
        self.metrics.gauge(
            "evalstop_scrape_crowded",
            "Trainers that wait for slower ones of their own namespace",
            lambda: [((), float(loop.stats.crowded))],
        )


def _scheduler(pool: Mapping[str, Any]) -> bool:
    return bool((pool.get("spec") or {}).get("schedulerName"))
