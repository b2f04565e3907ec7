"""Confirm: a stop is proposed only after fresh evals, made after the rule asked for it, agree.

When the wrapped rule says STOP, the verdict becomes CONFIRM: the operator asks the trainer, through
`<name>-run`, for an eval now and for the best step to be scored beside it on the same fresh prompts
(`lifecycle`); in the simulator, and with a trainer that cannot be asked, the next evals of the run are the
fresh ones. After ``evals`` of them the matter is decided once, and then begins anew:

- where every fresh eval carries paired differences to one reference step: their sum over its standard error,
  z = -sum(n_i mean_i) / sqrt(sum(n_i var_i)), must reach ``margin``. The best was scored anew, so that it was
  the best of many by luck plays no part;
- else the rule must still say STOP, and the mean of the fresh scores must lie at least ``margin`` standard
  errors below the best score before them: z = (best - mean) / sqrt(var(best) + var(mean)), from the trainer's
  standard errors or else from the run's own noise. While no noise is known, below it at all is enough. The
  best score is the luckiest of many here, which makes this the weaker check of the two.

It only ever holds stops back: what the wrapped rule guarantees about false stops stays true. Each false alarm
of the rule must be borne out by noise of its own, which makes false stops rarer by about the chance of that.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Paired, Verb, Verdict

NEXT_EVAL, STOP = "NextEval", "Stop"

_IDLE, _ASKING, _CONFIRMED = 0, 1, 2
_HOW = ("ConfirmedByFreshEvals", "ConfirmedOnSamePrompts")

# (evals, sum of scores, sum of squared standard errors or None, pairs or None, highest score, its standard
# error or None); (): none yet
Fresh = tuple[Any, ...]
_NO_FRESH: Fresh = ()


@dataclass(frozen=True, slots=True)
class ConfirmParams:
    evals: int = param(1, unit="evals", doc="fresh evals that must bear the stop out", ge=1, le=100)
    margin: float = param(
        2.0, unit="standard errors", doc="how far below the best they must lie at least", ge=0.0, le=50.0
    )
    wait_seconds: int = param(
        900,
        unit="seconds",
        doc="how long the trainer has for a fresh eval that it was asked for",
        ge=1,
        le=86400,
    )
    unanswered: str = param(
        NEXT_EVAL,
        unit="choice",
        doc="what holds for a trainer that cannot be asked, or does not answer in time: NextEval waits for "
        "the evals that the run makes by itself, Stop lets the rule's stop through unconfirmed",
        choices=(NEXT_EVAL, STOP),
    )


class Confirm:
    """Pass on the wrapped rule's STOP once ``evals`` later evals agree, and while the rule still asks for it.

    State: (state of the wrapped rule, best score, its standard error or None, noise, phase, fresh evals or
    what they came to). The noise is kept only where the trainer reports no standard errors: a status is
    small.
    """

    name: ClassVar[str] = "confirm"
    version: ClassVar[int] = 4
    inner_at: ClassVar[int] = 0  # of the state

    def __init__(self, params: ConfirmParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule

    def earliest_after(self, evals: int) -> tuple[int, str]:
        more = self.params.evals if self.params.unanswered == NEXT_EVAL else 0
        return evals + more, "evals" if more > evals else ""

    def initial(self) -> State:
        return (self._rule.initial(), None, None, (), _IDLE, _NO_FRESH)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        inner, best, best_error, spread, phase, fresh = state
        inner, verdict = self._rule.observe(inner, point)
        error = noise.error(point) or None
        spread = noise.observe(spread or noise.initial(), point) if error is None else ()
        stop = verdict.verb is Verb.STOP
        news: Any = (point.score, error)  # to the best; fresh evals are compared with the best before
        if phase == _ASKING:
            fresh = _add(fresh, point)
            news = fresh[4:] if fresh[0] >= self.params.evals else None
            verdict = verdict._replace(verb=Verb.CONFIRM, reason="AwaitingFreshEval")
            if news is not None:
                phase, verdict = self._decide(verdict, stop, best, best_error, spread, fresh)
                # What it was confirmed by is told as long as it stands.
                done = phase == _CONFIRMED
                fresh = (_HOW.index(verdict.reason), verdict.statistic) if done else _NO_FRESH
        elif stop and phase == _CONFIRMED:
            how, z = fresh
            verdict = verdict._replace(reason=_HOW[how], statistic=z, threshold=self.params.margin)
        elif stop and phase == _IDLE:
            phase, fresh = _ASKING, _NO_FRESH
            verdict = verdict._replace(verb=Verb.CONFIRM)
        elif not stop:
            phase, fresh = _IDLE, _NO_FRESH
        if news is not None and (best is None or news[0] > best):
            best, best_error = news
        return (inner, best, best_error, spread, phase, fresh), verdict

    def _decide(
        self,
        verdict: Verdict,
        stop: bool,
        best: float,
        best_error: float | None,
        spread: noise.NoiseState,
        fresh: Fresh,
    ) -> tuple[int, Verdict]:
        z, paired = _paired_z(fresh), True
        if z is None:
            z, paired = _unpaired_z(best, best_error, spread, fresh), False
        confirmed = z >= self.params.margin and z > 0.0 and (paired or stop)
        reason = _HOW[paired] if confirmed else "NotConfirmed"
        verb = Verb.STOP if confirmed else Verb.CONTINUE
        judged = verdict._replace(verb=verb, reason=reason, statistic=z, threshold=self.params.margin)
        return (_CONFIRMED if confirmed else _IDLE), judged


def _add(fresh: Fresh, point: EvalPoint) -> Fresh:
    count, total, square, pairs, *highest = fresh or (0, 0.0, 0.0, None, -math.inf, None)
    error = noise.error(point) or None
    square = None if square is None or error is None else square + error * error
    pairs = _add_pairs(pairs, point.paired) if point.paired is not None and (pairs or not count) else None
    if point.score > highest[0]:
        highest = [point.score, error]
    return (count + 1, total + point.score, square, pairs, *highest)


def _add_pairs(pairs: tuple[Any, ...] | None, new: Paired) -> tuple[Any, ...] | None:
    """Add a pair to the sums (reference step, sum of n mean, sum of n variance).

    Return None if the pair has another reference: differences to two references cannot be added up.
    """
    reference, total, variance = pairs or (new.reference_step, 0.0, 0.0)
    if reference != new.reference_step:
        return None
    return (reference, total + new.prompts * new.mean, variance + new.prompts * new.variance)


def _paired_z(fresh: Fresh) -> float | None:
    pairs = fresh[3]
    if pairs is None:
        return None
    _, total, variance = pairs
    return _ratio(-total, variance)


def _unpaired_z(best: float, best_error: float | None, spread: noise.NoiseState, fresh: Fresh) -> float:
    count, total, square, *_ = fresh
    fall = best - total / count
    known = noise.estimate(spread, 0.0, 1.0) if spread else None
    usual = None if known is None else known.sigma * known.sigma
    of_best = usual if best_error is None else best_error * best_error
    of_fresh = (None if usual is None else usual / count) if square is None else square / (count * count)
    if of_best is None or of_fresh is None:
        return math.copysign(math.inf, fall) if fall else 0.0
    return _ratio(fall, of_best + of_fresh)


def _ratio(fall: float, variance: float) -> float:
    if variance > 0.0:
        return fall / math.sqrt(variance)
    return math.copysign(math.inf, fall) if fall else 0.0
