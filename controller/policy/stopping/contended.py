"""Only when contended: a run past its best may go on while no other job waits for its GPUs.

A run that falls on an idle cluster costs nobody anything but power, and may yet recover. Whether somebody
waits is not the rule's to know and changes from one moment to the next, so this modifier only marks the STOP;
the pool (`queueing.evalstop.EvalStop`, in operator and simulator alike) lets it through when a job waits that
cannot start, and keeps it proposed until then.
"""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class OnlyWhenContendedParams:
    """No parameters."""


class OnlyWhenContended:
    """Mark the wrapped rule's STOP as one for contended pools. State: that of the wrapped rule."""

    name: ClassVar[str] = "onlyWhenContended"
    version: ClassVar[int] = 1
    standing: ClassVar[bool] = True

    def __init__(self, params: OnlyWhenContendedParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule

    def initial(self) -> State:
        return self._rule.initial()

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        state, verdict = self._rule.observe(state, point)
        if verdict.verb is Verb.STOP:
            verdict = verdict._replace(when_contended=True)
        return state, verdict
