"""Patience: a STOP must stand for several evals in a row before it counts."""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class PatienceParams:
    evals: int = param(2, unit="evals", doc="evals in a row for which the rule must say stop", ge=1, le=1000)


class Patience:
    """Pass the wrapped rule's STOP on once it was said at ``evals`` evals in a row.

    State: (STOPs in a row, state of the wrapped rule).
    """

    name: ClassVar[str] = "patience"
    version: ClassVar[int] = 1
    inner_at: ClassVar[int] = 1  # of the state

    def __init__(self, params: PatienceParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule

    def earliest_after(self, evals: int) -> tuple[int, str]:
        more = self.params.evals - 1
        return evals + more, "evals" if more > evals else ""

    def initial(self) -> State:
        return (0, self._rule.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        standing, inner = state
        inner, verdict = self._rule.observe(inner, point)
        if verdict.verb is not Verb.STOP:
            return (0, inner), verdict
        standing = min(standing + 1, self.params.evals)
        if standing < self.params.evals:
            verdict = verdict._replace(verb=Verb.CONTINUE, reason="WaitingForMore")
        return (standing, inner), verdict
