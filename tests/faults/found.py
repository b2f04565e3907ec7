"""What finds each mutant: mutants.json, and its table.

`python -m tests.faults --mutants --record` writes a line for each mutant that it tries;
docs/reports/fault-mutants.md shows the table that `python -m tests.faults --found` prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.cures import Mutant
from tests.faults.ledger import commit

HERE = Path(__file__).parent
FILE, ROLLOUTS = HERE / "mutants.json", HERE / "rollout_mutants.json"
NOT_TRIED = "not tried yet"


@dataclass(frozen=True)
class Found:
    """``how`` a mutant was found, or that it was not, in the words of `mutants.try_out`; at which commit."""

    name: str
    how: str
    commit: str


def read(path: Path = FILE) -> dict[str, Found]:
    """Return what is on record, by the mutant's name."""
    entries = json.loads(path.read_text()) if path.exists() else []
    return {entry["name"]: Found(**entry) for entry in entries}


def add(mutant: Mutant, how: str, path: Path = FILE) -> None:
    """Record how a mutant was found at the commit that is checked out here; a "+": with changes to it."""
    known = read(path) | {mutant.name: Found(mutant.name, how, commit())}
    lines = [json.dumps(asdict(known[name])) for name in sorted(known)]
    path.write_text("[\n " + ",\n ".join(lines) + "\n]\n")


def table(mutants: Sequence[Mutant], found: dict[str, Found]) -> Iterator[str]:
    """Yield the lines of the table, in the order of rows, and of its sums."""
    yield "| row | what is taken away | found by | commit |"
    yield "|---:|---|---|---|"
    for mutant in sorted(mutants, key=lambda one: int(one.row)):
        one = found.get(mutant.name, Found(mutant.name, NOT_TRIED, ""))
        yield f"| {mutant.row} | {mutant.name} | {_short(one.how)} | {one.commit} |"
    yield ""
    yield from _sums([found[mutant.name].how for mutant in mutants if mutant.name in found])


def _short(how: str) -> str:
    """In the table's words: without the violation's text, and with a test's name alone."""
    if seconds := re.match(r"found in (\d+) s, seed (\d+): (S\d)", how):
        return "the machine in {} s, seed {}: {}".format(*seconds.groups())
    if tests := re.match(r"found by (.*?)(; by the machine.*)?$", how):
        names = (test.rpartition("/")[2].replace(".py::", "::") for test in tests[1].split())
        return " ".join(f"`{name}`" for name in names)
    return how.replace("|", "/")


def _sums(how: Iterable[str]) -> Iterator[str]:
    how = list(how)
    machine = [int(m[1]) for one in how if (m := re.match(r"found in (\d+) s", one))]
    tests = sum(1 for one in how if one.startswith("found by"))
    lost = len(how) - len(machine) - tests
    longest = ""
    if machine:
        longest = f", after {sorted(machine)[len(machine) // 2]} s in the median, {max(machine)} s at most"
    yield f"{len(machine)} found by the machine{longest}; {tests} by a test; {lost} not found."
