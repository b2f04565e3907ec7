"""Twin of public RL runs of language models: short runs scored on single prompts, whose truth is known.

Figures: issue "Stop rules where RLHF really lives" (evals, prompts, shapes of decline and their shares), from
118 published curves. A prompt j of difficulty d_j (logits, standard deviation `DIFFICULTY`) is answered with
probability 1 / (1 + exp(-(theta_t - d_jt))), theta_t being such that the mean over all prompts is the curve's
value m_t. The policy wanders over the prompts: d_jt = r d_j(t-1) + sqrt(1 - r^2) e, e of the same
distribution, so that a prompt's difficulty moves by ``wander`` an eval while the distribution of all stays.

Three ways to choose the prompts of an eval (`Prompts`): a fixed set, a set drawn anew each time, and one that
wanders. This module imports nothing of the product: `ceiling` says what who knows the curve can reach.

A run that declines has risen by its peak, by all of its gain. That follows from what is known of the issue's
own twin: who knows the curve catches 96 % there and saves .63, and `scan` as it then was, told the prompts,
88 % and .48; with a rise that takes the whole run it is 96 %, .60 and 84 %, .44 instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

EVALS = (6, 7, 8, 9, 9, 10, 10, 10, 11, 11, 11, 11, 16, 16, 20, 20, 41)
PROMPTS = (1024,) * 5 + (1319,) * 3 + (256,) * 3 + (512,) * 2 + (200, 50)
DIFFICULTY = 2.0  # logits
WANDER = (0.0, 0.3, 0.6)  # logits an eval
SHAPES = ("collapse",) * 3 + ("late",) + ("slide",) * 2 + ("slow",) * 2
TO_ZERO = 0.6  # share of the collapses that end at exactly 0
SLIDE = 15  # evals that a slide takes at most
RISING, FLAT, DECLINING = "rising", "flat", "declining"
SHARES = {DECLINING: 10, FLAT: 30, RISING: 60}  # of 100 runs
AGAIN = 3  # further evals of each policy that can be asked for
LEVEL = 0.025  # at which who knows the curve decides

_GRID = np.linspace(-14.0, 14.0, 1401)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_MEANS = (1.0 / (1.0 + np.exp(-(_GRID[:, None] - DIFFICULTY * _NODES)))) @ (_WEIGHTS / _WEIGHTS.sum())


class Prompts(StrEnum):
    """Choice of an eval's prompts."""

    FRESH = "fresh"  # drawn anew for each eval
    FIXED = "fixed"  # the same prompts, each as hard at every eval
    WANDERING = "wandering"  # the same prompts, whose difficulty to the policy wanders


class PairSeen(NamedTuple):
    """Scores by prompt of an eval less those of an earlier one: what a client reports of the two."""

    earlier: int  # index of the earlier eval
    mean: float
    variance: float  # sample variance of one prompt's difference


@dataclass(frozen=True, slots=True)
class Run:
    """A run with what nobody who judges it may know.

    Attributes:
        kind: rising, flat or declining.
        shape: of its decline; "": none.
        means: the true curve, shape (evals,).
        scores: share of the prompts that were answered, shape (evals,).
        prompts: of each eval.
        peak: index of the last eval before the fall; -1: it does not fall.
        best: differences to the best eval so far (its first), for each eval but the first; None: fresh
            prompts.
        last: the same to the eval before.
        again: scores of further evals of the same policies, on the same prompts, shape (evals, `AGAIN`).
    """

    kind: str
    shape: str
    means: Vector
    scores: Vector
    prompts: int
    peak: int
    best: tuple[PairSeen | None, ...]
    last: tuple[PairSeen | None, ...]
    again: Matrix


def logit(mean: npt.ArrayLike) -> Vector:
    """Return theta at which the mean over all prompts is ``mean``: -inf at 0, inf at 1."""
    m = np.asarray(mean, dtype=float)
    theta: Vector = np.interp(m, _MEANS, _GRID)
    return np.where(m <= 0.0, -np.inf, np.where(m >= 1.0, np.inf, theta))


def curve(kind: str, shape: str, evals: int, random: np.random.Generator) -> tuple[Vector, int]:
    """Return the true means of a run's evals, and the index of the last one before its fall (-1: none)."""
    if kind == FLAT:
        level = random.uniform(0.02, 0.1) if random.random() < 0.25 else random.uniform(0.1, 0.9)
        return np.full(evals, level), -1
    if kind == RISING:
        return _rise(evals, random), -1
    peak = evals - 3 if shape == "late" else int(random.integers(1, max(2, math.floor(0.7 * evals))))
    means = np.concatenate([_rise(peak + 1, random), np.zeros(evals - 1 - peak)])
    after = np.arange(1, evals - peak)
    if shape in ("collapse", "late"):
        means[peak + 1 :] = floor(means[0], random)
    else:
        left = evals - 1 - peak
        length = min(int(random.integers(1, SLIDE + 1)), left) if shape == "slide" else left
        depth = random.uniform(0.25, 0.5) if shape == "slide" else random.uniform(0.15, 0.3)
        means[peak + 1 :] = means[peak] * (1.0 - depth * np.minimum(1.0, after / length))
    return means, peak


def floor(start: float, random: np.random.Generator) -> float:
    """Return where a collapse ends, of a run that began at ``start``."""
    return 0.0 if random.random() < TO_ZERO else float(random.uniform(0.0, 0.5)) * start


def _rise(evals: int, random: np.random.Generator) -> Vector:
    start, gain = random.uniform(0.03, 0.4), random.uniform(0.05, 0.45)
    rate, straight = random.uniform(4.0, 15.0), random.uniform(0.0, 0.3)
    at = np.arange(evals) / (evals - 1)
    curved = -np.expm1(-rate * at) / -math.expm1(-rate)
    rise: Vector = start + gain * ((1.0 - straight) * curved + straight * at)
    return rise


def chances(means: Vector, prompts: int, how: Prompts, wander: float, random: np.random.Generator) -> Matrix:
    """Return how probable it is that a prompt is answered at an eval, shape (evals, prompts)."""
    evals = len(means)
    steps = random.normal(0.0, DIFFICULTY, (evals, prompts))
    if how is Prompts.FIXED:
        steps[1:] = steps[0]
    elif how is Prompts.WANDERING:
        keep = math.sqrt(1.0 - min(1.0, wander / DIFFICULTY) ** 2)
        for t in range(1, evals):
            steps[t] = keep * steps[t - 1] + min(1.0, wander / DIFFICULTY) * steps[t]
    chance: Matrix = 1.0 / (1.0 + np.exp(steps - logit(means)[:, None]))
    return chance


def pair(one: npt.NDArray[np.bool_], earlier: npt.NDArray[np.bool_], at: int) -> PairSeen:
    """Return the differences of two evals on the same prompts, ``at`` being the index of the earlier one."""
    n = len(one)
    won, lost = int((one & ~earlier).sum()), int((earlier & ~one).sum())
    mean = (won - lost) / n
    return PairSeen(at, mean, (won + lost - n * mean * mean) / (n - 1))


def run(
    kind: str,
    random: np.random.Generator,
    *,
    evals: int | None = None,
    prompts: int | None = None,
    how: Prompts = Prompts.WANDERING,
    wander: float | None = None,
) -> Run:
    """Draw one run.

    Args:
        kind: `RISING`, `FLAT` or `DECLINING`.
        random: of all that is drawn.
        evals: of the run; None: as public runs have.
        prompts: of each eval; None: as public runs have.
        how: the prompts are chosen.
        wander: of a prompt's difficulty, logits an eval; None: one of `WANDER`.
    """
    evals = int(random.choice(EVALS)) if evals is None else evals
    prompts = int(random.choice(PROMPTS)) if prompts is None else prompts
    wander = float(random.choice(WANDER)) if wander is None else wander
    shape = str(random.choice(SHAPES)) if kind == DECLINING else ""
    means, peak = curve(kind, shape, evals, random)
    return observed(kind, shape, means, peak, prompts, how, wander, random)


def observed(
    kind: str,
    shape: str,
    means: Vector,
    peak: int,
    prompts: int,
    how: Prompts,
    wander: float,
    random: np.random.Generator,
) -> Run:
    """Return a run of this true curve as its prompts show it."""
    evals = len(means)
    chance = chances(means, prompts, how, wander, random)
    results = random.random(chance.shape) < chance
    # Aside: whether somebody asks for more changes nothing of the run itself.
    (aside,) = random.spawn(1)
    again = np.column_stack([(aside.random(chance.shape) < chance).mean(axis=1) for _ in range(AGAIN)])
    scores = results.mean(axis=1)
    best: list[PairSeen | None] = [None] * evals
    last: list[PairSeen | None] = [None] * evals
    for t in range(1, evals if how is not Prompts.FRESH else 0):
        at = int(scores[:t].argmax())
        best[t], last[t] = pair(results[t], results[at], at), pair(results[t], results[t - 1], t - 1)
    return Run(kind, shape, means, scores, prompts, peak, tuple(best), tuple(last), again)


def draw(runs: int, seed: int, *, how: Prompts = Prompts.WANDERING) -> Iterator[Run]:
    """Yield ``runs`` runs of each kind."""
    for number, kind in enumerate((DECLINING, RISING, FLAT)):
        random = np.random.default_rng([seed, number, list(Prompts).index(how)])
        for _ in range(runs):
            yield run(kind, random, how=how)


def dipping(runs: int, length: int, seed: int) -> Iterator[Run]:
    """Yield healthy runs of which ``length`` evals in a row are those of a collapse, and that recover."""
    random = np.random.default_rng([seed, length])
    for _ in range(runs):
        evals, prompts = int(random.choice(EVALS)), int(random.choice(PROMPTS))
        kind = RISING if random.random() < 2.0 / 3.0 else FLAT
        means, _ = curve(kind, "", evals, random)
        at = int(random.integers(2, evals - length))
        means[at : at + length] = floor(means[0], random)
        wander = float(random.choice(WANDER))
        yield observed(kind, "", means, -1, prompts, Prompts.WANDERING, wander, random)


def ceiling(one: Run) -> int:
    """Return at which eval of a declining run who knows the curve sees its fall; -1: at none.

    Known: the peak, the level there, the true means after it and the number of prompts. Wald's sequential
    test of that curve against staying at the peak's level, at `LEVEL` (stop at likelihood ratio 1 / LEVEL).
    """
    ratio, level = 0.0, one.means[one.peak]
    for t in range(one.peak + 1, len(one.scores)):
        ratio += one.prompts * _log_likelihood(one.scores[t], one.means[t])
        ratio -= one.prompts * _log_likelihood(one.scores[t], level)
        if ratio >= -math.log(LEVEL):
            return t
    return -1


def _log_likelihood(share: float, mean: float) -> float:
    """Per prompt, of answers at ``mean``; -inf where that cannot be."""
    found = 0.0
    for part, chance in ((share, mean), (1.0 - share, 1.0 - mean)):
        if part > 0.0:
            found += part * math.log(chance) if chance > 0.0 else -math.inf
    return found


def saved(one: Run, stop: int) -> float:
    """Return the share of the evals after the peak that a stop at ``stop`` saves; 0 for a stop before it."""
    last = len(one.scores) - 1
    return (last - stop) / (last - one.peak) if stop > one.peak >= 0 else 0.0
