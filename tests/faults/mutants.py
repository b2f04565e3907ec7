"""Each cure taken away again (`cures`), one after the other: whether that is found.

A mutant is made in a copy of the repository. Histories are played with it until one fails that holds without
it, for ten minutes at most; so what fails today anyway finds nothing. Where a test is named, it has to pass
without the mutant and to fail with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.faults import driver, found
from tests.faults.cures import MUTANTS, Mutant
from tests.faults.rows import ROWS, focus_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600.0  # s
HELD = ("controller/policy/", "controller/checkpoints/")  # what the world runs of the product
COPIED = ("controller", "tests", "examples", "deploy", "sim", "clients", "crds")
LEFT_OUT = (".git", ".venv", "build")
FOUND, LOST, OLD = "found", "NOT found", "no longer applies"


def main(
    names: Sequence[str],
    jobs: int,
    limit: float = LIMIT,
    mutants: Sequence[Mutant] = MUTANTS,
    hunt: bool = False,
    record: bool = False,
    path: Path = found.FILE,
) -> int:
    """Try all mutants, or those of these names or rows; 1 if one is not found.

    ``hunt``: the machine is set on those that have a test as well, where policy or store hold the cure.
    ``record``: how each was found is written down (found.py), in ``path``.
    """
    lost = tried = 0
    for mutant in mutants:
        if names and not {mutant.name, mutant.row} & set(names):
            continue
        how = try_out(mutant, jobs, limit, hunt)
        tried, lost = tried + 1, lost + (not how.startswith(FOUND))
        print(f"{mutant.row:>2}  {mutant.name}: {how}", flush=True)
        if record:
            found.add(mutant, how, path)
    print(f"{tried - lost} of {tried} found")
    return 1 if lost else 0


def try_out(mutant: Mutant, jobs: int, limit: float = LIMIT, hunt: bool = False) -> str:
    """How it was found, or that it was not."""
    with copy_of_all() as folder:
        path = folder / mutant.file
        source = path.read_text() if path.exists() else ""
        if source.count(mutant.old) != 1:
            return f"{OLD}: {mutant.file} has {source.count(mutant.old)} of {mutant.old!r}"
        path.write_text(source.replace(mutant.old, mutant.new))
        if not mutant.test:
            return _by_machine(mutant.row, folder, jobs, limit)
        how = _by_test(mutant.test, folder)
        if hunt and mutant.row in ROWS and mutant.file.startswith(HELD):
            how += f"; by the machine: {_by_machine(mutant.row, folder, jobs, limit)}"
        return how


def _by_test(test: str, folder: Path) -> str:
    if not _passes(test):
        return f"{LOST}: {test} fails without it too"
    code = _pytest(test, folder)
    if code == 0:
        return f"{LOST} by {test}"
    return f"{FOUND} by {test}" if code == 1 else f"{LOST}: {test} cannot be run with it (pytest: {code})"


@cache
def _passes(test: str) -> bool:
    with copy_of_all() as folder:
        return _pytest(test, folder) == 0


def _pytest(test: str, folder: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *test.split()]
    return subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True).returncode


def _by_machine(row: str, folder: Path, jobs: int, limit: float) -> str:
    began = time.time()
    command = [sys.executable, "-m", "tests.faults.hunt", row, str(limit)]
    reports = [folder / f"hunter-{number}" for number in range(jobs)]
    hunters = []
    for number, report in enumerate(reports):
        with report.open("w") as file:
            more = [*command, str(number)]
            hunters.append(subprocess.Popen(more, cwd=folder, env=_environment(folder), stdout=file))
    looked_at: set[str] = set()
    try:
        while True:
            over = all(hunter.poll() is not None for hunter in hunters)
            for line in [line for report in reports for line in report.read_text().splitlines(keepends=True)]:
                if line.endswith("\n") and line not in looked_at:
                    looked_at.add(line)
                    seed, violation = line.rstrip().split(" ", 1)
                    if not driver.play(*driver.drawn(int(seed), focus_of(row, int(seed)))).violation:
                        return f"{FOUND} in {time.time() - began:.0f} s, seed {seed}: {violation}"
            if over:
                failed = [hunter.returncode for hunter in hunters if hunter.returncode]
                told = f" (a hunter ended with {failed[0]})" if failed else ""
                return f"{LOST} in {time.time() - began:.0f} s{told}"
            time.sleep(0.2)
    finally:
        for hunter in hunters:
            hunter.kill()
            hunter.wait()


@contextmanager
def copy_of_all() -> Iterator[Path]:
    """A copy of the repository to be edited; what nobody edits is linked."""
    with tempfile.TemporaryDirectory(prefix="evalstop-mutant-") as name:
        folder = Path(name)
        for entry in ROOT.iterdir():
            if entry.name in COPIED:
                shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif entry.name not in LEFT_OUT:
                (folder / entry.name).symlink_to(entry)
        yield folder


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'clients' / 'python'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
