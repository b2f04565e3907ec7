"""One pass over one job: load, plan, write the status, carry out the actions, post Events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from controller import log
from controller.kube.errors import ApiError, Refused, Unavailable
from controller.kube.events import Recorder
from controller.kube.resources import RLHFJOBS
from controller.kube.versioned import Stale
from controller.operator.process.metrics import Metrics
from controller.operator.process.workqueue import Locks, WorkQueue
from controller.operator.reconcile.actions import Actions
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.scrape_targets import ScrapeTargets
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.reconcile.validation import SpecChecks
from controller.operator.state.cluster import ClusterState, JobSnapshot
from controller.policy.job import Plan, ReadMetrics
from controller.policy.types import JobKey, JobView

_logger = log.get("evalstop.job")

STALE_TOLD = 2.0  # s of back-off from which a pass that stays stale is told


class JobReconciler:
    """Passes over jobs. ``offer(key, view)`` tells the pools how the job stands; view None: not at all."""

    def __init__(
        self,
        cluster: ClusterState,
        plans: PlanCache,
        checks: SpecChecks,
        writer: StatusWriter,
        actions: Actions,
        targets: ScrapeTargets,
        recorder: Recorder,
        metrics: Metrics,
        queue: WorkQueue,
        locks: Locks,
        offer: Callable[[JobKey, str, JobView | None], None],
    ) -> None:
        self._cluster, self._plans, self._checks = cluster, plans, checks
        self._writer, self._actions, self._targets = writer, actions, targets
        self._recorder, self._metrics = recorder, metrics
        self._queue, self._locks, self._offer = queue, locks, offer
        self.failing: dict[
            JobKey, float
        ] = {}  # jobs whose passes fail as none should: since when (monotonic s)

    async def run(self, key: JobKey) -> None:
        """Make one pass; never raises, a pass that failed is made again after its back-off."""
        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(job=key):
            try:
                async with self._locks.hold(key):
                    result = await self._pass(key)
                self._queue.forget(key)
                self.failing.pop(key, None)
            except Stale as error:
                # Usually over at the next look; what stays stale must not spin.
                result = "stale"
                delay = self._queue.retry(key)
                told = _logger.debug if delay < STALE_TOLD else _logger.warning
                told("made again: what was read has changed", error=str(error), again_in=delay)
            except ApiError as error:
                result = "unavailable" if isinstance(error, Unavailable) else "refused"
                delay = self._queue.retry(key)
                if error.retry_after is not None and error.retry_after > delay:
                    self._queue.later(key, min(error.retry_after, 60.0))
                _logger.warning("pass failed at an API call", error=str(error), again_in=delay)
            except Exception as error:
                result = "failed"
                delay = self._queue.retry(key)
                _logger.exception("pass failed in a way it should not", again_in=delay)
                self.failing.setdefault(key, time.monotonic())
                await self._tell_failure(key, error)
        self._metrics.passes.labels("job", result).inc()
        self._metrics.pass_seconds.labels("job").observe(time.perf_counter() - started)

    async def _pass(self, key: JobKey) -> str:
        loaded = self._cluster.load_quietly(key)
        if loaded is not None:
            await self._checks.ensure(loaded)
        for obj, why in self._cluster.aside(key):
            message = f"{why}; it is left alone, and what it holds it goes on holding"
            await self._recorder.post(obj, "Unreadable", message, warning=True)
        planned_job = self._plans.plan(key)
        if planned_job is None:
            self._targets.drop(key)
            self._offer(key, "", None)
            if not self._plans.unreadable(key):
                self._cluster.forget(key)
            return "gone"
        # Held from here on: the cached plan may be reduced to its extract while this pass waits.
        loaded, plan = planned_job.loaded, planned_job.plan
        wrote = await self._writer.record(loaded, plan.record, planned_job.now)
        self._tell_log(plan, wrote)
        self._offer(key, str((loaded.obj.get("spec") or {}).get("pool") or ""), planned_job.view)
        self._targets.follow(loaded)
        try:
            await self._act(loaded, plan)
            await self._actions.discard_unreleased(loaded, plan.record)
            await self._tell_foreign(loaded, plan)
        finally:  # what has changed is written by now: the next pass would not tell of it
            for event in plan.events:
                await self._recorder.post(loaded.obj, event.reason, event.message, warning=event.warning)
        self._queue.later(key, self._next(loaded, plan))
        return "wrote" if wrote or plan.actions else "quiet"

    async def _tell_failure(self, key: JobKey, error: Exception) -> None:
        """On the job itself; of the error no more than its kind, for what it quotes may be anybody's."""
        obj = self._cluster.cache.get(RLHFJOBS, key)
        if obj is not None:
            what = type(error).__name__
            message = f"the operator fails at this job ({what}) and tries again; its log has the trace"
            await self._recorder.post(obj, "PassFailed", message, warning=True)

    async def _tell_foreign(self, loaded: JobSnapshot, plan: Plan) -> None:
        for name in self._cluster.foreign_access(loaded.obj, plan.record):
            message = (
                f"Job {name} says that it carries out what is asked of the checkpoint store, and was not "
                "made by the operator: its answer does not count"
            )
            await self._recorder.post(loaded.obj, "ForeignAccessJob", message, warning=True)

    async def _act(self, loaded: JobSnapshot, plan: Plan) -> None:
        for action in plan.actions:
            if isinstance(action, ReadMetrics):
                self._targets.read_again(loaded.key)
                continue
            try:
                await self._actions.do(loaded, action)
            except Refused as error:
                # The server will say the same again until somebody changes something: say so on the job.
                message = f"{type(action).__name__}: {error.message}"
                await self._recorder.post(loaded.obj, "ActionRefused", message, warning=True)
                raise

    def _next(self, loaded: JobSnapshot, plan: Plan) -> float | None:
        times = [plan.requeue_after, self._checks.again_in(loaded)]
        return min((t for t in times if t is not None), default=None)

    def _tell_log(self, plan: Plan, wrote: bool) -> None:
        if not wrote and not plan.actions:
            return
        facts: Mapping[str, Any] = {
            "wrote_status": wrote,
            "actions": [type(a).__name__ for a in plan.actions],
            "queue": str(plan.queue) if plan.queue is not None else None,
            "events": [e.reason for e in plan.events],
        }
        _logger.info("pass", **facts)
