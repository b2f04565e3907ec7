"""A record's best eval, what waits beside it, and what is pinned and kept on account of both.

An eval that waits to be borne out is no best beside one that counts; its checkpoint is pinned beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from controller.policy.job.record import Best, EvalBaseline, JobRecord, ProtectedCheckpoint, RuleRecord
from controller.policy.job.rule_in_use import RuleInUse, best_of, better, made_under
from controller.policy.job.types import Direction
from controller.policy.types import Attempt, EvalPoint


def best_scored(record: JobRecord, counting: Iterable[EvalPoint]) -> JobRecord:
    """Return the record with the best's score in all that is pinned, retained or asked for on its account, if
    it is one of those that count: what counted for nothing on another branch has none there."""
    best = record.best
    if best is None or not any((p.attempt, p.step) == (best.attempt, best.step) for p in counting):
        return record
    return on_account_of(record, {(best.attempt, best.step)}, score=best.score)


def undecided_for_good(
    record: JobRecord, use: RuleInUse, evals: tuple[EvalPoint, ...], best: Best | None
) -> Best | None:
    """Return what waits beside the best, if it is higher, and older than the evals kept: none will ever tell
    whether it counts. None: it is not so."""
    waited, kept = record.awaiting, record.beside
    if waited is None or best is None or kept is None or kept.score is None or not kept.stands_for(waited):
        return None
    known = any((p.attempt, p.step) == (waited.attempt, waited.step) for p in evals)
    return waited if not known and use.better(waited.score, best.score) else None


def stand(
    use: RuleInUse,
    rule: RuleRecord,
    evals: tuple[EvalPoint, ...],
    best: Best | None,
    record: JobRecord | None = None,
) -> tuple[Best | None, Best | None]:
    """Return a record's ``best`` and ``awaiting``, from the best of the evals that count.

    An eval that waits is no best unless there is no other. The best of those that wait is to be pinned beside
    it if it is higher, or if the best itself waits: which of the two is dropped shows at the next eval. Where
    the best's checkpoint is lost (``record``), it has to be higher than what stands in for it.
    Beside a best that may yet be refuted goes the best of all others, pins of before (``record``) too. So do
    those that waited when the rule began anew, for the run may be on their branch still. No later eval bears
    them out, so they are no best beside any that counts.
    """
    steps = {*use.waiting(rule.state)}.difference(rule.settled, rule.refuted)
    held = [p for p in evals if p.step in steps]
    undecided: list[EvalPoint] = []
    if rule.unjudged:
        before, _ = use.fold(use.rule.initial(), evals[: rule.unjudged])
        left = {*use.waiting(before)}.difference(rule.settled)
        undecided = [p for p in evals[: rule.unjudged] if p.step in left and p not in held]
        held += undecided
        if best is not None and any((p.attempt, p.step) == (best.attempt, best.step) for p in undecided):
            best = use.best_of(use.counting(rule, evals))
    refuted = {(p.attempt, p.step) for p in evals if p.step in rule.refuted}
    if best is not None and (best.attempt, best.step) in refuted:  # it stood for the best for want of another
        best = use.best_of(use.counting(rule, evals)) or best
    if best is None:
        best = use.best_of(held[:1] or evals[:1])
    if best is None:
        return None, None
    of_best = best.attempt, best.step  # another life has another step 40
    unsure = {*{use.doubtful(rule.state)}.difference(rule.settled, rule.refuted), *use.agreeing(rule)}
    lost = record is not None and best in record.lost_bests
    if not lost and any((p.attempt, p.step) == of_best for p in evals if p.step in unsure):
        others = (p for p in undecided if (p.attempt, p.step) != of_best)
        return best, use.best_of(others, _other_than(best, use, rule, evals, record))
    lone = any((p.attempt, p.step) == of_best for p in held)
    bar = best
    if record is not None and lost:
        held = [p for p in held if Best(p.step, p.score, p.attempt) not in record.lost_bests]
        known = replace(record, best=best, evals=evals, rule=rule)
        bar = keepable(known, use.direction, use) or best
    awaiting = use.best_of(p for p in held if (p.attempt, p.step) not in (of_best, (bar.attempt, bar.step)))
    if awaiting is None or not (lone or use.better(awaiting.score, bar.score)):
        awaiting = None
    return best, awaiting


def stand_anew(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record with what waits beside the best chosen anew: a checkpoint was lost since.

    What waits there already has come since the rule began anew perhaps, and goes on waiting.
    """
    if record.rule is None or not made_under(record, use):
        return record
    best, awaiting = stand(use, record.rule, record.evals, record.best, record)
    waited = record.awaiting
    if waited is not None and waited != best and waited not in record.lost_bests:
        awaiting = use.best_of([waited], awaiting)
    return replace(record, best=best, awaiting=awaiting)


