"""`arms`: shared, split, split on half the training GPUs, colocated; synchronous, and one step of lag."""

from __future__ import annotations

from collections.abc import Sequence

from controller.frozen import dataclass
from sim.experiments.executor import Executor
from sim.experiments.findings import Column, Findings
from sim.experiments.statistics import ratio
from sim.sharing.group import VirtualResident
from sim.sharing.rows import Row, losses, verdict, within
from sim.sharing.run import GroupTrial, run_group
from sim.sharing.setting import EVEN_SPLIT, SharedModel, SharingSetting
from sim.sharing.trial import Progress, perform_all
from sim.sharing.workload import law_of, turns

SHARED, SPLIT, HALF, COLOCATED, WIDE = (
    "shared by 2", "split", "split, T/2", "colocated on T", "colocated on T + R"
)  # fmt: skip
GOALS: dict[tuple[str, int], tuple[float, float]] = {
    (SHARED, 0): (0.675, 0.695),
    (HALF, 0): (0.79, 0.81),
    (HALF, 1): (0.66, 0.68),
}

COLUMNS = (
    Column("what", "arm", "text"),
    Column("gpus", "GPUs of a job", "number"),
    Column("step", "step, of split synchronous", "number"),
    Column("hours", "GPU-hours, of split with the same lag", "number"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a job. ``name``: of this module's; ``lag``: steps."""

    name: str
    lag: int


def arms(
    setting: SharingSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    model = EVEN_SPLIT
    law = law_of(setting, model)
    trials = [
        GroupTrial((law,) * 2, setting.switch_time, setting.steps, lag=lag, consecutive=setting.consecutive)
        for lag in (0, 1)
    ]
    shared = perform_all([(trial, seeds) for trial in trials], run_group, executor, progress)
    rows: list[Row] = []
    every = [Arm(name, lag) for lag in (0, 1) for name in (SPLIT, SHARED, HALF, COLOCATED, WIDE)]
    by_seed: dict[Arm, list[float]] = {arm: [] for arm in every}
    for seed in range(seeds):
        for arm in every:
            if arm.name == SHARED:
                outcome = shared[arm.lag][seed]
                split = by_seed[Arm(SPLIT, arm.lag)][seed]
                by_seed[arm].append(split * outcome.slowdown)
            else:
                by_seed[arm].append(_alone(arm, setting, model, seed))
    for arm in every:
        gpus = _gpus(arm, model)
        alone_gpus = _gpus(Arm(SPLIT, arm.lag), model)
        steps = ratio(by_seed[arm], by_seed[Arm(SPLIT, 0)])
        hours = ratio(
            [gpus * took for took in by_seed[arm]],
            [alone_gpus * took for took in by_seed[Arm(SPLIT, arm.lag)]],
        )
        goal = GOALS.get((arm.name, arm.lag))
        rows.append(
            {
                "what": f"{arm.name}, {'one step of lag' if arm.lag else 'synchronous'}",
                "gpus": gpus,
                "step": steps,
                "hours": hours,
                "goal": None if goal is None else f"{goal[0]:g}-{goal[1]:g}",
                "met": None if goal is None else verdict(within(hours.value, *goal)),
            }
        )
    return Findings(
        "arms",
        "Ways to run a job of duty .2, T = 2 R",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds},
        [
            "With one step of lag a job on half of the training GPUs saves the same 33 % without any sharing:"
            " sharing is for strict synchrony, and for models whose memory needs all of T.",
            "A turn on T/2 takes twice as long. Colocated jobs have rollouts and turns on the same GPUs, one"
            f" after the other, with two switches a step; {setting.tail:g} of a rollout is a tail that more"
            f" GPUs do not shorten (our guess), the rest runs at {setting.wide:.2f} of a narrow engine's"
            " efficiency (52.74 / 75.03 %, of the paper for 235B). Lag brings them nothing.",
            "Colocated on T needs no rollout GPUs at all, so it can beat sharing on GPU-hours where training"
            " GPUs are good at rollouts and the model fits beside its engine: compare before you share.",
            losses(rows),
        ],
    )


def _gpus(arm: Arm, model: SharedModel) -> float:
    t, r = model.training, model.rollout
    return {SPLIT: r + t, SHARED: r + t / 2, HALF: r + t / 2, COLOCATED: t, WIDE: r + t}[arm.name]


def _alone(arm: Arm, setting: SharingSetting, model: SharedModel, seed: int) -> float:
    """Return s of the steps of both jobs in an arm without sharing."""
    law = law_of(setting, model)
    total = 0
    for job in range(2):
        away, held = turns(law, setting.steps, 1000 * seed + job)
        if arm.name == HALF:
            held = [2 * one for one in held]
        if arm.name in (COLOCATED, WIDE):
            gpus = _gpus(arm, model)
            speed = gpus * setting.wide / model.rollout
            faster = setting.tail + (1.0 - setting.tail) / max(1.0, speed)
            held = [round(one * model.training / gpus) + 2 * setting.switch_time for one in held]
            away = [round(one * faster) for one in away]
            total += sum(away[1:]) + sum(held[1:])
            continue
        total += _steps(away, held, arm.lag)
    return float(total)


def _steps(away: Sequence[int], held: Sequence[int], lag: int) -> int:
    """Return microseconds from the first release to the last of a job alone."""
    resident = VirtualResident("alone", 0, (list(away), list(held)), lag=lag)
    asks: int | None = resident.first_request(0)
    while asks is not None:
        asks = resident.released(asks + resident.held[resident.place])
    return resident.alone
