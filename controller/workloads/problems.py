"""A workload's problem as an exception."""

from __future__ import annotations

from controller.policy.types import Problem


class ProblemError(ValueError):
    """A `Problem` as an exception, for callers that have no use for a partial answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem
