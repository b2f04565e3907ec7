"""Pauses between tries that never run out, and between streams."""

from __future__ import annotations

import random
from collections.abc import Iterator

# s after a stream that ended by itself: a server that ends them at once is not run into the ground.
AGAIN = 0.05


class JitteredBackoffs:
    """Pauses (s) between tries, without end: kopf gives up, and ends the process, when they run out.

    Re-iterable: each iteration begins with the shortest.
    """

    def __init__(self, first: float = 0.5, factor: float = 2.0, cap: float = 30.0) -> None:
        self._first, self._factor, self._cap = first, factor, cap

    def __iter__(self) -> Iterator[float]:
        pause = self._first
        while True:
            # Half to full: operators that lost the same API server do not come back in step.
            yield pause * random.uniform(0.5, 1.0)
            pause = min(self._cap, pause * self._factor)
