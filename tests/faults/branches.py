"""`python -m tests.faults --branches N`: one job whose processes go on from one another's checkpoints.

The policy alone, on `PolicyWorld`: no store, no pool that changes, no caches that lag. So a history is made
of what the machine has seldom: many processes, evals that mislead, rules and evaluators that change, pins
that hang or fail. A history knows which of its evals mislead. The oracle:

- what is pinned or retained is worth no less than what ever was, of evals that four in a row bear out;
- of the branch that the run is on, the best such eval is pinned or retained, if its checkpoint lies there.

An eval that misleads lies far from every other: one that others happen to bear out is none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from controller.policy.job.record import Operation, ProtectedCheckpoint
from controller.policy.job.types import AccessView, Page, RunState, StartAccess
from controller.policy.types import Attempt, EvalPoint, PolicySpec
from tests.support.policy_world import Job, PolicyWorld

KEY, STDERR, NEAR, KEPT_ON_PAGE, EVERY = "ns/a", 0.02, 0.08, 32, 10
BORNE_OUT = 4  # evals in a row that bear one another out

Step = tuple[str, int]  # a process, and a step of it


class Violation(AssertionError):
    """What must hold does not."""


@dataclass(eq=False)
class Eval:
    """``misleads``: the scorer's fault. ``sure``: others bear it out."""

    step: int
    score: float
    process: Process
    evaluator: str
    misleads: bool = False
    seen: bool = False
    sure: bool = False


@dataclass(eq=False)
class Process:
    """``before``: evals on its way, of the processes that it goes back to. ``apart``: it did not go on from
    the one before."""

    attempt: Attempt
    start: int
    before: list[Eval]
    apart: bool
    evals: list[Eval] = field(default_factory=list)

    @property
    def branch(self) -> list[Eval]:
        """Its way: of a step that was evaluated twice the later one."""
        found = {one.step: one for one in (*self.before, *self.evals)}
        return [one for one in (*self.before, *self.evals) if found[one.step] is one]


class Store(PolicyWorld):
    """Checkpoints and pins by name; access Jobs that hang, or fail a number of times."""

    def __init__(self) -> None:
        super().__init__({"n1": 1})
        self.saved: set[Step] = set()
        self.paths: set[str] = set()
        self.failures, self.hangs, self.other_branch = 0, False, False
        self.open: list[StartAccess] = []

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        if self.hangs and ask.operation in (Operation.SECURE, Operation.PIN):
            self.open.append(ask)
            return AccessView(ask.request_id, ask.operation, finished=False)
        return self._answer(ask)

    def end_open(self, job: Job) -> None:
        """Have what hangs end now."""
        self.hangs = False
        for ask in self.open:
            found = self._answer(ask)
            access = tuple(found if a.request_id == ask.request_id else a for a in job.observed.access)
            job.observed = replace(job.observed, access=access)
        self.open.clear()

    def _answer(self, ask: StartAccess) -> AccessView:
        def no(reason: str, **more: Any) -> AccessView:
            return AccessView(ask.request_id, ask.operation, True, False, reason, reason, **more)

        def yes(step: int, path: str, **more: Any) -> AccessView:
            self.paths = (self.paths - set(ask.release)) | ({path} if path else set())
            return AccessView(
                ask.request_id, ask.operation, True, True, "", "", step, path, "d", "d", 1, **more
            )

        if ask.operation is Operation.CLAIM:
            return yes(0, "", other_branch=self.other_branch)
        if ask.operation in (Operation.SECURE, Operation.PIN):
            if self.failures > 0:
                self.failures -= 1
                return no("StoreUnreachable")
            if (str(ask.attempt), ask.step) not in self.saved:
                return no("CheckpointMissing", lowest=min((step for _, step in self.saved), default=None))
            return yes(ask.step, f"/pins/{ask.attempt}/{ask.step}")
        source = ask.source
        if ask.operation in (Operation.CHECK, Operation.RETAIN):
            if source is None or source.path not in self.paths:
                return no("CheckpointMissing")
            kept = source.path.replace("/pins", "/kept") if ask.operation is Operation.RETAIN else source.path
            return yes(source.step, kept)
        return yes(ask.step, f"/restored/{ask.step}")


class History:
    """One history, by its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random.random
        self.edits, self.evaluators, self.slow = chance() < 0.4, chance() < 0.3, chance() < 0.4
        self.strays, self.stops, self.rotates = chance() < 0.5, chance() < 0.3, chance() < 0.7
        self.again, self.keep = chance() < 0.4, self.random.choice((1, 2, 3))
        self.store = Store()
        self.job = self.store.submit(KEY, **self._rule())
        self.store.settle()
        self.evaluator = self.store.evaluator = "1"
        self.evals: dict[Step, Eval] = {}
        self.processes: list[Process] = []
        self.floor: dict[str, float] = {}  # by evaluator: what was in safety
        self.level, self.lost, self.settled = 0.5, False, True
        self.process = self._begin(None, 0)

    def play(self) -> str:
        """Return what did not hold; "": all did."""
        try:
            for _ in range(self.random.randint(5, 30)):
                self._act()
            self._end_open()
        except AssertionError as fault:
            return str(fault)
        return ""

    # -- acts ------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        draw, die = self.random, self.random.random()
        if die < 0.5:
            for _ in range(draw.choice((1, 1, 2, 3, 4, 5))):
                self._evaluate_somehow()
                if draw.random() < 0.7:
                    self._show()
            self._show()
        elif die < 0.8:
            self._restart()
        elif die < 0.86 and self.edits:
            self.job.wish(**self._rule())
            self._show()
        elif die < 0.88 and self.evaluators:
            self._show()
            self.evaluator = self.store.evaluator = str(int(self.evaluator) + 1)
            self.level += draw.choice((-1, 0, 1))
            self._show()
        elif die < 0.94 and self.slow:
            if self.store.hangs:
                self._end_open()
            else:
                self.store.hangs = True
        elif die < 0.96 and self.stops:
            self._stop_and_run()
        elif die > 0.97 and self.store.failures == 0:
            self.store.failures = draw.choice((1, 2))

    def _rule(self) -> dict[str, Any]:
        gates = ({}, {}, {}, {"evals": 1}, {"evals": 3}, {"sigmas_reported": 6.0})
        rule = PolicySpec("kDeclines", {"k": self.random.choice((97, 98, 99))})
        return {"rule": rule, "modifiers": (PolicySpec("gate", self.random.choice(gates)),)}

    def _begin(self, source: Process | None, step: int) -> Process:
        number = len(self.processes) + 1
        attempt = Attempt(self.job.record.attempt, f"{number:04}aaaa")
        before = [] if source is None else [one for one in source.branch if one.step <= step]
        former = self.processes[-1].branch if self.processes else []
        apart = source is not None and any(one not in former for one in before)
        self.store.other_branch = apart
        self.process = Process(attempt, step, before, apart or self.lost)
        self.processes.append(self.process)
        own = [one.score for one in before if not one.misleads and one.evaluator == self.evaluator]
        self.level = own[-1] if own else 0.5
        return self.process

    def _evaluate_somehow(self) -> None:
        die = self.random.random()
        if die < 0.1 and self._calm():
            self._evaluate(misleads=True)
        elif die > 0.92 and not any(one.misleads for one in self.process.branch[-3:]):
            self._evaluate(jump=self.random.choice((-1, -1, 1)) * self.random.uniform(0.2, 0.6))
        else:
            self._evaluate()

    def _evaluate(self, *, misleads: bool = False, jump: float = 0.0, again: bool = False) -> None:
        process = self.process
        newest = process.evals[-1].step if process.evals else process.start
        self.level = score = round(self.level + self.random.uniform(-0.03, 0.03) + jump, 4)
        if misleads:
            others = [one.score for one in self.evals.values()] + [self.level]
            beyond = self.random.uniform(0.4, 3)
            score = round(self.random.choice((min(others) - beyond, max(others) + beyond)), 4)
        one = Eval(newest if again else newest + EVERY, score, process, self.evaluator, misleads)
        process.evals.append(one)
        name = (str(process.attempt), one.step)
        self.evals[name] = one
        if self.random.random() < 0.93 or again:
            self.store.saved = {other for other in self.store.saved if other[1] != one.step} | {name}
        if self.rotates and self.random.random() < 0.6:
            left = sorted({step for _, step in self.store.saved})[-self.keep :]
            self.store.saved = {other for other in self.store.saved if other[1] in left}

    def _restart(self) -> None:
        draw = self.random
        past = [one for one in self.process.branch if self._lies(one)]
        if self.strays and draw.random() < 0.3:
            everywhere = (one for process in self.processes for one in process.evals)
            past = [one for one in everywhere if self._lies(one) and one.evaluator == self.evaluator]
        die = draw.random()
        if not past or die < 0.15:
            self._begin(None, 0)
        else:
            chosen = draw.choice(past if die < 0.6 else past[:2])
            way = [one for one in chosen.process.branch if one.step <= chosen.step]
            self.lost |= any(one not in self.process.branch for one in way)
            self._begin(chosen.process, chosen.step)
        if self.again and self.process.start and draw.random() < 0.3:
            self._evaluate(again=True)
        if draw.random() < 0.8:
            self._show(settle=draw.random() < 0.7)

    def _stop_and_run(self) -> None:
        self.store.end_open(self.job)
        for state in (RunState.STOPPED, RunState.RUN, RunState.RUN):
            self.job.wish(run_state=state)
            self._settle()
        past = [one for one in self.process.branch if self._lies(one)]
        self._begin(past[-1].process if past else None, past[-1].step if past else 0)
        self._show()

    def _end_open(self) -> None:
        self.store.end_open(self.job)
        self._show()

    def _lies(self, one: Eval) -> bool:
        return (str(one.process.attempt), one.step) in self.store.saved

    def _calm(self) -> bool:
        """Return whether nothing moves, so that an eval that misleads can be told from all others."""
        newest = self.process.branch[-BORNE_OUT:]
        if any(one.misleads for one in newest):
            return False
        scores = [*(one.score for one in newest), self.level]
        return max(scores) - min(scores) < NEAR

    # -- what the policy is shown, and what must hold ----------------------------------------------------

    def _show(self, *, settle: bool = True) -> None:
        process = self.process
        points = tuple(
            EvalPoint(one.step, one.score, process.attempt, stderr=STDERR, samples=100)
            for one in process.evals[-KEPT_ON_PAGE:]
        )
        newest = max((one.step for one in process.evals), default=process.start)
        page = Page("uid-ns/a", process.attempt)
        self.store.scrape(KEY, points=points, checkpoint_step=newest, resumed_step=process.start, page=page)
        if settle:
            self._settle()
        else:
            self.store.step(KEY)
        for one in process.evals:
            one.seen = True
        self._note_sure()
        if settle and not self.store.open:
            self._check()

    def _settle(self) -> None:
        self.settled = True
        try:
            self.store.settle()
        except AssertionError as fault:  # a Job that is tried for ever does not settle
            if "settle" not in str(fault):
                raise
            self.settled = False

    def _note_sure(self) -> None:
        """Mark the evals that ``BORNE_OUT`` in a row bear out, as far as the way is known."""
        cut = max((n for n, process in enumerate(self.processes) if process.apart), default=0)
        way = [one for one in self.process.branch if self.processes.index(one.process) >= cut]
        for first in range(len(way) - BORNE_OUT + 1):
            group = way[first : first + BORNE_OUT]
            scores = [one.score for one in group]
            same = all(one.seen and not one.misleads and one.evaluator == self.evaluator for one in group)
            if same and max(scores) - min(scores) <= NEAR:
                for one in group:
                    one.sure = True

    def _safe(self) -> list[Eval]:
        record = self.job.record
        kept: list[ProtectedCheckpoint | None] = [record.secured, record.beside, *record.retained]
        there = [one for one in kept if one is not None and one.path in self.store.paths]
        evals = [self.evals.get((str(one.attempt), one.best_step)) for one in there]
        return [
            one for one in evals if one is not None and not one.misleads and one.evaluator == self.evaluator
        ]

    def _check(self) -> None:
        safe = self._safe()
        worth = max((one.score for one in safe), default=None)
        floor = self.floor.get(self.evaluator)
        if floor is not None and (worth is None or worth < floor):
            raise Violation(f"{floor} was in safety, now {worth} is")
        sure = [one.score for one in safe if one.sure]
        if sure:
            self.floor[self.evaluator] = max(max(sure), floor if floor is not None else -1e9)
        if self.lost or not self.settled:
            return
        owed = [
            one
            for one in self.process.branch
            if one.sure and one.evaluator == self.evaluator and self._lies(one)
        ]
        best = max(owed, key=lambda one: one.score, default=None)
        if best is not None and (worth is None or worth < best.score):
            name = f"{best.score} at step {best.step} of {best.process.attempt}"
            raise Violation(f"the best eval that others bear out, {name}, is not in safety: {worth} is")


def run(first: int, count: int) -> list[tuple[int, str]]:
    """Return the seeds whose histories failed, and how."""
    outcomes = ((seed, History(seed).play()) for seed in range(first, first + count))
    return [(seed, what) for seed, what in outcomes if what]
