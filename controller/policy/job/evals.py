"""Adds scraped evals to a job's record: each once, in order; a resume replaces the evals after its step.

An eval is identified by attempt, life and step. What is not new, not finite, or of another life than the
newest changes nothing. When a new life resumes at step s, later steps of the former one leave the rule's
memory at once (that run of history did not happen); a best that is already pinned stays. Scores that cannot
be compared, because the evaluator changed, are not: the memory begins anew (`comparable`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from controller.names import EVALS_KEPT
from controller.policy.job import curve, lives, scores
from controller.policy.job.bests import (
    best_after,
    best_agreeing,
    best_scored,
    on_account_of,
    stand,
    undecided_for_good,
)
from controller.policy.job.record import READINGS_KEPT, JobRecord, RuleRecord
from controller.policy.job.rule_in_use import (
    INVERTED,
    RuleInUse,
    made_under,
    newest_mark,
    same_but_for_belief,
)
from controller.policy.job.types import Direction, ProxyMetric, ScrapeView
from controller.policy.stopping import carry_spent
from controller.policy.types import Attempt, EvalPoint


def ingest(record: JobRecord, use: RuleInUse, scrape: ScrapeView) -> JobRecord:
    """Return the record with the scrape's new evals in it; the same record when there are none.

    The page must be one that may be read (`lives.refusal`).
    """
    record = begin_life(_same_rule(record, use), use, scrape)
    if not record.lives or not scrape.points:
        return record
    life = record.lives[-1].attempt
    if lives.speaking(scrape) != life:
        return record
    record = _count_missed(record, scrape, life)
    points = sorted((p for p in scrape.points if p.attempt == life and is_eval(p)), key=lambda p: p.step)
    for point in points:
        record = _measured_again(_first_of_life(record, use, point), use, point)
        if _is_new(record, point):
            # Gauges say what loss and KL are now: of earlier evals they are not known.
            newest = point is points[-1]
            loss = scrape.loss if newest and "loss" in use.needs else None
            kl = scrape.kl if newest else None
            known = {p.step: p.score for p in (*((record.best,) if record.best else ()), *record.evals)}
            seen = scores.believed(point, use.scale, record.evals, known)
            best = record.best.step if record.best is not None else None
            seen = scores.paired_with(best, seen, record.evals, use.scale)
            record = _append(record, use, _with_proxy(seen, use.proxy, scrape), scrape.at, loss, kl)
    return record


def begin_life(record: JobRecord, use: RuleInUse, scrape: ScrapeView) -> JobRecord:
    """Return the record once the page's process is known: where it resumed, the memory ends there at once."""
    after = lives.note(record, scrape)
    if lives.start(after) == lives.start(record) or after.lives[-1].resumed is None:
        return after  # or only what it has saved is news
    if _forgotten(record, after.lives[-1].resumed):
        # What is known lies on the way all the same, and its best may not be pinned yet.
        return judged_from_now_on(after, use)
    return rewind(leaving(after), use, after.lives[-1].resumed)


def leaving(record: JobRecord) -> JobRecord:
    """Return the record with the highest checkpoint that the newest process is known to have started before.

    One from which an earlier process had started, or that lay there when the folder was claimed: it is of a
    branch that is left now, though no eval of that may ever have been read.
    """
    *former, newest = record.lives or (None,)
    if newest is None or newest.resumed is None:
        return record
    lay = record.claim.newest_step if record.claim is not None else 0
    step = max((lay, *(life.resumed or 0 for life in former)))
    if step <= max(record.abandoned_step, newest.resumed):
        return record
    return replace(record, abandoned_step=step)


