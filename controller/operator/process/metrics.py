"""The operator's own Prometheus metrics. Label values come from fixed sets, never from users."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import Counter, Histogram

from controller.gauges import ProcessMetrics
from controller.operator.process.job_gauges import JobGauges
from controller.policy.job import Decision, JobRecord, PastGrades, RolloutRecord, ScrapeOutcome
from controller.policy.rollout import Reason
from controller.policy.types import Mode

STAGES = ("secured", "retained", "suspended", "pods_gone", "handed", "running")
_SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_PLANNED = frozenset(map(str, Reason))
_ACCOUNTS = ("held", "lent", "saved")  # of `RolloutRecord`
_REASONS = 64  # decision reasons told apart; the brain has about ten


class Metrics(ProcessMetrics):
    """All metrics of the operator."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.jobs = JobGauges(clock)
        self.gauge("evalstop_jobs", "RLHFJobs by state, as kubectl prints it", self.jobs.states, "state")
        self.gauge(
            "evalstop_unhealthy_jobs", "RLHFJobs that need a hand, by their mark", self.jobs.marked, "mark"
        )
        self.gauge(
            "evalstop_unhealthy_job_seconds",
            "For how long the first of them has borne it; 0: none does",
            self.jobs.longest,
            "mark",
        )
        self.gauge(
            "evalstop_stop_outcomes",
            "RLHFJobs by whether their newest stop by a rule, in Shadow the one that would have been, was "
            "right",
            self.jobs.outcomes,
            "mode",
            "outcome",
        )
        self.gauge("evalstop_rollout_actors", "Rollout actors on record, by state", self.jobs.actors, "state")
        self.gauge(
            "evalstop_slowed_residents",
            "RLHFJobs whose steps take longer in their worker group than they allow, as of their last evals",
            self.jobs.slowed,
        )
        self.actors_failed = Counter(
            "evalstop_rollout_actors_failed",
            "Rollout actors that ended, or were put aside, without having been asked to leave",
            registry=self.registry,
        )
        self.rollout_steps = Counter(
            "evalstop_rollout_steps",
            "Rollout steps that were planned, by the reason of their plan",
            ["reason"],
            registry=self.registry,
        )
        self.rollout_gpus = Counter(
            "evalstop_rollout_gpu_seconds",
            "GPU-seconds of rollout actors: held by those that have ended, lent by base actors that were let "
            "go, saved as Shadow counts it",
            ["account"],
            registry=self.registry,
        )
        self.passes = Counter(
            "evalstop_passes", "Passes by kind and result", ["kind", "result"], registry=self.registry
        )
        self.plan_seconds = Histogram(
            "evalstop_plan_seconds", "Time one plan took", ["kind"], buckets=_SHORT, registry=self.registry
        )
        self.pass_seconds = Histogram(
            "evalstop_pass_seconds",
            "Time one pass took, its writes included",
            ["kind"],
            buckets=_SHORT,
            registry=self.registry,
        )
        self.calls = Counter(
            "evalstop_api_calls",
            "API calls by verb, resource and outcome",
            ["verb", "resource", "outcome"],
            registry=self.registry,
        )
        self.scrapes = Counter(
            "evalstop_scrapes", "Scrapes of trainers by outcome", ["outcome"], registry=self.registry
        )
        self.verdicts = Counter(
            "evalstop_verdicts",
            "What rules said to new evals, by verb and reason; one for each pass that read some",
            ["verb", "reason"],
            registry=self.registry,
        )
        self.decisions = Counter(
            "evalstop_decisions",
            "Stops decided, by mode and reason",
            ["mode", "reason"],
            registry=self.registry,
        )
        self.outcomes = Counter(
            "evalstop_pool_outcomes", "What pool plans led to", ["verb"], registry=self.registry
        )
        self.held_back = Counter(
            "evalstop_stops_held_back",
            "Stops that a pool held back, by reason",
            ["reason"],
            registry=self.registry,
        )
        self.stages = Histogram(
            "evalstop_handover_seconds",
            "From the decision to each stage of handing GPUs back (running: of the job that got them)",
            ["stage"],
            buckets=_LONG,
            registry=self.registry,
        )
        self.gang_timeouts = Counter(
            "evalstop_gang_timeouts",
            "Admissions taken back because not every pod of the gang had a node in time",
            registry=self.registry,
        )
        self.saved = Counter(
            "evalstop_gpu_hours_saved",
            "GPU-hours stopped runs would have used to their planned end, by their own pace; an estimate",
            registry=self.registry,
        )
        self.preempted_lost = Counter(
            "evalstop_preempted_lost_gpu_seconds",
            "Work that preemptions cost: GPU-seconds since the preempted runs' last checkpoints",
            registry=self.registry,
        )
        self.past_grades = Counter(
            "evalstop_graded_gpu_seconds",
            "GPU-seconds runs used after their rule asked to warn, demote or stop them; counted at evals. In "
            "Shadow: what acting on it would have saved at most",
            ["mode", "action"],
            registry=self.registry,
        )
        self.repaired = Counter(
            "evalstop_watch_missed_events",
            "Changes a full LIST brought that the watch had not",
            ["resource"],
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "evalstop_events_dropped", "Kubernetes Events not posted", registry=self.registry
        )
        self.log_dropped = Counter(
            "evalstop_decision_log_dropped", "Decision log lines not written", registry=self.registry
        )
        self.loop_lag = Histogram(
            "evalstop_loop_lag_seconds",
            "How late the engine's loop wakes",
            buckets=_SHORT,
            registry=self.registry,
        )
        self._reasons: set[str] = set()
        for mode in (Mode.SHADOW, Mode.ENFORCE):
            for action in ("warn", "demote", "stop"):
                self.past_grades.labels(str(mode), action)
        for reason in Reason:
            self.rollout_steps.labels(str(reason))
        for account in _ACCOUNTS:
            self.rollout_gpus.labels(account)
        for outcome in ScrapeOutcome:
            self.scrapes.labels(str(outcome))
        for stage in STAGES:
            self.stages.labels(stage)

    def decided(self, decision: Decision) -> None:
        self.decisions.labels(str(decision.mode), self._bounded(decision.proposal.reason)).inc()

    def _bounded(self, reason: str) -> str:
        """Return the reason as a metric label; "Other" once there are too many different ones."""
        if reason not in self._reasons and len(self._reasons) >= _REASONS:
            return "Other"
        self._reasons.add(reason)
        return reason

    def record_changed(self, old: JobRecord, new: JobRecord) -> None:
        """Count what a status write brought: decisions and stages that were not in ``old``."""
        if _withdrawn(new) and not _withdrawn(old):
            self.gang_timeouts.inc()
        if new.evals_seen > old.evals_seen and new.rule is not None and new.rule.verdict is not None:
            verdict = new.rule.verdict
            self.verdicts.labels(str(verdict.verb), self._bounded(verdict.reason)).inc()
        self._rollouts(old.rollout, new.rollout)
        before, after = old.decision, new.decision
        if after is None:
            return
        if before is None or before.at != after.at:
            self.decided(after)
            before = None
        known = before.pods_gone_at if before else None
        for stage, then, at in (
            ("retained", before.retained_at if before else None, after.retained_at),
            ("suspended", before.suspended_at if before else None, after.suspended_at),
            ("pods_gone", known, after.pods_gone_at),
            ("handed", before.handed_at if before else None, after.handed_at),
        ):
            if then is None and at is not None:
                self.stages.labels(stage).observe(max(0.0, at - after.at))
        if after.retained_at is not None and (before is None or before.retained_at is None):
            # Nearly always secured before the decision; then this stage took no time.
            at = new.secured.at if new.secured is not None else after.at
            self.stages.labels("secured").observe(max(0.0, at - after.at))

    def _rollouts(self, old: RolloutRecord | None, new: RolloutRecord | None) -> None:
        if new is None:
            return
        old = old or RolloutRecord()
        self.actors_failed.inc(max(0, new.failed - old.failed))
        if new.plan is not None and (old.plan is None or old.plan.step != new.plan.step):
            reason = new.plan.reason
            self.rollout_steps.labels(reason if reason in _PLANNED else "Other").inc()
        for account in _ACCOUNTS:
            self.rollout_gpus.labels(account).inc(max(0.0, getattr(new, account) - getattr(old, account)))

    def graded(self, mode: Mode, old: PastGrades | None, new: PastGrades | None) -> None:
        """Count what a status write brought of service after warnings, demotions and Shadow's stops."""
        if new is None:
            return
        old = old or PastGrades()
        for action, before, after in (
            ("warn", old.warned, new.warned),
            ("demote", old.demoted, new.demoted),
            ("stop", old.stopped, new.stopped),
        ):
            self.past_grades.labels(str(mode), action).inc(max(0.0, after - before))

    def running(self, decided_at: float, running_since: float) -> None:
        """Record that the job which received a stopped job's GPUs is running."""
        self.stages.labels("running").observe(max(0.0, running_since - decided_at))


def _withdrawn(record: JobRecord) -> bool:
    return record.admission is not None and record.admission.withdrawn is not None
