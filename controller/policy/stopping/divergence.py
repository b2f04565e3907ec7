"""Divergence: what the proxy reward did while the score fell: the reason of a stop and, if strict, a veto.

Compared are the proxy at the best eval and now: z = (now - then) / (sqrt(2) sigma), sigma being the noise of
one proxy as its second differences show it (`noise.estimate`); z counts beyond the normal deviate that
``level`` is exceeded with, raised as Student's t would be (`noise.widen`). When the wrapped rule says STOP:

    proxy up       RewardHacking   the reward model is over-optimised: a better one is the remedy
    proxy down     Collapse        training itself has failed (learning rate, divergence); may be held back
    else           Unclear         neither, or it cannot be told; if ``strict`` the stop is held back

Supporting evidence is what it is, no more. A rising proxy is what every healthy run shows: it says nothing
against "this run is not past its best", so to lower the wrapped rule's threshold for it would only let more
noise through, and void what the rule guarantees. Nor can the proxy alone tell that quality falls: Gao's law R
= d (alpha - beta log d), fitted over sqrt(KL), "finds" a fall in most healthy runs that saturate. Stops are a
subset of the wrapped rule's, so its bound on false stops stays true whatever the proxy does. With ``strict``
declines with a proxy that has levelled off are lost, and those of trainers that report none.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class DivergenceParams:
    level: float = param(
        0.05, unit="probability", doc="chance at which a proxy that stays counts as moved", ge=1e-6, le=0.5
    )
    collapse: bool = param(
        True, unit="choice", doc="let a stop through too when score and proxy fall together"
    )
    strict: bool = param(
        False, unit="choice", doc="hold a stop back where the proxy did not move clearly, or is not known"
    )


class Divergence:
    """Name the reason of the wrapped rule's STOP by what the proxy did since the best eval.

    State: (best score among the evals with a proxy and its proxy, or None and None; noise of the proxy; state
    of the wrapped rule).
    """

    name: ClassVar[str] = "divergence"
    version: ClassVar[int] = 4
    inner_at: ClassVar[int] = 3  # of the state
    needs: ClassVar[tuple[str, ...]] = ("proxy",)

    def __init__(self, params: DivergenceParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule
        self._limit = -NormalDist().inv_cdf(params.level)

    def initial(self) -> State:
        return (None, None, noise.initial(), self._rule.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        best, then, spread, inner = state
        inner, verdict = self._rule.observe(inner, point)
        now = point.proxy if point.proxy is not None and math.isfinite(point.proxy) else None
        if now is not None:
            spread = noise.observe(spread, EvalPoint(point.step, now))
            if best is None or point.score > best:
                best, then = point.score, now
        if verdict.verb is Verb.STOP:
            moved = 0 if now is None else self._moved(now - then, spread)
            verdict = self._with_cause(verdict, moved)
        return (best, then, spread, inner), verdict

    def _moved(self, change: float, spread: noise.NoiseState) -> int:
        """Return 1: the proxy rose, -1: it fell, 0: that cannot be told."""
        if noise.is_without(spread):
            return (change > 0.0) - (change < 0.0)
        known = noise.estimate(spread, 0.0, 1.0)
        if known is None:
            return 0
        z, limit = change / (math.sqrt(2.0) * known.sigma), noise.widen(self._limit, known.freedom)
        return (z > limit) - (z < -limit)

    def _with_cause(self, verdict: Verdict, moved: int) -> Verdict:
        if moved > 0:
            return verdict._replace(reason="RewardHacking")
        reason, held = ("Collapse", not self.params.collapse) if moved else ("Unclear", self.params.strict)
        return verdict._replace(verb=Verb.CONTINUE if held else Verb.STOP, reason=reason)
