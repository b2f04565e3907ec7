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

With ``alpha`` a budget takes the threshold's place (`spending`): of runs whose true score never falls at most
so many are stopped, over the evals that the run will have and beyond. Then single evals are compared too, the
newest with the best before it, at a share `SINGLES` of what each look may spend: of a run of ten evals that
collapses, longer windows see the most of the collapse too late, while in a long run they see all: so beyond
`SHORT` evals the share falls. How noisy the difference of these two is, is known from the prompts that both
scored, where the trainer reports that (`EvalPoint.prompt_pairs`); then their share is `PAIRED`, and the same
is what stretches around the best are measured by (`windows.since`): those of the other comparisons, and half
as long ones, for so measured a few evals tell what many do without. So later looks need no more than earlier
ones then, and all spend alike.

Where nothing but the run's own scores says how noisy an eval is,

- the estimate leaves out the run's own largest fall (`noise.estimate`): else a collapse hides in the noise
  that it makes; thresholds are those for so few differences (`noise.FAR_OUT`). A straight fall hides in none,
  and where it is left out few are left: so the estimate of all differences counts as well, whichever shows
  the fall, each at half the chance;
- the best is taken for no better than the second highest, and their distance counts for the noise: a single
  eval that is far too high tells nothing of the noise while it is one of the first, and stays the best for
  ever after;
- an exact tie below everything before is evidence by itself (`ties`).

"Collapsed" is a reason, and no other rule: half of what the run had gained is lost, at two evals in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise, spending, ties, windows
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Verb, Verdict

SINGLES = 0.2  # of what a look may spend; all of it while there are no longer windows, but not with pairs
PAIRED, AROUND = 0.1, 0.6  # of single evals and of longer windows, where the prompts of both are known
SHORTER = 0.5  # times the length of other stretches, for those around the best that are compared besides
SHORT = 20  # evals so far up to which it is as much; then less, as evals become more
SPENT_DIGITS = 9  # of the share of the budget that was spent: a status is small
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
    alpha: float = param(
        0.0,
        unit="probability",
        doc="chance of ever stopping a run that does not fall, spent over the evals that it will have "
        "(unknown: horizon), single evals compared too; 0: threshold holds instead",
        ge=0.0,
        le=0.5,
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


def passes_over(params: ScanParams) -> float:
    """Return the fall (score units) that is let pass: a hair more than ``min_drop``, by which scores that are
    kept in single precision may seem to fall."""
    return params.min_drop * (1.0 + noise.SINGLE_ROUNDING)


class Scan:
    """Stop when the newest evals are clearly below the best stretch of the run.

    Silent until both can be formed and the noise is known. State: (windows, noise); with ``alpha`` also (best
    and second highest score less the first, and the least noise of a difference of two evals, packed; step of
    the best, which eval it is, `spending.Pace`, share of the budget that was spent) and what `ties` keeps.
    """

    name: ClassVar[str] = "scan"
    version: ClassVar[int] = 10
    uses: ClassVar[tuple[str, ...]] = ("progress",)

    def __init__(self, params: ScanParams) -> None:
        check(params, self.name)
        self.params = params

    def earliest(self) -> tuple[int, str]:
        p = self.params
        return 2 if p.alpha else windows.first_at(p.window, p.share), "window"

    def initial(self) -> State:
        beside = (("", 0, 0, tuple(spending.Pace()), 0.0), ties.initial()) if self.params.alpha else ()
        return (windows.initial(), noise.initial(), *beside)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        p = self.params
        if p.alpha:
            return self._spend(state, point)
        seen, spread = state
        seen, run = windows.take(seen, point.score)
        curve, shared = windows.compare(run, p.window, p.share), point.prompts is not None
        fall, counts = self._counting(lambda least: windows.largest(curve, shared=shared, least=least))
        spread = noise.observe(spread, point)
        known = noise.estimate(spread, p.usual_noise, p.usual_noise_weight, point.fleet_noise)
        limit = math.sqrt(p.threshold * p.threshold + looks(seen[0], p.horizon))
        if fall == -math.inf or known is None:
            reason = "TooFewEvals" if fall == -math.inf else "NoiseUnknown"
            return (seen, spread), Verdict(Verb.CONTINUE, reason, 0.0, limit)
        limit = noise.widen(limit, known.freedom)
        z = counts / known.sigma
        if z > limit:
            return (seen, spread), Verdict(Verb.STOP, "FellBelowBestStretch", z, limit)
        return (seen, spread), Verdict(Verb.CONTINUE, "NearBestStretch", fall / known.sigma, limit)

    def lets_pass(self) -> tuple[float, str]:
        return self.params.min_drop, "min_drop"

    def _counting(self, largest: Callable[[float], float]) -> tuple[float, float]:
        """Return the largest of some falls, and of those that are more than ``min_drop``."""
        fall, least = largest(-math.inf), passes_over(self.params)
        return fall, largest(least) if least else fall if fall > 0.0 else -math.inf

    def reference(self, state: State) -> int | None:
        """Return the step of the best eval so far; None: there is none, or windows alone are compared."""
        return state[2][1] if self.params.alpha and state[2][0] else None

    def carry_spent(self, state: State, before: State) -> State:
        """Return a state that begins anew, or further back, with what was spent before: no budget is
        refilled."""
        if not self.params.alpha:
            return state
        *budget, spent = state[2]
        return (*state[:2], (*budget, max(spent, before[2][-1])), *state[3:])

    def _spend(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        p = self.params
        seen, spread, (packed, best_step, best_at, pace, spent), level = state
        best, second, near = windows.unpack(packed) if packed else (0.0, 0.0, math.inf)
        last = noise.last(spread)
        spread = noise.observe(spread, point)
        usual = (p.usual_noise, p.usual_noise_weight, point.fleet_noise)
        whole = noise.estimate(spread, *usual)
        levels = [] if whole is None else [whole]
        if whole is None or whole.freedom < math.inf:
            before_fall = noise.estimate(spread, *usual, before_fall=True)
            if before_fall is not None and before_fall != whole:
                levels.insert(0, before_fall)
        noise_known = p.usual_noise > 0.0 or point.fleet_noise is not None
        guessed = bool(levels) and levels[0].freedom < math.inf and not noise_known
        excess = best - second if guessed and seen[0] > 1 else 0.0
        if guessed:
            levels = [_doubted(one, excess) for one in levels]
        seen, run = windows.take(seen, point.score)
        curve, shared = windows.compare(run, p.window, p.share), point.prompts is not None
        wide = self._counting(lambda least: windows.largest(curve, excess=excess, shared=shared, least=least))
        level = ties.observe(level, last, point.score)
        number, now = seen[0], windows.single(point.score - seen[1])
        if number == 1:
            best, second, best_step, best_at = now, now, point.step, 1
        # Of two single evals the prompts that both scored tell more than either's own error does.
        differences = noise.differences(point)
        paired = differences.get(best_step)
        near = min((near, *(windows.single(one.sigma) for one in differences.values())))
        known = bool(levels) or paired is not None
        pairs = windows.comparisons(number, p.window, p.share, False) if known else 0
        silent = number == 1 or not known
        pace = spending.Pace(*pace).after(number, point.step, point.progress)
        evals = pace.evals or p.horizon
        look = spending.look(number, evals, spent, late=pace.evals > 0 and paired is None)
        runner_up = now if number <= 2 else max(second, now)
        highest = (best, runner_up, best_step, best_at)
        if now > best:
            highest = (now, best, point.step, number)
        spent = round(spent + (0.0 if silent else look.share), SPENT_DIGITS)
        packed = windows.pack((*highest[:2], near))
        state = (seen, spread, (packed, *highest[2:], tuple(pace), spent), level)
        tie = ties.fall(level, point.score) if paired is None and (not levels or guessed) else None
        if tie is not None and not noise_known and tie > p.min_drop:
            return state, Verdict(Verb.STOP, "Collapsed", tie, ties.lowest(level))
        if silent:
            reason = "TooFewEvals" if number == 1 else "NoiseUnknown"
            return state, Verdict(Verb.CONTINUE, reason, 0.0, 0.0)
        chance = p.alpha * look.share / (len(levels) if guessed else 1)
        measured = chance * spending.of_windows(p.alpha)
        part = part_of_singles(number, paired is not None) if pairs or paired is not None else 1.0
        limit = spending.single_limit(chance * part + (chance - measured) * (1.0 - part), number)
        if paired is not None:
            drop = best - now
            compared = [_against((drop, drop if drop > passes_over(p) else -math.inf), paired, limit)]
        else:
            drop = (second if guessed else best) - now
            fall = drop / math.sqrt(2.0)
            alone = (fall, fall if drop > passes_over(p) else -math.inf)
            compared = [_against(alone, one, limit) for one in levels]
        if pairs:
            limit = spending.windows_limit(measured * (1.0 - part), look.more, number, pairs, not guessed)
            compared += [_against(wide, one, limit) for one in levels]
        if pairs and paired is not None:
            share = min(1.0, (near / paired.sigma) ** 2)
            shorter = windows.compare(run, p.window, SHORTER * p.share)
            around = self._counting(
                lambda least: max(windows.since(one, best_at, share, least=least) for one in (curve, shorter))
            )
            far = noise.Noise(paired.sigma / math.sqrt(2.0), paired.freedom)
            pairs += windows.comparisons(number, p.window, SHORTER * p.share, False)
            limit = spending.windows_limit(measured * AROUND, look.more, number, pairs)
            compared.append(_against(around, far, limit))
        stop, _, z, limit = max(compared)
        if stop:
            before = math.inf if last is None else windows.single(last - seen[1])
            collapsed = best > 0.0 and max(now, before) <= best / 2.0
            return state, Verdict(Verb.STOP, "Collapsed" if collapsed else "FellBelowBestStretch", z, limit)
        return state, Verdict(Verb.CONTINUE, "NearBestStretch", z, limit)


def part_of_singles(seen: int, paired: bool) -> float:
    """Return the share of what the ``seen``-th look may spend that single evals get, beside longer windows.

    ``paired``: whether the prompts of both are known.
    """
    return (PAIRED if paired else SINGLES) * min(1.0, SHORT / seen)


def _doubted(known: noise.Noise, excess: float) -> noise.Noise:
    """Return noise that scores alone tell of, where the best lies by ``excess`` above the second best."""
    differences = max(1.0, known.freedom / noise.FREEDOM_PER_DIFFERENCE)
    sigma = math.hypot(known.sigma, excess / math.sqrt(differences)) if excess > 0.0 else known.sigma
    return noise.Noise(sigma, known.freedom + noise.FAR_OUT)


def _against(
    falls: tuple[float, float], known: noise.Noise, limit: float
) -> tuple[bool, float, float, float]:
    """Return whether a fall passes its limit, by how much, its z, and the limit for noise so well known.

    ``falls``: z times sigma, the largest, and the largest of those that are more than ``min_drop``.
    """
    fall, counts = falls
    limit = noise.widen(limit, known.freedom) if limit < math.inf else limit
    z = counts / known.sigma
    if z > limit:
        return True, z - limit, z, limit
    z = fall / known.sigma
    return False, z - limit, z, limit
