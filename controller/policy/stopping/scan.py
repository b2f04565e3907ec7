"""Scan: the newest evals lie clearly below the best stretch of the past, measured in units of noise.

The statistic is the largest z of `windows` (reference mean against the newest evals, weighted towards the
latest). Stop at the t-th eval when it exceeds c_t, raised where the noise is only estimated (`noise.widen`):

    c_t^2 = threshold^2 + 2 log(horizon / t)    up to the horizon
    c_t^2 = threshold^2 + 4 log(t / horizon)    beyond

The windows grow with the run, so at a fixed threshold the t-th eval would stop a flat run with probability
in proportion to exp(-c^2 / 2) / t. This c_t makes that the same at each eval up to the horizon, and beyond
it as (horizon / t)^3, so that what an endless run adds is half of what the horizon had. The rate itself is
measured (`evalstop rules flat`, docs/use/stop-rules.md): for independent noise of known size it holds for
every run whose true score never falls, since none of them is stopped oftener than the flat one (`windows`).

A fleet whose healthy runs rise can take a lower threshold: tune it (`evalstop rules tune`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import check, param
from controller.policy.stopping import noise, windows
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict

BEFORE, BEYOND = 2.0, 4.0  # what one e-fold of the run's length adds to the squared threshold


@dataclass(frozen=True, slots=True)
class ScanParams:
    threshold: float = param(
        3.2,
        unit="standard deviations",
        doc="largest fall below the best stretch that is let pass, at the horizon",
        gt=0.0,
        le=50.0,
    )
    window: int = param(
        3,
        unit="evals",
        doc="shortest length of the stretch that is compared with",
        ge=1,
        le=windows.MAX_WINDOW,
    )
    share: float = windows.share_param()
    horizon: int = param(
        50,
        unit="evals",
        doc="length of run at which the threshold is lowest; longer ones stay covered",
        ge=1,
        le=100_000,
    )
    min_drop: float = param(
        0.0, unit="score", doc="a fall of this much or less is let pass however clear it is", ge=0.0, le=1e9
    )
    usual_noise: float = noise.sigma_param()
    usual_noise_weight: float = noise.weight_param()


def looks(seen: int, horizon: int) -> float:
    """Return what the looks taken add to the squared threshold at the ``seen``-th eval."""
    folds = math.log(seen / horizon)
    return BEYOND * folds if folds > 0.0 else -BEFORE * folds


class Scan:
    """Stop when the newest evals are clearly below the best stretch of the run.

    Silent until both can be formed and the noise is known. State: (windows, noise).
    """

    name: ClassVar[str] = "scan"
    version: ClassVar[int] = 3

    def __init__(self, params: ScanParams) -> None:
        check(params, self.name)
        self.params = params

    def initial(self) -> State:
        return (windows.initial(), noise.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        p = self.params
        seen, spread = state
        seen, fall = windows.observe(seen, point.score, p.window, p.share)
        spread = noise.observe(spread, point)
        known = noise.estimate(spread, p.usual_noise, p.usual_noise_weight, point.fleet_noise)
        limit = math.sqrt(p.threshold * p.threshold + looks(seen[0], p.horizon))
        if fall == -math.inf or known is None:
            reason = "TooFewEvals" if fall == -math.inf else "NoiseUnknown"
            return (seen, spread), Verdict(Verb.CONTINUE, reason, 0.0, limit)
        limit = noise.widen(limit, known.freedom)
        z = fall / known.sigma
        if z > limit and fall > p.min_drop:
            return (seen, spread), Verdict(Verb.STOP, "FellBelowBestStretch", z, limit)
        return (seen, spread), Verdict(Verb.CONTINUE, "NearBestStretch", z, limit)
