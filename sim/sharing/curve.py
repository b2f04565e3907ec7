"""`curve`: GPU-hours and slow-down by the number of residents, limits lifted; and other orders of turns."""

from __future__ import annotations

from dataclasses import replace

from controller.policy.wording import counted
from sim.experiments.executor import Executor
from sim.experiments.findings import Column, Findings
from sim.sharing.orders import ORDERS
from sim.sharing.rows import Row, gpu_hours, losses, slowdown, verdict
from sim.sharing.run import FIFO, GroupTrial, run_group
from sim.sharing.setting import EVEN_SPLIT, SharingSetting
from sim.sharing.trial import Progress, perform_all
from sim.sharing.workload import law_of

GOALS = {1: 1.0, 2: 0.69, 3: 0.59, 4: 0.55, 5: 0.54}
TOLERANCE = 0.02
ORDER_RESIDENTS = 3

COLUMNS = (
    Column("what", "residents", "text"),
    Column("hours", "GPU-hours, of those alone", "number"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
    Column("slower", "steps slower"),
    Column("formula", "the reference's formula"),
)


def curve(
    setting: SharingSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    model = EVEN_SPLIT
    law = law_of(setting, model)

    def trial(count: int, order: str = FIFO) -> GroupTrial:
        return GroupTrial((law,) * count, setting.switch_time, setting.steps, order=order)

    orders = [order for order in ORDERS if order != FIFO]
    arms = [trial(count) for count in GOALS] + [trial(ORDER_RESIDENTS, order) for order in orders]
    arms.append(replace(trial(ORDER_RESIDENTS), consecutive=3))
    found = perform_all([(one, seeds) for one in arms], run_group, executor, progress)
    names = [str(count) for count in GOALS]
    names += [f"{ORDER_RESIDENTS}, {order}" for order in orders]
    names.append(f"{ORDER_RESIDENTS}, up to 3 turns in a row")
    rows: list[Row] = []
    for name, arm, outcomes in zip(names, arms, found, strict=True):
        count = len(arm.laws)
        shared = model.rollout + model.training / count
        hours = gpu_hours(outcomes, shared, model.rollout + model.training)
        goal = GOALS[count] if name == str(count) else None
        rows.append(
            {
                "what": name,
                "hours": hours,
                "goal": None if goal is None else f"{goal:g}, within {TOLERANCE:g}",
                "met": None if goal is None else verdict(round(abs(hours.value - goal), 4) <= TOLERANCE),
                "slower": slowdown(outcomes),
                "formula": _formula(setting, model.duty, count) if name == str(count) else None,
            }
        )
    return Findings(
        "curve",
        "GPU-hours of a step by the number of residents, duty .2, T = 2 R, no limits",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds},
        [
            f"{counted(seeds, 'run')} of {counted(setting.steps, 'step')} a row; first come, first served "
            "where nothing is said.",
            "The formula, 1 + switch + .5 d r (1 + r) with r the others' duty, is a fit that holds at duty .2"
            " only: the policy replays recorded turns instead.",
            "Other orders than first come, first served bring nothing here, and bound no wait.",
            losses(rows),
        ],
    )


def _formula(setting: SharingSetting, duty: float, count: int) -> float:
    if count == 1:
        return 0.0
    others = duty * (count - 1)
    return setting.switch + 0.5 * duty * others * (1.0 + others)
