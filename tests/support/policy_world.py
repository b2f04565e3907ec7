"""A cluster in miniature, for the brain's own tests: carries plans out and can lose its memory at any point.

It claims nothing about Kubernetes (tests/operator and tests/cluster do that): it holds the brain to its own
contract, that a plan made from the record and the visible world alone always goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from controller.policy import decision_log
from controller.policy.fleet.noise import usual, usual_of_guardrails
from controller.policy.job import plan as job_plan
from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord, Operation
from controller.policy.job.types import (
    AccessView,
    CreateWorkload,
    Desired,
    Event,
    ForgetAccess,
    Observed,
    Page,
    Plan,
    PodView,
    Progress,
    ReadMetrics,
    ScrapeOutcome,
    ScrapeView,
    SetFinalizer,
    StartAccess,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
    WriteRun,
)
from controller.policy.job.view import job_view
from controller.policy.pool import Verb, after, outcomes
from controller.policy.pool import plan as pool_plan
from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    Attempt,
    Delegate,
    EvalPoint,
    FleetView,
    NodeView,
    PastStop,
    PeersAt,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    ScoredBy,
    StopLimits,
    namespace_of,
)


@dataclass
class Job:
    desired: Desired
    record: JobRecord = field(default_factory=JobRecord)
    observed: Observed = field(default_factory=Observed)
    submitted: float = 0.0
    checkpoints: set[int] = field(default_factory=set)  # in the trainer's own folder
    pins: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    plan: Plan | None = None
    started: list[int] = field(default_factory=list)  # attempts
    nodes: tuple[str, ...] = ()
    slow_pods: bool = False
    readable: bool = True  # a scrape out of turn succeeds

    def wish(self, **changes) -> None:
        """Its user, or its pool's, writes these fields."""
        self.desired = replace(self.desired, **changes)


