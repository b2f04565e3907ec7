"""Rows of the tables: what was compared, its figures, the goal and whether it was met."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from sim.experiments.findings import Column, Value
from sim.rollout.trial import Against, Sums, against, verdict

COLUMNS = (
    Column("what", "what", "text"),
    Column("speed", "generation, times as fast", "number"),
    Column("cost", "GPU-seconds of it"),
    Column("step_speed", "whole step, times as fast", "number"),
    Column("held_cost", "GPU-seconds held"),
    Column("actors", "actors", "number"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
)

Row = dict[str, Value]


def row(
    what: str,
    ours: Sequence[Sums],
    base: Sequence[Sums],
    goal: str = "",
    met: bool | None = None,
) -> Row:
    """Return the row of a scheme against its baseline; ``met``: None for one without a goal."""
    found: Against = against(ours, base)
    return {
        "what": what,
        "speed": found.speed,
        "cost": found.cost,
        "step_speed": found.step_speed,
        "held_cost": found.held_cost,
        "actors": fmean(one.actors for one in ours),
        "goal": goal or None,
        "met": None if met is None else verdict(met),
    }


def losses(rows: Sequence[Row]) -> list[str]:
    """Return which goals were not met, in words."""
    missed = [str(one["what"]) for one in rows if one["met"] == "not met"]
    return ["Not met: " + "; ".join(missed) + "."] if missed else ["All goals of this table are met."]
