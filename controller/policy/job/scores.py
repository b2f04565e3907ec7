"""The part of an eval that is believed: its range, prompts, error, pairs with earlier evals.

All of it is what a tenant declared or a page says, and all of it makes noise look known. Where it contradicts
itself the eval counts without it, so that nobody is stopped by a wrong number, and a sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from controller.policy.job import no_eval
from controller.policy.job.record import JobRecord, OutOfRange
from controller.policy.job.types import Desired, Direction, ScrapeView
from controller.policy.stopping import noise, prompt_pairs
from controller.policy.types import Attempt, EvalPoint, EvalScale, PromptPair
from controller.policy.wording import other_way

PROMPTS_MAX = noise.MOST_PROMPTS  # in one eval; more is a mistake, or meant to make noise look small
MOST_PAIRS = 3  # of an eval that are kept: a status has room for so many


def noted(record: JobRecord, desired: Desired, scrape: ScrapeView) -> JobRecord:
    """Return the record in which the first score outside its declared range is noted, for each metric.

    A range that one score contradicts bounds nothing. It is believed again once another is declared.
    """
    known = {one.metric: one for one in record.out_of_range}
    found = []
    for metric, scale, points in _judged(desired, scrape):
        if scale.range is None:
            continue
        low, high = scale.range
        one = known.get(metric)
        if one is None or (one.low, one.high) != scale.range:
            mine = (*points, *record.evals) if metric == desired.metric else points
            outside = [p for p in mine if math.isfinite(p.score) and not low <= p.score <= high]
            first = min(outside, key=lambda p: p.step, default=None)
            one = None if first is None else OutOfRange(metric, first.step, first.score, low, high)
        found += [] if one is None else [one]
    return record if tuple(found) == record.out_of_range else replace(record, out_of_range=tuple(found))


def doubted_directions(desired: Desired) -> list[str]:
    """Return what is to be said of judged metrics whose names say the opposite of their direction."""
    judged = [(desired.metric_index, desired.metric, desired.direction)]
    judged += [(g.index or 0, g.metric, g.direction) for g in desired.guardrails]
    doubts = ((index, other_way(metric, way is Direction.MAXIMIZE)) for index, metric, way in judged)
    return [f"spec.metrics[{index}].direction: {doubt}" for index, doubt in doubts if doubt]


def declared_scale(desired: Desired, record: JobRecord | None) -> EvalScale:
    """Return what is declared of the Primary metric's evals, without a range that a score contradicts."""
    refuted = record is not None and any(one.metric == desired.metric for one in record.out_of_range)
    return desired.scale._replace(range=None) if refuted else desired.scale


def believed(
    point: EvalPoint, scale: EvalScale, before: Sequence[EvalPoint], known: Mapping[int, float]
) -> EvalPoint:
    """Return an eval without what contradicts itself.

    Args:
        point: in the trainer's own orientation.
        scale: what is declared, as far as it holds.
        before: evals before it that are kept, which have passed here: the fewest prompts count.
        known: scores by step of the evals that it may be paired with.
    """
    asked = [p.prompts for p in (*before, point) if p.prompts is not None]
    prompts = min(asked, default=None) if point.prompts is not None else None
    pairs = tuple(p for p in point.prompt_pairs if p.step in known)
    if any(not _holds(pair, point, scale, known) for pair in pairs):
        pairs = ()
    return point._replace(prompts=prompts, prompt_pairs=pairs)


def paired_with(
    best: int | None, point: EvalPoint, before: Sequence[EvalPoint], scale: EvalScale
) -> EvalPoint:
    """Return an eval with a pair with the best one too, where both are paired with a third.

    Of such a pair the variance is an upper bound (`prompt_pairs.between`); one that says no more than that
    the prompts were others is left out. The trainer pairs with its own best, which is another one where the
    gate dropped that, until it has read the name of ours.

    Args:
        best: step of the best eval that counts; None: none does yet.
        point: as it is believed.
        before: evals before it that are kept.
        scale: what is declared, as far as it holds.
    """
    pairs = point.prompt_pairs
    if best is None or not pairs or len(pairs) >= MOST_PAIRS or any(p.step == best for p in pairs):
        return point
    known = {p.step: p.prompt_pairs for p in (*before, point)}
    found = prompt_pairs.between(known, point.step, best)
    error = noise.error(scale.known_of(point))
    if found is None or (error and found.variance >= 2.0 * found.prompts * error * error):
        return point
    return point._replace(prompt_pairs=(*pairs, found))


