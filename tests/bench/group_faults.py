"""`python -m tests.bench group-faults --runs N`: random faults from outside on groups of real processes.

`--scene NAME` plays a scene on a control plane instead, with trainers: closing, deleted,
preemption, volume, or all.
"""

from __future__ import annotations

import argparse

from tests.group.random_faults import run

# Goals of medians, s: until others' turns go on.
GOALS = {"worker killed": 1.0, "supervisor killed": 5.0}


def main(arguments: list[str]) -> int:
    """Print what came of it; return 0: nothing was wrong and the goals are met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench group-faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, metavar="N", help="faults, default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the first run, default %(default)s")
    parser.add_argument(
        "--each", type=int, default=100, metavar="N", help="faults of one group, default %(default)s"
    )
    parser.add_argument(
        "--scene",
        choices=("closing", "deleted", "preemption", "volume", "all"),
        help="play this scene on a control plane instead",
    )
    given = parser.parse_args(arguments)
    if given.scene is not None:
        return _scenes(given.scene)
    faults, turns, lost, opens = 0, 0, 0, 0
    wrong: list[str] = []
    kinds: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    for number, left in enumerate(range(given.runs, 0, -given.each)):
        outcome = run(min(given.each, left), given.seed + number, lambda line: print(f"  {line}", flush=True))
        faults += outcome.faults.total()
        turns, lost, opens = turns + outcome.turns, lost + outcome.lost, opens + outcome.opens
        wrong += outcome.wrong
        for kind, found in outcome.seconds.items():
            seconds.setdefault(kind, []).extend(found)
        for kind, count in outcome.faults.items():
            kinds[kind] = kinds.get(kind, 0) + count
        print(f"seed {given.seed + number}: {faults} faults, {turns} turns released, {lost} lost", flush=True)
    print(f"{faults} faults, {turns} turns released, {lost} lost, devices opened {opens} times")
    print("until another's turn goes on, s: median, 90 %, longest")
    for kind, found in sorted(seconds.items()):
        found.sort()
        goal = f"  goal of the median {GOALS[kind]:g}" if kind in GOALS else ""
        times = "".join(f" {found[at]:6.2f}" for at in (len(found) // 2, len(found) * 9 // 10, -1))
        print(f"  {kind:20} {kinds[kind]:5} {times}{goal}")
    for line in wrong:
        print(f"WRONG {line}")
    # A goal that nothing was measured for is not met.
    missed = [kind for kind, goal in GOALS.items() if not seconds.get(kind) or _median(seconds[kind]) > goal]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if wrong or missed else 0


def _scenes(name: str) -> int:
    from tests.bench import group_scenes  # of the tests' own folder, which others need not have on their path

    names = list(group_scenes.SCENES) if name == "all" else [name]
    wrong = group_scenes.run(names, lambda line: print(line, flush=True))
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


def _median(found: list[float]) -> float:
    return sorted(found)[len(found) // 2]
