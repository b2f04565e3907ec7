"""EvalStop's own rule: k consecutive evals, each lower than the one before.

It is Prechelt's UP_k criterion (Prechelt 1998, "Early stopping, but when?") on a score instead of an error.
On flat noise it fires with probability that depends on k and the number of evals only, not on the noise:
each run of k+1 evals falls strictly with probability 1/(k+1)!. Choose k by the number of evals, or use a
``min_delta`` above the noise, in score units or (``min_delta_sigmas``) in that of two evals' difference.
"""

from __future__ import annotations

import math
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class KDeclinesParams:
    k: int = param(3, unit="evals", doc="consecutive declines that stop the run", ge=1, le=100)
    min_delta: float = param(
        0.0,
        unit="score",
        doc="a fall of this much or less is no decline and resets the streak",
        ge=0.0,
        le=1e9,
    )
    min_delta_sigmas: float = param(
        0.0,
        unit="standard deviations",
        doc="a fall of this much noise (of a difference of two evals) or less is none; 0: noise is not asked",
        ge=0.0,
        le=100.0,
    )
    usual_noise: float = noise.sigma_param()
    usual_noise_weight: float = noise.weight_param()


class KDeclines:
    """Stop after ``k`` consecutive declines; a tie, or a fall within ``min_delta``, resets the streak.

    With ``min_delta_sigmas`` nothing counts as a decline until the noise is known.
    State: (previous score or None, streak), and with ``min_delta_sigmas`` the noise.
    """

    name: ClassVar[str] = "kDeclines"
    version: ClassVar[int] = 6

    def __init__(self, params: KDeclinesParams) -> None:
        check(params, self.name)
        self.params = params
        self._k = params.k
        self._min_delta = params.min_delta

    def earliest(self) -> tuple[int, str]:
        return self._k + 1, "k"

    def lets_pass(self) -> tuple[float, str]:
        return self._k * self._min_delta, "min_delta"

    def initial(self) -> State:
        return (None, 0, noise.initial()) if self.params.min_delta_sigmas else (None, 0)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        if not self.params.min_delta_sigmas:
            return self._count(state, point.score, self._min_delta)
        *memory, spread = state
        spread = noise.observe(spread, point)
        known = noise.estimate(
            spread, self.params.usual_noise, self.params.usual_noise_weight, point.fleet_noise
        )
        floor = math.inf
        if known is not None:
            z = noise.widen(self.params.min_delta_sigmas, known.freedom)
            floor = max(self._min_delta, z * known.sigma * math.sqrt(2.0))
        after, verdict = self._count(tuple(memory), point.score, floor)
        return (*after, spread), verdict

    def _count(self, state: State, score: float, floor: float) -> tuple[State, Verdict]:
        previous, streak = state
        declined = previous is not None and previous - score > floor
        streak = streak + 1 if declined else 0
        if streak >= self._k:
            verdict = Verdict(Verb.STOP, "ConsecutiveDeclines", streak, self._k)
        else:
            verdict = Verdict(Verb.CONTINUE, "Declining" if declined else "NotDeclining", streak, self._k)
        return (score, streak), verdict
