"""Executors of trials: one interface, behind which a process pool stands today and a cluster may stand later.

An executor gets a function that is importable by name and arguments that can be pickled, and gives results
back in the order of the arguments, whatever order they were done in.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Protocol, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class Executor(Protocol):
    """Runs a function on many arguments."""

    def map(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        """Results in the order of the arguments, each as soon as it and those before it are there."""
        ...


class Serial:
    """One after the other, in this process."""

    def map(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        return map(function, arguments)


class Processes:
    """A process for each core, or as many as ``workers`` says."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers: {workers} is not allowed, expected at least 1")
        self.workers = workers or cores()

    def map(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        if self.workers == 1 or len(arguments) < 2:
            yield from map(function, arguments)
            return
        # Not forked: a progress bar's thread may hold a lock at that moment.
        context = multiprocessing.get_context("spawn")
        workers = min(self.workers, len(arguments))
        # Several waves of chunks per worker, so that a slow one at the end costs little.
        chunk = max(1, len(arguments) // (workers * 8))
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            yield from pool.map(function, arguments, chunksize=chunk)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
