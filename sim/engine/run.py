"""The engine: carries the policy's decisions out on virtual GPUs.

It decides nothing. It tells the policy what happened, asks it who runs, and does that; rules' verdicts go to
the policy as proposals and come back as releases, as in the operator.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from controller.policy.pool import REASON as DEMOTED
from controller.policy.pool import NodeRoom, Planner, SlotRoom
from controller.policy.queueing.base import NOTHING, QueuePolicy
from controller.policy.types import JobKey, JobState, StopLimits
from sim.cluster import Cluster
from sim.engine.demotion import Demotions
from sim.engine.evaluations import Evaluations
from sim.engine.event_log import EventLog
from sim.engine.fast_path import run_bare
from sim.engine.gangs import gangs
from sim.engine.job_views import views
from sim.engine.ledger import JobColumns
from sim.engine.result import Result
from sim.engine.training import Training
from sim.engine.virtual_job import DetailedJob, JudgedJob, VirtualJob
from sim.foresight import RuleSpec
from sim.kernel import Kernel
from sim.latencies import Latencies
from sim.workload import Workload

_ADMITTED, _STOPPING, _PREEMPTING = JobState.ADMITTED, JobState.STOPPING, JobState.PREEMPTING
_NO_LATENCIES = Latencies()


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: QueuePolicy,
    *,
    rule: RuleSpec | None = None,
    latencies: Latencies = _NO_LATENCIES,
    scatter: Callable[[str], float] | None = None,
    limits: StopLimits | None = None,
    foresight: bool = True,
    event_log: EventLog | None = None,
) -> Result:
    """Run the workload to its end under a fresh policy.

    Args:
        workload: the jobs.
        cluster: the nodes.
        policy: a queue policy that nobody has used yet; `EvalStop` around it stops the jobs that ``rule``
            says are past their best. With a rule and without `EvalStop` the rule's verdicts are only
            recorded.
        rule: the stop rule that judges the evals. None: evals change nothing.
        latencies: how long a stop, a start and the like take.
        scatter: asked at each stop, preemption and hand-over with the names of its latencies; its result (s)
            is added to that latency this time. None: each takes the same every time.
        limits: what the pool asks before it stops a job that the rule says is past its best, and lets it
            learn the noise of its runs (`controller.policy.fleet.limits`). None: it asks nothing.
        foresight: whether each job's first STOP may be computed beforehand, where that gives the same run.
        event_log: receives every decision.

    Raises:
        ValueError: a job is larger than the cluster; the message names its row.
        ParamError: the rule, a modifier or a parameter of it does not exist or is out of bounds, or the
            rule yields no e-values where ``limits`` promise a precision.
    """
    # Nothing here makes cycles, and a collector that walks a million live jobs again and again costs more
    # than the simulation.
    collecting = gc.isenabled()
    gc.disable()
    try:
        training = Training(workload, latencies)
        evals = Evaluations(workload, training, rule, policy.watches, foresight, limits)
        room, shapes = cluster.room(), gangs(workload, cluster)
        simple = latencies.none and scatter is None
        shown = views(
            workload,
            training,
            shapes,
            judged=evals.any,
            detailed=evals.streams or not simple,
            progresses=policy.watches,
        )
        bare = simple and not evals.streams and event_log is None
        if bare and isinstance(room, SlotRoom):
            return run_bare(workload, policy, room, training, evals, shown)
        return _Engine(workload, room, policy, training, evals, shown, event_log, scatter).run()
    finally:
        if collecting:
            gc.enable()


class _Engine:
    __slots__ = (
        "_alarm",
        "_armed",
        "_at",
        "_demotions",
        "_evals",
        "_event_log",
        "_fleet",
        "_fleet_wakes",
        "_held",
        "_kernel",
        "_latencies",
        "_ledger",
        "_planner",
        "_room",
        "_scatter",
        "_starting",
        "_ticket",
        "_training",
        "_views",
        "_wake_at",
        "_workload",
    )

    def __init__(
        self,
        workload: Workload,
        room: NodeRoom | SlotRoom,
        policy: QueuePolicy,
        training: Training,
        evals: Evaluations,
        views: Iterator[VirtualJob],
        event_log: EventLog | None,
        scatter: Callable[[str], float] | None,
    ) -> None:
        self._workload = workload
        self._room = room
        self._scatter = scatter
        self._planner = Planner(policy, room)
        self._training = training
        self._latencies = training.latencies
        self._evals = evals
        self._fleet = evals.fleet
        # Who runs and who leaves, where runs can be demoted.
        self._demotions: Demotions | None = Demotions(policy) if evals.grades else None
        self._starting: dict[int, VirtualJob] = {}  # admitted, their members not ready yet
        self._held: dict[JobKey, str] = {}  # whose stops are held back, and why
        self._fleet_wakes = inf  # when the pool's questions are asked again at the latest
        self._views = views
        self._event_log = event_log
        self._kernel = Kernel()
        self._at = self._kernel.at
        self._ledger = JobColumns(workload)
        self._wake_at: float | None = None  # when the policy wants to be asked
        self._armed = inf  # when an alarm is set to ring
        self._alarm = 0  # its ticket
        self._ticket = [0] * len(workload)  # of each job's next event

    def run(self) -> Result:
        kernel = self._kernel
        settle = self._settle if self._demotions is None else self._settle_and_give_way
        arrivals: Iterator[float] = iter(self._workload.submitted)
        if delay := self._latencies.queue_delay:
            arrivals = (time + delay for time in arrivals)
        kernel.run(arrivals, self._views, self._planner.submitted, settle)
        return self._ledger.result(self._training, self._evals, kernel.events)

    # -- decisions

    def _settle(self, now: float) -> None:
        job: Any  # a policy gives back the very views it was given
        for job in self._starting.values():  # a policy counts time from what it heard last, theirs not yet
            self._planner.updated(job, now)
        while True:
            decision = self._planner.decide(now)
            if decision is NOTHING and self._wake_at is None:
                return
            admit, preempt, release, wake_at = decision
            if wake_at != self._wake_at:
                self._set_alarm(now, wake_at)
            again = False
            for job in admit:
                again |= self._start(job, now)
            for job, why in preempt:
                again |= self._suspend(job, now, _PREEMPTING, why)
            for job in release:
                again |= self._suspend(job, now, _STOPPING, "")
            if not again:
                return

    def _settle_and_give_way(self, now: float) -> None:
        """Settle; where demoted runs hold what others wait for, they go, and all is settled again.

        Each of them once in an instant: a policy that gave its GPUs back to it must not be asked for ever.
        """
        assert self._demotions is not None
        self._settle(now)
        preempted: set[int] = set()
        policy = self._planner.policy
        while go := self._demotions.give_way([*policy.queue(), *policy.barred()], self._room, now):
            freed = [self._suspend(j, now, _PREEMPTING, DEMOTED) for j in go if j.sequence not in preempted]
            if not any(freed):
                return
            preempted.update(job.sequence for job in go)
            self._settle(now)

    def _set_alarm(self, now: float, wake_at: float | None) -> None:
        """Remember when the policy wants to be asked. An alarm that rings too early is set anew, quietly."""
        self._wake_at = wake_at
        if wake_at is not None and now < wake_at < self._armed:
            if self._armed < inf:
                self._kernel.cancel(self._alarm)
            self._armed = wake_at
            self._alarm = self._at(wake_at, -1, self._ring, wake_at)

    def _ring(self, time: float) -> bool:
        self._armed = inf
        if self._wake_at is None:
            return True
        if self._wake_at > time:
            self._set_alarm(time, self._wake_at)
            return True
        self._wake_at = None
        return False

    # -- runs

    def _start(self, job: VirtualJob, now: float) -> bool:
        """Start an admitted job; return whether scores that came while it waited are news for the policy."""
        row, ledger = job.sequence, self._ledger
        again = ledger.started[row] >= 0
        if not again:
            ledger.started[row] = now
        job.state = _ADMITTED
        job.since = ledger.held[row] = ledger.counted[row] = now
        if delay := self._latencies.start_delay:
            ledger.counted[row] = ready = now + delay
            self._starting[row] = job
            self._at(ready, row, self._ready, job)
        if isinstance(self._room, NodeRoom) and isinstance(job, DetailedJob):
            placed = self._room.placed.pop(job.key)
            job.nodes, job.actor_nodes = placed.gang, placed.actors
        self._planner.admitted(job, now)
        if self._demotions is not None:
            self._demotions.running[row] = job
        if self._fleet is not None and isinstance(job, JudgedJob):
            self._fleet.started(job)
        if self._event_log is not None:
            self._event_log.write(now, "admit", job.key, ",".join(job.nodes))
        evals = self._evals
        self._training.begin(row, now, again)
        if evals.streams:
            evals.begin(row)
        self._schedule(job, row)
        quiet = True
        if evals.late:
            for number in sorted(evals.late.pop(row, ())):
                quiet &= self._score((job, number))
        return not quiet

    def _ready(self, job: VirtualJob) -> bool:
        """Count the service of a run from now on, as the operator does: all its members are ready."""
        now, row = self._kernel.now, job.sequence
        if self._starting.get(row) is not job or self._ledger.counted[row] != now:
            return True  # it has left since
        del self._starting[row]
        job.since = now
        self._planner.updated(job, now)
        return False

    def _schedule(self, job: VirtualJob, row: int) -> None:
        """Schedule the run's next event: an eval that somebody looks at, or its end."""
        number = self._evals.next(row)
        if number is None:
            end = self._training.end_at(row)
            if delay := self._latencies.end_delay:
                end += delay
            self._ticket[row] = self._at(end, row, self._end, job)
        else:
            self._ticket[row] = self._at(self._training.eval_at(row, number), row, self._eval, job)

    def _end(self, job: VirtualJob) -> bool:
        now, row, ledger = self._kernel.now, job.sequence, self._ledger
        ledger.ended[row] = now
        quiet = self._hand_over(job)
        if self._demotions is not None:
            del self._demotions.running[row]
        if self._fleet is not None and isinstance(job, JudgedJob):
            self._fleet.left(job, now, ended=True)
            quiet = not self._consult(now) and quiet
        ledger.service[row] += (now - ledger.held[row]) * job.gpus
        self._starting.pop(row, None)
        if self._event_log is not None:
            self._event_log.write(now, "end", job.key)
        return quiet

    def _hand_over(self, job: VirtualJob) -> bool:
        """Free what a job held; return True if the policy is told of it later."""
        if delay := self._takes("handover_delay"):
            self._at(self._kernel.now + delay, job.sequence, self._give_back, job)
            return True
        self._give_back(job)
        return False

    def _give_back(self, job: VirtualJob) -> None:
        """Give the GPUs of a job that has ended, was stopped or was preempted back to the planner."""
        now, row = self._kernel.now, job.sequence
        if self._ledger.ended[row] >= 0:
            self._planner.removed(job, now)
            return
        job.state = JobState.QUEUED
        job.since = now
        job.remaining = self._training.left(row, True)
        if job.progress is not None and isinstance(job, DetailedJob) and self._training.work[row]:
            # That of the checkpoint it goes on from.
            job.progress = self._training.done[row] / self._training.work[row]
        self._planner.requeued(job, now)
        if isinstance(job, DetailedJob):
            job.nodes, job.actor_nodes = (), ()

    def _takes(self, latency: str) -> float:
        """Return how long that takes this time, s."""
        usual: float = getattr(self._latencies, latency)
        return usual if self._scatter is None else max(0.0, usual + self._scatter(latency))

    def _ends_first(self, row: int, now: float, stopping: bool, left: float) -> bool:
        """Return whether a run that is to leave ends by itself before it could: it is over, and not seen to
        be yet, or trains on to its end in the ``left`` seconds until its checkpoint is copied away or it has
        heard of its preemption."""
        if self._ledger.ended[row] >= 0:
            return True
        if not stopping and row in self._starting:
            return False
        return bool(left or self._latencies.end_delay) and self._training.end_at(row) <= now + left

    def _suspend(self, job: VirtualJob, now: float, state: JobState, why: str) -> bool:
        """Make a run leave: it stops training now, or once it learns of its preemption.

        Says whether its GPUs are free at once. One that is preempted before its members are ready has nothing
        to save and nobody to tell.
        """
        row, latencies = job.sequence, self._latencies
        stopping = state is _STOPPING
        left = self._takes("retain_time" if stopping else "preempt_delay")
        if self._ends_first(row, now, stopping, left):
            job.state = state
            self._planner.leaving(job, now)
            self._let_end(job, now)
            return False
        self._kernel.cancel(self._ticket[row])
        job.state = state
        if self._demotions is not None:
            self._demotions.leaving[row] = self._demotions.running.pop(row)
        if self._fleet is not None and isinstance(job, JudgedJob):
            self._fleet.left(job, now, stopped=stopping)
        self._planner.leaving(job, now)
        starting = self._starting.pop(row, None) is not None
        graceful = stopping or latencies.checkpoint_on_preempt
        evaluated = now if stopping or starting else now + left
        self._ledger.lost[row] += self._training.pause(row, evaluated, graceful=graceful)
        if evaluated > now and self._evals.any and (late := self._evals.overtaken(row)):
            self._evals.late.setdefault(row, []).extend(late)
        delay = self._takes("suspend_delay") + (evaluated - now)
        if stopping:
            delay += left
        elif graceful and not starting:
            delay += latencies.checkpoint_time
        if self._event_log is not None:
            self._event_log.write(now, "release" if stopping else "preempt", job.key, why)
        if delay:
            self._at(now + delay, row, self._free, job)
            return False
        return not self._free(job)

    def _let_end(self, job: VirtualJob, now: float) -> None:
        """Schedule the end of a run that finishes whatever was decided; its evals are no events any more."""
        row = job.sequence
        if self._ledger.ended[row] < 0 and self._evals.next(row) is not None:
            self._kernel.cancel(self._ticket[row])
            end = self._training.end_at(row) + self._latencies.end_delay
            self._ticket[row] = self._at(max(end, now), row, self._end, job)

    def _free(self, job: VirtualJob) -> bool:
        """Free the GPUs of a suspended run whose pods are gone."""
        now, row, ledger = self._kernel.now, job.sequence, self._ledger
        self._count(job, now)
        ledger.service[row] += (now - ledger.held[row]) * job.gpus
        if self._demotions is not None:
            del self._demotions.leaving[row]
        if self._event_log is not None:
            self._event_log.write(now, "free", job.key)
        if job.state is _STOPPING:
            ledger.ended[row] = now
            ledger.stopped.add(row)
        else:
            ledger.preempted[row] = ledger.preempted.get(row, 0) + 1
        return self._hand_over(job)

    # -- evals

    def _eval(self, job: VirtualJob) -> bool:
        """Make an eval; its score is known ``eval_delay`` later. True: the policy need not know yet."""
        row, delay = job.sequence, self._latencies.eval_delay
        number = self._evals.made(row)
        self._schedule(job, row)
        if delay:
            self._at(self._kernel.now + delay, row, self._score, (job, number))
            return True
        return self._score((job, number))

    def _score(self, known: tuple[VirtualJob, int]) -> bool:
        """Take in a score; if its job does not run just now, the score waits until it does.

        True: the policy need not hear of it.
        """
        job, number = known
        now, row = self._kernel.now, job.sequence
        if job.state is not _ADMITTED:
            if job.state is not _STOPPING:
                self._evals.late.setdefault(row, []).append(number)
            return True
        if self._ledger.ended[row] >= 0:
            return True
        latencies = self._latencies
        if (latencies.end_delay or latencies.eval_delay) and self._training.end_at(row) <= now:
            return True  # its trainer is gone, and nobody reads it any more
        assert isinstance(job, JudgedJob)  # views are, where there are evals
        proposed = job.proposal
        service = job.attained + max(0, now - self._ledger.counted[row]) * job.gpus
        news = self._evals.scrape(job, number, now, service)
        if self._fleet is not None:
            news |= self._consult(now)
        if not news:
            return True
        self._refresh(job, now)
        if self._event_log is not None and job.proposal is not None and proposed is None:
            self._event_log.write(now, "propose", job.key, f"{job.proposal.reason} {job.proposal.step}")
        self._planner.updated(job, now)
        return False

    def _refresh(self, job: VirtualJob, now: float) -> None:
        """Bring a running job's view up to ``now`` (s)."""
        self._count(job, now)
        row = job.sequence
        job.remaining = self._training.end_at(row) - max(now, self._ledger.counted[row])

    def _count(self, job: VirtualJob, now: float) -> None:
        """Add the service up to ``now`` (s) that is not yet in its view, from its members' readiness on."""
        row, counted = job.sequence, self._ledger.counted
        if now > counted[row]:
            job.attained += (now - counted[row]) * job.gpus
            counted[row] = now

    # -- the pool's own questions

    def _consult(self, now: float) -> bool:
        """Ask who may be stopped, and let the policy know; whether there is news for it."""
        fleet = self._fleet
        assert fleet is not None
        if not fleet.asking and not any(run.job.proposal for run in fleet.runs.values()):
            return False
        limited, new = fleet.limit_stops(now)
        for fall in new:
            for row in fleet.concerned(fall):
                self._evals.begin_anew(row, fall)
        granted = {view.sequence for view in limited.grant}
        news = False
        for row, run in fleet.runs.items():
            job, proposal = run.job, fleet.asking.get(row) if row in granted else None
            if job.proposal == proposal:
                continue
            job.proposal = proposal
            self._refresh(job, now)
            self._planner.updated(job, now)
            news = True
        if self._event_log is not None:
            for held in limited.held:
                if self._held.get(held.key) != held.reason:
                    self._event_log.write(now, "hold", held.key, held.reason)
        self._held = {held.key: held.reason for held in limited.held}
        wake = limited.wake_at
        if wake is not None and now < wake < self._fleet_wakes:
            self._fleet_wakes = wake
            self._at(wake, -1, self._ask_again, wake)
        return news

    def _ask_again(self, time: float) -> bool:
        """Ask the fleet at the time it named; return True if the policy need not hear of it."""
        if time == self._fleet_wakes:
            self._fleet_wakes = inf
        return not self._consult(time)
