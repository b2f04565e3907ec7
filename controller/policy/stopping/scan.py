"""Scan: the newest evals lie clearly below the best stretch of the past, judged in units of noise.

The statistic is the largest z of `windows` (reference mean against the newest evals, weighted towards the
latest); stop when it exceeds ``threshold``, raised where the noise is only estimated (`noise.widen`). At
equal false alarms it finds more and earlier than drawdown, CUSUM and runs of declines (docs/stop-rules.md).

The threshold is a matter of what the fleet's healthy runs look like: tune it (`evalstop rules tune`). How
often it stops a run that does not move, the worst case of all that do not fall, is printed there too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import check, param
from controller.policy.stopping import noise, windows
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict


@dataclass(frozen=True, slots=True)
class ScanParams:
    threshold: float = param(
        2.8,
        unit="standard deviations",
        doc="largest fall below the best stretch that is let pass",
        gt=0.0,
        le=50.0,
    )
    window: int = param(
        8, unit="evals", doc="length of the stretch that is compared with", ge=1, le=windows.MAX_WINDOW
    )
    min_drop: float = param(
        0.0, unit="score", doc="a fall of this much or less is let pass however clear it is", ge=0.0, le=1e9
    )
    usual_noise: float = noise.sigma_param()
    usual_noise_weight: float = noise.weight_param()


class Scan:
    """Stop when the newest evals are ``threshold`` standard deviations below the best ``window`` evals.

    Silent until both can be formed and the noise is known. State: (windows, noise).
    """

    name: ClassVar[str] = "scan"
    version: ClassVar[int] = 1

    def __init__(self, params: ScanParams) -> None:
        check(params, self.name)
        self.params = params

    def initial(self) -> State:
        return (windows.initial(), noise.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        p = self.params
        seen, spread = state
        seen, fall = windows.observe(seen, point.score, p.window)
        spread = noise.observe(spread, point)
        known = noise.estimate(spread, p.usual_noise, p.usual_noise_weight, point.fleet_noise)
        if fall == -math.inf or known is None:
            reason = "TooFewEvals" if fall == -math.inf else "NoiseUnknown"
            return (seen, spread), Verdict(Verb.CONTINUE, reason, 0.0, p.threshold)
        limit = noise.widen(p.threshold, known.freedom)
        z = fall / known.sigma
        if z > limit and fall > p.min_drop:
            return (seen, spread), Verdict(Verb.STOP, "FellBelowBestStretch", z, limit)
        return (seen, spread), Verdict(Verb.CONTINUE, "NearBestStretch", z, limit)
