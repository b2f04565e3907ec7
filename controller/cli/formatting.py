"""Times, spans, sizes and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.api.values import seconds
from controller.policy import wording

NOTHING = "-"


def age(timestamp: str | None, now: float) -> str:
    """Return how long ago, as kubectl's AGE says it; ``-`` where nobody knows."""
    return NOTHING if not timestamp else span(max(0.0, now - seconds(timestamp)))


def span(length: float) -> str:
    """Return a span in its two largest units, the second one only while it matters: ``95s``, ``5m30s``,
    ``3h12m``, ``4d``."""
    whole = int(length)
    for unit, letter, below, lesser in (
        (86400, "d", 8, "h"),
        (3600, "h", 8, "m"),
        (60, "m", 10, "s"),
    ):
        if whole >= 2 * unit or (unit > 60 and whole >= unit):
            count, rest = divmod(whole, unit)
            small = rest // {"h": 3600, "m": 60, "s": 1}[lesser]
            return f"{count}{letter}" + (f"{small}{lesser}" if count < below and small else "")
    return f"{whole}s"


def moment(at: float) -> str:
    """``2026-11-21 12:40:03Z``: the same on every screen, whatever its time zone."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def since(start: float, at: float) -> str:
    """``+2.4s`` after a moment."""
    gap = at - start
    sign = "-" if gap < 0 else "+"
    return f"{sign}{abs(gap):.1f}s" if abs(gap) < 60 else sign + span(abs(gap))


def number(value: Any) -> str:
    """Four significant digits; ``-`` for what is not known or no number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    return f"{float(value):.4g}"


def statistic(value: float, threshold: float) -> str:
    """Return a rule's statistic as `number`, but what is beyond all sense as ``over 4000``."""
    if not (math.isfinite(value) and math.isfinite(threshold)):
        return number(value)
    return wording.statistic(value, threshold)


def size(count: int | None) -> str:
    """Bytes in the unit that leaves a readable number: ``12.3 MB``."""
    if count is None:
        return NOTHING
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError  # TB takes everything


def node_sizes(sizes: Iterable[Mapping[str, Any]]) -> str:
    """Return on how many nodes there are how many GPUs, by a pool's ``status.nodeSizes``; "": not known."""
    return ", ".join(f"{one['nodes']} x {wording.counted(one['gpus'], 'GPU')}" for one in sizes)


def gpu_hours(gpu_seconds: float) -> str:
    return (
        f"{gpu_seconds / 3600:.2f} GPU-hours"
        if gpu_seconds < 36000
        else f"{gpu_seconds / 3600:.0f} GPU-hours"
    )
