"""CPU of one eval from its scrape to its decision, now and at an earlier commit, side by side.

Two processes, each with the code of its own tree, have the same runs in one pool and see the same evals, in
turn round by round, so that whatever else the machine does falls on both. The ratio is that of the median
round.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.rows import Row

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "f6ce8f5c"  # the commit at which the rooms of policy and operator were begun
GOAL = 0.8
JOBS = int(os.environ.get("EVALSTOP_BENCH_JOBS", "100"))
ROUNDS = int(os.environ.get("EVALSTOP_BENCH_ROUNDS", "30"))
WARM = 5  # rounds that are not counted: caches fill, and lists of evals


class Side:
    """A process with one tree's operator."""

    def __init__(self, tree: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "clients" / "python"))),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).parent / "pass_side.py")],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Return the answer to one line. Raises RuntimeError: the process ended, after words on stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the operator of {self._process.args!r} ended: {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a tree of this repository at a commit; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="evalstop-before-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def run(progress: Callable[[str], None], jobs: int = JOBS, rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield CPU per eval of the job pass, of the pool pass and of both; baseline: the commit before."""
    with checkout(BEFORE) as tree, contextlib.ExitStack() as stack:
        sides = [Side(tree), Side(ROOT)]
        for side in sides:
            stack.callback(side.close)
            side.ask(jobs=jobs)
        found: list[tuple[dict[str, Any], ...]] = []
        for number in range(1, WARM + rounds + 1):
            order = sides if number % 2 else sides[::-1]
            answers = {id(side): side.ask(round=number) for side in order}
            before, after = (answers[id(side)] for side in sides)
            if not before["steps"] == after["steps"] == [10 * number] * jobs:
                raise RuntimeError(f"round {number}: the two have not taken in the same evals")
            if number > WARM:
                found.append((before, after))
                progress(f"{number - WARM} of {rounds} rounds")
    parts: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
        ("job pass", lambda one: one["job"]),
        ("pool pass", lambda one: one["pool"]),
        ("both", lambda one: one["job"] + one["pool"]),
    )
    for name, of in parts:
        ratio = statistics.median(of(after) / of(before) for before, after in found)
        old = statistics.median(of(before) for before, _ in found) * 1e3
        goal = f", goal {GOAL}" if name == "both" else ""
        yield Row(f"pass: {name}, an eval, pool of {jobs} runs{goal}", ratio * old, "ms", old)
