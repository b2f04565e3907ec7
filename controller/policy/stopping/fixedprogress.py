"""Fixed progress: stop at the first eval at or after a share of the run (StopAt-0.65 in EvalStop's paper).

A competitor, not a recommendation: it looks at no score, so it stops healthy runs as surely as others.
"""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class FixedProgressParams:
    share: float = param(
        0.65, unit="share of the run", doc="progress from which on the run is stopped", gt=0.0, le=1.0
    )


class FixedProgress:
    """Stop at the first eval with ``progress >= share``; silent where progress is unknown.

    State: () - every eval speaks for itself.
    """

    name: ClassVar[str] = "fixedProgress"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("progress",)

    def __init__(self, params: FixedProgressParams) -> None:
        check(params, self.name)
        self.params = params

    def initial(self) -> State:
        return ()

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        share, progress = self.params.share, point.progress
        if progress is None:
            return state, Verdict(Verb.CONTINUE, "ProgressUnknown", 0.0, share)
        if progress >= share:
            return state, Verdict(Verb.STOP, "ProgressReached", progress, share)
        return state, Verdict(Verb.CONTINUE, "BeforeShare", progress, share)
