"""Noise that is estimated from the run's own scores: what is left out is paid for, and no more than that."""

from __future__ import annotations

import math
import random

import pytest

from controller.policy.stopping import make_rule, noise
from controller.policy.types import EvalPoint, PolicySpec, Verb


def mean_below(t: float, differences: int) -> float:
    """Return the chance that a normal variate exceeds t times the root of the mean square of ``differences``
    second differences over 6, independent of it.

    Phi(-x) is the mean over angles of exp(-x^2 / (2 sin^2)) / 2 (Craig 1991), and the mean of exp(-s Q) of a
    quadratic form Q is a determinant: here of a band matrix, by its Cholesky factors.
    """
    angles = [(i + 0.5) * math.pi / 2.0 / 400 for i in range(400)]
    scales = [t * t / math.sin(angle) ** 2 / (noise.PER_VARIANCE * differences) for angle in angles]
    return math.fsum(determinant(scale, differences) ** -0.5 for scale in scales) / 800


def determinant(scale: float, n: int) -> float:
    """Return that of 1 + scale M, where M has 6, -4 and 1 on and beside its diagonal."""
    found, pivots, above = 1.0, [1.0, 1.0], 0.0
    for i in range(n):
        far = scale / pivots[-2] if i > 1 else 0.0
        near = (-4.0 * scale - far * above) / pivots[-1] if i > 0 else 0.0
        pivot = 1.0 + 6.0 * scale - near * near * pivots[-1] - far * far * pivots[-2]
        above = near * pivots[-1]
        pivots.append(pivot)
        found *= pivot
    return found


def tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2.0)) / 2.0


@pytest.mark.parametrize("differences", [5, 6, 8, 12, 20, 50])
@pytest.mark.parametrize("z", [2.8, 3.6, 4.1])
def test_thresholds_of_few_differences_are_exact_or_a_little_high(z: float, differences: int) -> None:
    freedom = differences * noise.FREEDOM_PER_DIFFERENCE
    wide = noise.widen(z, freedom + noise.FAR_OUT)
    assert mean_below(wide, differences) <= 1.03 * tail(z)
    assert mean_below(wide / 1.35, differences) > tail(z)
    if differences <= 8 and z > 3.0:  # without: far too high
        assert mean_below(noise.widen(z, freedom) / 1.2, differences) < tail(z)


@pytest.mark.parametrize("evals", [9, 12, 20, 40])
def test_what_the_largest_fall_leaves_is_the_noise_on_a_flat_run(evals: int) -> None:
    draw, squares = random.Random(evals), []
    for _ in range(1500):
        state = noise.initial()
        for step in range(evals):
            state = noise.observe(state, EvalPoint(step, draw.gauss(0.0, 1.0)))
        known = noise.estimate(state, 0.0, 1.0, before_fall=True)
        if known is not None:
            squares.append(known.sigma**2)
    assert math.fsum(squares) / len(squares) == pytest.approx(1.0, abs=0.08)


# Gains for a while, then loses it all over several evals: over-optimisation as a reward model sees it.
SLIDE = [0.0, 0.1, 0.35, 0.5, 0.48, 0.25, -0.05, -0.3, -0.5, -0.62, -0.71, -0.75]


def test_a_slide_over_several_evals_is_seen_from_twelve_scores() -> None:
    """No one fall among them stands out, so leaving one out helps little and must not cost the stop."""
    draw, stops = random.Random(8), 0
    for _ in range(200):
        rule = make_rule(PolicySpec("scan", {"alpha": 0.04}))
        state, stopped = rule.initial(), False
        for step, score in enumerate(SLIDE, start=1):
            state, verdict = rule.observe(state, EvalPoint(step, score + draw.gauss(0.0, 0.07)))
            stopped = stopped or verdict.verb is Verb.STOP
        stops += stopped
    assert stops >= 165


def test_a_jump_beyond_all_numbers_is_no_rounding() -> None:
    state = noise.initial()
    for step, score in enumerate((0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -(2.0**48) * noise.LARGEST)):
        state = noise.observe(state, EvalPoint(step, score))
    known = noise.estimate(state, 0.0, 1.0)
    assert known is not None
    assert known.sigma > 1e140
