"""S2: nobody is stopped whose rule, shown the true evals, does not say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller.policy.stopping import make_rule
from controller.policy.types import EvalPoint, Mode, PolicySpec, Verb
from tests.faults.cluster import Job
from tests.faults.oracle.base import Case, Knowledge, borne_out
from tests.faults.trainer import Eval

if TYPE_CHECKING:
    from tests.faults.shell import Thought


FRESH = 45.0  # s by which what an operator knows of a trainer may be old when it suspends it
STOPS_WITHIN = 1500.0  # s until a user's stop has suspended, while an operator runs


def newest_of_steps(evals: list[Eval], moment: float) -> list[Eval]:
    """Evals up to a moment; of a step that a process has evaluated again, which started from it, the last."""
    found: list[Eval] = []
    for e in evals:
        if e.at <= moment:
            while found and found[-1].step >= e.step:
                found.pop()
            found.append(e)
    return found


class Stops(Knowledge):
    def _stops_in_time(self, job: Job, case: Case, seconds: float) -> None:
        """A user's stop suspends after a bounded time, whatever becomes of the retention."""
        runs = job.child is not None and not job.child.suspended and job.child.finished is None
        if job.spec("runState", "Run") != "Stopped" or not runs:
            case.stopping = 0.0
            return
        if any(self.world.now < a.ends and not a.hangs for a in job.access.values()):
            return  # bytes move, however slowly
        case.stopping += seconds
        if case.stopping > STOPS_WITHIN and "deletionTimestamp" not in job.obj["metadata"]:
            self.fail("S5", job, f"its user stopped it {STOPS_WITHIN:.0f} s ago, and it still runs")

    def suspending(self, job: Job, thought: Thought, reason: str) -> None:
        decision = thought.record.decision
        if decision is not None and decision.by == "User":
            self.world.saw("S5: a user's stop is carried out")
        if decision is None or decision.mode is not Mode.ENFORCE or decision.by == "User":
            return
        if thought.record.preempting is not None or decision.suspended_at is not None:
            return
        world, case = self.world, self.case(job)
        world.saw("S2: a rule's stop is carried out")
        old = [d for at, d in case.desired if at <= world.now]
        recent = [
            d
            for i, (at, d) in enumerate(case.desired)
            if i == len(case.desired) - 1 or case.desired[i + 1][0] > world.now - FRESH
        ]
        spec = job.obj["spec"]
        if all(d.mode is not Mode.ENFORCE for d in recent) and old:
            self.fail("S2", job, f"stopped by {decision.by} though its mode is {spec.get('mode', 'Enforce')}")
        if not any(self.says_stop(job, d) for d in recent):
            scores = [f"{e.score:.3f}" for e in self.true_evals(job, world.now)]
            self.fail("S2", job, f"stopped by {decision.by} ({reason}); its true evals {scores} say no stop")

    def true_evals(self, job: Job, until: float) -> list[Eval]:
        life = job.lives[-1] if job.lives else None
        if life is None:
            return []
        counted = {id(known) for known in job.lives[self.case(job).baseline :]}
        return [
            e
            for e in life.branch
            if e.at <= until and e.evaluator == life.evaluator and id(e.life) in counted
        ]

    def says_stop(self, job: Job, desired: Any) -> bool:
        """Whether the rule, shown the true evals, asks for a stop at some moment that is fresh."""
        now = self.world.now
        evals = self.true_evals(job, now)
        plain = tuple(m for m in desired.modifiers if m.name != "gate")
        # Without a gate, or without a scale for it, an eval that says nothing counts like any other.
        gated = len(plain) < len(desired.modifiers) and self.world.config["stderr"] is not None
        readings = [[e for e in evals if not e.fault]]
        # Two outliers in a row that agree bear each other out: no gate can know them.
        usual = [e for e in evals if e.fault in ("", "outlier")]
        agree = borne_out(usual)
        readings.append([e for e in usual if not e.fault or id(e) in agree])
        if not gated:
            readings.append([e for e in evals if e.fault in ("", "outlier")])
        # A process that ended before a scrape took with it what nobody else ever knew.
        unseen = {id(e) for e in evals if e.shown is None and not e.life.alive}
        if unseen:
            readings += [[e for e in reading if id(e) not in unseen] for reading in tuple(readings)]
        sign = self.sign(job)
        moments = sorted({now - FRESH, *(e.at for e in evals if e.at > now - FRESH), now})
        for reading in readings:
            for moment in moments:
                seen = [(e, sign * e.score) for e in newest_of_steps(reading, moment)]
                if any(self._folds(desired.rule, m, seen) for m in (desired.modifiers, plain)):
                    return True
        for moment in moments:
            seen = newest_of_steps([e for e in evals if e.fault != "nothing"], moment)
            for guardrail in desired.guardrails:
                sense = 1.0 if str(guardrail.direction) == "Maximize" else -1.0
                pairs = [(e, sense * e.guard) for e in seen if e.guard is not None]
                known = [(e, score) for e, score in pairs if id(e) not in unseen]
                for shown in (pairs, known) if len(known) < len(pairs) else (pairs,):
                    if any(self._folds(guardrail.rule, m, shown) for m in (desired.modifiers, plain)):
                        return True
        return False

    def _folds(
        self, rule: PolicySpec, modifiers: tuple[PolicySpec, ...], evals: list[tuple[Eval, float]]
    ) -> bool:
        made = make_rule(rule, modifiers)
        state, verdict = made.initial(), None
        for e, score in evals:
            state, verdict = made.observe(state, EvalPoint(e.step, score, stderr=e.stderr))
        return verdict is not None and verdict.verb is Verb.STOP