def complaints(desired: Desired, record: JobRecord, scrape: ScrapeView, life: Attempt) -> list[str]:
    """Return what is not believed of the page's evals, a sentence each; the newest eval of each kind."""
    found = [
        f"{one.metric!r} is {one.score:g} at step {one.step}, outside of its range {one.low:g} to "
        f"{one.high:g}: the range is not used, correct spec.metrics[].range, or preset where that sets it"
        for one in record.out_of_range
    ]
    refuted = {one.metric for one in record.out_of_range}
    for metric, declared, every in _judged(desired, scrape):
        scale = declared._replace(range=None) if metric in refuted else declared
        points = [p for p in every if p.attempt == life and math.isfinite(p.score)]
        scores = {p.step: p.score for p in (*(record.evals if metric == desired.metric else ()), *points)}
        found += _of_metric(metric, scale, points, scores)
        if metric == desired.metric and (doubt := no_eval.suspicion(metric, points, scale)) is not None:
            found.append(doubt)
    return found


def _of_metric(
    metric: str, scale: EvalScale, points: Sequence[EvalPoint], scores: Mapping[int, float]
) -> Iterable[str]:
    counted = [p for p in points if p.prompts is not None]
    changed = [(a, b) for a, b in pairwise(counted) if a.prompts != b.prompts]
    for a, b in changed[-1:]:
        yield (
            f"{metric!r} has {b.prompts} prompts at step {b.step} and had {a.prompts} at step {a.step}: the "
            "fewest count; if it is another set, name another version of the evaluator"
        )
    for point in [p for p in points if _too_small(p, scale)][-1:]:
        yield (
            f"{metric!r} at step {point.step} has a standard error of {point.stderr:g}, below a tenth of "
            "what its prompts allow: not used"
        )
    wrong = [(p, q) for p in points for q in p.prompt_pairs if not _holds(q, p, scale, scores)]
    for point, pair in wrong[-1:]:
        yield (
            f"{metric!r} at step {point.step} is not paired with step {pair.step}: a mean difference of "
            f"{pair.mean:g} with variance {pair.variance:g} cannot be that of the two scores"
        )


def _judged(desired: Desired, scrape: ScrapeView) -> Iterable[tuple[str, EvalScale, tuple[EvalPoint, ...]]]:
    others = {other.metric: other.points for other in scrape.others}
    yield desired.metric, desired.scale, scrape.points
    for guard in desired.guardrails:
        yield guard.metric, guard.scale, others.get(guard.metric, ())


def _too_small(point: EvalPoint, scale: EvalScale) -> bool:
    """Return whether a reported error above 0 is less than prompts and range could ever give."""
    if not point.stderr or scale.range is None:
        return False
    most = noise.bound(scale.known_of(point))
    return most is not None and point.stderr < noise.FAR_TOO_SMALL * most


def _holds(pair: PromptPair, point: EvalPoint, scale: EvalScale, known: Mapping[int, float]) -> bool:
    """Return whether a pair can be one of these two scores; of a step that is not known it may be."""
    n = pair.prompts
    if scale.range is not None:
        low, high = scale.range
        # Two scores of one prompt differ by high - low at most; n / (n - 1) is the sample variance's.
        if pair.variance > (high - low) * (high - low) * n / (n - 1) * (1.0 + 1e-4):
            return False
    then = known.get(pair.step)
    if then is None:
        return True
    # The page's digits, and scores that are rounded: by less than matters beside the noise.
    allowed = 1e-4 * (abs(point.score) + abs(then)) + 0.02 * math.sqrt(pair.variance / n)
    return abs(pair.mean - (point.score - then)) <= allowed
