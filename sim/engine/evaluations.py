"""The evals of a run: which of them are events, what the rule says to them, and what it said."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

from controller.policy.pool import LOWEST
from controller.policy.queueing.slaq import add_loss
from controller.policy.stopping.graded import Graded
from controller.policy.types import (
    EvalInContext,
    Grade,
    Proposal,
    SharedFall,
    StopLimits,
    Verb,
    namespace_of,
)
from sim.engine.fleet import Fleet
from sim.engine.result import Stop
from sim.engine.training import Training
from sim.engine.virtual_job import DetailedJob, JudgedJob
from sim.first_stops import foresee
from sim.foresight import Foreseen, RuleSpec, point
from sim.workload import Evals, Workload

if TYPE_CHECKING:
    from sim.engine.peers import PeerBoard


class Evaluations:
    """Shows each job's evals to its rule as they become known.

    Two ways that give the same run. Streaming: every eval is an event and is shown to the rule when its
    score is known. Foreseen: the first STOP of each job was computed before, and only its eval is an event.
    """

    __slots__ = (
        "_best",
        "_context",
        "_known",
        "_peers",
        "_rule",
        "_spec",
        "_standing",
        "_states",
        "_training",
        "_upcoming",
        "_watched",
        "_workload",
        "any",
        "fleet",
        "foreseen",
        "grades",
        "late",
        "stops",
        "stops_due",
        "streams",
    )

    def __init__(
        self,
        workload: Workload,
        training: Training,
        rule: RuleSpec | None,
        watched: bool,
        foresight: bool,
        limits: StopLimits | None = None,
    ) -> None:
        """``watched``: the queue policy wants to hear of every eval. ``foresight``: allow the second way.
        ``limits``: what the pool asks before a stop; None: nothing.

        Raises:
            ParamError: the rule, a modifier or a parameter of it does not exist or is out of bounds.
        """
        self._workload = workload
        self._training = training
        self._watched = watched
        self._spec = rule
        self._rule = rule.make() if rule is not None else None
        self._context = rule is not None and bool(rule.needs | rule.uses)
        peers = rule is not None and "peers" in rule.needs
        self._peers: PeerBoard | None = None
        if peers:
            from sim.engine.peers import (
                PeerBoard,
            )  # few rules look at peers, and a small log is to start at once

            self._peers = PeerBoard()
        self.fleet = Fleet(workload, limits, rule) if rule is not None and limits is not None else None
        self._standing = rule is not None and (rule.standing or self.fleet is not None)
        self.grades = rule is not None and any(m.name == Graded.name for m in rule.modifiers)
        self.streams = watched or (rule is not None and (peers or self._standing or not foresight))
        rows = len(workload)
        self.foreseen: list[Foreseen | None] | None = None  # first STOP by row; None: nothing is foreseen
        if rule is not None and not self.streams:
            evals = workload.evals or [None] * rows
            if rule.groups:
                evals = [e if self._judges(row) else None for row, e in enumerate(evals)]
            self.foreseen = foresee(rule, evals)
        self.any = self.streams or self.foreseen is not None
        # Rows whose foreseen STOP's eval is not made yet -> the share of the training at which it is due.
        self.stops_due = {
            row: evals.at[stop.eval]
            for row, (stop, evals) in enumerate(zip(self.foreseen or (), workload.evals, strict=False))
            if stop is not None and evals is not None
        }
        self.stops: dict[int, Stop] = {}
        self.late: dict[int, list[int]] = {}  # scores that came while their job was not running
        self._upcoming = [0] * rows if self.streams else []  # the present run's next eval
        self._known = [0] * rows if self.streams else []  # evals whose scores are known
        self._best: dict[int, tuple[float, int]] = {}  # highest score so far, and its eval
        self._states: dict[int, tuple[object, ...]] = {}  # of the rule

    def begin(self, row: int) -> None:
        """Streaming: a run of the job begins; its next eval is the first that it has not made yet."""
        self._upcoming[row] = self._training.next[row]

    def next(self, row: int) -> int | None:
        """Return the next eval (from 0) of the present run at which something happens; None: its end is
        next."""
        if self.streams:
            number = self._upcoming[row]
            return number if number < self._training.evals(row) else None
        foreseen = self.foreseen[row] if self.foreseen is not None else None
        return None if foreseen is None or row not in self.stops_due else foreseen.eval

    def made(self, row: int) -> int:
        """Record that the next eval of this row is made, and return its number."""
        number = self.next(row)
        assert number is not None  # it was scheduled
        if self.streams:
            self._upcoming[row] = number + 1
        else:
            del self.stops_due[row]
        return number

    def overtaken(self, row: int) -> list[int]:
        """Evals (from 0) that a run made after it was to leave: no events of their own any more."""
        made = self._training.next[row]
        if self.streams:
            numbers = list(range(self._upcoming[row], made))
            self._upcoming[row] = max(self._upcoming[row], made)
            return numbers
        number = self.next(row)
        if number is None or number >= made:
            return []
        return [self.made(row)]

    def scrape(self, job: JudgedJob, number: int, now: float, service: float) -> bool:
        """Show a running job's newest score to the rule; return whether the policy must know of the job.

        ``service``: GPU-seconds the job has had at ``now``. A STOP becomes the job's proposal; it stands
        for good, or, where a modifier looks at what stands, as long as the rule says so.
        """
        row = job.sequence
        if self.foreseen is not None:
            foreseen = self.foreseen[row]
            assert foreseen is not None
            self._propose(job, foreseen, now)
            return True
        if number < self._known[row]:
            return False  # made again after going back to a checkpoint: nothing new
        self._known[row] = number + 1
        evals = self._workload.evals[row]
        assert evals is not None
        assert isinstance(job, DetailedJob)  # views are, where evals are streamed
        job.progress = evals.at[number]
        if len(evals.losses):
            job.loss_trend = add_loss(job.loss_trend, evals.losses[number], service)
        found = self._judge(row, number, evals, now)
        news = found is not None and self._take(job, found, now)
        return self._watched or news

    def _judges(self, row: int) -> bool:
        """Return whether the rule judges this job at all."""
        assert self._spec is not None
        return self._spec.judges(self._workload.group[row] if self._workload.group else "")

    def begin_anew(self, row: int, fall: SharedFall) -> None:
        """Drop the job's evals from before a drop that others share (`policy.job.comparability`)."""
        assert self.fleet is not None
        assert self._rule is not None
        since = self.fleet.cut(row, fall)
        state, verdict = self._rule.initial(), None
        for seen in since:
            state, verdict = self._rule.observe(state, seen)
        self._states[row] = state
        self._best.pop(row, None)
        if verdict is None:
            return
        best = max(since, key=lambda p: p.score)
        self._best[row] = (best.score, best.step - 1)
        if verdict.verb is Verb.STOP:
            self.fleet.asking[row] = Proposal.of(verdict, since[-1].step, best.step)

    def _judge(self, row: int, number: int, evals: Evals, now: float) -> Foreseen | None:
        """Return the verdict that this eval brings; None: it is not judged."""
        score = evals.scores[number]
        if self._rule is None or not isfinite(score) or not self._judges(row):
            return None
        highest, best = self._best.get(row, (-inf, 0))
        if score > highest:
            best = number
            self._best[row] = (score, number)
        peers = None
        if self._peers is not None:
            group = self._workload.group[row] if self._workload.group else ""
            namespace = namespace_of(self._workload.key(row))
            peers = self._peers.report(row, (namespace, group), evals.at[number], score)
        state = self._states.get(row)
        seen = point(evals, number, context=self._context or self.fleet is not None, peers=peers)
        if self.fleet is not None:
            self.fleet.observe(row, now, seen)
            assert isinstance(seen, EvalInContext)  # it has its context
            seen.fleet_noise = self.fleet.usual(row)
            seen.others_noise = self.fleet.usual_of(row, seen.others)
        state, verdict = self._rule.observe(self._rule.initial() if state is None else state, seen)
        self._states[row] = state
        return Foreseen(number, verdict, best)

    def _take(self, job: DetailedJob, found: Foreseen, now: float) -> bool:
        """Let the job bear the verdict; whether that is news to the policy."""
        stop = found.verdict.verb is Verb.STOP
        if not self._standing:
            if not stop or job.sequence in self.stops:
                return False
            self._propose(job, found, now)
            return True
        demoted, before = found.verdict.grade is Grade.DEMOTED, (job.demoted, job.proposal)
        if demoted != job.demoted:
            usual = self._workload.priority[job.sequence] if self._workload.priority else 0
            job.demoted, job.priority = demoted, LOWEST if demoted else usual
        if self.fleet is not None:
            self._ask(job, found, now, stop)
            return job.demoted != before[0]
        job.proposal = None
        if stop:
            self._propose(job, found, now)
        return (job.demoted, job.proposal) != before

    def _ask(self, job: JudgedJob, found: Foreseen, now: float, stop: bool) -> None:
        """Note the verdict for the pool's questions; the policy hears of it once they are answered."""
        assert self.fleet is not None
        if not stop:
            self.fleet.asking.pop(job.sequence, None)
            return
        self.stops.setdefault(job.sequence, Stop(found.eval, now, found.best))
        self.fleet.asking[job.sequence] = Proposal.of(found.verdict, found.eval + 1, found.best + 1)

    def _propose(self, job: JudgedJob, stop: Foreseen, now: float) -> None:
        self.stops.setdefault(job.sequence, Stop(stop.eval, now, stop.best))
        job.proposal = Proposal.of(stop.verdict, stop.eval + 1, stop.best + 1)