def on_another_branch(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record once the newest process is known to have started from a checkpoint of another branch
    than the evals are of that came before it: the rule begins anew, with this process's."""
    life, former = record.lives[-1].attempt, record.rule
    if former is None or all(p.attempt == life for p in record.evals[former.unjudged :]):
        return record
    others = sum(1 for p in record.evals if p.attempt != life)
    record = _agreed(record, use, ())
    rule = _remembered(record, use, _anew(record, use), record.evals, others)
    best, awaiting = stand(use, rule, record.evals, record.best, record)
    return replace(record, rule=rule, best=best, awaiting=awaiting)


def _forgotten(record: JobRecord, step: int) -> bool:
    """Return whether evals up to ``step`` may be missing that are on the way now.

    A process that went back has taken later evals out of memory. One that then goes on from a checkpoint
    beyond all that it is known to have reached may be on the branch of those again: a trainer that looks for
    its newest checkpoint takes the highest step that lies there, whichever branch that is of.
    """
    former = record.lives[-1] if record.lives else None
    if former is None or former.resumed is None or former.resumed >= step:
        return False
    reached = lives.reached(record, former)
    if reached is None:
        return len(record.lives) > 1
    # Until its folder was claimed anew, nobody knows how far those go that lay there before it.
    unknown = record.claim is not None and not former.claimed
    return reached < step and (unknown or step <= record.abandoned_step)


def _first_of_life(record: JobRecord, use: RuleInUse, point: EvalPoint) -> JobRecord:
    """Return the record rewound to before a process's first eval, if it has not reported where it resumed, or
    evaluates a step well below that."""
    said = record.lives[-1].resumed
    if not record.evals or (said is not None and not 0 < point.step < said - apart(record, said)):
        return record
    if record.evals[-1].attempt == point.attempt:
        return record
    return rewind(lives.resumed(record, point.step - 1), use, point.step - 1)


def apart(record: JobRecord, step: int) -> int:
    """Return how far two evals lie apart, of a run that comes to ``step``.

    A step that is less by so little tells nothing: one counts from 0, and another from 1.
    """
    newest = record.evals[-2:]
    return max(1, newest[1].step - newest[0].step if len(newest) > 1 else step // 2)


def _measured_again(record: JobRecord, use: RuleInUse, point: EvalPoint) -> JobRecord:
    """Return the record without its newest eval if the newest process started from that very step, and has
    evaluated it once more: the rule sees one eval of a step, the last.

    The former one stays the best until there is a better one, unless it still waits to be borne out or others
    refuted it.
    """
    former, started = record.evals[-1] if record.evals else None, record.lives[-1].resumed
    if former is None or former.attempt == point.attempt or started is None:
        return record
    if not started <= point.step == former.step:
        return record
    rule = record.rule
    waits = rule is not None and former.step in {*_unsure(use, rule), *rule.refuted}
    after = rewind(record, use, point.step - 1, best_until=point.step - 1 if waits else point.step)
    return replace(after, abandoned_step=record.abandoned_step)  # no branch is left


def is_eval(point: EvalPoint) -> bool:
    """Return whether a score was measured at all: it is finite, and not of no samples."""
    return math.isfinite(point.score) and point.samples != 0


def _with_proxy(point: EvalPoint, proxy: ProxyMetric | None, scrape: ScrapeView) -> EvalPoint:
    """Return the eval with what the run optimises, where that is a metric of its own: of the same step and
    life."""
    if proxy is None or point.proxy is not None:
        return point
    found = (p for other in scrape.others if other.metric == proxy.metric for p in other.points)
    same = next((p.score for p in found if (p.attempt, p.step) == (point.attempt, point.step)), None)
    if same is None or not math.isfinite(same):
        return point
    return point._replace(proxy=same if proxy.direction is Direction.MAXIMIZE else -same)


def _is_new(record: JobRecord, point: EvalPoint) -> bool:
    mark = newest_mark(record)
    if mark is None:
        return True
    life, step = mark
    # What a mark without evals stands for is in no memory: another life may begin at any step.
    return point.step > step or (not record.evals and point.attempt != life)


def ignored_steps(record: JobRecord, scrape: ScrapeView) -> tuple[int, ...]:
    """Return steps that a trainer reported out of order within its present life, and that count for
    nothing."""
    if not record.evals:
        return ()
    newest, oldest = record.evals[-1], record.evals[0]
    known = {p.step for p in record.evals}
    return tuple(
        sorted(
            p.step
            for p in scrape.points
            if p.attempt == newest.attempt
            and is_eval(p)
            and oldest.step <= p.step < newest.step
            and p.step not in known
        )
    )


def rewind(record: JobRecord, use: RuleInUse, step: int, best_until: int | None = None) -> JobRecord:
    """Drop the evals after ``step``: the rule's memory is as it was when that step's eval had been seen.

    Where the window does not reach back that far, the rule's memory begins anew. ``best_until``: up to which
    step the best stays; None: ``step``.
    """
    until = step if best_until is None else best_until
    if record.rule is not None:
        record = _same_rule(record, use)  # its user may have chosen another since the last scrape
    kept = tuple(p for p in record.evals if p.step <= step)
    if len(kept) == len(record.evals):
        return _with_best(record, use, kept, until)
    whole = record.evals_seen <= len(
        record.evals
    )  # the window holds everything: its base is the initial state
    record = forget_all_but(record, use, kept)
    base = record.rule.base if record.rule and (kept or whole) else use.rule.initial()
    dropped = len(record.evals) - len(kept)
    unjudged = min(record.rule.unjudged, len(kept)) if record.rule is not None else 0
    rule = _remembered(record, use, base, kept, unjudged)
    if record.rule is not None:  # what was looked at on the branch that is left was looked at
        rule = replace(rule, state=carry_spent(use.rule, rule.state, record.rule.state))
    counting = use.counting(rule, kept)
    best = best_after(record, use.direction, counting, until)
    best, awaiting = stand(use, rule, kept, best, record)
    made = replace(
        record,
        evals=kept,
        eval_times=record.eval_times[: max(0, len(record.eval_times) - dropped)],
        evals_seen=record.evals_seen - dropped if kept or whole else 0,
        earlier_sum=record.earlier_sum if kept else None,
        abandoned_step=_abandoned(record),
        rule=rule,
        best=best,
        awaiting=awaiting,
    )
    return best_scored(made, counting)


def _remembered(
    record: JobRecord, use: RuleInUse, base: tuple[Any, ...], kept: tuple[EvalPoint, ...], unjudged: int
) -> RuleRecord:
    """Return the rule's memory of those of a record's evals that are kept, made anew.

    What counted for sure by the former memory is settled where the new one, which has not seen what bore it
    out, would wait for that once more. So is all that is not judged any more, whatever becomes of the rule.
    What counted for nothing is refuted where the new memory would believe it, or wait, once more.
    """
    rule, former = use.remember(base, kept, unjudged), record.rule
    if former is None:
        return rule
    settled, refuted = {*former.settled}, {*former.refuted}
    if made_under(record, use):
        counted = {p.step for p in use.counting(former, record.evals)}
        settled |= counted.difference(use.unscaled(former.state))
        judged = {p.step for p in record.evals[former.unjudged :]}
        refuted |= judged.difference(counted, use.waiting(former.state))
    sure = use.counted(base, kept[unjudged:]).difference(use.unscaled(rule.state))
    first = use.waiting(rule.state) if len(kept) == unjudged + 1 else ()  # a later one waits as it did
    refuted &= {*first, *use.unscaled(rule.state)}
    return replace(
        rule,
        settled=tuple(p.step for p in kept if p.step in settled and p.step not in sure),
        refuted=tuple(p.step for p in kept if p.step in refuted),
    )


def _unsure(use: RuleInUse, rule: RuleRecord) -> set[int | None]:
    """Return steps of evals that may count for nothing yet: they wait, or are to be judged again."""
    return {*use.waiting(rule.state), use.doubtful(rule.state)}.difference(rule.settled, rule.refuted)


def _with_best(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...], step: int) -> JobRecord:
    """No eval is dropped; but the best may be one of a branch that was left, and not secured."""
    if record.best is None or record.best.step <= step or record.rule is None:
        return record
    best = best_after(record, use.direction, use.counting(record.rule, kept), step)
    best, awaiting = stand(use, record.rule, kept, best, record)
    return replace(record, best=best, awaiting=awaiting)


def restart(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Forget every eval: the rule begins anew. The best stays if it is pinned or retained."""
    kept: tuple[EvalPoint, ...] = ()
    record = forget_all_but(record, use, kept)
    best = best_after(record, use.direction, (), -1)
    rule = use.remember(_anew(record, use), kept)
    return replace(
        record,
        evals=kept,
        eval_times=(),
        evals_seen=0,
        earlier_sum=None,
        abandoned_step=_abandoned(record),
        rule=rule,
        best=best,
        awaiting=None,
    )


def _abandoned(record: JobRecord) -> int:
    """Return the highest step from which the run has ever gone back, its present evals among them."""
    return max(record.abandoned_step, record.evals[-1].step if record.evals else 0)


def judged_from_now_on(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Begin the rule again within a process; the evals so far stay recorded, and are not judged again."""
    record = _agreed(record, use, ())
    rule = _remembered(record, use, _anew(record, use), record.evals, len(record.evals))
    return replace(record, rule=rule)


def _anew(record: JobRecord, use: RuleInUse) -> tuple[Any, ...]:
    """Return the state of a rule that forgets its evals; what it spent of its budget stays spent."""
    initial = use.rule.initial()
    if record.rule is None or not made_under(record, use):
        return initial
    return carry_spent(use.rule, initial, record.rule.state)


def _same_rule(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record judged by this rule; if another rule made it, judge the evals still known again."""
    if made_under(record, use):
        return record
    initial, known = use.rule.initial(), record.best
    before = record.rule.params_hash if record.rule is not None else use.params_hash
    if before.endswith(INVERTED) != use.params_hash.endswith(INVERTED):
        # The other direction: what was the best is none.
        known = best_after(replace(record, best=None), use.direction, (), -1)
    unjudged = record.rule.unjudged if record.rule is not None else 0
    rule = _remembered(record, use, initial, record.evals, unjudged)
    if record.rule is not None and same_but_for_belief(before, use.params_hash):
        rule = replace(rule, state=carry_spent(use.rule, rule.state, record.rule.state))
    best = use.best_of(use.counting(rule, record.evals), known)
    best, awaiting = stand(use, rule, record.evals, best, record)
    return replace(record, rule=rule, best=best, awaiting=awaiting)


def _append(
    record: JobRecord,
    use: RuleInUse,
    point: EvalPoint,
    at: float,
    loss: float | None = None,
    kl: float | None = None,
) -> JobRecord:
    rule = record.rule
    assert rule is not None  # _same_rule saw to it
    state, verdict = use.observe(rule.state, point, new=True, loss=loss)
    base, evals, earlier = rule.base, (*record.evals, point), record.earlier_sum
    unjudged = rule.unjudged
    if len(evals) > EVALS_KEPT:
        if unjudged:
            unjudged -= 1
        else:
            base, _ = use.observe(base, evals[0])
        earlier = _sum_with(record, evals[0].score)
        evals = evals[1:]
    gone = [step for step in use.dropped(state) if step not in rule.settled]
    waits = use.waiting(state)
    out = {(p.attempt, p.step) for p in (*record.evals, point) if p.step in gone}
    record = on_account_of(record, out, score=None)
    best = record.best
    if best is not None and (best.attempt, best.step) in out:
        # It stood for the best for want of another. What is secured for it is no better.
        counts = use.counting(rule, (*record.evals, point))
        best = best_after(record, use.direction, counts, -1)
        spare = record.awaiting  # of before the evals that are kept: it was secured for this
        if spare is not None and not any((p.attempt, p.step) == (spare.attempt, spare.step) for p in evals):
            best = use.best_of((spare,), best)
    was = {*use.waiting(rule.state), point.step}.difference(gone, waits)
    counting = [p for p in (*record.evals, point) if p.step in was]
    best = use.best_of(counting, best)
    now = replace(rule, state=state)  # with the base of before the oldest left
    known = {p.step for p in evals}
    settled = tuple(step for step in rule.settled if step in known)
    # On another branch one that was refuted may be borne out after all.
    refuted = tuple(step for step in rule.refuted if step in known and step not in was)
    now = replace(now, refuted=refuted)
    best, awaiting = stand(use, now, (*record.evals, point), best, record)
    awaiting = awaiting or undecided_for_good(record, use, evals, best)
    made = replace(
        record,
        evals=evals,
        eval_times=(*record.eval_times, int(at))[-READINGS_KEPT:],
        evals_seen=record.evals_seen + 1,
        curve=curve.with_eval(record, point, verdict if use.rises else None, kl),
        earlier_sum=earlier,
        rule=replace(now, base=base, verdict=verdict, unjudged=unjudged, settled=settled),
        best=best,
        awaiting=awaiting,
    )
    return best_scored(made, counting)


def forget_all_but(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...]) -> JobRecord:
    """Return the record, ready for the memory of all evals but ``kept`` to be dropped.

    Evals that still wait to be confirmed are decided here: they count if two or more agree and the checkpoint
    of the best of them is secured, and count for nothing otherwise: so does one that was the best for want of
    another.
    """
    if record.rule is None or not made_under(record, use):
        return record
    waits = {*use.waiting(record.rule.state)}.difference(record.rule.settled)
    agreeing = use.agreeing(record.rule)
    record = _agreed(record, use, kept)
    best = record.best
    undecided = {(p.attempt, p.step) for p in record.evals if p.step in waits and p not in kept}
    if best is not None and best.step in agreeing:
        undecided.discard((best.attempt, best.step))
    # What is pinned, retained or asked for on their account keeps no score: it is never taken for the best.
    return on_account_of(record, undecided, score=None)


def _agreed(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...]) -> JobRecord:
    """Count two or more waiting evals that agree, if the best of them is secured."""
    found = best_agreeing(record, use, tuple(p for p in record.evals if p not in kept))
    if found is None or record.beside is None or not record.beside.stands_for(found):
        return record
    rule = record.rule
    assert rule is not None  # by which they agree
    former = (record.secured.path,) if record.secured is not None else ()
    gone = tuple(path for path in former if path != record.beside.path)
    return replace(
        record,
        rule=replace(rule, settled=tuple({*rule.settled, *use.agreeing(rule)})),
        best=found,
        awaiting=None,
        secured=record.beside,
        beside=None,
        to_release=(*record.to_release, *gone),
    )


def _sum_with(record: JobRecord, leaving: float) -> float | None:
    """Sum of the scores that are no longer kept once this one, the oldest, has gone; None: nobody knows."""
    if record.evals_seen == len(record.evals):
        return leaving
    total = None if record.earlier_sum is None else record.earlier_sum + leaving
    return total if total is not None and math.isfinite(total) else None


def _count_missed(record: JobRecord, scrape: ScrapeView, attempt: Attempt) -> JobRecord:
    """Evals that left the trainer's window before a scrape saw them: its own count says how many there were.

    A gap changes the count only: the streak goes on over it.
    """
    if scrape.evals_total is None:
        return record
    mark = newest_mark(record)
    same_life = mark is None or mark[0] == attempt
    seen = record.evals_in_attempt if record.evals_in_attempt <= scrape.evals_total else 0
    after = mark[1] if mark is not None and same_life else -1
    visible = sum(1 for p in scrape.points if p.attempt == attempt and p.step > after)
    missed = max(0, scrape.evals_total - seen - visible)
    if missed == 0 and record.evals_in_attempt == scrape.evals_total:
        return record
    return replace(record, evals_missed=record.evals_missed + missed, evals_in_attempt=scrape.evals_total)
