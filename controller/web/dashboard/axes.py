"""Limits, ticks and places of a chart's values, for any finite numbers: 1e308 and 5e-324 too."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from controller.frozen import dataclass

FEW = 8  # values, up to which none is an outlier
REACH = 2.0  # times the range of the bulk, beyond which a value is one
_SAME = 1e-9  # of a value's size: what differs by less is drawn as the same
_MOST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from ``low`` to ``high``, drawn from ``start`` to ``end`` (px; may be the smaller)."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value lies, in px; what is beyond the axis lies at its end."""
        half = self.high / 2 - self.low / 2
        share = (value / 2 - self.low / 2) / half if half else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def robust_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return limits that show the bulk of the values: what lies far beyond it does not flatten the rest.

    At most a twentieth of them at each end, or one, is left out. A run that rises steeply at first loses
    nothing: its first evals are not far from the next ones.
    """
    found = sorted(values)
    if not found:
        return 0.0, 1.0
    low, high = found[0], found[-1]
    if len(found) > FEW:
        spare = max(1, len(found) // 20)
        bulk = found[spare:-spare]
        reach = 2 * REACH * (bulk[-1] / 2 - bulk[0] / 2)
        if reach > 0.0:
            low = next(one for one in found if one >= bulk[0] - reach)
            high = next(one for one in reversed(found) if one <= bulk[-1] + reach)
    return padded(low, high)


def padded(low: float, high: float, share: float = 0.08) -> tuple[float, float]:
    """Return limits with some room beyond them; of (nearly) equal ones, with the value in the middle."""
    room, size = 2 * share * (high / 2 - low / 2), max(abs(low), abs(high))
    if room <= _SAME * size:
        room = size * share or 1.0
    return max(-_MOST, low - room), min(_MOST, high + room)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return round numbers from ``low`` to ``high``, about so many."""
    rough = 2 * (high / 2 - low / 2) / max(1, about)
    if not math.isfinite(rough) or rough <= sys.float_info.min:
        return [low, high]
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((m * size for m in (1.0, 2.0, 5.0, 10.0) if m * size >= rough), rough)
    if not math.isfinite(step) or not math.isfinite(high / step):
        return [low, high]
    first = math.ceil(low / step)
    count = min(3 * about, math.floor(high / step) - first + 1)
    return [(first + n) * step for n in range(max(0, count))] or [low, high]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Return the ticks as texts that differ, with as few digits as that takes."""
    texts: list[str] = []
    for digits in range(3, 17):
        texts = [f"{value + 0.0:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts
