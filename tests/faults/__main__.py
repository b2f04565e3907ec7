"""`python -m tests.faults`: histories of the world that tries to break it, and what was found.

--runs 100000        that many histories, on all cores; each failing one is made short and saved as a trace
--seconds 60         as many as fit (in place of --runs)
--row 4              histories in which one row's situation comes up often
--branches 10000     that many histories of one job's processes and branches, the policy alone (branches.py)
--replay FILE …      play traces and print what happens
--mutants [ROW …]    take the cure of each row away, and show what finds it (--seconds: each, in place of 600)
--ledger             what was played in all sessions so far (ledger.py); --record adds what is played now
--mutants --hunt     the same, and the machine looks for those that have a test as well
--found              which mutant is found by what; --mutants --record writes that down (found.py)
--rollouts           with --mutants or --found: those of elastic rollouts (rollout_mutants.py)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.faults import branches, cures, driver, found, ledger, mutants, rollout_mutants
from tests.faults.rows import ROWS
from tests.faults.situations import SITUATIONS

CHUNK = 50  # histories that a worker plays at a time
LEAST = 0.005  # share of histories in which each act and situation has to come up


def played(
    first: int, count: int, row: str, until: float
) -> tuple[int, Counter[str], list[tuple[int, str, str]]]:
    """Histories of the seeds from ``first``: how many, in how many each thing came up, and what failed."""
    seen: Counter[str] = Counter()
    failed = []
    number = 0
    for seed in range(first, first + count):
        if until and time.time() > until:
            break
        outcome = driver.play(*driver.drawn(seed, ROWS[row][1] if row else None))
        number += 1
        seen.update(outcome.counts.keys())
        if outcome.violation:
            failed.append((seed, outcome.kind, outcome.violation))
    return number, seen, failed


def chunks(runs: int, start: int) -> Iterator[tuple[int, int]]:
    for first in range(start, start + runs, CHUNK):
        yield first, min(CHUNK, start + runs - first)


def run(given: argparse.Namespace) -> int:
    began = time.time()
    until = began + given.seconds if given.seconds else 0.0
    runs = given.runs or 10**7
    total, seen, kinds = 0, Counter[str](), {}
    with ProcessPoolExecutor(given.jobs, initializer=driver.collect_garbage_rarely) as workers:
        waiting = []
        for first, count in chunks(runs, given.seed):
            waiting.append(workers.submit(played, first, count, given.row, until))
            while len(waiting) > 2 * given.jobs:
                total = _take(waiting.pop(0).result(), total, seen, kinds)
            if until and time.time() > until:
                break
        for one in waiting:
            total = _take(one.result(), total, seen, kinds)
    seconds = time.time() - began
    print(f"{total} histories from seed {given.seed}, {seconds:.0f} s, {total / seconds:.1f} a second")
    for what in sorted({*seen, *expected()}):
        print(f"  {seen[what] / total:7.2%}  {what}")
    if given.record:
        failures = sum(number for number, _, _ in kinds.values())
        ledger.add(ledger.HISTORIES, given.seed, given.seed + total - 1, total, failures)
    rare = [what for what in expected() if seen[what] < LEAST * total]
    if total >= 1000 and not given.row and rare:
        print(f"came up in less than {LEAST:.1%}: {', '.join(sorted(rare))}")
    for kind, (number, seed, text) in sorted(kinds.items(), key=lambda item: -item[1][0]):
        config, steps = driver.drawn(seed, ROWS[given.row][1] if given.row else None)
        steps, outcome = driver.shrink(config, steps)
        path = driver.save(config, steps, outcome, f"{outcome.violation[:2].lower()}-{seed}", given.traces)
        print(f"FOUND {number} times: {kind}\n  first by seed {seed}: {text}\n  {len(steps)} acts in {path}")
    return 1 if kinds or (total >= 1000 and not given.row and rare) else 0


def _take(result, total, seen, kinds):  # type: ignore[no-untyped-def]
    number, counts, failed = result
    seen.update(counts)
    for seed, kind, text in failed:
        known = kinds.get(kind, (0, seed, text))
        kinds[kind] = (known[0] + 1, *known[1:])
        print(f"seed {seed}: {text}", flush=True)
    return total + number


def run_branches(runs: int, start: int, jobs: int) -> int:
    """Play histories of the policy alone; return 1 if one failed."""
    began, total, failed = time.time(), 0, 0
    with ProcessPoolExecutor(jobs) as workers:
        waiting = [
            (count, workers.submit(branches.run, first, count)) for first, count in chunks(runs, start)
        ]
        for count, one in waiting:
            total += count
            for seed, what in one.result():
                failed += 1
                print(f"seed {seed}: {what}", flush=True)
            if total % 1000 == 0:
                print(f"{total} histories, {time.time() - began:.0f} s", flush=True)
    print(f"{total} histories from seed {start}, {failed} failed, {time.time() - began:.0f} s")
    return 1 if failed else 0


def expected() -> list[str]:
    """All that has to come up, whether it ever did or not."""
    return [*(f"act {name}" for name in driver.ACTS), *SITUATIONS]


def replay(paths: list[Path]) -> int:
    status = 0
    for path in paths:
        config, steps, _ = driver.load(path)
        outcome = driver.play(config, steps, talks=True)
        print(f"{path}: {config}", *outcome.log, outcome.violation or "holds", sep="\n")
        status = status or bool(outcome.violation)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--row", default="", choices=["", *ROWS])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--traces", type=Path, default=driver.TRACES)
    parser.add_argument("--branches", type=int, default=0, metavar="N")
    parser.add_argument("--replay", type=Path, nargs="+")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--found", action="store_true")
    parser.add_argument("--mutants", nargs="*", metavar="NAME")
    parser.add_argument("--hunt", action="store_true")
    parser.add_argument("--rollouts", action="store_true")
    given = parser.parse_args()
    if given.replay:
        return replay(given.replay)
    if given.branches:
        return run_branches(given.branches, given.seed, given.jobs)
    if given.ledger:
        print(*ledger.table(ledger.read()), sep="\n")
        return 0
    chosen = rollout_mutants.ROLLOUT_MUTANTS if given.rollouts else cures.MUTANTS
    path = found.ROLLOUTS if given.rollouts else found.FILE
    if given.found:
        print(*found.table(chosen, found.read(path)), sep="\n")
        return 0
    if given.mutants is not None:
        limit = given.seconds or mutants.LIMIT
        return mutants.main(
            given.mutants, given.jobs, limit, chosen, hunt=given.hunt, record=given.record, path=path
        )
    if not given.runs and not given.seconds:
        given.seconds = 60.0
    return run(given)


if __name__ == "__main__":
    sys.exit(main())
