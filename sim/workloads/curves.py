"""Shapes of true eval scores over a run's training, as a share of the gain: 0 at the start, 1 at the best.

The paper names LoRA as monotone exponential convergence, DPO as saturating, RLHF as a mixture of healthy
runs and runs that peak and then decline. Its formulas are not public. ``linear`` is our reading that comes
closest to its figures; ``gao_rl`` and ``gao_bon`` are the laws of Gao, Schulman and Hilton (2023,
"Scaling laws for reward model overoptimization") with progress in place of the square root of KL; the last
two are healthy runs that are hard to tell from hacking ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log

from controller.frozen import dataclass

AFTER_MEAN_PEAK = 0.35  # what is left of the training after the mean peak, .65; ``depth`` is the fall over it

# (progress, peak, fall per unit of progress, curvature) -> share of the gain
Shape = Callable[[float, float, float, float], float]


def rise(progress: float, curvature: float) -> float:
    """Exponential convergence, 0 at 0 and 1 at 1."""
    return (1.0 - exp(-curvature * progress)) / (1.0 - exp(-curvature))


def still_rising(progress: float, peak: float, fall: float, curvature: float) -> float:
    return rise(progress, curvature)


def peak_then_fall(progress: float, peak: float, fall: float, curvature: float) -> float:
    """Return the same rise, done by the peak; then a straight fall."""
    return rise(progress / peak, curvature) if progress <= peak else 1.0 - fall * (progress - peak)


def over_optimised_rl(progress: float, peak: float, fall: float, curvature: float) -> float:
    """Return d (alpha - beta ln d), scaled to 1 at its peak: x (1 - ln x) with x = progress / peak."""
    x = progress / peak
    return x * (1.0 - log(x)) if x > 0.0 else 0.0


def over_optimised_best_of_n(progress: float, peak: float, fall: float, curvature: float) -> float:
    """Return d (alpha - beta d), scaled to 1 at its peak: 2 x - x^2 with x = progress / peak."""
    x = progress / peak
    return 2.0 * x - x * x


def rise_then_flat(progress: float, peak: float, fall: float, curvature: float) -> float:
    return rise(min(1.0, progress / peak), curvature)


def dip_and_recover(progress: float, peak: float, fall: float, curvature: float) -> float:
    """Past the would-be peak it falls for a third of what is left, then climbs to above where it was."""
    if progress <= peak:
        return 0.9 * rise(progress / peak, curvature)
    turn = peak + (1.0 - peak) / 3.0
    if progress <= turn:
        return 0.9 - fall * (progress - peak)
    lowest = 0.9 - fall * (turn - peak)
    return lowest + (1.0 - lowest) * (progress - turn) / (1.0 - turn)


@dataclass(frozen=True, slots=True)
class Family:
    """One way that RLHF runs may look: those that hack, and those that do not."""

    name: str
    hacking: Shape
    healthy: Shape
    doc: str


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("linear", peak_then_fall, still_rising, "straight fall after the peak; the headline's"),
        Family("gao_rl", over_optimised_rl, still_rising, "Gao's law for RL: a shallow fall"),
        Family("gao_bon", over_optimised_best_of_n, still_rising, "Gao's law for best-of-n: steeper"),
        Family("plateau", peak_then_fall, rise_then_flat, "linear, but healthy runs go flat at their peak"),
        Family("dip_recover", peak_then_fall, dip_and_recover, "linear, but healthy runs dip and recover"),
    )
}


def training_loss(progress: float) -> float:
    """Training loss, which keeps falling whatever the evals do, as the paper has it."""
    return 0.5 + 1.5 * exp(-4.0 * progress)
