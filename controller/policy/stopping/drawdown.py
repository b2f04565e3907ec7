"""Drawdown: the smoothed score has fallen too far below its own peak.

D_t = max over s <= t of m_s - m_t, where m is the trailing mean of the last ``window`` evals; stop when
D_t > ``max_drop``. Unlike a run of declines it asks how far the score fell, not how often, so one upward
flick does not reset it and a plateau does not trip it (evalstop.md, section 4.4, detector 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import check, param
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class DrawdownParams:
    max_drop: float = param(
        0.05, unit="score", doc="largest fall below the peak that is let pass", gt=0.0, le=1e9
    )
    window: int = param(2, unit="evals", doc="evals in the trailing mean that is compared", ge=1, le=16)


class Drawdown:
    """Stop when the trailing mean is more than ``max_drop`` below its highest value so far.

    Silent until ``window`` evals were seen. State: (last ``window`` scores, peak of their mean or None).
    """

    name: ClassVar[str] = "drawdown"
    version: ClassVar[int] = 1

    def __init__(self, params: DrawdownParams) -> None:
        check(params, self.name)
        self.params = params

    def initial(self) -> State:
        return ((), None)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        scores, peak = state
        limit = self.params.max_drop
        scores = (*scores, point.score)[-self.params.window :]
        if len(scores) < self.params.window:
            return (scores, peak), Verdict(Verb.CONTINUE, "TooFewEvals", 0.0, limit)
        mean = sum(scores) / len(scores)
        peak = mean if peak is None else max(peak, mean)
        drop = peak - mean
        if drop > limit:
            return (scores, peak), Verdict(Verb.STOP, "FellBelowPeak", drop, limit)
        return (scores, peak), Verdict(Verb.CONTINUE, "NearPeak", drop, limit)
