"""Parts that the comparisons share: the paired saving, and goals with whether they were met."""

from __future__ import annotations

from collections.abc import Sequence

from sim.experiments.estimate import Estimate
from sim.experiments.findings import Value
from sim.experiments.statistics import ratio
from sim.sharing.run import GroupOutcome

Row = dict[str, Value]


def slowdown(outcomes: Sequence[GroupOutcome]) -> Estimate:
    """Return by how much longer steps take than alone, as a share: .03 is 3 % longer."""
    found = ratio([sum(one.took) for one in outcomes], [sum(one.alone) for one in outcomes])
    return Estimate(*(value - 1.0 for value in found))


def gpu_hours(outcomes: Sequence[GroupOutcome], shared: float, alone: float) -> Estimate:
    """Return GPU-hours of a step on the group, as a multiple of those alone.

    Args:
        outcomes: by seed.
        shared: GPUs of a job on the group, its part of the group's among them.
        alone: GPUs of a job alone.
    """
    return ratio([shared * sum(one.took) for one in outcomes], [alone * sum(one.alone) for one in outcomes])


def less(estimate: Estimate) -> Estimate:
    """Return what is missing to 1."""
    return Estimate(1.0 - estimate.value, 1.0 - estimate.high, 1.0 - estimate.low)


def verdict(met: bool) -> str:
    return "met" if met else "not met"


def losses(rows: Sequence[Row]) -> str:
    """Return which goals were not met, in words."""
    missed = [str(one["what"]) for one in rows if one.get("met") == "not met"]
    return f"Not met: {'; '.join(missed)}." if missed else "All goals of this table are met."


def within(value: float, low: float, high: float) -> bool:
    """Return whether a figure is within a goal, as printed with two digits more than the goal has."""
    return low <= round(value, 4) <= high
