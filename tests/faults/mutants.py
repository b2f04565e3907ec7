"""The cure of each row taken away again: what the machine must find, each within ten minutes.

A mutant is one small edit of the product's source, made in a copy of it. Where neither policy nor store holds
a cure, the test that does is named, and is run against the edited copy in place of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600.0  # s


@dataclass(frozen=True)
class Mutant:
    """``old`` in ``file`` becomes ``new``. ``test``: what finds it, where the machine cannot."""

    name: str
    row: str
    file: str
    old: str
    new: str
    test: str = ""


MUTANTS: tuple[Mutant, ...] = ()


def main(names: list[str], jobs: int) -> int:
    rows = []
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        rows.append(tried(mutant, jobs))
        print("{:4} {:36} {}".format(*rows[-1]), flush=True)
    lost = [name for _, name, how in rows if how.startswith(("NOT", "no longer"))]
    print(f"{len(rows) - len(lost)} of {len(rows)} found")
    return 1 if lost else 0


def tried(mutant: Mutant, jobs: int) -> tuple[str, str, str]:
    """(row, name, how it was found)."""
    with tempfile.TemporaryDirectory(prefix="evalstop-mutant-") as folder:
        for part in ("controller", "tests", "examples", "deploy", "sim"):
            shutil.copytree(
                ROOT / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__", "traces")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, mutant.file)
        source = path.read_text()
        if source.count(mutant.old) != 1:
            return mutant.row, mutant.name, f"no longer applies: {mutant.file}"
        path.write_text(source.replace(mutant.old, mutant.new))
        began = time.time()
        env = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        if mutant.test:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                *mutant.test.split(),
            ]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
            return (
                mutant.row,
                mutant.name,
                f"{'found' if done.returncode == 1 else 'NOT found'} by {mutant.test}",
            )
        command = [sys.executable, "-m", "tests.faults.hunt", mutant.row, str(LIMIT)]
        hunters = [
            subprocess.Popen([*command, str(n)], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
            for n in range(jobs)
        ]
        found = ""
        while hunters and not found:
            for hunter in hunters:
                if hunter.poll() is not None:
                    found = found or (hunter.stdout.read().strip() if hunter.stdout else "")
            hunters = [h for h in hunters if h.poll() is None]
            time.sleep(0.2)
        for hunter in hunters:
            hunter.terminate()
            hunter.wait()
        how = f"found in {time.time() - began:.0f} s: {found}" if found else f"NOT found in {LIMIT:.0f} s"
        return mutant.row, mutant.name, how
