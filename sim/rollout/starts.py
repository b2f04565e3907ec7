"""`starts`: what slow starts cost, and when an idle actor is better kept."""

from __future__ import annotations

from dataclasses import replace

from sim.experiments.executor import Executor
from sim.experiments.findings import Findings
from sim.rollout import schemes
from sim.rollout.rows import COLUMNS, losses, row
from sim.rollout.setting import RolloutSetting
from sim.rollout.trial import Progress, Sums, against, perform_all

STARTS = (0.0, 3.0, 10.0, 30.0, 60.0)
RECALL = 1.0  # s until the GPUs of a released actor are free


def starts(
    setting: RolloutSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    release = replace(schemes.AUTO, name="Release", settings={"when_idle": "Release"})
    keep = replace(schemes.AUTO, name="Keep", settings={"when_idle": "Keep"})
    settings = [replace(setting, start=start, recall=RECALL) for start in STARTS]
    arms = [(one, scheme) for one in settings for scheme in (schemes.EVEN, schemes.AUTO, release, keep)]
    done = perform_all(arms, seeds, executor, progress)
    rows = []
    for i, start in enumerate(STARTS):
        even, auto, released, kept = done[4 * i : 4 * i + 4]
        forced = against(released, kept)
        last = start == STARTS[-1]
        rows += [
            row(f"starts of {start:g} s: ours, Auto (kept {_kept(auto):.0f} %)", auto, even),
            row(
                f"starts of {start:g} s: Release forced, against Keep", released, kept,
                "must lose: dearer than Keep" if last else "", forced.held_cost.low > 0.0 if last else None,
            ),
        ]  # fmt: skip
    auto = done[4 * (len(STARTS) - 1) + 1]
    rows[-2] |= {"goal": "Auto keeps", "met": "met" if _kept(auto) > 99.0 else "not met"}
    step = sum(one.steps for one in auto) / sum(one.count for one in auto)
    return Findings(
        "starts",
        "What slow starts cost",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds, "step_seconds": step},
        [
            f"A step takes {step:.0f} s. Actors are started while the learner trains, so that starts cost"
            " GPU-seconds and no time as long as they are shorter than that.",
            f"A released actor's GPUs are free {RECALL:g} s later.",
            *losses(rows),
        ],
    )


def _kept(done: list[Sums]) -> float:
    """Return the share of actors that were kept, in percent."""
    actors = sum(one.actors * one.count for one in done)
    return 100.0 * sum(one.kept for one in done) / actors
