"""Has the score fallen? A reference mean from the past against the newest evals, over several lengths.

For a reference window of w evals ending at eval a, and the newest s evals, s <= t - a,

    z = (mean of the reference - weighted mean of the newest) / (sigma * sqrt(1 / w + sum of weights squared))

with weights 1, 2, ..., s over the newest, rising to the latest: what falls steadily fell most at its end.
If the true score never falls, each z is at most a standard normal variable, whatever the curve: a later
mean that is higher only lowers it. So the flat run is the worst case, and what holds there holds for every
run that does not fall. Formula of the two-window scan: evalstop.md, section 4.4, detector 5, with flat
weights.

The largest reference for each s is the running maximum over all a on a grid; to form it only the newest
w + s scores have to be kept. They are kept relative to the first score, in single precision, as base64.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

LENGTHS = (1, 2, 3, 5, 8, 13)  # of the newest evals: each about 1.6 times the one before
MAX_WINDOW = 16
LONG_ENOUGH = 5  # newest evals: however long the window, as many are compared with it

WindowState = tuple[Any, ...]  # (evals seen, first score, packed newest scores, highest old mean or None)


class Recent(NamedTuple):
    """One length of the newest evals: weights, oldest first, and the standard deviation of z's numerator."""

    length: int
    weights: tuple[float, ...]
    spread: float  # in standard deviations of one eval


@cache
def recents(window: int) -> tuple[Recent, ...]:
    """The lengths that go with a reference of ``window`` evals: up to as long.

    Shorter ones add chances of a false stop and find little that the others do not; below about a third of
    the window they are left out, but five are enough for any window.
    """
    found = []
    for length in LENGTHS:
        if min(LONG_ENOUGH, 0.375 * window) <= length <= window:
            weights = tuple(2.0 * (i + 1) / (length * (length + 1)) for i in range(length))
            found.append(Recent(length, weights, math.sqrt(1.0 / window + sum(v * v for v in weights))))
    return tuple(found)


def first_at(window: int, stride: int = 1) -> int:
    """Evals needed before anything can be compared."""
    return -(-window // stride) * stride + recents(window)[0].length


def initial() -> WindowState:
    return (0, 0.0, "", None)


def observe(state: WindowState, score: float, window: int, stride: int = 1) -> tuple[WindowState, float]:
    """Take in one score; return the next state and the largest z times sigma, -inf while there is none.

    ``stride``: reference windows end at every ``stride``-th eval only.
    """
    seen, first, packed, old = state
    if not seen:
        first = score
    scores = [*unpack(packed), single(score - first)]
    kinds = recents(window)
    longest = kinds[-1].length
    keep = window + longest
    # The oldest kept reference window is now too old to be formed again: its mean goes into ``old``.
    if len(scores) >= keep:
        scores = scores[-keep:]
        if (seen + 1 - longest) % stride == 0:
            mean = sum(scores[:window]) / window
            old = mean if old is None else max(old, mean)
    largest = -math.inf
    highest = old
    count = len(scores)
    end = max(window, count - longest + 1) if len(scores) >= keep else window  # next reference to look at
    for kind in reversed(kinds):  # the longest first: its references are a subset of the next one's
        while end <= count - kind.length:
            if (seen + 1 - (count - end)) % stride == 0:
                mean = sum(scores[end - window : end]) / window
                highest = mean if highest is None else max(highest, mean)
            end += 1
        if highest is not None:
            newest = sum(v * x for v, x in zip(kind.weights, scores[count - kind.length :], strict=True))
            largest = max(largest, (highest - newest) / kind.spread)
    return (seen + 1, first, pack(scores), old), largest


def comparisons(seen: int, window: int, stride: int) -> int:
    """How many pairs (reference, newest) there are at the ``seen``-th eval."""
    return sum(max(0, (seen - kind.length) // stride - (window - 1) // stride) for kind in recents(window))


def single(value: float) -> float:
    """The value as it comes back from its packed form: IEEE 754 single precision, the largest one at most."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(3.4028234663852886e38, value)


def pack(values: Sequence[float]) -> str:
    return b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")


def unpack(packed: str) -> list[float]:
    data = b64decode(packed)
    return list(struct.unpack(f"<{len(data) // 4}f", data))
