"""The noise of one eval: the standard deviation by which rules measure drops.

Four sources, in this order. The trainer's own standard error of an eval; where it reports none above 0, a
bound on it: a score that is the mean over n prompts, each between lo and hi, has variance at most (hi - m) (m
- lo) / n, m being the true score (Bhatia and Davis 2000). The observed one may be at an end by luck, so m' =
(n m + 1) / (n + 2) stands for it (of a range of 0 to 1; others are scaled). Where every eval has one of the
two, the largest so far counts. No eval that a rule compares is noisier than that, so what holds for this
noise holds for evals of any size, on more prompts or fewer; their mean square would be too small for those on
the fewest, and the own bound of a best is that of a lucky score. A reported 0 (all answers wrong: just the
collapse) says nothing, and takes nothing from what the others say. One eval without either leaves the noise
unknown. Then the trajectory: second differences d_i = x_i - 2 x_{i-1} + x_{i-2} cancel a level and a straight
trend, and for independent noise E d^2 = 6 sigma^2 whatever its distribution, so their mean square over 6
estimates its variance. It is shrunk to the fleet's usual noise, as the user gives it or as the pool has
learned it from its runs.

The mean square and nothing more robust: rules compare means, whose variance is that of the noise with its
outliers, and runs with rare deep dips were stopped in them for as long as an estimate left the dips out. It
is the more precise estimate too where noise is Gaussian. A jump does no harm: one of size D among n evals
adds D^2 / (3 n) to the variance, so a fall by D still stands out by more standard deviations the larger n.

An estimate from few evals is imprecise, and a threshold of z standard deviations is passed too often.
`widen` raises the threshold as Student's t with the estimate's degrees of freedom would.

A fall is no noise. For those who ask for it (``before_fall``) the estimate leaves out the second differences
across the largest fall from one eval to the next: of those that end at the eval that fell and at the one
after it. They are the largest by choice, so what is left is too small on a run that does not fall, by a third
in short runs: it is raised by as much (`share_left`). Beside the fleet's usual noise it is a small part, and
is not raised. How often a flat run is stopped so is measured (`evalstop rules flat`, ``estimated``).

`FREEDOM_PER_DIFFERENCE` has the variance of the mean square right. It is far below what it should be less
often than Student's t with so many degrees of freedom has it, for it is made of more numbers than that: of
few differences the threshold becomes twice too high. For the exact quantile, of a normal variate over the
root of that quadratic form, `FAR_OUT` degrees more are enough (tests/policy/test_policy_own_noise.py).
"""

from __future__ import annotations

import math
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from controller.policy.params import param
from controller.policy.types import EvalPoint, FleetNoise, GuardrailNoise

# (numbers, packed (`_NUMBERS`); second differences seen, evals without stderr, differences not across the
# largest fall, evals since it)
NoiseState = tuple[Any, ...]
# (`NoiseState`, mean square of the standard errors, evals that have one); () before the first eval
ShownState = tuple[Any, ...]
NOTHING_SHOWN: ShownState = ()
# x_{i-1}, x_{i-2} (NaN: none yet), mean square of the second differences, largest stderr, largest fall from
# one eval to the next, mean square of the differences not across it
_NUMBERS = struct.Struct("<6d")
_NONE_YET = (math.nan, math.nan, 0.0, 0.0, 0.0, 0.0)

RULES_BY_NOISE = frozenset({"cusum", "glr", "scan"})  # that measure falls by it, whatever their parameters
PER_VARIANCE = 6.0  # E d^2 / sigma^2
PER_SD = math.sqrt(PER_VARIANCE)
LARGEST = 1e150  # that a difference counts for: its square is still a number
ROUNDING = 2.0**-48  # share of scores up to which a second difference of theirs may be rounding
# The same in single precision, in which trainers reckon: what is smaller tells other runs nothing.
SINGLE_ROUNDING = 2.0**-21
# Degrees of freedom per difference: 1 / (1 + 2 (r_1^2 + r_2^2)), their correlations at lags 1 and 2 being
# -4/6 and 1/6 for independent noise.
FREEDOM_PER_DIFFERENCE = 1.0 / (1.0 + 2.0 * (16.0 + 1.0) / 36.0)
FAR_OUT = 1.0  # degrees of freedom more than that, for thresholds of 2.8 and above
MOST_PROMPTS = 1_000_000  # that are believed to be in one eval
FAR_TOO_SMALL = 0.1  # of the bound: a reported standard error below this is not believed
MOST_FREEDOM = 1000.0  # that a number which is as good as known is written with
ROBUST_LEAST, ROBUST_MOST = 5, 16  # evals that the robust estimate is made of
ROBUST_UNIT = math.sqrt(6.0) * 0.6744897501960817  # median of |d| for Gaussian noise of 1
LEAST_FREEDOM = 3.0  # below it a threshold would have to be raised beyond all use
LEAST_BEFORE_FALL = 2.0  # the same where the run's own fall is left out: a collapse passes also such a one
ACROSS = 2  # second differences that one fall is in
# The mean square of the n differences that are left is too small by a share of 1 / (ONE_IN + ONE_IN_MORE n):
# fitted to its mean over flat Gaussian runs of 8 to 40 evals.
ONE_IN, ONE_IN_MORE = 2.4, 0.115
RECENT = 8  # evals since a fall, while the differences across it are left out
MOST_EXPONENT = 700.0  # of exp: what is larger is no number any more
CONTRADICTS_CHANCE = 1e-6  # at most, that a run which others teach rightly is taken to contradict them
CONTRADICTS_MOST = 16.0  # degrees of freedom of its own noise that count for it
DOUBT = 4.0  # times as large the variance of its own noise is taken for it
# Second differences far beyond what reported errors explain (standard deviations), and how many of them.
# Once that many were, they are while half of them still are.
FAR_BEYOND, FAR_SHARE, FAR_STILL, FAR_LEAST = 2.0, 0.8, 0.5, 5
# The same of errors that are too large: nearly all of so many differences are far below what they explain.
# Once they were, they are while well over half still are; of errors that are right one in six is.
NEAR_BELOW, NEAR_SHARE, NEAR_STILL, NEAR_LEAST = 0.2, 0.9, 0.6, 12
SURE = 2.0  # standard deviations of a difference from which on a score counts as higher
RAISED_MOST = 2.0  # times its own estimate: so far the votes of other namespaces may raise a run's noise


class Noise(NamedTuple):
    """Standard deviation of one eval (score units) and how well it is known (degrees of freedom)."""

    sigma: float
    freedom: float


def sigma_param() -> Any:
    """Return the parameter that takes the fleet's usual noise."""
    return param(
        0.0,
        unit="score",
        doc="usual standard deviation of one eval in the fleet; 0 stands for unknown",
        ge=0.0,
        le=1e9,
    )


def weight_param() -> Any:
    """Return the parameter that says how much the fleet's usual noise counts."""
    return param(
        16.0,
        unit="degrees of freedom",
        doc="how much the fleet's usual noise counts beside what the run itself shows",
        ge=1.0,
        le=10_000.0,
    )


def initial() -> NoiseState:
    return ("", 0, 0, 0, RECENT + 1)


def last(state: NoiseState) -> float | None:
    """Return the newest score; None: there was none yet."""
    return _numbers(state)[0] if state[0] else None


def _numbers(state: NoiseState) -> tuple[float, ...]:
    return _NUMBERS.unpack(a2b_base64(state[0])) if state[0] else _NONE_YET


def bound(point: EvalPoint) -> float | None:
    """Return what the standard error of an eval's score is at most, by its prompts and their range of scores.

    None: either is not known, or they cannot be right (a score outside the range, no prompt or more than
    `MOST_PROMPTS`).
    """
    if point.prompts is None or point.range is None or not 1 <= point.prompts <= MOST_PROMPTS:
        return None
    low, high = point.range
    if not (low < high and low <= point.score <= high):
        return None
    mean = (point.prompts * (point.score - low) / (high - low) + 1.0) / (point.prompts + 2.0)
    return (high - low) * math.sqrt(mean * (1.0 - mean) / point.prompts)


def error(point: EvalPoint) -> float | None:
    """Return the standard error of an eval as it is known beforehand: reported, or bounded; 0: a reported 0
    that nothing bounds; None: neither.

    A reported one of less than a tenth of the bound is not believed.
    """
    most, stderr = bound(point), point.stderr
    if stderr is None or stderr <= 0.0:
        return most if most is not None else None if stderr is None else 0.0
    return most if most is not None and stderr < FAR_TOO_SMALL * most else stderr


def of_difference(point: EvalPoint, step: int) -> Noise | None:
    """Return the noise of this eval's score less that of the eval at ``step``, by the prompts of both.

    None: no such pair. One prompt more is counted, whose two scores differ by all of the range: of few
    prompts all may have changed alike by luck. Where no range is known, a variance of 0 says nothing.
    """
    pair = next((p for p in point.prompt_pairs if p.step == step), None)
    if pair is None or not 2 <= pair.prompts <= MOST_PROMPTS or not 0.0 <= pair.variance < math.inf:
        return None
    n, variance = pair.prompts, pair.variance
    if point.range is not None and point.range[0] < point.range[1]:
        variance = (n * variance + (point.range[1] - point.range[0]) ** 2) / (n + 1)
    return Noise(math.sqrt(variance / n), n - 1.0) if variance > 0.0 else None


def differences(point: EvalPoint) -> dict[int, Noise]:
    """Return the noise of this eval's score less that of each other that is known of it, by its step."""
    known = ((pair.step, of_difference(point, pair.step)) for pair in point.prompt_pairs)
    return {step: one for step, one in known if one is not None}


def observe(state: NoiseState, point: EvalPoint) -> NoiseState:
    """Take in one eval."""
    for score, stderr in point.beside:  # no part of any comparison, but noise
        state = _take(state, score, stderr)
    return _take(state, point.score, error(point))


def _take(state: NoiseState, score: float, stderr: float | None) -> NoiseState:
    _, differences, missing, kept, since = state
    last, before, mean, largest, fall, kept_mean = _numbers(state)
    if stderr is None:
        missing += 1
    else:
        largest = max(largest, stderr)
    if not math.isnan(last):
        fell, since = min(last - score, LARGEST), since + 1
        if fell > fall:
            fall, kept, kept_mean, since = fell, differences, mean, 0
    if not math.isnan(before):
        size = _second_difference(before, last, score)
        differences += 1
        mean += (size * size - mean) / differences
        if since >= ACROSS:
            kept += 1
            kept_mean += (size * size - kept_mean) / kept
    packed = _NUMBERS.pack(score, last, mean, largest, fall, kept_mean)
    return (b2a_base64(packed, newline=False).decode("ascii"), differences, missing, kept, since)


def _second_difference(a: float, b: float, c: float) -> float:
    """Return the size of a second difference of three scores, at most `LARGEST`; 0: it is their rounding."""
    size = abs(c - 2.0 * b + a)
    return min(size, LARGEST) if size > ROUNDING * max(abs(a), 2.0 * abs(b), abs(c)) else 0.0


def estimate(
    state: NoiseState,
    usual: float,
    weight: float,
    learned: FleetNoise | None = None,
    *,
    before_fall: bool = False,
) -> Noise | None:
    """Return the noise of one eval; None: too few evals to say, or no noise at all seen.

    ``usual``, ``weight``: the fleet's standard deviation (0: unknown) and its degrees of freedom, as the user
    gives them; where they are unknown, as the pool has ``learned`` them from its runs (`fleet_noise`). Then
    other namespaces may raise the estimate (``learned.floor``), which makes it no better known.
    ``before_fall``: without the differences across the run's largest fall.
    """
    _, differences, missing, kept, since = state
    _, _, mean, largest, _, kept_mean = _numbers(state)
    floor, least = 0.0, LEAST_FREEDOM
    if usual <= 0.0 and learned is not None:
        usual, weight, floor = learned
    if before_fall and since <= RECENT:
        left = share_left(kept) if usual <= 0.0 else 1.0
        differences, mean, least = kept, kept_mean / left, LEAST_BEFORE_FALL
    if largest > 0.0 and not missing:
        return Noise(largest, math.inf)
    freedom = differences * FREEDOM_PER_DIFFERENCE
    variance = mean / PER_VARIANCE
    if usual > 0.0:
        variance = (freedom * variance + weight * usual * usual) / (freedom + weight)
        freedom += weight
    if freedom < least or variance <= 0.0:
        return None
    sigma = math.sqrt(variance)
    return Noise(max(sigma, min(floor, RAISED_MOST * sigma)), freedom)


def share_left(kept: Any) -> Any:
    """Return which share of the noise's variance so many differences show, without those across the largest
    fall: the mean over runs that do not fall."""
    return 1.0 - 1.0 / (ONE_IN + ONE_IN_MORE * kept)


def is_without(state: NoiseState) -> bool:
    """Return whether evals enough to estimate the noise show none but rounding: a straight line."""
    return bool(state[1] * FREEDOM_PER_DIFFERENCE >= LEAST_FREEDOM and _numbers(state)[2] == 0.0)


def own(points: Iterable[EvalPoint]) -> FleetNoise | None:
    """Return what a run shows of its noise by itself: what its pool learns from. None: too few evals to say.

    Of standard errors their root mean square: what is usual, where `estimate` bounds every eval.
    """
    state = NOTHING_SHOWN
    for point in points:
        state = show(state, point)
    return shown(state)


def show(state: ShownState, point: EvalPoint) -> ShownState:
    """Take one eval into what a run shows of its noise by itself; `NOTHING_SHOWN` before the first."""
    estimated, square, known = state if state else (initial(), 0.0, 0)
    if size := error(point):
        known += 1
        square += (size * size - square) / known
    return (observe(estimated, point), square, known)


def shown(state: ShownState) -> FleetNoise | None:
    """Return what the evals so far come to, as `own`. None: too few, or no more than rounding.

    A smoke test's scores on a straight line would make every other run of the metric all but noiseless.
    """
    if not state:
        return None
    estimated, square, _ = state
    found = estimate(estimated, 0.0, 1.0)
    if found is None:
        return None
    sigma = math.sqrt(square) if math.isinf(found.freedom) else found.sigma
    if sigma <= SINGLE_ROUNDING * abs(_numbers(estimated)[0]):
        return None
    return FleetNoise(sigma, min(found.freedom, MOST_FREEDOM))


def contradicts(learned: FleetNoise, own: FleetNoise | None) -> bool:
    """Return whether a run is by far quieter than the noise that other runs have taught.

    Theirs is then of another unit (percent beside shares of 1), or of another kind of eval, and no fall would
    stand out against it. With d degrees of freedom the mean square of the run's own noise is less than r of
    the true one with at most (d r / 2)^(d / 2) / Gamma(d / 2 + 1), for the density of chi-squared is below
    that of its power; r is taken `DOUBT` times as large, for what was learned is no exact number either.

    Args:
        learned: from runs of the same metric and evaluator.
        own: what the run shows by itself (`own`); None: too few evals to say.
    """
    if own is None or learned.sigma <= 0.0:
        return False
    freedom = min(own.freedom, CONTRADICTS_MOST)
    half = freedom / 2.0
    scaled = half * DOUBT * (own.sigma / learned.sigma) ** 2
    if scaled >= half:
        return False
    if scaled <= 0.0:
        return True
    return half * math.log(scaled) - math.lgamma(half + 1.0) < math.log(CONTRADICTS_CHANCE)


class Doubt(NamedTuple):
    """Standard errors that a run's own evals contradict.

    Attributes:
        reported: their root mean square (score units).
        scatter: standard deviation of one eval by the evals alone (score units).
    """

    reported: float
    scatter: float

    @property
    def too_small(self) -> bool:
        return self.scatter > self.reported


def doubtful(
    points: Sequence[EvalPoint], share: float = FAR_SHARE, near_share: float = NEAR_SHARE
) -> Doubt | None:
    """Return by how much the reported standard errors of these evals are wrong; None: they may be right.

    Far too small, as sd / n in place of sd / root n: of the second differences a ``share``, and `FAR_LEAST`,
    are more than `FAR_BEYOND` times what the errors explain. Of evals whose errors are right about one run in
    3,000 shows that by chance (tests/policy/test_policy_reported_noise.py). A fall, the way up from
    it and a lone outlier have seven of them, among which others are small. Far too large, as
    the sd itself: nearly all of `NEAR_LEAST`, or a ``near_share``, are far below what the errors explain.
    """
    sizes, explained = [], []
    for a, b, c in zip(points, points[1:], points[2:], strict=False):
        if a.attempt == b.attempt == c.attempt and a.stderr and b.stderr and c.stderr:
            sizes.append(_second_difference(a.score, b.score, c.score))
            explained.append(PER_SD * max(a.stderr, b.stderr, c.stderr))
    if not sizes:
        return None
    pairs = list(zip(sizes, explained, strict=True))
    far = sum(size > FAR_BEYOND * most for size, most in pairs)
    near = sum(size < NEAR_BELOW * most for size, most in pairs)
    small = far >= FAR_LEAST and far >= share * len(pairs)
    if not small and not (len(pairs) >= NEAR_LEAST and near >= near_share * len(pairs)):
        return None
    found = Doubt(*(math.sqrt(sum(x * x for x in of) / len(of)) / PER_SD for of in (explained, sizes)))
    return found if found.scatter > 0.0 else None  # a straight line is no evidence


def shown_of(states: Iterable[tuple[str, ShownState]]) -> tuple[GuardrailNoise, ...] | None:
    """Return what guardrails' evals come to, of (metric, state) of each; None: none has had enough."""
    found = ((metric, shown(state)) for metric, state in states)
    return tuple(GuardrailNoise(metric, one) for metric, one in found if one is not None) or None


def beyond(points: Iterable[EvalPoint], one: EvalPoint, other: EvalPoint, sign: float = 1.0) -> bool | None:
    """Return whether ``other`` is better than ``one`` by more than noise explains; None: the noise is not
    known.

    Of two standard errors where both evals have one, else of what ``points``, the curve, show of its noise
    (`own`). ``sign``: -1 where lower scores are better.
    """
    gap = sign * (other.score - one.score)
    if gap <= 0.0:
        return False
    if one.stderr is not None and other.stderr is not None:
        spread = math.hypot(one.stderr, other.stderr)
    else:
        known = own(points)
        if known is None:
            return None
        spread = known.sigma * math.sqrt(2.0)
    return gap > SURE * spread


def robust(scores: Sequence[float]) -> float | None:
    """Noise of one eval as a few jumps among its second differences cannot raise it; None: too few scores.

    The median of |d| over its value for Gaussian noise of 1, `ROBUST_UNIT`, or the root mean square of d
    where that is smaller: a jump makes the second large, luck the first. Where more than half of the
    differences are nothing (ties), the second alone.
    """
    if len(scores) < ROBUST_LEAST:
        return None
    triples = zip(scores, scores[1:], scores[2:], strict=False)
    sizes = sorted(_second_difference(a, b, c) for a, b, c in triples)
    middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2.0 / ROBUST_UNIT
    mean = math.sqrt(math.fsum(d * d for d in sizes) / (PER_VARIANCE * len(sizes)))
    return min(middle, mean) if middle > 0.0 else mean


def widen(threshold: float, freedom: float) -> float:
    """Return the threshold (in estimated standard deviations) that is passed as rarely as ``threshold`` true
    ones.

    Quantile of Student's t from that of the normal distribution: Bailey (1980), "Accurate normalizing
    transformations of a Student's t variate", Applied Statistics 29. Too small by 1 % at most from 3 degrees
    of freedom and thresholds of 3 on, by 5 % at 2.
    """
    if math.isinf(freedom):
        return threshold
    straight = threshold * slant(threshold, freedom)
    exponent = straight * straight / freedom
    return math.sqrt(freedom * math.expm1(exponent)) if exponent < MOST_EXPONENT else math.inf


def slant(z: float, freedom: float) -> float:
    """Return Bailey's factor: times z it is the root of ``freedom`` ln(1 + t^2 / ``freedom``)."""
    above = 4.0 * freedom * freedom + freedom + (4.0 * z * z + 9.0) / 12.0
    return above / (4.0 * freedom * freedom + 5.0 * (2.0 * z * z + 3.0) / 24.0)
