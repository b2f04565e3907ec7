"""Drawdown: the smoothed score has fallen too far below its own peak.

D_t = max over s <= t of m_s - m_t, where m is the trailing mean of the last ``window`` evals; stop when
D_t > ``max_drop``. Unlike a run of declines it asks how far the score fell, not how often, so one upward
flick does not reset it and a plateau does not trip it (evalstop.md, section 4.4, detector 1). With
``sigmas`` the limit is max_drop + sigmas * sigma * sqrt(2 / window): it grows with the noise of the evals
(`noise`).
"""

from __future__ import annotations

import math
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, param
from controller.policy.stopping import noise, windows
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class DrawdownParams:
    max_drop: float = param(
        0.05, unit="score", doc="largest fall below the peak that is let pass", ge=0.0, le=1e9
    )
    window: int = param(2, unit="evals", doc="evals in the trailing mean that is compared", ge=1, le=16)
    sigmas: float = param(
        0.0,
        unit="standard deviations",
        doc="fall, in noise of the difference of two means, that is let pass besides; 0: noise is not asked",
        ge=0.0,
        le=100.0,
    )
    usual_noise: float = noise.sigma_param()
    usual_noise_weight: float = noise.weight_param()


class Drawdown:
    """Stop when the trailing mean is further below its highest value so far than the limit.

    Silent until ``window`` evals were seen and, with ``sigmas``, until the noise is known.
    State: (last ``window`` scores, peak of their mean or None), or with ``sigmas``
    (first score, scores less the first, packed, that peak, noise).
    """

    name: ClassVar[str] = "drawdown"
    version: ClassVar[int] = 6

    def __init__(self, params: DrawdownParams) -> None:
        check(params, self.name)
        if params.max_drop == 0.0 and params.sigmas == 0.0:
            raise ParamError(f"{self.name}.max_drop", 0.0, "a value > 0 (score), or sigmas > 0 beside it")
        self.params = params

    def earliest(self) -> tuple[int, str]:
        return self.params.window + 1, "window"

    def lets_pass(self) -> tuple[float, str]:
        return self.params.max_drop, "max_drop"

    def initial(self) -> State:
        return (None, "", None, noise.initial()) if self.params.sigmas else ((), None)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        if not self.params.sigmas:
            return self._judge(state, point, self.params.max_drop)
        first, packed, peak, spread = state
        first = point.score if first is None else first
        spread = noise.observe(spread, point)
        known = noise.estimate(
            spread, self.params.usual_noise, self.params.usual_noise_weight, point.fleet_noise
        )
        limit = math.inf
        if known is not None:
            z = noise.widen(self.params.sigmas, known.freedom)
            limit = self.params.max_drop + z * known.sigma * math.sqrt(2.0 / self.params.window)
        moved = point._replace(score=windows.single(point.score - first))
        (scores, peak), verdict = self._judge((tuple(windows.unpack(packed)), peak), moved, limit)
        if known is None:
            verdict = Verdict(Verb.CONTINUE, "NoiseUnknown", verdict.statistic, self.params.max_drop)
        return (first, windows.pack(scores), peak, spread), verdict

    def _judge(self, state: State, point: EvalPoint, limit: float) -> tuple[State, Verdict]:
        scores, peak = state
        scores = (*scores, point.score)[-self.params.window :]
        if len(scores) < self.params.window:
            return (scores, peak), Verdict(Verb.CONTINUE, "TooFewEvals", 0.0, limit)
        mean = sum(scores) / len(scores)
        peak = mean if peak is None else max(peak, mean)
        drop = peak - mean
        if drop > limit:
            return (scores, peak), Verdict(Verb.STOP, "FellBelowPeak", drop, limit)
        return (scores, peak), Verdict(Verb.CONTINUE, "NearPeak", drop, limit)
