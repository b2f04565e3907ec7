"""Timelines, facts and calibrations for the tests of parity."""

from __future__ import annotations

from collections.abc import Sequence

from controller.parity.calibration import Calibration, Measured
from controller.parity.facts import Admitted, Facts, Words
from controller.parity.timeline import How, Lived, Stay, Timeline

DELAYS = {
    "queue_delay": 0.5,
    "start_delay": 1.0,
    "eval_delay": 2.0,
    "retain_time": 1.0,
    "preempt_delay": 3.0,
    "suspend_delay": 0.5,
    "end_delay": 1.0,
    "handover_delay": 0.25,
}
CALIBRATED = Calibration(tuple(Measured(name, 4, mean, 0.1, "a, b") for name, mean in DELAYS.items()))

Row = tuple[float, float, How] | tuple[float, float, How, float]


def timeline(**jobs: tuple[float, Sequence[Row]]) -> Timeline:
    """``a=(0.0, [(1.0, 5.0, How.END)])``: submission, and (admitted, freed, how, decided) of each stay."""
    return Timeline(
        tuple(
            Lived(key, 1, submitted, tuple(Stay(*row) for row in rows))
            for key, (submitted, rows) in jobs.items()
        )
    )


def facts(key: str, *, at: float = 0.0, began: float = 1.0, ended: float = 10.0, seen: float = 11.0) -> Facts:
    """A job admitted at ``at`` that trained from ``began`` to ``ended``, which was seen at ``seen``."""
    found = Facts(key, 1, submitted=at, ended=seen)
    found.admissions[1] = Admitted(at, words=Words(began, ended, 0.0, ended - began, False))
    return found
