"""What the world and the real runs have found so far, session after session: runs.json, and its table.

`python -m tests.faults --record …` and `python -m tests.bench faults --record …` add a line each; what became
of what they found is written into ``became`` by hand once it is known. The page docs/reports/fault-runs.md
shows the table that `python -m tests.faults --ledger` prints.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
LEDGER = HERE / "runs.json"
RECORDS = ("faults/runs.json", "faults/mutants.json")
HISTORIES, REAL = "histories", "real runs"
OPEN = "not looked into yet"
GOALS = {HISTORIES: 100_000, REAL: 1_000}


@dataclass(frozen=True)
class Entry:
    """One round of them.

    Attributes:
        what: `HISTORIES` or `REAL`.
        commit: at which they ran; where several were used on the way, the first and the last.
        first, last: seeds.
        runs: how many were played to their end.
        failures: of these.
        became: of the failures, in words.
    """

    what: str
    commit: str
    first: int
    last: int
    runs: int
    failures: int
    became: str = ""


def read(path: Path = LEDGER) -> list[Entry]:
    """Return the entries, the oldest first."""
    return [Entry(**entry) for entry in json.loads(path.read_text())]


def add(what: str, first: int, last: int, runs: int, failures: int, path: Path = LEDGER) -> None:
    """Add a round that was played at the commit that is checked out here; a "+": with changes to it."""
    entry = Entry(what, commit(), first, last, runs, failures, OPEN if failures else "")
    lines = [json.dumps(asdict(one)) for one in (*read(path), entry)]
    path.write_text("[\n " + ",\n ".join(lines) + "\n]\n")


def commit() -> str:
    """Return the commit that is checked out here; with a "+" if files differ from it, but for the records."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=HERE, capture_output=True, text=True, check=True).stdout

    try:
        changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith(RECORDS)]
        return git("rev-parse", "--short=8", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def table(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the lines of the table, and of the sums."""
    entries = list(entries)
    for what, goal in GOALS.items():
        mine = [e for e in entries if e.what == what]
        yield f"| {what} | seeds | commit | failures | what became of them |"
        yield "|---:|---|---|---:|---|"
        for e in mine:
            yield f"| {e.runs:,} | {e.first} to {e.last} | {e.commit} | {e.failures} | {e.became} |"
        runs, failures = sum(e.runs for e in mine), sum(e.failures for e in mine)
        yield f"| **{runs:,}** of {goal:,} | | | **{failures}** | |"
        yield ""
