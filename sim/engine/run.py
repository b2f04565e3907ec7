"""The engine: carries the policy's decisions out on virtual GPUs.

It decides nothing. It tells the policy what happened, asks it who runs, and does that; rules' verdicts go to
the policy as proposals and come back as releases, as in the operator.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from math import inf, isfinite
from typing import Any

from controller.policy.placement import NodeRoom
from controller.policy.planner import Planner
from controller.policy.queueing import QueuePolicy
from controller.policy.queueing.slaq import add_loss
from controller.policy.types import JobState, Proposal, Verb
from sim.cluster import Cluster
from sim.engine.journal import Journal
from sim.engine.peers import PeerBoard
from sim.engine.result import Result, Stop
from sim.engine.training import Training
from sim.engine.view import DetailedJob, VirtualJob
from sim.foresight import Foreseen, RuleSpec, foresee, point
from sim.kernel import Kernel
from sim.latencies import Latencies
from sim.workload import Evals, Workload

_ADMITTED, _QUEUED = JobState.ADMITTED, JobState.QUEUED
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
    engine = _Engine(workload, cluster, policy, rule, latencies, foresight, journal)
    # Nothing here makes cycles, and a collector that walks a million live jobs again and again costs more
    # than the simulation.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return engine.run()
    finally:
        if collecting:
            gc.enable()


class _Engine:
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
        self._gangs = _gangs(workload, cluster)
        self._kernel = Kernel()
        self._at = self._kernel.at
        room = cluster.room()
        self._planner = Planner(policy, room)
        self._placed = room.placed if isinstance(room, NodeRoom) else None
        self._watches = policy.watches
        self._latencies = latencies
        self._training = Training(workload, latencies)
        self._done = self._training.done
        self._work = workload.work
        self._journal = journal
        self._wake: tuple[float, int] | None = None  # when the policy wants to be asked, and the ticket

        self._rule = rule.make() if rule is not None else None
        self._context = rule is not None and bool(rule.needs)
        peers = rule is not None and "peers" in rule.needs
        self._peers = PeerBoard() if peers else None
        # Every eval is an event only where somebody looks at every eval.
        self._detailed = (
            self._gangs is not None
            or self._watches
            or any((workload.priority, workload.weight, workload.estimate))
        )
        self._streams = self._watches or (rule is not None and (peers or not foresight))
        self._foreseen: list[Foreseen | None] | None = None
        if rule is not None and not self._streams:
            self._foreseen = foresee(rule, workload.evals or [None] * rows)
        self._plain = latencies.none and not self._streams and self._foreseen is None

        self._ticket = [0] * rows  # of each job's next event
        self._counted: list[float] = [0] * rows  # until when a running job's service is in its view
        self._started: list[float] = [-1] * rows
        self._ended: list[float] = [-1] * rows
        self._service: list[float] = [0] * rows
        self._lost: list[float] = [0] * rows
        self._preempted: dict[int, int] = {}
        self._stops: dict[int, Stop] = {}
        self._stopped: set[int] = set()
        # Only with evals:
        self._upcoming = [0] * rows if self._streams else []  # the present run's next eval
        self._known = [0] * rows if self._streams else []  # evals whose scores are known
        self._best: dict[int, tuple[float, int]] = {}  # highest score so far and its eval
        self._states: dict[int, tuple[object, ...]] = {}
        self._told: set[int] = set()  # rows whose foreseen STOP was made
        self._late: dict[int, list[int]] = {}  # scores that came while their job was not running

    def run(self) -> Result:
        workload = self._workload
        self._kernel.run(self._feed(), self._arrive, self._settle)
        work, done = self._work, self._done
        counts = [self._training.evals(row) for row in range(len(workload))] if workload.evals else []
        return Result(
            submitted=workload.submitted,
            gpus=workload.gpus,
            started=self._started,
            ended=self._ended,
            service=self._service,
            useful=[done[r] if r in self._stopped else work[r] for r in range(len(workload))],
            lost=self._lost,
            evals_made=[self._training.next[r] if r in self._stopped else n for r, n in enumerate(counts)],
            preempted=self._preempted,
            stops=self._stops,
            stopped=self._stopped,
            events=self._kernel.events,
        )

    # -- arrivals and decisions

    def _feed(self) -> Iterator[tuple[float, VirtualJob]]:
        """(time, job) in order; a job's view is made when its time comes, so few are there at once."""
        workload = self._workload
        if self._detailed:
            for row in range(len(workload)):
                job = self._detail(row)
                yield job.submitted, job
            return
        keys = iter(workload.keys) if workload.keys else map("sim/{}".format, range(len(workload)))
        rows = zip(workload.submitted, workload.gpus, workload.work, keys, strict=True)
        for row, (submitted, gpus, work, key) in enumerate(rows):
            yield submitted, VirtualJob(key, submitted, row, gpus, work)

    def _detail(self, row: int) -> DetailedJob:
        workload = self._workload
        left = self._training.left(row, False)
        job = DetailedJob(workload.key(row), workload.submitted[row], row, workload.gpus[row], left)
        if self._gangs is not None:
            job.replicas, job.gpus_each = self._gangs[row]
        if workload.priority:
            job.priority = workload.priority[row]
        if workload.weight:
            job.weight = workload.weight[row]
        if workload.estimate:
            job.estimate = workload.estimate[row]
        if workload.evals:
            job.progress = 0.0
        return job

    def _arrive(self, job: VirtualJob) -> None:
        self._planner.submitted(job, self._kernel.now)

    def _settle(self, now: float) -> None:
        while True:
            decision = self._planner.decide(now)
            if decision.wake_at is not None or self._wake is not None:
                self._set_alarm(now, decision.wake_at)
            job: Any  # a policy gives back the very views it was given
            for job in decision.admit:
                self._start(job, now)
            freed = False
            if decision.preempt:
                for job, why in decision.preempt:
                    freed |= self._suspend(job, now, JobState.PREEMPTING, why)
            if decision.release:
                for job in decision.release:
                    freed |= self._suspend(job, now, JobState.STOPPING, "")
            if not freed:
                return

    def _set_alarm(self, now: float, wake_at: float | None) -> None:
        if self._wake is not None:
            if self._wake[0] == wake_at:
                return
            self._kernel.cancel(self._wake[1])
            self._wake = None
        if wake_at is not None and wake_at > now:
            self._wake = (wake_at, self._at(wake_at, self._ring, None))

    def _ring(self, _: None) -> None:
        self._wake = None  # the policy is asked after every instant at which something happened

    # -- runs

    def _start(self, job: VirtualJob, now: float) -> None:
        row = job.sequence
        again = self._started[row] >= 0
        if not again:
            self._started[row] = now
        if self._placed is not None:
            job.nodes = self._placed.pop(job.key)
        job.state = _ADMITTED
        job.since = self._counted[row] = now
        self._planner.admitted(job, now)
        if self._journal is not None:
            self._journal.write(now, "admit", job.key, ",".join(job.nodes))
        if self._plain:
            self._ticket[row] = self._at(now + (self._work[row] - self._done[row]), self._end, job)
            return
        self._training.begin(row, now, again)
        if self._streams:
            self._upcoming[row] = self._training.next[row]
        self._schedule(job, row)
        for number in self._late.pop(row, ()):
            self._score((job, number))

    def _schedule(self, job: VirtualJob, row: int) -> None:
        """The run's next event: an eval that somebody looks at, or its end."""
        training = self._training
        if self._streams:
            number = self._upcoming[row]
            if number < training.evals(row):
                self._ticket[row] = self._at(training.eval_at(row, number), self._eval, job)
                return
        elif self._foreseen is not None and row not in self._told:
            foreseen = self._foreseen[row]
            if foreseen is not None:
                self._ticket[row] = self._at(training.eval_at(row, foreseen.eval), self._eval, job)
                return
        self._ticket[row] = self._at(training.end_at(row), self._end, job)

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
        stopping = state is JobState.STOPPING
        self._kernel.cancel(self._ticket[row])
        job.state = state
        self._planner.leaving(job, now)
        graceful = stopping or latencies.checkpoint_on_preempt
        if self._plain:
            self._done[row] += now - self._counted[row]
            delay = 0.0
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
            self._at(now + delay, self._free, job)
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
        if job.state is JobState.STOPPING:
            self._planner.gone(job, now)
            self._ended[row] = now
            self._stopped.add(row)
            return
        self._preempted[row] = self._preempted.get(row, 0) + 1
        job.state = _QUEUED
        job.since = now
        job.remaining = self._work[row] - self._done[row] if self._plain else self._training.left(row, True)
        self._planner.requeued(job, now)
        job.nodes = ()

    # -- evals

    def _eval(self, job: VirtualJob) -> None:
        """An eval of the present run is made; its score is known ``eval_delay`` later."""
        row, delay = job.sequence, self._latencies.eval_delay
        if self._streams:
            number = self._upcoming[row]
            self._upcoming[row] = number + 1
        else:
            assert self._foreseen is not None
            foreseen = self._foreseen[row]
            assert foreseen is not None
            number = foreseen.eval
            self._told.add(row)
        self._schedule(job, row)
        if delay:
            self._at(self._kernel.now + delay, self._score, (job, number))
        else:
            self._score((job, number))

    def _score(self, known: tuple[VirtualJob, int]) -> None:
        """A score becomes known. If its job does not run just now, it waits until it does."""
        job, number = known
        row = job.sequence
        if job.state is not _ADMITTED:
            if job.state is not JobState.STOPPING:
                self._late.setdefault(row, []).append(number)
            return
        if self._ended[row] >= 0:
            return
        proposes = self._hear(job, row, number) if self._streams else self._recall(job, row)
        if proposes or (self._streams and self._watches):
            now = self._kernel.now
            job.attained += (now - self._counted[row]) * job.gpus
            self._counted[row] = now
            job.remaining = self._training.end_at(row) - now
            self._planner.updated(job, now)

    def _recall(self, job: VirtualJob, row: int) -> bool:
        assert self._foreseen is not None
        foreseen = self._foreseen[row]
        assert foreseen is not None
        self._propose(job, row, foreseen)
        return True

    def _hear(self, job: VirtualJob, row: int, number: int) -> bool:
        """Show a score to the rule and a loss to the policy. Whether the job is to be stopped for it."""
        if number < self._known[row]:
            return False  # made again after going back to a checkpoint: nothing new
        self._known[row] = number + 1
        evals = self._workload.evals[row]
        assert evals is not None
        if isinstance(job, DetailedJob):
            job.progress = evals.at[number]
            if len(evals.losses):
                service = job.attained + (self._kernel.now - self._counted[row]) * job.gpus
                job.loss_trend = add_loss(job.loss_trend, evals.losses[number], service)
        if self._rule is None or not isfinite(evals.scores[number]):
            return False
        return self._judge(job, row, number, evals)

    def _judge(self, job: VirtualJob, row: int, number: int, evals: Evals) -> bool:
        assert self._rule is not None
        score = evals.scores[number]
        highest, best = self._best.get(row, (-inf, 0))
        if score > highest:
            best = number
            self._best[row] = (score, number)
        peers = None
        if self._peers is not None:
            group = self._workload.group[row] if self._workload.group else ""
            peers = self._peers.report(row, group, number, score)
        seen = point(evals, number, context=self._context, peers=peers)
        state = self._states.get(row)
        state, verdict = self._rule.observe(self._rule.initial() if state is None else state, seen)
        self._states[row] = state
        if verdict.verb is not Verb.STOP or row in self._stops:
            return False
        self._propose(job, row, Foreseen(number, verdict, best))
        return True

    def _propose(self, job: VirtualJob, row: int, stop: Foreseen) -> None:
        verdict = stop.verdict
        self._stops[row] = Stop(stop.eval, self._kernel.now, stop.best)
        job.proposal = Proposal(
            stop.eval + 1, stop.best + 1, verdict.reason, verdict.statistic, verdict.threshold
        )
        if self._journal is not None:
            self._journal.write(self._kernel.now, "propose", job.key, f"{verdict.reason} {stop.eval + 1}")


