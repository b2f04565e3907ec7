"""How scraped evals enter a job's memory: each once, in order, and with the past rewritten on a resume.

An eval is identified by step and attempt. What is not new, not finite, or of an older attempt changes
nothing. When a new attempt resumes at step s, later steps of the old one leave the rule's memory (that run of
history did not happen); a best that is already secured stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from controller.names import EVALS_KEPT
from controller.policy.jobs import Best, Desired, Direction, JobRecord, RuleRecord, ScrapeView
from controller.policy.stopping import StopRule, make_rule, rule_fingerprint
from controller.policy.types import Attempt, EvalPoint, Verdict


@dataclass(frozen=True, slots=True)
class RuleInUse:
    """A job's rule together with what its recorded state must have been made under."""

    rule: StopRule
    name: str
    params_hash: str
    direction: Direction

    @staticmethod
    def of(desired: Desired) -> RuleInUse:
        """Raises `ParamError` when the spec names no rule that exists."""
        return RuleInUse(
            make_rule(desired.rule, desired.modifiers),
            desired.rule.name,
            rule_fingerprint(desired.rule, desired.modifiers),
            desired.direction,
        )

    def orient(self, point: EvalPoint) -> EvalPoint:
        """The point as a rule sees it: higher is better."""
        if self.direction is Direction.MAXIMIZE:
            return point
        paired = point.paired._replace(mean=-point.paired.mean) if point.paired is not None else None
        return point._replace(score=-point.score, paired=paired)

    def better(self, score: float, than: float) -> bool:
        return score > than if self.direction is Direction.MAXIMIZE else score < than

    def fold(
        self, state: tuple[Any, ...], points: Iterable[EvalPoint]
    ) -> tuple[tuple[Any, ...], Verdict | None]:
        """The state after these points, and the verdict on the last of them."""
        verdict = None
        for point in points:
            state, verdict = self.rule.observe(state, self.orient(point))
        return state, verdict

    def remember(self, base: tuple[Any, ...], evals: tuple[EvalPoint, ...]) -> RuleRecord:
        state, verdict = self.fold(base, evals)
        return RuleRecord(self.name, self.rule.version, self.params_hash, base, state, verdict)


def absorb(record: JobRecord, use: RuleInUse, scrape: ScrapeView) -> JobRecord:
    """The record with the scrape's new evals in it; the same record when there are none."""
    record = _same_rule(record, use)
    if not scrape.points:
        return record
    newest_attempt = max(p.attempt for p in scrape.points)
    record = _count_missed(record, scrape, newest_attempt)
    for point in sorted(scrape.points, key=lambda p: (p.attempt, p.step)):
        if not math.isfinite(point.score):
            continue
        newest = record.evals[-1] if record.evals else None
        if newest is not None and point.attempt > newest.attempt:
            resumed = scrape.resumed_step if point.attempt == newest_attempt else None
            record = rewind(record, use, resumed if resumed is not None else point.step - 1)
            newest = record.evals[-1] if record.evals else None
        if newest is None or (point.attempt >= newest.attempt and point.step > newest.step):
            record = _append(record, use, point)
    return record


def ignored_steps(record: JobRecord, scrape: ScrapeView) -> tuple[int, ...]:
    """Steps that a trainer reported out of order within its present life, and that count for nothing."""
    if not record.evals:
        return ()
    newest, oldest = record.evals[-1], record.evals[0]
    known = {p.step for p in record.evals}
    return tuple(
        sorted(
            p.step
            for p in scrape.points
            if p.attempt == newest.attempt
            and math.isfinite(p.score)
            and oldest.step <= p.step < newest.step
            and p.step not in known
        )
    )


def rewind(record: JobRecord, use: RuleInUse, step: int) -> JobRecord:
    """Drop the evals after ``step``: the rule's memory is as it was when that step's eval had been seen.

    Where the window does not reach back that far, the rule's memory begins anew.
    """
    kept = tuple(p for p in record.evals if p.step <= step)
    if len(kept) == len(record.evals):
        return record
    whole = record.evals_seen <= len(
        record.evals
    )  # the window holds everything: its base is the initial state
    base = record.rule.base if record.rule and (kept or whole) else use.rule.initial()
    dropped = len(record.evals) - len(kept)
    return replace(
        record,
        evals=kept,
        evals_seen=record.evals_seen - dropped if kept or whole else 0,
        rule=use.remember(base, kept),
        best=_best_after_rewind(record, use, kept),
    )


def restart(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Forget every eval: the rule begins anew. The best stays if it is secured or retained."""
    kept: tuple[EvalPoint, ...] = ()
    best = _best_after_rewind(record, use, kept)
    return replace(record, evals=kept, evals_seen=0, rule=use.remember(use.rule.initial(), kept), best=best)


def _same_rule(record: JobRecord, use: RuleInUse) -> JobRecord:
    """A record made under another rule or other parameters: fold the evals we still have under this one."""
    if record.rule is not None and record.rule.params_hash == use.params_hash:
        return record
    return replace(record, rule=use.remember(use.rule.initial(), record.evals))


def _append(record: JobRecord, use: RuleInUse, point: EvalPoint) -> JobRecord:
    assert record.rule is not None  # _same_rule saw to it
    state, verdict = use.rule.observe(record.rule.state, use.orient(point))
    base, evals = record.rule.base, (*record.evals, point)
    if len(evals) > EVALS_KEPT:
        base, _ = use.rule.observe(base, use.orient(evals[0]))
        evals = evals[1:]
    best = record.best
    if best is None or use.better(point.score, best.score):
        best = Best(point.step, point.score)
    return replace(
        record,
        evals=evals,
        evals_seen=record.evals_seen + 1,
        rule=replace(record.rule, base=base, state=state, verdict=verdict),
        best=best,
    )


def _best_after_rewind(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...]) -> Best | None:
    """The best among what is left: evals before the resume, and checkpoints already in safety."""
    safe = (*record.retained, record.secured) if record.secured else record.retained
    candidates = [Best(p.step, p.score) for p in kept] + [Best(k.best_step, k.score) for k in safe]
    best: Best | None = None
    for candidate in candidates:
        if best is None or use.better(candidate.score, best.score):
            best = candidate
    return best


def _count_missed(record: JobRecord, scrape: ScrapeView, attempt: Attempt) -> JobRecord:
    """Evals that left the trainer's window before a scrape saw them: its own count says how many there were.

    A gap changes the count only: the streak goes on over it.
    """
    if scrape.evals_total is None:
        return record
    newest = record.evals[-1] if record.evals else None
    same_life = newest is None or newest.attempt == attempt
    seen = record.evals_in_attempt if same_life and record.evals_in_attempt <= scrape.evals_total else 0
    after = newest.step if newest is not None and same_life else -1
    visible = sum(1 for p in scrape.points if p.attempt == attempt and p.step > after)
    missed = max(0, scrape.evals_total - seen - visible)
    if missed == 0 and record.evals_in_attempt == scrape.evals_total:
        return record
    return replace(record, evals_missed=record.evals_missed + missed, evals_in_attempt=scrape.evals_total)
