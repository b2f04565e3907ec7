"""GLR: the scan with thresholds that bound the chance of ever stopping a run whose score does not fall.

At the t-th eval there are N_t pairs of a reference window and a length of newest evals (`windows`). Under
any true score that never falls each pair's z exceeds c with probability at most 1 - Phi(c), given Gaussian
noise with known standard deviation. So with c_t = Phi^-1(1 - alpha_t / N_t) the chance of a false stop at
t is at most alpha_t, and over the whole run, however long, at most the sum of all alpha_t = ``alpha``
(union bound: no independence between the pairs is used). Nine tenths of alpha are spent evenly on the
first ``horizon`` evals, the rest beyond: 6 / (pi^2 j^2) of it on the j-th eval after. References overlap
by half, which keeps N_t small; evalstop.md, section 4.4, detector 5.

Evals that name their prompts are probably of the same ones, and their errors are not independent. Of single
evals the bound holds all the same: two that are independent differ the most. So there the newest is compared
with the best before it and nothing else (t - 1 pairs), by the noise of their difference on the prompts that
both scored where that is reported (`EvalPoint.prompt_pairs`).

The bound assumes independent Gaussian noise of known size: standard errors from the trainer with every
eval. They may differ: the largest so far stands for all, and each pair's z then exceeds c still less often
(`noise`). With noise estimated from the trajectory the threshold is raised after Student's t. That holds for
Gaussian scores, and real ones have outliers: where nothing else says how noisy they are, only `GUESSED` of
alpha is spent. What the rate is then is measured (docs/use/stop-rules.md).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise, windows
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict

WITHIN_HORIZON = 0.9  # share of alpha that is spent up to the horizon
GUESSED = 0.3  # share of alpha that is spent where the scores alone tell of their noise
SECOND = 2  # eval at which single ones can be compared


@dataclass(frozen=True, slots=True)
class GlrParams:
    alpha: float = param(
        0.025, unit="probability", doc="chance of ever stopping a run that does not fall", ge=1e-9, le=0.5
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
        doc="evals that most of alpha is spent on; longer runs stay covered",
        ge=1,
        le=100_000,
    )
    usual_noise: float = noise.sigma_param()
    usual_noise_weight: float = noise.weight_param()


@lru_cache(maxsize=4096)
def threshold(seen: int, params: GlrParams, part: float = 1.0) -> float:
    """c_t at the ``seen``-th eval, in standard deviations; infinite while there is nothing to compare.

    ``part``: of alpha, that is spent.
    """
    pairs = windows.comparisons(seen, params.window, params.share, True)
    if not pairs:
        return math.inf
    return -NormalDist().inv_cdf(part * params.alpha * share(seen, params) / pairs)


@lru_cache(maxsize=4096)
def single_threshold(seen: int, params: GlrParams, part: float = 1.0) -> float:
    """c_t of single evals at the ``seen``-th; infinite at the first. ``part``: of alpha, that is spent."""
    if seen < SECOND:
        return math.inf
    return -NormalDist().inv_cdf(part * params.alpha * share(seen, params, SECOND) / (seen - 1))


def share(seen: int, params: GlrParams, first: int = 0) -> float:
    """alpha_t over alpha, at the ``seen``-th eval from the first on at which anything can be compared.

    ``first``: that one; 0: of longer windows.
    """
    first = first or windows.first_at(params.window, params.share)
    horizon = max(params.horizon, first)
    if seen <= horizon:
        return WITHIN_HORIZON / (horizon - first + 1)
    return (1.0 - WITHIN_HORIZON) * 6.0 / (math.pi * (seen - horizon)) ** 2


class Glr:
    """Stop when the newest evals lie below an earlier stretch by more than chance explains.

    State: (windows, noise, (best score less the first, its step)).
    """

    name: ClassVar[str] = "glr"
    version: ClassVar[int] = 7

    def __init__(self, params: GlrParams) -> None:
        check(params, self.name)
        self.params = params

    def initial(self) -> State:
        return (windows.initial(), noise.initial(), (0.0, 0))

    def reference(self, state: State) -> int | None:
        """Return the step of the best eval so far; None: there is none."""
        return state[2][1] if state[0][0] else None

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        p = self.params
        seen, spread, (best, best_step) = state
        seen, fall = windows.observe(seen, point.score, p.window, p.share, sparse=True)
        spread = noise.observe(spread, point)
        known = noise.estimate(spread, p.usual_noise, p.usual_noise_weight, point.fleet_noise)
        noise_known = p.usual_noise > 0.0 or point.fleet_noise is not None
        part = GUESSED if known is not None and known.freedom < math.inf and not noise_known else 1.0
        limit, now = threshold(seen[0], p, part), windows.single(point.score - seen[1])
        if point.prompts is not None and seen[0] > 1:
            paired = noise.of_difference(point, best_step)
            fall = (best - now) if paired is not None else (best - now) / math.sqrt(2.0)
            limit = single_threshold(seen[0], p, 1.0 if paired is not None else part)
            known = paired or known
        if now > best or seen[0] == 1:
            best, best_step = now, point.step
        state = (seen, spread, (best, best_step))
        if limit == math.inf or known is None:
            reason = "TooFewEvals" if limit == math.inf else "NoiseUnknown"
            return state, Verdict(Verb.CONTINUE, reason, 0.0, 0.0)
        limit = noise.widen(limit, known.freedom)
        z = fall / known.sigma
        if z > limit:
            return state, Verdict(Verb.STOP, "FellBeyondChance", z, limit)
        return state, Verdict(Verb.CONTINUE, "WithinChance", z, limit)
