"""A run's evals that may be compared with each other: those of one evaluator.

Another evaluator scores on another scale, and the first eval under it says nothing about the run. So the
memory begins anew there: the rule, the best, the evals kept. Three signs of it. The trainer exports the
evaluator's version (`rlhf_evaluator_info`) and it changes. Or the pool says that many jobs fell at the same
moment (`controller.policy.fleet.shared_drops`), which is how an evaluator looks that changed without a word.
Or the run's own scores go on in another unit (`score_unit`).

Nothing is lost by it: the checkpoint that stood for the best so far stays pinned beside the new best one, for
it may still be the better of the two; where evaluators change faster than the rule can speak, so does that of
the highest score among theirs (`short_baselines`). A real decline goes on, and is found again among the evals
since.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from controller.policy.job import guardrails, score_unit, short_baselines
from controller.policy.job.bests import on_account_of, stand
from controller.policy.job.evals import forget_all_but
from controller.policy.job.record import EvalBaseline, JobRecord
from controller.policy.job.rule_in_use import RuleInUse, newest_mark
from controller.policy.job.types import Desired, Direction, ScrapeView
from controller.policy.stopping import carry_spent, noise
from controller.policy.types import Attempt, EvalPoint, FleetNoise, FleetView, Reading, SharedFall


def begin_anew(record: JobRecord, use: RuleInUse, scrape: ScrapeView, fall: SharedFall | None) -> JobRecord:
    """Return the record without evals that cannot be compared with what comes now; the same one if all can
    be.

    To be asked before the scrape's evals are taken in (`evals.ingest`).
    """
    record = _other_evaluator(record, use, scrape)
    return record if fall is None else _other_side(record, use, fall)


def in_other_unit(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record without evals before its scores changed their unit; the same one if they did not.

    To be asked once the scrape's evals are taken in. It is a guess: what of the budget of false stops was
    spent stays spent.
    """
    at = score_unit.changed_at(record.evals)
    if at is None or record.rule is None:
        return record
    last, kept = record.evals[at - 1], record.evals[at:]
    times = record.eval_times[-len(kept) :]
    after = _cut(record, use, kept, last.attempt, last.step, float(times[0]) if times else 0.0, "")
    assert after.rule is not None
    assert after.baseline is not None
    rule = replace(after.rule, state=carry_spent(use.rule, after.rule.state, record.rule.state))
    baseline = replace(after.baseline, unit=score_unit.named(last.score, kept[0].score))
    return replace(after, rule=rule, baseline=baseline)


def told_by_fleet(desired: Desired, record: JobRecord, told: FleetView) -> FleetView:
    """Return what the pool tells a run, without usual noise that its own evals contradict
    (`noise.contradicts`)."""
    mine, own_of = told.noise, dict(guardrails.noise_shown(record) or ())
    guards = tuple(one for one in told.guardrails if not noise.contradicts(one.noise, own_of.get(one.metric)))
    if mine is not None and mine.sigma > 0.0 and noise.contradicts(mine, _own_noise(desired, record)):
        mine = FleetNoise(0.0, 0.0, mine.floor) if mine.floor else None
    return told._replace(noise=mine, guardrails=guards)


def seen_by_fleet(desired: Desired, record: JobRecord, *, judged: bool) -> dict[str, Any]:
    """Return the fields of a `JobView` by which the pool compares runs with each other.

    ``judged``: the run goes on and its rule looks at it; else the pool learns nothing of its scores.
    """
    found = guardrails.joint_verdict(record, desired)
    if not judged:
        return {"metric": desired.metric}
    usual, readings = _shown(record.evals, record.eval_times, desired.direction)
    return {
        "metric": desired.metric,
        "evaluator": record.evaluator or None,
        "evidence": found[1].e_value if found is not None else None,
        "noise": usual,
        "guardrail_noise": guardrails.noise_shown(record),
        "readings": readings,
    }


def _own_noise(desired: Desired, record: JobRecord) -> FleetNoise | None:
    return _shown(record.evals, record.eval_times, desired.direction)[0]


@lru_cache(maxsize=512)  # a pool looks at all of its jobs at each pass, and most have no new eval
def _shown(
    evals: tuple[EvalPoint, ...], times: tuple[int, ...], direction: Direction
) -> tuple[FleetNoise | None, tuple[Reading, ...]]:
    """Return what the evals show of their noise, and the newest of them as the pool sees them."""
    sign = 1.0 if direction is Direction.MAXIMIZE else -1.0
    newest = evals[len(evals) - len(times) :]
    readings = (Reading(float(at), sign * p.score) for at, p in zip(times, newest, strict=True))
    return noise.own(evals), tuple(readings)


def _other_evaluator(record: JobRecord, use: RuleInUse, scrape: ScrapeView) -> JobRecord:
    version = scrape.evaluator
    if version is None or version == record.evaluator:
        return record
    mark = newest_mark(record)
    if not record.evaluator:
        return replace(record, evaluator=version)  # the first that is known: nothing speaks against the evals
    if mark is None:
        # No eval is known of the process that speaks. What is pinned was scored by the former evaluator.
        return replace(_cut(record, use, (), None, 0, scrape.at, record.evaluator), evaluator=version)
    # Evals that came with the news are doubtful unless each says who scored it: the old evaluator may have
    # made them before it was replaced. Those of a new process are not: it was started with the new one.
    life, step = mark
    doubtful = () if scrape.evals_labelled else (p.step for p in scrape.points if p.attempt == life)
    record = _cut(record, use, (), life, max((step, *doubtful)), scrape.at, record.evaluator)
    return replace(record, evaluator=version)


def _other_side(record: JobRecord, use: RuleInUse, fall: SharedFall) -> JobRecord:
    baseline = record.baseline
    if not record.evals or (baseline is not None and baseline.since >= fall.before):
        return record
    since = sum(1 for at in record.eval_times if fall.counts(at))
    if since == len(record.evals):
        # Noted all the same: later the times of the oldest are no longer known.
        noted = replace(baseline or EvalBaseline(0.0), since=fall.before, number=record.baseline_number + 1)
        return _renumbered(replace(record, baseline=noted), record.evals)
    kept = record.evals[len(record.evals) - since :]
    last = record.evals[-since - 1] if since else record.evals[-1]
    return _cut(record, use, kept, last.attempt, last.step, fall.before)


def _cut(
    record: JobRecord,
    use: RuleInUse,
    kept: tuple[EvalPoint, ...],
    life: Attempt | None,
    step: int,
    since: float,
    by: str | None = None,
) -> JobRecord:
    """Only ``kept`` counts from now on; what is not after (``life``, ``step``) was scored otherwise.

    ``life`` None: all that comes counts. ``by``: `short_baselines.ended`.
    """
    seen, began = record.evals_seen - len(kept), record.baseline
    if began is not None and (began.life, began.step) == (str(life) if life is not None else "", step):
        by = None  # no eval came between
    scored, record = record, forget_all_but(record, use, kept)
    initial, unjudged = use.rule.initial(), record.rule.unjudged if record.rule is not None else 0
    unjudged = max(0, unjudged - (len(record.evals) - len(kept)))
    rule = use.remember(initial, kept, unjudged)
    best, awaiting = stand(use, rule, kept, use.best_of(use.counting(rule, kept)))
    secured, leaving = record.secured, None
    if secured is not None and all((p.attempt, p.step) != (secured.attempt, secured.best_step) for p in kept):
        # No longer "the" pinned one, so that the next one is pinned beside it and not in its place.
        secured, leaving = None, secured
    access = record.access
    if began is not None and began.kept is not None and seen < short_baselines.speaks_at(use.rule):
        # Of evals that nothing bore out, for want of others, the highest is kept: by their scores.
        access = scored.access
        if leaving is not None and scored.secured is not None:
            leaving = replace(leaving, score=scored.secured.score)
    stays = short_baselines.ended(record, use, seen, leaving, by)
    after = replace(
        record,
        evals=kept,
        eval_times=record.eval_times[len(record.eval_times) - len(kept) :],
        evals_seen=len(kept),
        earlier_sum=None,
        rule=rule,
        best=best,
        awaiting=awaiting,
        secured=secured,
        access=access,
        to_release=(*record.to_release, *stays.released),
        baseline=EvalBaseline(
            since,
            str(life) if life is not None else "",
            step,
            stays.best,
            record.baseline_number + 1,
            short=stays.short,
        ),
    )
    return _renumbered(after, kept)


def _renumbered(record: JobRecord, evals: tuple[EvalPoint, ...]) -> JobRecord:
    """Return the record in which what stands for one of these evals belongs to the newest baseline."""
    return on_account_of(record, {(p.attempt, p.step) for p in evals}, baseline=record.baseline_number)