def _gangs(workload: Workload, cluster: Cluster) -> list[tuple[int, int]] | None:
    """(replicas, GPUs of each) by row where it matters.

    Raises:
        ValueError: a job could not run even in the empty cluster.
    """
    if not cluster.nodes and not workload.gpus_per_replica:
        if max(workload.gpus, default=0) > cluster.gpus:
            row = next(r for r, gpus in enumerate(workload.gpus) if gpus > cluster.gpus)
            raise ValueError(
                f"workload.gpus[{row}]: {workload.gpus[row]} is more than the cluster's {cluster.gpus} GPUs"
            )
        return None
    gangs = []
    for row, gpus in enumerate(workload.gpus):
        if workload.gpus_per_replica:
            each = workload.gpus_per_replica[row]
            if gpus and (each < 1 or gpus % each):
                raise ValueError(
                    f"workload.gpus_per_replica[{row}]: {each}, expected a divisor of the job's {gpus} GPUs"
                )
            gang = (gpus // each, each) if gpus else (1, 0)
        else:
            gang = cluster.gang(gpus)
        if not cluster.holds(*gang):
            raise ValueError(
                f"workload.gpus[{row}]: {gang[0]} x {gang[1]} GPUs do not fit into the empty cluster of "
                f"{cluster.gpus} GPUs on {len(cluster.nodes)} nodes"
            )
        gangs.append(gang)
    return gangs
