"""Phases of a step: how long they take, and which of them need the training GPUs.

`evalstop sim sharing advise` reads it from the metrics page: whether two jobs could share a group of
training GPUs follows from how long each is away from them, and how long on them, step by step.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

TRAINING, OTHER = "training", "other"  # values of the label `gpus`
UNNAMED = "unnamed"  # the phase of what is left of a step
STEPS_KEPT = 20  # newest steps that stay exposed: as many as a profile takes
PHASES_KEPT = 32  # names; a further one counts as unnamed


class Step(NamedTuple):
    """Seconds of one step, away from the training GPUs and on them."""

    step: int
    away: float
    training: float


class Phases:
    """Adds up the seconds of phases, and of whole steps. A phase within another one counts for itself alone.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: list[tuple[str, str]] = [(UNNAMED, OTHER)]
        self._since = clock()
        self._totals: dict[tuple[str, str], float] = {}
        self._step = {TRAINING: 0.0, OTHER: 0.0}
        self._steps: deque[Step] = deque(maxlen=STEPS_KEPT)
        self._reached: int | None = None

    @contextmanager
    def phase(self, name: str, training_gpus: bool = False) -> Iterator[None]:
        """Count what is done within as a phase. For the thread that trains, and no other."""
        gpus = TRAINING if training_gpus else OTHER
        with self._lock:
            self._count()
            known = (name, gpus) in self._totals or len(self._totals) < PHASES_KEPT
            self._open.append((name if known else UNNAMED, gpus))
        try:
            yield
        finally:
            with self._lock:
                self._count()
                self._open.pop()

    def reached(self, step: int) -> None:
        """End a step. The first step that is told of is none: when it began is not known."""
        with self._lock:
            self._count()
            if self._reached is not None and step <= self._reached:
                return
            if self._reached is not None:
                whole = step - self._reached
                for number in range(max(self._reached, step - STEPS_KEPT) + 1, step + 1):
                    self._steps.append(Step(number, self._step[OTHER] / whole, self._step[TRAINING] / whole))
            self._reached = step
            self._step = {TRAINING: 0.0, OTHER: 0.0}

    def seen(self) -> tuple[list[tuple[str, str, float]], list[Step]]:
        """Return (phase, gpus, seconds) of all phases so far, and the newest steps."""
        with self._lock:
            self._count()
            return [(*key, seconds) for key, seconds in sorted(self._totals.items())], list(self._steps)

    def _count(self) -> None:
        now = self._clock()
        key, seconds = self._open[-1], now - self._since
        self._since = now
        self._totals[key] = self._totals.get(key, 0.0) + seconds
        self._step[key[1]] += seconds