def _other_than(
    best: Best, use: RuleInUse, rule: RuleRecord, evals: tuple[EvalPoint, ...], record: JobRecord | None
) -> Best | None:
    """Return the best of the evals but for ``best`` and what agrees with it, and of pins of before them."""
    agree = use.agreeing(rule)
    agree = agree if best.step in agree else ()
    steps = {*use.waiting(rule.state)}.difference(rule.settled, rule.refuted, agree)
    counts = [*use.counting(rule, evals), *(p for p in evals if p.step in steps)]
    found = use.best_of(p for p in counts if (p.attempt, p.step) != (best.attempt, best.step))
    known = {(best.attempt, best.step), *((p.attempt, p.step) for p in evals)}
    if record is None:
        return found
    older = [one for pin in (record.secured, record.beside) if (one := _stood_for(record, pin)) is not None]
    return use.best_of((o for o in older if (o.attempt, o.step) not in known), found)


def settle_agreeing(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Count waiting evals if two or more of them agree; called when the run ends or is to stop.

    The best until then stays secured beside: should the run go on, they may still be dropped.
    """
    found = best_agreeing(record, use, record.evals)
    return record if found is None else replace(record, best=found, awaiting=record.best)


def best_agreeing(record: JobRecord, use: RuleInUse, evals: tuple[EvalPoint, ...]) -> Best | None:
    """Return the best of the evals that wait, if two or more agree and it is above the best; None: it is not
    so."""
    steps = use.agreeing(record.rule) if record.rule and made_under(record, use) else ()
    found = use.best_of(p for p in evals if p.step in steps)
    if found is None or (record.best is not None and not use.better(found.score, record.best.score)):
        return None
    return found


def on_account_of(record: JobRecord, evals: set[tuple[Attempt, int]], **change: Any) -> JobRecord:
    """Return the record with these fields changed in all that is pinned, retained or asked for on account of
    one of these evals (attempt and life, step)."""
    if not evals:
        return record

    def changed(kept: ProtectedCheckpoint) -> ProtectedCheckpoint:
        return replace(kept, **change) if (kept.attempt, kept.best_step) in evals else kept

    secured, beside, access = record.secured, record.beside, record.access
    if access is not None and (access.attempt, access.step) in evals:
        access = replace(access, **change)
    return replace(
        record,
        secured=None if secured is None else changed(secured),
        beside=None if beside is None else changed(beside),
        access=access,
        retained=tuple(map(changed, record.retained)),
    )


def higher_of(
    direction: Direction, one: ProtectedCheckpoint | None, other: ProtectedCheckpoint | None
) -> ProtectedCheckpoint | None:
    """Return the one with the better score, whoever scored them; ``one`` if neither is known to be better."""
    if one is None or other is None:
        return other if one is None else one
    if other.score is None or (one.score is not None and not better(direction, other.score, one.score)):
        return one
    return other


def with_pins(
    baseline: EvalBaseline, change: Callable[[ProtectedCheckpoint], ProtectedCheckpoint | None]
) -> EvalBaseline:
    """Return the baseline with each pin of before changed, or without it (None)."""
    kept, short = baseline.kept, baseline.short
    if short is not None and short.highest is not None:
        short = replace(short, highest=change(short.highest))
    return replace(baseline, kept=None if kept is None else change(kept), short=short)


def best_after(
    record: JobRecord,
    direction: Direction,
    counting: Iterable[EvalPoint],
    step: int,
) -> Best | None:
    """Return the best among what is left when the run goes on from ``step``.

    That is: evals up to there, the best itself if it is one of those (it may be older than the evals kept),
    and checkpoints that are pinned or retained, of whatever branch. Not those from before the scores could
    be compared, and none whose score nobody knows.
    """
    candidates: list[EvalPoint | Best] = [*counting]
    if record.best is not None and record.best.step <= step:
        candidates.append(record.best)
    for kept in (*record.retained, record.secured):
        if (one := _stood_for(record, kept)) is not None:
            candidates.append(one)
    return best_of(direction, candidates)


def _stood_for(record: JobRecord, kept: ProtectedCheckpoint | None) -> Best | None:
    """Return the eval for which a checkpoint is kept; None: its score is not known, or not on the present
    scale."""
    if kept is None or kept.score is None or kept.baseline != record.baseline_number:
        return None
    return Best(kept.best_step, kept.score, kept.attempt)


def keepable(record: JobRecord, direction: Direction, use: RuleInUse | None = None) -> Best | None:
    """Return the best eval whose checkpoint may still be had: the best, unless its checkpoint is lost.

    Then it is the best of the others that count by ``use``; if none is left, of those that wait to be borne
    out: what is perhaps good is better than nothing.
    """
    if record.best is None or record.best not in record.lost_bests:
        return record.best
    rule, top = record.rule, record.best.score

    def had(points: Iterable[EvalPoint]) -> list[EvalPoint]:
        """Return those whose checkpoint may be had. Without the rule an eval above the best was dropped, or
        waits to be borne out."""
        kept = (p for p in points if not better(direction, p.score, top))
        return [p for p in kept if Best(p.step, p.score, p.attempt) not in record.lost_bests]

    if use is None or rule is None or not made_under(record, use):
        left = had(record.evals)
    else:
        left = had(use.counting(rule, record.evals))
        if not left:
            waits = use.waiting(rule.state)
            left = had(p for p in record.evals if p.step in waits)
    # A copy of one that is lost was made for an earlier stop: there is nothing to pin it from any more.
    copies = tuple(k for k in record.retained if not any(map(k.stands_for, record.lost_bests)))
    return best_after(replace(record, best=None, retained=copies), direction, left, -1)
