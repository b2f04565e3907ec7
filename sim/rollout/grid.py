"""`grid`: twelve settings, as the paper has: PPO and GRPO, three length profiles, 3B and 7B."""

from __future__ import annotations

from dataclasses import replace

from sim.experiments.executor import Executor
from sim.experiments.findings import Column, Findings, Value
from sim.rollout import laws, schemes
from sim.rollout.rows import losses
from sim.rollout.setting import PPO, RolloutSetting
from sim.rollout.trial import Progress, against, perform_all, verdict
from sim.rollout.workload import GPQA, LIVECODEBENCH

COLUMNS = (
    Column("what", "setting", "text"),
    Column("paper_speed", "paper's scheme, times as fast", "number"),
    Column("paper_cost", "GPU-seconds"),
    Column("speed", "ours, times as fast", "number"),
    Column("cost", "GPU-seconds"),
    Column("even", "Even counts as fast and as cheap as ours", "text"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
)


def settings(setting: RolloutSetting) -> dict[str, RolloutSetting]:
    """Return the twelve, by name."""
    found = {}
    for algorithm, changes in (("GRPO", {}), ("PPO", PPO)):
        for profile in (setting.profile, GPQA, LIVECODEBENCH):
            for model, gpus in ((laws.QWEN_3B, 2), (laws.QWEN_7B, 4)):
                found[f"{algorithm}, {profile.name}, {model.name}"] = replace(
                    setting, **changes, profile=profile, model=model, gpus_per_actor=gpus,
                    learner_gpus=8 if gpus == 2 else 16, per_epoch=1,
                )  # fmt: skip
    return found


def grid(
    setting: RolloutSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    counts = range(1, setting.most + 1)
    released = [replace(schemes.at(schemes.EVEN, count), release=True) for count in counts]
    kinds = [schemes.EVEN, schemes.PAPER, schemes.AUTO, *released]
    named = settings(setting)
    arms = [(one, scheme) for one in named.values() for scheme in kinds]
    done = perform_all(arms, seeds, executor, progress)
    rows: list[dict[str, Value]] = []
    speeds, costs, rivals = [], [], 0
    for i, name in enumerate(named):
        even, paper, auto, *others = done[i * len(kinds) : (i + 1) * len(kinds)]
        theirs, ours = against(paper, even), against(auto, even)
        speeds.append(theirs.speed.value)
        costs.append(theirs.cost.value)
        better = []
        for count, other in zip(counts, others, strict=True):
            found = against(other, auto)
            if found.speed.value >= 1.0 and found.cost.value <= 0.0:
                better.append(str(count))
        rivals += len(better)
        rows.append(
            {
                "what": name,
                "paper_speed": theirs.speed,
                "paper_cost": theirs.cost,
                "speed": ours.speed,
                "cost": ours.cost,
                "even": ", ".join(better) or "none",
                "goal": "none",
                "met": verdict(not better),
            }
        )
    for what, goal, met in (
        ("the paper's scheme, fastest of the twelve", "≥ 1.35x", max(speeds) >= 1.35),
        ("the paper's scheme, cheapest of the twelve", "-43 %", min(costs) <= -0.43),
    ):
        rows.append({"what": what, "goal": goal, "met": verdict(met)})
    rows[-2]["paper_speed"], rows[-1]["paper_cost"] = max(speeds), min(costs)
    for row in rows[-2:]:
        for column in COLUMNS:
            row.setdefault(column.key, None)
    return Findings(
        "grid",
        "PPO and GRPO, three length profiles, 3B and 7B, against 3 Even actors held",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds, "even_rivals": rivals},
        [
            "Even counts: 1 to 8 actors with early release; listed are those that are no slower and no dearer"
            " than ours.",
            "The profiles of GPQA and LiveCodeBench are assumptions: the paper has pictures without numbers.",
            *losses(rows),
        ],
    )
