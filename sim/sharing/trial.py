"""Trials by seed, on any executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from sim.experiments.executor import Executor
from sim.sharing.run import GroupTrial

Progress = Callable[[int, int], None]  # trials done, trials in all
R = TypeVar("R")


def perform_all(
    arms: Sequence[tuple[GroupTrial, int]],
    perform: Callable[[GroupTrial], R],
    executor: Executor,
    progress: Progress | None = None,
) -> list[list[R]]:
    """Return each arm's outcomes by seed; an arm is a trial and how many seeds it has."""
    trials = [replace(trial, seed=seed) for trial, seeds in arms for seed in range(seeds)]
    done: list[R] = []
    for one in executor.map(perform, trials):
        done.append(one)
        if progress is not None:
            progress(len(done), len(trials))
    found, begin = [], 0
    for _, seeds in arms:
        found.append(done[begin : begin + seeds])
        begin += seeds
    return found
