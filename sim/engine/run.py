"""The engine: carries the policy's decisions out on virtual GPUs.

It decides nothing. It tells the policy what happened, asks it who runs, and does that; rules' verdicts go to
the policy as proposals and come back as releases, as in the operator.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from controller.policy.placement import NodeRoom
from controller.policy.planner import Planner
from controller.policy.queueing.base import NOTHING, QueuePolicy
from controller.policy.types import JobState
from sim.cluster import Cluster
from sim.engine.evaluations import Evaluations
from sim.engine.gangs import gangs
from sim.engine.journal import Journal
from sim.engine.result import Result
from sim.engine.training import Training
from sim.engine.view import DetailedJob, JudgedJob, VirtualJob
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
    foresight: bool = True,
    journal: Journal | None = None,
) -> Result:
    """Run the workload to its end under a fresh policy.

    Args:
        policy: a queue policy that nobody has used yet; `EvalStop` around it stops the jobs that ``rule``
            says are past their best. With a rule and without `EvalStop` the rule's words are only recorded.
        rule: whom the evals are shown to. None: evals change nothing.
        foresight: allow to compute each job's first STOP beforehand, where that gives the same run.
        journal: takes down every decision.

    Raises:
        ValueError: a job is larger than the cluster; the message names its row.
        ParamError: the rule, a modifier or a parameter of it does not exist or is out of bounds.
    """
    # Nothing here makes cycles, and a collector that walks a million live jobs again and again costs more
    # than the simulation.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _Engine(workload, cluster, policy, rule, latencies, foresight, journal).run()
    finally:
        if collecting:
            gc.enable()


class _Engine:
    __slots__ = (
        "_armed",
        "_at",
        "_bare",
        "_counted",
        "_detailed",
        "_done",
        "_ended",
        "_evals",
        "_gangs",
        "_journal",
        "_kernel",
        "_latencies",
        "_lost",
        "_plain",
        "_planner",
        "_preempted",
        "_progresses",
        "_room",
        "_service",
        "_started",
        "_stopped",
        "_ticket",
        "_training",
        "_wake_at",
        "_work",
        "_workload",
    )

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: QueuePolicy,
        rule: RuleSpec | None,
        latencies: Latencies,
        foresight: bool,
        journal: Journal | None,
    ) -> None:
        rows = len(workload)
        self._workload = workload
        self._gangs = gangs(workload, cluster)
        self._kernel = Kernel()
        self._at = self._kernel.at
        self._room = cluster.room()
        self._planner = Planner(policy, self._room)
        self._latencies = latencies
        self._training = Training(workload, latencies)
        self._evals = Evaluations(workload, self._training, rule, policy.watches, foresight)
        self._progresses = policy.watches
        self._journal = journal
        columns = (workload.priority, workload.weight, workload.estimate)
        # Jobs that can be told apart by more than time and size, or change as they run, have larger views.
        self._detailed = (
            self._gangs is not None or self._evals.streams or not latencies.none or any(map(len, columns))
        )
        # Where nothing but training takes time and nobody looks at evals, a run is one addition; where
        # besides nobody takes notes and GPUs are slots, there is nothing else to it.
        self._plain = latencies.none and not self._evals.any
        self._bare = self._plain and journal is None and not cluster.nodes
        self._work = workload.work
        self._done = self._training.done
        self._wake_at: float | None = None  # when the policy wants to be asked
        self._armed = inf  # when an alarm is set to ring
        self._ticket = [0] * rows  # of each job's next event
        self._counted: list[float] = [0] * rows  # until when a running job's service is in its view
        self._started: list[float] = [-1] * rows
        self._ended: list[float] = [-1] * rows
        self._service: list[float] = [0] * rows
        self._lost: list[float] = [0] * rows
        self._preempted: dict[int, int] = {}
        self._stopped: set[int] = set()

    def run(self) -> Result:
        workload, stopped = self._workload, self._stopped
        self._kernel.run(iter(workload.submitted), self._views(), self._planner.submitted, self._settle)
        training, rows = self._training, range(len(workload))
        return Result(
            submitted=workload.submitted,
            gpus=workload.gpus,
            started=self._started,
            ended=self._ended,
            service=self._service,
            useful=[self._done[r] if r in stopped else work for r, work in enumerate(self._work)],
            lost=self._lost,
            evals_made=[training.next[r] if r in stopped else training.evals(r) for r in rows]
            if workload.evals
            else [0] * len(workload),
            preempted=self._preempted,
            stops=self._evals.stops,
            stopped=stopped,
            events=self._kernel.events,
        )

    # -- arrivals and decisions

    def _views(self) -> Iterator[VirtualJob]:
        """What policies see of each job, made when its time comes, so that few are there at once."""
        workload, rows = self._workload, range(len(self._workload))
        if self._detailed:
            return map(self._detail, rows)
        keys: Iterable[str] = workload.keys or map("sim/".__add__, map(str, rows))
        view = JudgedJob if self._evals.any else VirtualJob
        return map(view, keys, workload.submitted, rows, workload.gpus, workload.work)

    def _detail(self, row: int) -> DetailedJob:
        workload = self._workload
        left = self._training.left(row, False)
        job = DetailedJob(workload.key(row), workload.submitted[row], row, workload.gpus[row], left)
        if self._gangs is not None:
            job.replicas, job.gpus_each = self._gangs[row]
        if len(workload.priority):
            job.priority = workload.priority[row]
        if len(workload.weight):
            job.weight = workload.weight[row]
        if len(workload.estimate):
            job.estimate = workload.estimate[row]
        if self._progresses:
            job.progress = 0.0
        return job

    def _settle(self, now: float) -> None:
        while True:
            decision = self._planner.decide(now)
            if decision is NOTHING and self._wake_at is None:
                return
            admit, preempt, release, wake_at = decision
            if wake_at != self._wake_at:
                self._set_alarm(now, wake_at)
            job: Any  # a policy gives back the very views it was given
            again = False
            for job in admit:
                again |= self._start(job, now)
            for job, why in preempt:
                again |= self._suspend(job, now, _PREEMPTING, why)
            for job in release:
                again |= self._suspend(job, now, _STOPPING, "")
            if not again:
                return

    def _set_alarm(self, now: float, wake_at: float | None) -> None:
        """Remember when the policy wants to be asked. An alarm that rings too early is set anew, quietly."""
        self._wake_at = wake_at
        if wake_at is not None and now < wake_at < self._armed:
            self._armed = wake_at
            self._at(wake_at, -1, self._ring, wake_at)

    def _ring(self, time: float) -> bool:
        if time != self._armed:
            return True  # an earlier one was set after it, and rang
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
        """A job was admitted. Whether there is news for the policy: scores that came while the job waited."""
        row = job.sequence
        again = self._started[row] >= 0
        if not again:
            self._started[row] = now
        job.state = _ADMITTED
        job.since = self._counted[row] = now
        if self._bare:
            self._planner.admitted(job, now)
            self._ticket[row] = self._at(now + (self._work[row] - self._done[row]), row, self._end, job)
            return False
        if isinstance(self._room, NodeRoom) and isinstance(job, DetailedJob):
            job.nodes = self._room.placed.pop(job.key)
        self._planner.admitted(job, now)
        if self._journal is not None:
            self._journal.write(now, "admit", job.key, ",".join(job.nodes))
        evals = self._evals
        self._training.begin(row, now, again)
        if evals.streams:
            evals.begin(row)
        self._schedule(job, row)
        quiet = True
        if evals.late:
            for number in evals.late.pop(row, ()):
                quiet &= self._score((job, number))
        return not quiet

    def _schedule(self, job: VirtualJob, row: int) -> None:
        """The run's next event: an eval that somebody looks at, or its end."""
        number = self._evals.next(row)
        if number is None:
            self._ticket[row] = self._at(self._training.end_at(row), row, self._end, job)
        else:
            self._ticket[row] = self._at(self._training.eval_at(row, number), row, self._eval, job)

    def _end(self, job: VirtualJob) -> None:
        now, row = self._kernel.now, job.sequence
        self._planner.gone(job, now)
        self._ended[row] = now
        self._service[row] = job.attained + (now - self._counted[row]) * job.gpus
        if self._journal is not None:
            self._journal.write(now, "end", job.key)

    def _suspend(self, job: VirtualJob, now: float, state: JobState, why: str) -> bool:
        """The run stops training now. Whether its GPUs are free at once."""
        row, latencies = job.sequence, self._latencies
        stopping = state is _STOPPING
        self._kernel.cancel(self._ticket[row])
        job.state = state
        self._planner.leaving(job, now)
        graceful = stopping or latencies.checkpoint_on_preempt
        delay = 0.0
        if self._plain:
            self._done[row] += now - self._counted[row]
        else:
            self._lost[row] += self._training.pause(row, now, graceful=graceful)
            delay = latencies.suspend_delay
            if stopping:
                delay += latencies.retain_time
            elif graceful:
                delay += latencies.checkpoint_time
        if self._journal is not None:
            self._journal.write(now, "release" if stopping else "preempt", job.key, why)
        if delay:
            self._at(now + delay, row, self._free, job)
            return False
        self._free(job)
        return True

    def _free(self, job: VirtualJob) -> None:
        """The pods of a suspended run are gone."""
        now, row = self._kernel.now, job.sequence
        job.attained += (now - self._counted[row]) * job.gpus
        self._service[row] = job.attained
        if self._journal is not None:
            self._journal.write(now, "free", job.key)
        if job.state is _STOPPING:
            self._planner.gone(job, now)
            self._ended[row] = now
            self._stopped.add(row)
            return
        self._preempted[row] = self._preempted.get(row, 0) + 1
        job.state = JobState.QUEUED
        job.since = now
        job.remaining = self._work[row] - self._done[row] if self._plain else self._training.left(row, True)
        if self._progresses and isinstance(job, DetailedJob) and self._work[row]:
            job.progress = self._done[row] / self._work[row]  # that of the checkpoint it goes on from
        self._planner.requeued(job, now)
        if isinstance(job, DetailedJob):
            job.nodes = ()

    # -- evals

    def _eval(self, job: VirtualJob) -> bool:
        """An eval is made; its score is known ``eval_delay`` later. True: nobody need hear of it yet."""
        row, delay = job.sequence, self._latencies.eval_delay
        number = self._evals.made(row)
        self._schedule(job, row)
        if delay:
            self._at(self._kernel.now + delay, row, self._score, (job, number))
            return True
        return self._score((job, number))

    def _score(self, known: tuple[VirtualJob, int]) -> bool:
        """A score becomes known; if its job does not run just now, it waits until it does.

        True: the policy need not hear of it.
        """
        job, number = known
        now, row = self._kernel.now, job.sequence
        if job.state is not _ADMITTED:
            if job.state is not _STOPPING:
                self._evals.late.setdefault(row, []).append(number)
            return True
        if self._ended[row] >= 0:
            return True
        assert isinstance(job, JudgedJob)  # views are, where there are evals
        proposed = job.proposal
        service = job.attained + (now - self._counted[row]) * job.gpus
        if not self._evals.hear(job, number, now, service):
            return True
        job.attained = service
        self._counted[row] = now
        job.remaining = self._training.end_at(row) - now
        if self._journal is not None and job.proposal is not None and proposed is None:
            self._journal.write(now, "propose", job.key, f"{job.proposal.reason} {job.proposal.step}")
        self._planner.updated(job, now)
        return False
