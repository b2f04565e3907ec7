"""A figure and how sure it is."""

from __future__ import annotations

from typing import NamedTuple


class Estimate(NamedTuple):
    """A figure with its 95 % interval; NaN where it is not known."""

    value: float
    low: float
    high: float