class PolicyWorld:
    pace = 10.0  # s between passes, where time just goes on

    def __init__(self, nodes: dict[str, int], policy: PolicySpec | None = None) -> None:
        self.nodes = nodes
        self.policy = policy or PolicySpec("fifo")
        self.jobs: dict[str, Job] = {}
        self.slow: frozenset[Operation] = frozenset()  # access Jobs of these go on and on, or fail:
        self.failing: str | None = None  # why
        self.asked: dict[str, StartAccess] = {}
        self.events: list[Event] = []  # of `go_on`
        self.reservations: tuple = ()
        self.stopped: tuple[PastStop, ...] = ()  # as the pool's status remembers them
        self.limits = StopLimits()
        self.delegate = Delegate.BUILTIN
        self.evaluator: str | None = None  # version that all trainers export
        self.peers: tuple[PeersAt, ...] = ()  # as every job is told
        self.told = PoolPlan()  # the last plan: what of it the pool's status keeps
        self.now = 1000.0
        self.writes = 0

    def submit(self, key: str, replicas: int = 1, gpus: int = 1, **spec) -> Job:
        desired = Desired(
            key=key,
            uid=f"uid-{key}",
            generation=1,
            metric="gold",
            replicas=replicas,
            gpus_per_replica=gpus,
            rule=spec.pop("rule", PolicySpec("kDeclines", {"k": 3})),
            **spec,
        )
        self.jobs[key] = Job(desired, submitted=self.now)
        return self.jobs[key]

    def scores(
        self, key: str, *scores: float, checkpoints: bool = True, attempt: Attempt | None = None
    ) -> None:
        """The trainer's next evals, at steps 10, 20, …, each with its checkpoint."""
        job = self.jobs[key]
        old = job.observed.scrape
        points = list(old.points if old is not None else ())
        life = attempt or Attempt(job.record.attempt, "1")
        for score in scores:
            step = points[-1].step + 10 if points else 10
            points.append(EvalPoint(step, score, life))
            if checkpoints:
                job.checkpoints.add(step)
        newest = points[-1].step
        self.scrape(key, points=tuple(points[-32:]), checkpoint_step=newest if checkpoints else 0)

    def scrape(self, key: str, **fields) -> None:
        fields = {"evaluator": self.evaluator, **fields}
        job = self.jobs[key]
        points = fields.get("points") or ()
        life = points[-1].attempt if points else Attempt(job.record.attempt, "1")
        fields.setdefault("page", Page(job.desired.uid, life))
        view = ScrapeView(ScrapeOutcome.OK, at=self.now, metrics_seen=("gold",), **fields)
        self.jobs[key].observed = replace(self.jobs[key].observed, scrape=view)

    def scrape_again(self, key: str) -> None:
        """The next page says the same, but for one more eval as bad as the last."""
        seen = self.jobs[key].observed.scrape
        assert seen is not None
        last = seen.points[-1]
        self.scores(key, last.score - 0.001)

    def move_copy(self, key: str, done: int, total: int) -> None:
        """The access Jobs under way have come so far."""
        job = self.jobs[key]
        told = Progress(done, total, 1.0, self.now, self.now)
        views = tuple(v if v.finished else replace(v, progress=told) for v in job.observed.access)
        job.observed = replace(job.observed, access=views)

    def step(self, key: str, *, acts: int | None = None, seconds: float = 1.0) -> Plan:
        """One pass over one job; only the first ``acts`` actions happen before the operator dies."""
        self.now += seconds
        job = self.jobs[key]
        seen = job.observed.scrape
        evaluator = (seen.evaluator if seen is not None else None) or job.record.evaluator
        scored_by = ScoredBy(namespace_of(key), job.desired.metric, evaluator)
        mine = [fall for fall in self.told.falls if fall.concerns(scored_by)]
        noise = usual(self.told.noise, scored_by, self.limits.scope)
        metrics = [guard.metric for guard in job.desired.guardrails]
        guards = usual_of_guardrails(self.told.noise, scored_by, self.limits.scope, metrics)
        fleet = FleetView(noise, mine[-1] if mine else None, self.peers, guards)
        job.observed = replace(job.observed, fleet=fleet)
        planned = job_plan.plan_job(job.desired, job.observed, job.record, self.now)
        if planned.record != job.record:
            self.writes += 1
        job.record, job.plan = planned.record, planned
        for action in planned.actions[:acts]:
            self._carry_out(job, action)
        return planned

    def pool_pass(self) -> PoolPlan:
        views = []
        for job in self.jobs.values():
            if job.plan is None:
                continue
            view = job_view(
                job.desired,
                job.observed,
                job.record,
                job.plan,
                submitted=job.submitted,
                priority=0,
                now=self.now,
            )
            views += [view] if view else []
        nodes = tuple(NodeView(n, g) for n, g in self.nodes.items())
        self._count_stops()
        snapshot = PoolSnapshot(
            "p",
            self.policy,
            nodes,
            tuple(views),
            self.reservations,
            limits=self.limits,
            delegate=self.delegate,
            stopped=self.stopped,
            noise=self.told.noise,
            falls=self.told.falls,
        )
        planned = self.told = pool_plan.plan_pool(snapshot, self.now)
        for write in outcomes(planned, self.jobs, self.now):
            if write.verb is not Verb.WAITING:  # a wait is the same for the job's own plan
                job = self.jobs[write.key]
                job.record = after(write, job.record, job.desired, self.now)
        self.reservations = planned.reservations
        return planned

    def _count_stops(self) -> None:
        """As the pool's status remembers them: a job that was resumed tells of its stop no more."""
        found = {(stop.job, stop.at): stop for stop in self.stopped}
        for key, job in self.jobs.items():
            if job.record.taken_back is not None:
                found.pop((key, job.record.taken_back.decided), None)
            if job.record.decision is not None:
                found[key, job.record.decision.at] = PastStop(job.record.decision.at, None, key)
        self.stopped = tuple(found.values())

    def settle(self, rounds: int = 60) -> None:
        """Passes over everything until nothing changes."""
        for _ in range(rounds):
            before = [(j.record, j.observed) for j in self.jobs.values()]
            for key in self.jobs:
                self.step(key, seconds=0.0)
                self._cluster(self.jobs[key])
            self.pool_pass()
            if before == [(j.record, j.observed) for j in self.jobs.values()]:
                pending = [j.record.access.not_before for j in self.jobs.values() if j.record.access]
                reads = any(isinstance(a, ReadMetrics) for j in self.jobs.values() for a in j.plan.actions)
                if not reads and not any(t > self.now for t in pending):
                    return
            self.now += 10.0
        raise AssertionError("the world does not settle")

    def go_on(self, seconds: float, every: float | None = None) -> None:
        """Passes over everything, ``every`` (s) apart, whether anything changes or not."""
        until = self.now + seconds
        while self.now < until:
            for key in self.jobs:
                self.events += self.step(key, seconds=every or self.pace).events
                self._cluster(self.jobs[key])
            self.pool_pass()

    def _carry_out(self, job: Job, action: object) -> None:
        seen = job.observed
        if isinstance(action, CreateWorkload):
            if seen.workload is None:
                seen = replace(seen, workload=WorkloadView("w", suspended=True, settled=True))
        elif isinstance(action, WriteRun):
            seen = replace(seen, run_written=action.run)
        elif isinstance(action, StartWorkload):
            assert not any(not p.terminal for p in seen.pods), "started beside the old pods"
            job.started.append(action.attempt)
            job.nodes = action.nodes
            seen = replace(seen, workload=WorkloadView("w", suspended=False))
        elif isinstance(action, SuspendWorkload):
            seen = replace(seen, workload=WorkloadView("w", suspended=True))
        elif isinstance(action, StartAccess):
            self.asked[action.request_id] = action
            if action.operation not in self.slow:
                view = self._access(job, action)
            elif self.failing is None:
                view = AccessView(action.request_id, action.operation, finished=False)
            else:
                view = AccessView(action.request_id, action.operation, True, False, self.failing, "it fails")
            seen = replace(seen, access=(*seen.access, view))
        elif isinstance(action, ForgetAccess):
            seen = replace(seen, access=tuple(a for a in seen.access if a.request_id != action.request_id))
        elif isinstance(action, SetFinalizer):
            seen = replace(seen, finalizer=action.present)
        elif isinstance(action, ReadMetrics) and seen.scrape is not None and seen.pods and job.readable:
            seen = replace(seen, scrape=replace(seen.scrape, at=self.now))
        job.observed = seen

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        def answer(step: int, where: str) -> AccessView:
            digest = f"sha256:{job.desired.uid}-{step}"
            return AccessView(
                ask.request_id, ask.operation, True, True, "", "", step, f"{where}/{step}", digest, digest, 1
            )

        def no(reason: str) -> AccessView:
            return AccessView(
                ask.request_id, ask.operation, True, False, reason, f"{reason}: step {ask.step}"
            )

        if ask.operation is Operation.CLAIM:
            return AccessView(ask.request_id, ask.operation, True, True)
        if ask.operation in (Operation.SECURE, Operation.PIN):
            there = job.checkpoints | job.pins
            fits = [s for s in there if ask.step - ask.max_step_lag <= s <= ask.step]
            if not fits:
                return replace(no("CheckpointMissing"), lowest=min(job.checkpoints, default=None))
            released = {int(path.rpartition("/")[2]) for path in ask.release}
            job.pins = (job.pins - released) | {max(fits)}
            return answer(max(fits), "/pins")
        if ask.operation is Operation.CHECK:
            there = ask.source is not None and ask.source.step in job.pins
            return answer(ask.step, "/pins") if there else no("CheckpointMissing")
        if ask.operation is Operation.RETAIN:
            if ask.source is None or ask.source.step not in job.pins:
                return no("CheckpointMissing")
            job.kept.add(ask.source.step)
            return answer(ask.source.step, "/kept")
        if ask.source is not None and ask.source.step not in job.kept:
            return no("CheckpointMissing")
        return answer(ask.step, "/restored")

    def _cluster(self, job: Job) -> None:
        """What controllers and kubelets do between passes."""
        seen, workload = job.observed, job.observed.workload
        if workload is None:
            return
        if workload.suspended:
            if seen.pods and not job.slow_pods:
                seen = replace(seen, pods=())
            if not seen.pods:
                seen = replace(seen, workload=replace(workload, settled=True))
        elif workload.finished is None and not seen.pods:
            nodes = job.nodes or ("",) * job.desired.replicas
            pods = tuple(
                PodView(f"pod-{i}", node, job.desired.gpus_per_replica, terminal=False, ready=True)
                for i, node in enumerate(nodes)
            )
            seen = replace(seen, pods=pods)
        job.observed = seen
        assert self._within_capacity(), "GPUs oversubscribed"

    def _within_capacity(self) -> bool:
        used: dict[str, int] = {}
        for job in self.jobs.values():
            for pod in job.observed.pods:
                if not pod.terminal and pod.node:
                    used[pod.node] = used.get(pod.node, 0) + pod.gpus
        return all(gpus <= self.nodes.get(node, 0) for node, gpus in used.items())

    def finish(self, key: str) -> None:
        job = self.jobs[key]
        pods = tuple(replace(p, terminal=True, ready=False, succeeded=True) for p in job.observed.pods)
        job.observed = replace(
            job.observed, workload=WorkloadView("w", False, finished="Complete"), pods=pods
        )


@contextmanager
def logged_plans() -> Iterator[list[str]]:
    """The decision log's lines of every plan that is made within."""
    lines: list[str] = []

    def logged_job(desired, observed, record, now):
        planned = plan_job(desired, observed, record, now)
        lines.append(decision_log.job_line(desired, observed, record, now, planned))
        return planned

    def logged_pool(snapshot, now):
        planned = plan_pool(snapshot, now)
        lines.append(decision_log.pool_line(snapshot, now, planned))
        return planned

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_plan, "plan_job", logged_job)
        patch.setattr(pool_plan, "plan_pool", logged_pool)
        yield lines
