"""Trials: a setting, a scheme, a seed; and the sums by seed that figures are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.frozen import dataclass
from sim.experiments.estimate import Estimate
from sim.experiments.executor import Executor
from sim.experiments.statistics import ratio
from sim.rollout.run import StepOutcome, run
from sim.rollout.setting import RolloutSetting, Scheme

Progress = Callable[[int, int], None]  # trials done, trials in all


@dataclass(frozen=True, slots=True)
class RolloutTrial:
    """One run."""

    setting: RolloutSetting
    scheme: Scheme
    seed: int


@dataclass(frozen=True, slots=True)
class Sums:
    """One run's sums over its steps: s of generation and of whole steps, GPU-seconds of rollout actors."""

    seconds: float
    steps: float
    generating: float
    held: float
    actors: float  # mean
    moved: int
    count: int  # steps
    reasons: tuple[str, ...]
    generation_seconds: tuple[float, ...]  # of each step
    step_seconds: tuple[float, ...]  # of each step, whole
    kept: int  # actors that were kept, over all steps


@dataclass(frozen=True, slots=True)
class Against:
    """A scheme against a baseline over the same seeds, each with its 95 % interval.

    ``speed``, ``step_speed``: times as fast; ``cost``, ``held_cost``: GPU-seconds less than the baseline's,
    as a share below 0 (during generation; over whole steps).
    """

    speed: Estimate
    step_speed: Estimate
    cost: Estimate
    held_cost: Estimate


def perform(trial: RolloutTrial) -> Sums:
    """Return a run's sums."""
    return sums(run(trial.setting, trial.scheme, trial.seed))


def sums(steps: Sequence[StepOutcome]) -> Sums:
    """Return the sums of some steps."""
    return Sums(
        sum(step.seconds for step in steps),
        sum(step.step for step in steps),
        sum(step.generating for step in steps),
        sum(step.held for step in steps),
        sum(step.actors for step in steps) / len(steps),
        sum(step.moved for step in steps),
        len(steps),
        tuple(step.reason for step in steps),
        tuple(step.seconds for step in steps),
        tuple(step.step for step in steps),
        sum(step.kept for step in steps),
    )


def perform_all(
    arms: Sequence[tuple[RolloutSetting, Scheme]],
    seeds: int,
    executor: Executor,
    progress: Progress | None = None,
    first_seed: int = 0,
) -> list[list[Sums]]:
    """Return each arm's sums by seed."""
    trials = [
        RolloutTrial(setting, scheme, seed)
        for seed in range(first_seed, first_seed + seeds)
        for setting, scheme in arms
    ]
    done: list[Sums] = []
    for one in executor.map(perform, trials):
        done.append(one)
        if progress is not None:
            progress(len(done), len(trials))
    return [done[i :: len(arms)] for i in range(len(arms))]


def against(ours: Sequence[Sums], base: Sequence[Sums]) -> Against:
    """Return how a scheme does against a baseline."""
    return Against(
        ratio([b.seconds for b in base], [o.seconds for o in ours]),
        ratio([b.steps for b in base], [o.steps for o in ours]),
        change([o.generating for o in ours], [b.generating for b in base]),
        change([o.held for o in ours], [b.held for b in base]),
    )


def change(ours: Sequence[float], base: Sequence[float]) -> Estimate:
    """Return by which share ours differ from the baseline's, below 0 where they are less."""
    return Estimate(*(value - 1.0 for value in ratio(ours, base)))


def verdict(met: bool) -> str:
    """Return what stands beside a goal."""
    return "met" if met else "not met"
