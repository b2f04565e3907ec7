"""Median of peers: stop a run whose best is below the median of the others' running means at this eval.

Vizier's median stopping rule (Golovin et al., KDD 2017, section 3.2.2): stop at step s when the run's best
objective up to s is strictly worse than the median of the running means of the other runs up to s. Whose
runs are peers, and their median, come with the eval (`Peers`), so that the rule stays a fold over its input.
"""

from __future__ import annotations

from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class MedianOfPeersParams:
    min_peers: int = param(
        3, unit="runs", doc="no stop before so many others reached the same eval", ge=1, le=1000
    )
    grace: int = param(4, unit="evals", doc="no stop before this many evals", ge=1, le=100_000)


class MedianOfPeers:
    """Stop when the best score so far is below the median of the peers' running means at this eval.

    State: (evals seen, best score or None).
    """

    name: ClassVar[str] = "medianOfPeers"
    version: ClassVar[int] = 1
    rises: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("peers",)

    def __init__(self, params: MedianOfPeersParams) -> None:
        check(params, self.name)
        self.params = params

    def earliest(self) -> tuple[int, str]:
        return self.params.grace, "grace"

    def initial(self) -> State:
        return (0, None)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        seen, best = state
        seen += 1
        best = point.score if best is None else max(best, point.score)
        after = (seen, best)
        if point.peers is None or point.peers.runs < self.params.min_peers:
            return after, Verdict(Verb.CONTINUE, "TooFewPeers", best, best)
        median = point.peers.median
        if best >= median:
            return after, Verdict(Verb.CONTINUE, "AmongPeers", best, median)
        if seen < self.params.grace:
            return after, Verdict(Verb.CONTINUE, "TooFewEvals", best, median)
        return after, Verdict(Verb.STOP, "BelowPeers", best, median)
