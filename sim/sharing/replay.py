"""`replay`: 1,000 jobs at load 2.5 under each placement, against Isolated with backfill."""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.wording import counted
from sim.experiments.executor import Executor
from sim.experiments.findings import Column, Findings
from sim.experiments.statistics import ratio
from sim.sharing.cluster import ReplayOutcome, ReplayTrial, perform
from sim.sharing.rows import Row, losses, verdict
from sim.sharing.trace import ReplaySetting
from sim.sharing.trial import Progress

ARMS = (
    ("Isolated", False),
    ("Isolated", True),
    ("Pack", False),
    ("Pack", True),
    ("Spread", False),
    ("Spread", True),
)
BASE = ("Isolated", True)
GOALS = {False: 0.65, True: 0.80}  # makespan, by whether private GPUs are scarce, too
MOST_SLOWED, MOST_P95 = 0.20, 1.15

COLUMNS = (
    Column("what", "placement", "text"),
    Column("makespan", "makespan, of Isolated with backfill", "number"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
    Column("completion", "mean completion", "number"),
    Column("waited", "mean wait", "number"),
    Column("slowed", "jobs over 10 % slower"),
    Column("p95", "slow-down, p95", "number"),
    Column("slow_goal", "goal", "text"),
    Column("slow_met", "", "text"),
    Column("preempted", "preempted", "number"),
)


def replay(
    setting: ReplaySetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    trials = [
        ReplayTrial(setting, placement, backfill, private, seed)
        for private in (False, True)
        for placement, backfill in ARMS
        for seed in range(seeds)
    ]
    done: list[ReplayOutcome] = []
    for one in executor.map(perform, trials):
        done.append(one)
        if progress is not None:
            progress(len(done), len(trials))
    rows: list[Row] = []
    for i, private in enumerate((False, True)):
        found = {
            arm: done[(i * len(ARMS) + j) * seeds : (i * len(ARMS) + j + 1) * seeds]
            for j, arm in enumerate(ARMS)
        }
        rows += [_row(arm, outcomes, found[BASE], private) for arm, outcomes in found.items()]
    turns = sum(one.turns for one in done)
    return Findings(
        "replay",
        f"{counted(setting.jobs, 'job')} at load {setting.load:g}, against Isolated with backfill",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds, "turns": turns},
        [
            f"{counted(seeds, 'trace')}; the load is work alone over what {counted(setting.gpus, 'GPU')} "
            "can do while jobs arrive. Training GPUs scarce: private ones are plenty. All scarce: both "
            "come from the same GPUs.",
            "The trace is ours (sim/sharing/trace.py); the paper's is not public. It reports 70, 65 and 56 %"
            " for Pack, Spread and Spread with backfill, all against Isolated without.",
            "Above load 1 the mean completion tells how long the trace is; the makespan does not.",
            losses(rows),
        ],
    )


def _row(
    arm: tuple[str, bool], outcomes: Sequence[ReplayOutcome], base: Sequence[ReplayOutcome], private: bool
) -> Row:
    placement, backfill = arm
    makespan = ratio([one.makespan for one in outcomes], [one.makespan for one in base])
    slow = sorted(value for one in outcomes for value in one.slowdowns)
    slowed = sum(value > 1.10 for value in slow) / len(slow)
    p95 = slow[min(len(slow) - 1, int(0.95 * len(slow)))]
    shares = placement != "Isolated" and backfill
    return {
        "what": f"{placement}{', backfill' if backfill else ''};"
        f" {'all GPUs' if private else 'training GPUs'} scarce",
        "makespan": makespan,
        "goal": f"at most {GOALS[private]:g}" if shares else None,
        "met": verdict(makespan.value <= GOALS[private]) if shares else None,
        "completion": ratio([one.completion for one in outcomes], [one.completion for one in base]),
        "waited": ratio([one.waited for one in outcomes], [one.waited for one in base]),
        "slowed": slowed,
        "p95": p95,
        "slow_goal": f"at most {100 * MOST_SLOWED:g} %, {MOST_P95:g}" if shares else None,
        "slow_met": verdict(slowed <= MOST_SLOWED and p95 <= MOST_P95) if shares else None,
        "preempted": sum(one.preempted for one in outcomes) / len(outcomes),
    }
