"""Each rule at its best at a given rate of false stops, chosen on one half of a history, judged on the other.

For each rule and each of its windows the lowest threshold is taken at which the upper confidence bound on the
share of healthy runs stopped keeps to the target, for all candidates at once (each has its part of the
level); with too few healthy runs for that (fewer than about 10 / target), the observed share does. Of those,
the one that saves the most of the time after the peak is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from controller.policy.params import build
from controller.policy.stopping import RULES
from controller.policy.types import PolicySpec
from sim.foresight import RuleSpec
from sim.rules import truth as truths
from sim.rules import vector
from sim.rules.evaluate import Judged, matrices, upper_bound

DOUBT = 0.001  # level of the bounds while choosing: that the true rate of any candidate is above the target
WINDOWS = (1, 2, 3, 5, 8, 12, 16)
SHARES = (0.1, 0.25, 0.4)  # how scan's and GLR's windows grow
LEAST_ALPHA = 1e-9  # that rules with a bound take
FLEET_WEIGHT = 64.0  # degrees of freedom of the fleet's noise, where it is used
SINGLE_LOOK = {
    "kDeclines": "k",
    "drawdown": "sigmas",
    "cusum": "threshold",
    "scan": "threshold",
    "glr": "alpha",
    "eProcess": "alpha",
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """A rule with the parameters chosen, and what they did on the half they were chosen on."""

    spec: RuleSpec
    false_stops: float
    saved: float
    few: bool  # too few healthy runs to bound the rate


def halves(judged: Sequence[Judged]) -> tuple[list[Judged], list[Judged]]:
    """Return two halves that share no run; alternate within each label and family, so that they are alike."""
    seen: dict[tuple[str, str], int] = {}
    side: dict[str, int] = {}
    for one in judged:
        if one.series.run not in side:
            key = (one.series.family, one.truth.label)
            seen[key] = seen.get(key, 0) + 1
            side[one.series.run] = seen[key] % 2
    return (
        [j for j in judged if side[j.series.run] == 1],
        [j for j in judged if side[j.series.run] == 0],
    )


def fleet_noise(judged: Sequence[Judged]) -> float:
    """Median noise of the runs' evals; 0 where the trainers report it with every eval, or there is none."""
    if all(all(j.series.stderrs) for j in judged):
        return 0.0
    found = [s for j in judged if (s := truths.sigma(j.series)) > 0.0]
    return float(f"{np.median(found):.3g}") if found else 0.0


def tune(rule: str, judged: Sequence[Judged], target: float, *, plateaus: bool = False) -> Tuned | None:
    """Return the rule's best parameters at no more than ``target`` false stops per healthy run; None: it has
    none.

    Args:
        rule: name of the rule.
        judged: runs with their true labels.
        target: most false stops per healthy run.
        plateaus: whether runs labelled plateau count as healthy.
    """
    healthy = np.array([j.truth.label in ("healthy", *(("plateau",) if plateaus else ())) for j in judged])
    declining = np.array([j.truth.label == "declining" for j in judged])
    lengths = [len(j.series.scores) for j in judged] or [1]
    candidates = list(_candidates(rule, fleet_noise(judged), int(np.median(lengths)), max(lengths)))
    confidence = 1.0 - DOUBT / len(candidates)
    healthy_runs = len({j.series.run for j, counts in zip(judged, healthy, strict=True) if counts})
    few = upper_bound(0, healthy_runs, confidence) > target
    chunks = matrices(judged)
    best: Tuned | None = None
    for params in candidates:
        form = vector.FORMS[rule]
        checked = build(RULES[rule].params, params, rule)
        levels = [(rows, form.levels(evals, checked)) for rows, evals in chunks]
        highest = np.full(len(judged), -np.inf)
        for rows, level in levels:
            highest[rows] = np.fmax.reduce(np.fmax(level, -np.inf), axis=1)
        cut = _cut(highest[healthy], healthy_runs, target, None if few else confidence)
        spec = _with_cut(rule, params, cut)
        if spec is None:
            continue
        exact = form.cut(build(RULES[rule].params, spec.rule.params, rule))
        stops = np.full(len(judged), -1, dtype=np.int64)
        for rows, level in levels:
            stops[rows] = vector.crossing(level, exact)
        saved = _mean_saved(judged, stops, declining)
        rate = float((stops[healthy] >= 0).mean()) if healthy.any() else math.nan
        if best is None or saved > best.saved:
            best = Tuned(spec, rate, saved, few)
    return best


