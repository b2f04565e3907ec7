"""Cooldown: the evals just after a declared event, at which scores may jump, do not stop the run.

Events are declared by the step at which they happen: a restart of the learning rate, another dataset, another
evaluator. One modifier is one event; several may be listed. Where scores before and after cannot be compared
(``forget``), the wrapped rule begins anew at the event, with what is left of its budget of false stops.
"""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.names import STEP_MAX
from controller.policy.params import check, param
from controller.policy.stopping.base import State, StopRule, carry_spent
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class CooldownParams:
    at_step: int = param(
        0,
        unit="step",
        doc="step of the event; evals from it on come after it. 0: the start of the run",
        ge=0,
        le=STEP_MAX,
    )
    evals: int = param(5, unit="evals", doc="evals from the event on that stop nothing", ge=1, le=100_000)
    forget: bool = param(
        False, unit="yes or no", doc="whether the rule forgets the scores from before the event"
    )


class Cooldown:
    """Hold the wrapped rule's STOP back at the first ``evals`` evals from step ``at_step`` on.

    State: (evals seen since the event, state of the wrapped rule).
    """

    name: ClassVar[str] = "cooldown"
    version: ClassVar[int] = 2
    inner_at: ClassVar[int] = 1  # of the state

    def __init__(self, params: CooldownParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule

    def earliest_after(self, evals: int) -> tuple[int, str]:
        held = (
            self.params.evals + 1 if self.params.at_step == 0 else 0
        )  # else what comes before may be stopped
        return max(evals, held), "evals" if held > evals else ""

    def initial(self) -> State:
        return (0, self._rule.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        since, inner = state
        if point.step < self.params.at_step:
            inner, verdict = self._rule.observe(inner, point)
            return (0, inner), verdict
        if since == 0 and self.params.forget:
            inner = carry_spent(self._rule, self._rule.initial(), inner)
        inner, verdict = self._rule.observe(inner, point)
        since = min(since + 1, self.params.evals + 1)
        if since <= self.params.evals:
            verdict = verdict._replace(verb=Verb.CONTINUE, reason="CoolingDown", grade=None)
        return (since, inner), verdict
