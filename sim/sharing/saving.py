"""`saving`: GPU-hours of two jobs on one group, against each on a group of its own, both synchronous."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from controller.policy.wording import counted
from sim.experiments.executor import Executor
from sim.experiments.findings import Column, Findings
from sim.sharing.rows import Row, gpu_hours, less, losses, slowdown, verdict, within
from sim.sharing.run import GroupTrial, run_group
from sim.sharing.setting import M7B, M30B, M235B_24, M235B_32, MODELS, SharedModel, SharingSetting
from sim.sharing.trial import Progress, perform_all
from sim.sharing.workload import law_of

SWITCHES = (0.01, 0.03)
VARIATIONS = (0.15, 0.4)
GOALS = {M7B: (0.30, 0.33), M30B: (0.285, 0.32), M235B_24: (0.37, 0.395), M235B_32: (0.345, 0.37)}
SLOWER = {M30B: 0.07}
MOST_SLOWER = 0.05

COLUMNS = (
    Column("what", "model", "text"),
    Column("switch", "switch"),
    Column("variation", "rollouts' sd", "number"),
    Column("saving", "GPU-hours saved"),
    Column("paper", "paper"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
    Column("slower", "steps slower"),
    Column("slower_goal", "goal", "text"),
    Column("slower_met", "", "text"),
)


def saving(
    setting: SharingSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    corners = list(product(MODELS, SWITCHES, VARIATIONS))
    found = perform_all(
        [(_trial(setting, *corner), seeds) for corner in corners], run_group, executor, progress
    )
    rows: list[Row] = []
    for (model, switch, variation), outcomes in zip(corners, found, strict=True):
        low, high = GOALS[model]
        most = SLOWER.get(model, MOST_SLOWER)
        shared = model.rollout + model.training / 2.0
        saved = less(gpu_hours(outcomes, shared, model.rollout + model.training))
        slow = slowdown(outcomes)
        rows.append(
            {
                "what": model.name,
                "switch": switch,
                "variation": variation,
                "saving": saved,
                "paper": model.paper,
                "goal": f"{100 * low:g}-{100 * high:g} %",
                "met": verdict(within(saved.value, low, high)),
                "slower": slow,
                "slower_goal": f"at most {100 * most:g} %",
                "slower_met": verdict(slow.value <= most),
            }
        )
    return Findings(
        "saving",
        "Two jobs on one group of training GPUs, against two groups; both synchronous",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds},
        [
            f"{counted(seeds, 'run')} of {counted(setting.steps, 'step')} a row; intervals are 95 %, "
            "bootstrapped over runs. The same rollouts and turns in both arms.",
            "T is the paper's parallelism, duty 1 less its bubble ratio; R, the cycle, the switch and how"
            " much rollouts vary are our guess. Without any waiting the saving is T / (2 (T + R)): mostly"
            " geometry.",
            losses(rows),
            _slow(rows),
        ],
    )


def _slow(rows: list[Row]) -> str:
    missed = [
        f"{row['what']}, switch {row['switch']:.0%}, sd {row['variation']}"
        for row in rows
        if row["slower_met"] == "not met"
    ]
    return f"Slower than the goal: {'; '.join(missed)}." if missed else "No step is slower than the goal."


def _trial(setting: SharingSetting, model: SharedModel, switch: float, variation: float) -> GroupTrial:
    corner = replace(setting, switch=switch, rollout_variation=variation)
    return GroupTrial(
        (law_of(corner, model),) * 2, corner.switch_time, corner.steps, consecutive=corner.consecutive
    )
