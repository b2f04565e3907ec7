"""Stop rules over whole matrices of evals, for sweeps and tuning: rows are runs, columns evals.

Each form gives a *level* for every eval: the rule with threshold c stops at the first eval whose level is
above c. So all thresholds of a rule are judged at once. A property test holds `first_stops` equal to the
streaming rules (`controller.policy.stopping`), which are the ones that count. Rows may end early: NaN from
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr  # type: ignore[import-untyped, unused-ignore]

from controller.policy.params import build
from controller.policy.stopping import MODIFIERS, RULES, glr, scan, windows
from controller.policy.stopping.divergence import Divergence
from controller.policy.stopping.gate import Gate, GateParams
from controller.policy.stopping.patience import Patience
from controller.policy.stopping.warmup import WarmUp
from controller.policy.types import PolicySpec
from sim.foresight import RuleSpec
from sim.rules import vector_divergence, vector_eprocess, vector_gate, vector_noise, vector_spending
from sim.rules.vector_eprocess import Pairs
from sim.rules.vector_noise import NoiseLevels, unwiden, widen
from sim.rules.vector_spending import PromptPairs

Matrix = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Evals(NamedTuple):
    """Scores, standard errors (`noise.error`) and proxy rewards (NaN: none), each (runs, evals), and
    differences."""

    scores: Matrix
    stderrs: Matrix
    proxies: Matrix | None = None
    pairs: Pairs | None = None
    steps: Matrix | None = None  # None: 1, 2, ...
    progress: Matrix | None = None  # share of the run that is done; None, or NaN: not known
    noise: NoiseOf | None = None
    prompt_pairs: PromptPairs | None = None
    prompts: Flags | None = None  # which evals name their prompts; None: none does
    usual: tuple[Matrix, Matrix] | None = None  # what each run's pool knows: noise, degrees of freedom
    last_pairs: PromptPairs | None = None  # with the eval before
    samples: Matrix | None = None  # scored at each eval; NaN: not known

    def numbered(self) -> Matrix:
        """Return the step of each eval."""
        shape = self.scores.shape
        return np.broadcast_to(np.arange(1.0, shape[1] + 1.0), shape) if self.steps is None else self.steps


class NoiseOf(NamedTuple):
    """Evals that count for the noise beside those that are compared: all of them, and where those are."""

    scores: Matrix
    stderrs: Matrix
    order: npt.NDArray[np.int64]


def noise_levels(evals: Evals, usual: float, weight: float, *, before_fall: bool = False) -> NoiseLevels:
    """`noise.estimate` after every eval."""
    learned: tuple[float | Matrix, float | Matrix] = (usual, weight)
    if usual <= 0.0 and evals.usual is not None:
        learned = evals.usual
    if evals.noise is not None:
        whole, at = evals.noise, np.maximum(evals.noise.order, 0)
        levels = vector_noise.levels(whole.scores, whole.stderrs, *learned, before_fall=before_fall)
        there = np.where(whole.order >= 0, np.take_along_axis(levels.sigma, at, axis=1), np.nan)
        return NoiseLevels(there, np.take_along_axis(levels.freedom, at, axis=1))
    return vector_noise.levels(evals.scores, evals.stderrs, *learned, before_fall=before_fall)


def falls(
    scores: Matrix,
    window: int,
    share: float,
    *,
    sparse: bool = False,
    excess: Matrix | None = None,
    shared: Flags | None = None,
    least: float = -np.inf,
) -> Matrix:
    """`windows.largest` after every eval: the largest z times sigma, -inf while there is none."""
    out = np.full(scores.shape, -np.inf)
    for t, pair, sums, now, last in _comparisons(scores, window, share):
        width = pair.reference
        ends = np.arange(width, last + 1, windows.stride(width, sparse))
        highest = (sums[:, ends] - sums[:, ends - width]).max(axis=1)
        if excess is not None:
            highest = highest - excess[:, t] / windows.layout(t + 1).size
        spread = pair.spread if shared is None else np.where(shared[:, t], pair.shared, pair.spread)
        fall = highest / width - now
        out[:, t] = np.fmax(out[:, t], np.where(fall > least, fall / spread, -np.inf))
    found: Matrix = np.where(np.isnan(scores), np.nan, out)
    return found


def since(
    scores: Matrix, at: npt.NDArray[np.int64], near: Matrix, window: int, share: float, least: float
) -> Matrix:
    """`windows.since` after every eval; ``at``: column of the best before it."""
    out = np.full(scores.shape, -np.inf)
    for t, pair, sums, now, last in _comparisons(scores, window, share):
        width, block = pair.reference, at[:, t, None] // windows.layout(t + 1).size
        ends = np.arange(width, last + 1)
        inside = (ends > block) & (ends <= block + width)
        highest = np.where(inside, sums[:, ends] - sums[:, ends - width], -np.inf).max(axis=1)
        fall = highest / width - now
        z = np.where(fall > least, fall / windows.measured(pair, near[:, t]), -np.inf)
        out[:, t] = np.fmax(out[:, t], z)
    return out


def _comparisons(
    scores: Matrix, window: int, share: float
) -> Iterator[tuple[int, windows.Pair, Matrix, Matrix, int]]:
    """Yield each comparison at each eval: its column, the comparison, sums of the blocks up to each, the mean
    of the newest evals, and the block before which references end."""
    runs, count = scores.shape
    x = vector_spending.single(scores - scores[:, :1])
    means, rest = np.empty((runs, 0)), np.zeros(runs)
    for t in range(count):
        size = windows.layout(t).size
        rest = vector_spending.single(rest + x[:, t])
        if (t + 1) % size == 0:
            means = _kept(means, rest / size)
            rest = np.zeros(runs)
            if means.shape[1] == windows.BLOCKS:
                merged, means = (means[:, ::2] + means[:, 1::2]) / 2.0, np.empty((runs, 0))
                for mean in merged.T:
                    means = _kept(means, mean)
        length, blocks = windows.layout(t + 1).rest, means.shape[1]
        newest = np.column_stack([means, rest / length]) if length else means
        sums = np.column_stack([np.zeros(runs), np.cumsum(means, axis=1)])
        for pair in windows.pairs(t + 1, window, share):
            now = newest[:, newest.shape[1] - len(pair.weights) :] @ np.asarray(pair.weights)
            yield t, pair, sums, now, blocks - pair.newest


def _kept(means: Matrix, mean: Matrix) -> Matrix:
    """Return the blocks with one more, as `windows.add` keeps it."""
    last = means[:, -1] if means.shape[1] else np.zeros(len(mean))
    return np.column_stack([means, last + _coarse(mean - last)])


def _coarse(values: Matrix) -> Matrix:
    """As `windows.coarse`; NaN stays."""
    bits = vector_spending.single(values).astype(np.float32).view(np.uint32) & np.uint32(windows.KEPT_BITS)
    return np.where(np.isnan(values), np.nan, bits.view(np.float32).astype(np.float64))


def _scan(evals: Evals, p: Any) -> Matrix:
    """Return the threshold that would have been passed here; with alpha, minus the log of the smallest alpha
    that would have stopped here."""
    if p.alpha:
        return _spent(evals, p)
    known = noise_levels(evals, p.usual_noise, p.usual_noise_weight)
    fall = falls(evals.scores, p.window, p.share, shared=evals.prompts, least=scan.passes_over(p))
    z = unwiden(np.where(np.isfinite(fall), fall / known.sigma, np.nan), known.freedom)
    looks = np.array([scan.looks(t + 1, p.horizon) for t in range(z.shape[1])])
    level = np.sqrt(np.maximum(np.square(np.maximum(z, 0.0)) - looks, 0.0))
    return np.where(fall > -np.inf, level, -np.inf)


def _spent(evals: Evals, p: Any) -> Matrix:
    """Return minus the log of the smallest alpha that would have stopped here; infinite at a tie."""
    shape, steps = evals.scores.shape, evals.numbered()
    noise_known = np.full(shape, p.usual_noise > 0.0)
    if evals.usual is not None:
        noise_known |= np.column_stack([evals.usual[0] > 0.0] * shape[1])
    estimates = [
        noise_levels(evals, p.usual_noise, p.usual_noise_weight, before_fall=left_out)
        for left_out in (True, False)
    ]
    known = np.any([~np.isnan(one.sigma) for one in estimates], axis=0)
    guessed = ~noise_known & np.any(
        [np.isfinite(one.freedom) & ~np.isnan(one.sigma) for one in estimates], axis=0
    )
    excess = vector_spending.excess(evals.scores, guessed)
    wide_falls = falls(
        evals.scores, p.window, p.share, excess=excess, shared=evals.prompts, least=scan.passes_over(p)
    )
    levels: list[Matrix] = []
    look, around, root = None, None, math.sqrt(2.0)
    for one in estimates:
        doubted = vector_spending.doubted(one, excess, guessed)
        alone = vector_spending.against_best(evals.scores, steps, *doubted, ~guessed, evals.prompt_pairs)
        if around is None and alone.paired is not None:
            around = _around_best(evals, alone, alone.paired, p)
        if look is None:
            progress = np.full(shape, np.nan) if evals.progress is None else evals.progress
            looked = known if alone.paired is None else known | alone.paired
            look = vector_spending.looks(looked, steps, progress, p.horizon, alone.paired)
            unknown = ~known | guessed
            unknown &= True if alone.paired is None else ~alone.paired
        grown = vector_spending.Singles(wide_falls, *doubted)
        single, wide = (
            unwiden(np.where(np.isfinite(fall), fall / sigma, np.nan), freedom)
            for fall, sigma, freedom in (alone[:3], grown[:3])
        )
        drop = alone.fall if alone.paired is None else np.where(alone.paired, alone.fall, alone.fall * root)
        single = np.where(drop > scan.passes_over(p), single, np.nan)
        levels.append(vector_spending.levels(single, wide, around, look, known, alone.paired, ~guessed, p))
    one, other = estimates
    two = guessed & ~np.isnan(one.sigma + other.sigma)
    two &= (one.sigma != other.sigma) | (one.freedom != other.freedom)
    level: Matrix = np.fmax(*levels) - math.log(2.0) * two
    return np.where(unknown & (vector_spending.ties(evals.scores) > p.min_drop) & ~noise_known, np.inf, level)


def _around_best(evals: Evals, alone: vector_spending.Singles, paired: Flags, p: Any) -> Matrix:
    """Return z of stretches around the best before, by what the prompts of both tell (NaN: nothing)."""
    least = np.full(evals.scores.shape, np.inf)
    for pairs in (evals.prompt_pairs, evals.last_pairs):
        if pairs is not None:
            least = np.fmin(least, vector_spending.errors(pairs))
    near = np.fmin.accumulate(least.astype(np.float32).astype(np.float64), axis=1)
    ratio = np.minimum(1.0, np.square(near / alone.sigma))
    at = vector_spending.best_before(evals.scores)
    ratio = np.where(paired, ratio, 1.0)
    lengths, passes = (p.share, scan.SHORTER * p.share), scan.passes_over(p)
    fall = np.fmax(*(since(evals.scores, at, ratio, p.window, length, passes) for length in lengths))
    usable = paired & np.isfinite(fall)
    return unwiden(np.where(usable, fall / (alone.sigma / math.sqrt(2.0)), np.nan), alone.freedom)


def _glr(evals: Evals, p: Any) -> Matrix:
    """Minus the log of the smallest alpha that would have stopped here."""
    known = noise_levels(evals, p.usual_noise, p.usual_noise_weight)
    fall = falls(evals.scores, p.window, p.share, sparse=True)
    z = unwiden(np.where(np.isfinite(fall), fall / known.sigma, np.nan), known.freedom)
    count = evals.scores.shape[1]
    spent = np.full(count, np.nan)  # log of pairs over the share of alpha that this eval may spend
    for seen in range(1, count + 1):
        pairs = windows.comparisons(seen, p.window, p.share, True)
        if pairs:
            spent[seen - 1] = math.log(pairs / glr.share(seen, p))
    guessed = np.isfinite(known.freedom) & (p.usual_noise <= 0.0)
    if evals.usual is not None:
        guessed &= ~(evals.usual[0] > 0.0)[:, None]
    level: Matrix = -(log_ndtr(-z) + spent) + np.where(guessed, math.log(glr.GUESSED), 0.0)
    if evals.prompts is None:
        return level
    everywhere = np.ones(evals.scores.shape, dtype=bool)
    alone = vector_spending.against_best(
        evals.scores, evals.numbered(), *known, everywhere, evals.prompt_pairs
    )
    z = unwiden(np.where(np.isfinite(alone.fall), alone.fall / alone.sigma, np.nan), alone.freedom)
    single = np.full(count, np.nan)
    for seen in range(glr.SECOND, count + 1):
        single[seen - 1] = math.log((seen - 1) / glr.share(seen, p, glr.SECOND))
    if alone.paired is not None:
        guessed &= ~alone.paired
    left = np.where(guessed, math.log(glr.GUESSED), 0.0)
    return np.where(evals.prompts, -(log_ndtr(-z) + single) + left, level)


def _cusum(evals: Evals, p: Any) -> Matrix:
    known = noise_levels(evals, p.usual_noise, p.usual_noise_weight)
    runs, count = evals.scores.shape
    x = (evals.scores - evals.scores[:, :1]).astype(np.float32).astype(np.float64)
    total, best = np.zeros(runs), np.full(runs, np.nan)
    level = np.full((runs, count), -np.inf)
    for t in range(count):
        step = (best - x[:, t]) / known.sigma[:, t]
        counted = ~np.isnan(step)
        total = np.where(counted, np.maximum(0.0, total + np.nan_to_num(step) - p.allowance), total)
        level[:, t] = np.where(counted, total, -np.inf)
        if t + 1 >= p.window:
            best = np.fmax(best, x[:, t + 1 - p.window : t + 1].mean(axis=1))
    return level


def _drawdown(evals: Evals, p: Any) -> Matrix:
    x = evals.scores
    if p.sigmas:
        x = (x - x[:, :1]).astype(np.float32).astype(np.float64)
    runs, count = x.shape
    drop = np.full((runs, count), np.nan)
    if count >= p.window:
        means = np.lib.stride_tricks.sliding_window_view(x, p.window, axis=1).mean(axis=2)
        drop[:, p.window - 1 :] = np.fmax.accumulate(means, axis=1) - means
    if not p.sigmas:
        return np.where(np.isnan(drop), -np.inf, drop)
    known = noise_levels(evals, p.usual_noise, p.usual_noise_weight)
    z = (drop - p.max_drop) / (known.sigma * math.sqrt(2.0 / p.window))
    level: Matrix = np.nan_to_num(unwiden(z, known.freedom), nan=-np.inf)
    return level


def _k_declines(evals: Evals, p: Any) -> Matrix:
    scores = evals.scores
    floor = np.full(scores.shape, p.min_delta)
    if p.min_delta_sigmas:
        known = noise_levels(evals, p.usual_noise, p.usual_noise_weight)
        widened = widen(p.min_delta_sigmas, known.freedom) * known.sigma * math.sqrt(2.0)
        floor = np.where(np.isnan(widened), np.inf, np.maximum(p.min_delta, widened))
    streak = np.zeros(scores.shape)
    for t in range(1, scores.shape[1]):
        declined = scores[:, t - 1] - scores[:, t] > floor[:, t]
        streak[:, t] = np.where(declined, streak[:, t - 1] + 1.0, 0.0)
    return streak


def _e_process(evals: Evals, p: Any) -> Matrix:
    if evals.pairs is None:
        return np.full(evals.scores.shape, -np.inf)
    return vector_eprocess.levels(evals.pairs, p)


class Form(NamedTuple):
    """``levels(evals, params)``; ``cut(params)``: the level above which the rule with these params stops."""

    levels: Callable[[Evals, Any], Matrix]
    cut: Callable[[Any], float]


FORMS: dict[str, Form] = {
    "kDeclines": Form(_k_declines, lambda p: p.k - 0.5),
    "drawdown": Form(_drawdown, lambda p: p.sigmas if p.sigmas else p.max_drop),
    "scan": Form(_scan, lambda p: -math.log(p.alpha) if p.alpha else p.threshold),
    "glr": Form(_glr, lambda p: -math.log(p.alpha)),
    "cusum": Form(_cusum, lambda p: p.threshold),
    "eProcess": Form(_e_process, lambda p: -math.log(p.alpha)),
}


INNER = (WarmUp.name, Divergence.name, Patience.name)


def covers(spec: RuleSpec) -> bool:
    """Return whether this rule and its modifiers have a vectorised form."""
    return spec.rule.name in FORMS and all(m.name in (*INNER, Gate.name) for m in spec.modifiers)


def first_stops(spec: RuleSpec, evals: Evals) -> npt.NDArray[np.int64]:
    """Index of the first STOP of each run, -1 where there is none.

    Raises:
        ParamError: a parameter does not exist or is out of bounds.
    """
    spec.make()
    gates = [build(GateParams, m.params, m.name) for m in spec.modifiers if m.name == Gate.name]
    inner = tuple(m for m in spec.modifiers if m.name != Gate.name)
    if not gates:
        return _first(_stops(spec.rule, inner, evals))
    known = [(p.against, vector_spending.errors(p)) for p in (evals.prompt_pairs, evals.last_pairs) if p]
    through = vector_gate.passed(
        evals.scores,
        evals.stderrs,
        gates[0],
        evals.numbered(),
        evals.progress,
        _learned(evals),
        known,
        _sampled(evals),
    )
    return _first(through.seen(_stops(spec.rule, inner, _gated(evals, through, gates[0]))))


def _learned(evals: Evals) -> Matrix | None:
    return None if evals.usual is None else evals.usual[0]


def _sampled(evals: Evals) -> Matrix | None:
    """Return how many samples were scored at each eval; NaN: not known. Those that only name their prompts
    have as many."""
    if evals.samples is not None or evals.prompts is None:
        return evals.samples
    return np.where(evals.prompts, 1.0, np.nan)


def _gated(evals: Evals, through: vector_gate.Passed, gate: GateParams) -> Evals:
    """Return the evals that count, moved to the left."""
    moved = through.moved
    pairs = None if evals.pairs is None else Pairs(*map(moved, evals.pairs))
    proxies = None if evals.proxies is None else moved(evals.proxies)
    beside = NoiseOf(*through.beside(evals.scores, evals.stderrs)) if gate.count_dropped else None
    progress = None if evals.progress is None else moved(evals.progress)
    shared = None if evals.prompt_pairs is None else PromptPairs(*map(moved, evals.prompt_pairs))
    steps = moved(evals.numbered())
    return Evals(
        moved(evals.scores),
        moved(evals.stderrs),
        proxies,
        pairs,
        steps,
        progress,
        beside,
        shared,
        None if evals.prompts is None else moved(evals.prompts.astype(np.float64)) > 0.0,
        evals.usual,
        None if evals.last_pairs is None else PromptPairs(*map(moved, evals.last_pairs)),
    )


def _stops(rule: PolicySpec, modifiers: tuple[PolicySpec, ...], evals: Evals) -> npt.NDArray[np.bool_]:
    """Return where the rule says STOP, under modifiers that see what it sees."""
    params = build(RULES[rule.name].params, rule.params, rule.name)
    form = FORMS[rule.name]
    stop: npt.NDArray[np.bool_] = form.levels(evals, params) > form.cut(params)  # NaN is not
    for modifier in modifiers:
        kind = MODIFIERS[modifier.name].params
        chosen: Any = build(kind, modifier.params, modifier.name)
        if modifier.name == WarmUp.name:
            stop[:, : chosen.min_evals - 1] = False
        elif modifier.name == Divergence.name:
            stop &= vector_divergence.passes(evals.scores, evals.proxies, chosen)
        else:
            standing = np.zeros(len(stop), dtype=np.int64)
            for t in range(stop.shape[1]):
                standing = np.where(stop[:, t], standing + 1, 0)
                stop[:, t] = standing >= chosen.evals
    return stop


def _first(stop: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.where(stop.any(axis=1), stop.argmax(axis=1), -1)


def crossing(level: Matrix, cut: float, min_evals: int = 1) -> npt.NDArray[np.int64]:
    """First eval of each run whose level is above ``cut``, from the ``min_evals``-th on; -1: none."""
    above = level > cut  # NaN is not
    above[:, : min_evals - 1] = False
    return _first(above)
