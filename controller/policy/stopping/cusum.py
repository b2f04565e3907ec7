"""CUSUM: shortfalls below the best stretch so far, in units of noise, added up.

S_t = max(0, S_{t-1} + (b_t - x_t) / sigma - allowance), with b_t the highest mean of ``window`` evals up
to the one before; stop when S_t > ``threshold`` (Page 1954; evalstop.md, section 4.4, detector 2). The
allowance is half the fall that is to be caught, in standard deviations; the running best lies above the
true level, so it must be larger than for a known one.
"""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise, windows
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class CusumParams:
    threshold: float = param(
        5.0, unit="standard deviations", doc="sum of shortfalls that is let pass", gt=0.0, le=10_000.0
    )
    allowance: float = param(
        1.0, unit="standard deviations", doc="shortfall of each eval that does not count", ge=0.0, le=100.0
    )
    window: int = param(8, unit="evals", doc="evals in the mean that is the reference", ge=1, le=16)
    usual_noise: float = noise.sigma_param()
    usual_noise_weight: float = noise.weight_param()


class Cusum:
    """Stop when the shortfalls below the best trailing mean add up to more than ``threshold``.

    An eval counts nothing before the reference and the noise are known.
    State: (first score, last ``window`` scores less the first, packed, highest mean or None, sum, noise).
    """

    name: ClassVar[str] = "cusum"
    version: ClassVar[int] = 6

    def __init__(self, params: CusumParams) -> None:
        check(params, self.name)
        self.params = params

    def earliest(self) -> tuple[int, str]:
        return self.params.window + 1, "window"

    def initial(self) -> State:
        return (None, "", None, 0.0, noise.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        p = self.params
        first, packed, best, total, spread = state
        first = point.score if first is None else first
        score = windows.single(point.score - first)
        spread = noise.observe(spread, point)
        # The sum is in units of the noise of each eval's time: raised in between, it would weigh a later rise
        # of the score less than the falls before it. So what other namespaces show is left out.
        learned = point.fleet_noise._replace(floor=0.0) if point.fleet_noise is not None else None
        known = noise.estimate(spread, p.usual_noise, p.usual_noise_weight, learned)
        counted = best is not None and known is not None
        if best is not None and known is not None:
            total = max(0.0, total + (best - score) / known.sigma - p.allowance)
        scores = [*windows.unpack(packed), score][-p.window :]
        if len(scores) == p.window:
            mean = sum(scores) / p.window
            best = mean if best is None else max(best, mean)
        state = (first, windows.pack(scores), best, total, spread)
        if not counted or known is None:
            reason = "NoiseUnknown" if best is not None else "TooFewEvals"
            return state, Verdict(Verb.CONTINUE, reason, 0.0, p.threshold)
        if total > p.threshold:
            return state, Verdict(Verb.STOP, "ShortfallsAddUp", total, p.threshold)
        return state, Verdict(
            Verb.CONTINUE, "NearBest" if total == 0.0 else "FallingShort", total, p.threshold
        )
