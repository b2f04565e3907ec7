"""One job's curve under another rule: where it would have been warned of or stopped, and what that costs.

The evals are those of an RLHFJob's status or of a decision log. What a job did after it was stopped was never
seen, so nothing is said about it: savings and losses are counted up to the last eval there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from controller.frozen import dataclass
from controller.policy.job import Direction
from controller.policy.stopping import noise
from controller.policy.types import NOTHING_DECLARED, EvalInContext, EvalPoint, EvalScale, Grade, Verb
from sim.foresight import RuleSpec


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of the rule on one eval. ``statistic`` and ``threshold`` in the rule's own unit."""

    step: int
    score: float
    verb: Verb
    reason: str
    statistic: float
    threshold: float
    grade: Grade | None = None


@dataclass(frozen=True, slots=True)
class CurveOutcome:
    """Outcome of a run under a rule. Steps are the trainer's own; None: it did not happen.

    Attributes:
        best_step: of the eval that would have been kept, the best one up to the stop (of the whole curve
            without one).
        best_score: of the same eval.
        last_step: of the newest eval.
        later_best_step: of the best eval after the stop.
        score_lost: by how much that one is better than what was kept, 0 where it is not; None: no eval was
            seen after the stop, so nobody knows.
        lost_quality: whether it is better by more than the evals' noise explains (two standard deviations of
            the difference); None: unknown, noise included.
        gpu_hours_saved: from the stop to ``end_step``; None: the pace is not known.
        missing: what the rule looks at and the curve does not have; to a rule that is a gap, and a gap stops
            nobody.
    """

    rule: str
    judgements: tuple[Judgement, ...]
    warned_step: int | None
    demoted_step: int | None
    confirm_step: int | None
    stopped_step: int | None
    reason: str
    best_step: int | None
    best_score: float | None
    last_step: int | None
    later_best_step: int | None
    score_lost: float | None
    lost_quality: bool | None
    share_saved: float | None
    gpu_hours_saved: float | None
    missing: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite are null."""
        found = asdict(self)
        found["judgements"] = [{k: _plain(v) for k, v in one.items()} for one in found["judgements"]]
        return {key: _plain(value) for key, value in found.items()}


def curve(
    evals: Iterable[EvalPoint],
    rule: RuleSpec,
    *,
    direction: Direction = Direction.MAXIMIZE,
    total_steps: int | None = None,
    end_step: int | None = None,
    gpu_seconds_per_step: float | None = None,
    others: Mapping[str, Mapping[int, float]] | None = None,
    scale: EvalScale = NOTHING_DECLARED,
) -> CurveOutcome:
    """Show a run's evals to a rule, one by one, up to its first STOP and beyond it to the end of the curve.

    Args:
        evals: as the trainer reported them, any order; those that are not finite count for nothing, of a
            step that a later attempt made again the later one counts.
        rule: `sim.specs.rule` reads one from text, as ``scan+warmUp:min_evals=5``.
        direction: which way is better; `Judgement.score` and ``best_score`` stay as reported.
        total_steps: of the whole run, for rules that look at progress.
        end_step: up to where it ran, or would have; default: its newest eval's step.
        gpu_seconds_per_step: its pace, for GPU-hours; None: unknown.
        others: scores of guardrail metrics, by metric and step, higher is better.
        scale: what is declared of the evals, in the trainer's own orientation.

    Raises:
        ParamError: the rule, a modifier or a parameter does not exist or is out of bounds.
    """
    from sim import specs

    points = in_order(evals)
    sign = -1.0 if direction is Direction.MINIMIZE else 1.0
    known = {"others"} if others else set()
    known |= {"progress"} if total_steps else set()
    known |= {name for name in ("proxy", "paired") if any(getattr(p, name) is not None for p in points)}
    judged = rule.make()
    state = judged.initial()
    made: list[Judgement] = []
    shown_scale = scale if sign > 0.0 else scale.reversed()
    for point in points:
        seen = shown_scale.counted(point if sign > 0.0 else point.reversed())
        progress = point.step / total_steps if total_steps else None
        beside = {m: s for m, scores in (others or {}).items() if (s := scores.get(point.step)) is not None}
        shown = EvalInContext.of(seen, progress=progress, others=beside, range=shown_scale.range)
        state, verdict = judged.observe(state, shown)
        made.append(
            Judgement(
                point.step,
                point.score,
                verdict.verb,
                verdict.reason,
                verdict.statistic,
                verdict.threshold,
                verdict.grade,
            )
        )
    stop = next((n for n, one in enumerate(made) if one.verb is Verb.STOP), None)
    seen_until = len(points) if stop is None else stop + 1
    best = _best(points[:seen_until], sign)
    after = [] if stop is None else points[stop + 1 :]
    later = _best(after, sign)
    lost = None
    if best is not None and later is not None:
        lost = max(0.0, sign * (later.score - best.score))
    end = max((p.step for p in points), default=None)
    if end_step is not None and end is not None:
        end = max(end, end_step)
    saved = None
    if end is not None:
        saved = 0 if stop is None else end - points[stop].step
    return CurveOutcome(
        rule=specs.rule_text(rule),
        judgements=tuple(made),
        warned_step=_first(made, lambda one: one.grade is Grade.WARNED),
        demoted_step=_first(made, lambda one: one.grade is Grade.DEMOTED),
        confirm_step=_first(made, lambda one: one.verb is Verb.CONFIRM),
        stopped_step=None if stop is None else points[stop].step,
        reason="" if stop is None else made[stop].reason,
        best_step=None if best is None else best.step,
        best_score=None if best is None else best.score,
        last_step=points[-1].step if points else None,
        later_best_step=None if later is None else later.step,
        score_lost=lost,
        lost_quality=None if best is None or later is None else noise.beyond(points, best, later, sign),
        share_saved=saved / end if saved is not None and end else None,
        gpu_hours_saved=saved * gpu_seconds_per_step / 3600.0
        if saved is not None and gpu_seconds_per_step is not None
        else None,
        missing=tuple(sorted(rule.needs - known - {"fleet_noise"})),
    )


def in_order(evals: Iterable[EvalPoint]) -> list[EvalPoint]:
    """Finite evals by step, each step once; a new attempt takes back what it does again and all after it."""
    kept: list[EvalPoint] = []
    for point in sorted((p for p in evals if math.isfinite(p.score)), key=lambda p: (p.attempt, p.step)):
        if kept and point.attempt > kept[-1].attempt:
            kept = [p for p in kept if p.step < point.step]
        if not kept or point.step > kept[-1].step:
            kept.append(point)
    return kept


def _best(points: Sequence[EvalPoint], sign: float) -> EvalPoint | None:
    """Return the first of the highest."""
    return max(points, key=lambda p: sign * p.score, default=None)


def _first(made: Sequence[Judgement], found: Any) -> int | None:
    return next((one.step for one in made if found(one)), None)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
