"""One pass over one job: load, plan, write the status, carry out the actions, post Events."""

from __future__ import annotations

from controller import log
from controller.kube.errors import Refused, WebhookFails
from controller.kube.events import Recorder
from controller.kube.resources import RLHFJOBS
from controller.operator.process.workqueue import Locks
from controller.operator.reconcile.actions import Actions
from controller.operator.reconcile.passes import Result
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.planned_job import FullPlan
from controller.operator.reconcile.scrape_targets import ScrapeTargets
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.reconcile.triggers import Triggers
from controller.operator.reconcile.validation import SpecChecks, not_let_through
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot
from controller.operator.state.residents import Residents
from controller.operator.state.rollout_steps import RolloutSteps
from controller.policy.job import ForgetAccess, ReadMetrics
from controller.policy.types import JobKey

_logger = log.get("evalstop.job")


class JobReconciler:
    """Reconciles jobs."""

    def __init__(
        self,
        cluster: ClusterState,
        plans: PlanCache,
        checks: SpecChecks,
        writer: StatusWriter,
        actions: Actions,
        targets: ScrapeTargets,
        recorder: Recorder,
        triggers: Triggers,
        locks: Locks,
        rollouts: RolloutSteps,
        residents: Residents,
    ) -> None:
        self._cluster, self._plans, self._checks = cluster, plans, checks
        self._writer, self._actions, self._targets = writer, actions, targets
        self._recorder, self._triggers, self._locks = recorder, triggers, locks
        self._rollouts, self._residents = rollouts, residents

    async def reconcile(self, key: JobKey) -> Result:
        """Make one pass.

        Raises:
            Stale: something that it goes by has changed meanwhile.
            ApiError: a call failed.
        """
        async with self._locks.hold(key):
            await self._report_put_aside(key)
            loaded = await self._load(key)
            if loaded is None:
                self._targets.drop(key)
                self._triggers.job_deleted(key)
                self._rollouts.forget(key)
                self._residents.forget(key)
                return Result("gone")
            full = self._plans.plan(loaded)
            wrote = await self._write_status(full)
            if wrote:
                self._plans.written(full)
            self._rollouts.put(full.loaded, full.plan, full.planned_job.now)
            self._residents.put(full.loaded, full.plan.record)
            self._cluster.took_in(full.loaded)
            self._triggers.job_planned(full.planned_job)
            self._targets.follow(loaded)
            try:
                await self._carry_out(full)
            finally:  # what has changed is written by now: the next pass would not report it
                await self._post_events(full)
            return self._result(full, wrote)

    async def report_failure(self, key: JobKey, error: Exception) -> None:
        """Post an Event on a job of which a pass failed as none should; of the error no more than its kind,
        for what it quotes may be anybody's."""
        obj = self._cluster.cache.get(RLHFJOBS, key)
        if obj is not None:
            what = type(error).__name__
            message = f"the operator fails at this job ({what}) and tries again; its log has the trace"
            await self._recorder.post(obj, "PassFailed", message, warning=True)

    async def _report_put_aside(self, key: JobKey) -> None:
        for obj, why in self._cluster.aside(key):
            message = f"{why}; it is left alone, and what it holds it goes on holding"
            await self._recorder.post(obj, "Unreadable", message, warning=True)

    async def _load(self, key: JobKey) -> JobSnapshot | None:
        """Return the job, the API server's answer about its spec included; None: there is nothing to plan."""
        loaded = self._plans.load(key)
        if loaded is not None:
            await self._checks.ensure(loaded)
            if not self._cluster.is_current(loaded):  # the answer is new, or time went by for it
                loaded = self._plans.load(key)
        return loaded

    async def _write_status(self, full: FullPlan) -> bool:
        plan = full.plan
        wrote = not plan.minor and await self._writer.record(full.loaded, plan.record, full.planned_job.now)
        if wrote or plan.actions:
            _logger.info(
                "pass",
                wrote_status=wrote,
                actions=[type(action).__name__ for action in plan.actions],
                queue=str(plan.queue) if plan.queue is not None else None,
                events=[event.reason for event in plan.events],
            )
        return wrote

    async def _carry_out(self, full: FullPlan) -> None:
        loaded, doing = full.loaded, ""
        try:
            for action in full.plan.actions:
                doing = type(action).__name__
                if isinstance(action, ReadMetrics):
                    self._targets.read_again(loaded.key)
                else:
                    await self._actions.do(loaded, action)
            doing = ForgetAccess.__name__
            await self._actions.discard_unreleased(loaded, full.plan.record)
        except (Refused, WebhookFails) as error:
            # The server will say the same again until somebody changes something: the next plan tells it.
            self._cluster.carried_out(loaded, not_let_through(doing, error))
            raise
        self._cluster.carried_out(loaded, None)
        for name in self._cluster.access_jobs.foreign(loaded.obj, full.plan.record):
            message = (
                f"Job {name} says that it carries out what is asked of the checkpoint store, and was not "
                "made by the operator: its answer does not count"
            )
            await self._recorder.post(loaded.obj, "ForeignAccessJob", message, warning=True)

    async def _post_events(self, full: FullPlan) -> None:
        for event in full.plan.events:
            await self._recorder.post(full.loaded.obj, event.reason, event.message, warning=event.warning)

    def _result(self, full: FullPlan, wrote: bool) -> Result:
        times = (full.plan.requeue_after, self._checks.again_in(full.loaded))
        outcome = "wrote" if wrote or full.plan.actions else "quiet"
        return Result(outcome, min((t for t in times if t is not None), default=None))
