"""Generated workloads: the paper's mix of fine-tuning jobs, and eval curves for logs that have none.

May import: what `sim` may.
Tests: tests/sim_workloads.
"""

from sim.workloads.curves import FAMILIES, Family
from sim.workloads.mix import Population, curves_for, generate
from sim.workloads.settings import CurveSettings, MixSettings
from sim.workloads.truth import Truth

__all__ = [
    "FAMILIES",
    "CurveSettings",
    "Family",
    "MixSettings",
    "Population",
    "Truth",
    "curves_for",
    "generate",
]
