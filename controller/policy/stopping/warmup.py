"""Warm-up: no stop before a number of evals, whatever the wrapped rule says."""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, param
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class WarmUpParams:
    min_evals: int = param(5, unit="evals", doc="no stop before this many evals", ge=1, le=100_000)


class WarmUp:
    """Let the wrapped rule watch from the first eval, but hold its STOP back until ``min_evals`` were seen.

    State: (evals seen, state of the wrapped rule).
    """

    name: ClassVar[str] = "warmUp"
    version: ClassVar[int] = 2
    inner_at: ClassVar[int] = 1  # of the state

    def __init__(self, params: WarmUpParams, rule: StopRule) -> None:
        check(params, self.name)
        k = getattr(rule.params, "k", None)
        if k is not None and params.min_evals < k:
            raise ParamError(
                f"{self.name}.min_evals",
                params.min_evals,
                f"at least {rule.name}.k = {k}: fewer evals can never stop",
            )
        self.params = params
        self._rule = rule

    def earliest_after(self, evals: int) -> tuple[int, str]:
        least = self.params.min_evals
        return max(evals, least), "min_evals" if least > evals else ""

    def initial(self) -> State:
        return (0, self._rule.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        seen, inner = state
        inner, verdict = self._rule.observe(inner, point)
        seen += 1
        if seen < self.params.min_evals:
            verdict = verdict._replace(verb=Verb.CONTINUE, reason="WarmingUp", grade=None)
        return (seen, inner), verdict
