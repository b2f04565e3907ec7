"""Loss plateau: stop when the training loss hardly falls any more.

A competitor, not a recommendation: training loss keeps falling while a run over-optimises its reward, so
this stops runs that have converged, whether or not they are past their best.
"""

from __future__ import annotations

from math import isfinite
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class LossPlateauParams:
    window: int = param(3, unit="evals", doc="evals over which the fall of the loss is taken", ge=1, le=16)
    min_improvement: float = param(
        0.01,
        unit="share of the loss",
        doc="a fall over the window that is smaller than this stops the run",
        gt=0.0,
        lt=1.0,
    )


class LossPlateau:
    """Stop when the loss fell by less than ``min_improvement`` of itself over the last ``window`` evals.

    (l_{t-window} - l_t) / |l_{t-window}| is compared; a loss that rises is a plateau too, a loss of exactly 0
    has nowhere to fall. Silent until ``window`` + 1 losses were seen; evals without a finite loss do not
    count.
    State: (last ``window`` losses,).
    """

    name: ClassVar[str] = "lossPlateau"
    version: ClassVar[int] = 1
    rises: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(self, params: LossPlateauParams) -> None:
        check(params, self.name)
        self.params = params

    def earliest(self) -> tuple[int, str]:
        return self.params.window + 1, "window"

    def initial(self) -> State:
        return ((),)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        (losses,) = state
        limit, window = self.params.min_improvement, self.params.window
        loss = point.loss
        if loss is None or not isfinite(loss):
            return state, Verdict(Verb.CONTINUE, "LossUnknown", 0.0, limit)
        next_state = ((*losses, loss)[-window:],)
        if len(losses) < window:
            return next_state, Verdict(Verb.CONTINUE, "TooFewEvals", 0.0, limit)
        before = losses[0]
        improvement = (before - loss) / abs(before) if before else 0.0
        if improvement < limit:
            return next_state, Verdict(Verb.STOP, "LossPlateau", improvement, limit)
        return next_state, Verdict(Verb.CONTINUE, "LossFalling", improvement, limit)