def _candidates(rule: str, fleet: float, usual: int, longest: int) -> Iterator[dict[str, Any]]:
    """Yield the parameters to try, without the threshold. ``usual``, ``longest``: evals of a run."""
    if rule == "eProcess":
        yield {"horizon": usual}
        return
    noises: list[dict[str, Any]] = [{}]
    if fleet:
        noises.append({"usual_noise": fleet, "usual_noise_weight": FLEET_WEIGHT})
    for noise in noises:
        if rule == "kDeclines":
            for sigmas in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0):
                if sigmas or not noise:
                    yield {"min_delta_sigmas": sigmas, **(noise if sigmas else {})}
        elif rule == "cusum":
            for window in (w for w in WINDOWS if w <= max(1, longest // 2)):
                for allowance in (0.25, 0.5, 1.0, 1.5):
                    yield {"window": window, "allowance": allowance, **noise}
        else:
            for window in (w for w in WINDOWS if w <= max(1, longest // 2)):
                if rule == "drawdown":
                    # sigmas: any, the cut replaces it
                    yield {"window": window, "max_drop": 0.0, "sigmas": 1.0, **noise}
                else:
                    for share in SHARES:
                        yield {"window": window, "share": share, "horizon": usual, **noise}


def _cut(highest: npt.NDArray[np.float64], runs: int, target: float, confidence: float | None) -> float:
    """Return the lowest level above which no more healthy series go than the target allows.

    ``runs``: of which they are; the bound counts those. ``confidence`` None: the observed share keeps to it.
    """
    count = len(highest)
    if not count:
        return 0.0
    trials = count if confidence is None else runs
    hits = int(target * trials)
    if confidence is not None:
        while hits > 0 and upper_bound(hits, trials, confidence) > target:
            hits -= 1
    allowed = hits * count // trials
    ordered = np.sort(highest)[::-1]
    return float(ordered[allowed]) if allowed < count else -math.inf


def _with_cut(rule: str, params: dict[str, Any], cut: float) -> RuleSpec | None:
    """Return the rule whose level is ``cut``, rounded upwards to four digits; None: out of its bounds."""
    field = SINGLE_LOOK[rule]
    if rule == "kDeclines":
        value: Any = max(1, math.floor(max(cut, 0.0)) + 1)
        if value > 100:
            return None
    elif rule in ("glr", "eProcess"):
        if cut > -math.log(LEAST_ALPHA):
            return None
        value = max(LEAST_ALPHA, min(0.5, _down(math.exp(-max(cut, 0.0)))))
    else:
        value = _up(max(cut, 0.01))
        if value > {"scan": 50.0, "drawdown": 100.0, "cusum": 10_000.0}[rule]:
            return None
    return RuleSpec(PolicySpec(rule, {**params, field: value}))


def _up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit) * unit:.4g}")


def _down(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.floor(value / unit) * unit:.4g}")


def _mean_saved(
    judged: Sequence[Judged], stops: npt.NDArray[np.int64], declining: npt.NDArray[np.bool_]
) -> float:
    total, count = 0.0, 0
    for one, stop, counts in zip(judged, stops.tolist(), declining.tolist(), strict=True):
        if not counts:
            continue
        count += 1
        steps, peak = one.series.steps, one.truth.peak
        if stop >= peak and steps[-1] > steps[peak]:
            total += (steps[-1] - steps[stop]) / (steps[-1] - steps[peak])
    return total / count if count else 0.0


def named(tuned: Tuned) -> str:
    """Return a tuned rule as `evalstop` takes it: ``scan:threshold=2.4,window=12``."""
    return text(tuned.spec.rule)


def text(spec: PolicySpec) -> str:
    """Return a rule as text, as `sim.specs.rule` reads it."""
    shown = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in spec.params.items())
    return f"{spec.name}:{shown}" if shown else spec.name
