"""Graded action: warn first, then demote, then stop, as the evidence grows.

How far a rule has come is its statistic as a share of its threshold: 2 of 3 declines, a z of 1.9 of 2.8, a
drawdown of 60 % of what is let pass. At ``warn_at`` of it the run is warned of (condition QualityDeclining),
at ``demote_at`` it is demoted: it goes on, but gives way to every job that waits and fits. A run whose
statistic falls again is let off by itself. The stop stays the rule's own.

For every rule whose statistic rises towards its threshold; `lossPlateau` and `medianOfPeers` stop below
theirs and are refused. In a warm-up or cooldown there is no action of any grade.
"""

from __future__ import annotations

import math
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, param
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Grade, Verb, Verdict

# Reasons under which nothing is to happen, whatever the statistic.
QUIET = frozenset({"WarmingUp", "CoolingDown"})


@dataclass(frozen=True, slots=True)
class GradedParams:
    warn_at: float = param(
        0.6, unit="share of the rule's threshold", doc="where the run is warned of; 0: never", ge=0.0, le=1.0
    )
    demote_at: float = param(
        0.8,
        unit="share of the rule's threshold",
        doc="where it gives way to who waits; 0: never",
        ge=0.0,
        le=1.0,
    )


class Graded:
    """Put a grade on the wrapped rule's verdicts. State: that of the wrapped rule."""

    name: ClassVar[str] = "graded"
    version: ClassVar[int] = 1
    standing: ClassVar[bool] = True

    def __init__(self, params: GradedParams, rule: StopRule) -> None:
        check(params, self.name)
        if 0.0 < params.demote_at < params.warn_at:
            raise ParamError(
                f"{self.name}.demote_at", params.demote_at, f"0 or at least warn_at = {params.warn_at:g}"
            )
        innermost = rule
        while hasattr(innermost, "_rule"):
            innermost = innermost._rule
        if not getattr(innermost, "rises", True):
            raise ParamError(
                self.name, innermost.name, "a rule whose statistic rises towards its threshold, such as scan"
            )
        self.params = params
        self._rule = rule

    def initial(self) -> State:
        return self._rule.initial()

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        state, verdict = self._rule.observe(state, point)
        return state, verdict._replace(grade=self._grade(verdict))

    def _grade(self, verdict: Verdict) -> Grade | None:
        p = self.params
        if verdict.reason in QUIET:
            return None
        reached = share(verdict) if verdict.verb is Verb.CONTINUE else 1.0
        if p.demote_at and reached >= p.demote_at:
            return Grade.DEMOTED
        return Grade.WARNED if p.warn_at and reached >= p.warn_at else None


def share(verdict: Verdict) -> float:
    """Return how far the statistic has come towards its threshold: 1 at it, 0 where nothing can be said."""
    if not verdict.threshold > 0.0 or math.isnan(verdict.statistic):
        return 0.0
    return max(0.0, verdict.statistic / verdict.threshold)
