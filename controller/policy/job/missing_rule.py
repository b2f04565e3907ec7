"""A rule that never stops; it watches a run whose own rule cannot be made.

An administrator's edit, or one of the user's, may leave a running job with a rule that does not build. Its
evals are taken in all the same, and its best checkpoint is secured; only nobody is stopped. When the
rule can be made again, its memory is made from the evals that are kept.
"""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.job import progress
from controller.policy.job.comparability import told_by_fleet
from controller.policy.job.context import PlanContext
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.params import ParamError
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict

NOT_JUDGED = "RuleNotUsable"


@dataclass(frozen=True, slots=True)
class NoParams:
    """No parameters."""


class Never:
    """Never ask for anything."""

    name: ClassVar[str] = "none"
    version: ClassVar[int] = 1

    def __init__(self) -> None:
        self.params = NoParams()

    def initial(self) -> State:
        return ()

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        return (), Verdict(Verb.CONTINUE, NOT_JUDGED, 0.0, 0.0)


def rule_of(context: PlanContext) -> tuple[RuleInUse, str | None]:
    """Return the rule by which a job's evals are taken in, and what is wrong with its own if it is not
    that."""
    desired = context.desired
    try:
        told = told_by_fleet(desired, context.record, context.observed.fleet)
        return RuleInUse.of(desired, told, progress.total_steps(context)), None
    except ParamError as error:
        spare = RuleInUse(Never(), Never.name, Never.name, desired.direction, proxy=desired.proxy)
        return spare, str(error)
