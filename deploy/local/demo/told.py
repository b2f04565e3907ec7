"""The end of a story of jobs: what was found beside its goals, and whether its decisions are made again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deploy.local.agent.images import REPOSITORY
from deploy.local.plane import Plane


@dataclass(frozen=True)
class Row:
    """One line of the report. ``met``: None where there is no goal."""

    what: str
    found: str
    goal: str = ""
    met: bool | None = None


def told(rows: Sequence[Row], problems: list[str], decisions: Path, console: Console) -> None:
    """Print rows, and what `evalstop replay` says of the decision log; if it finds a decision that comes out
    otherwise, that is one more problem."""
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli", "replay", str(decisions)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    words = " ".join((done.stdout + done.stderr).strip().splitlines()[-1:])
    if done.returncode != 0:
        problems.append(f"decision log: {words}")
    for row in rows:
        goal = "" if row.met is None else f"  goal {row.goal}: {'met' if row.met else 'not met'}"
        console.print(f"{row.what}: {row.found}{goal}", soft_wrap=True, markup=False)
    console.print(f"evalstop replay: {words}", soft_wrap=True, markup=False)


def looking_around(plane: Plane, commands: Sequence[str]) -> str:
    """Return lines to paste for a cluster that is left up: how it is reached, some commands, how it ends."""
    binary, ours = plane.work / "bin" / "kubectl", Path(sys.executable).parent / "evalstop"
    return "\n".join(
        [
            "The cluster is left up. Look around, as you would at home:",
            f"  export KUBECONFIG={plane.kubeconfig}; alias kubectl={binary} evalstop={ours}",
            *(f"  {one}" for one in commands),
            f"End it: {sys.executable} -m deploy.local down --work {plane.work}",
        ]
    )
