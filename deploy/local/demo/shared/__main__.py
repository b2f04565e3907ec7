"""`python -m deploy.local.demo.shared`: exit status 0 if the story happened, 1 if not, 130 after Ctrl-C.

A goal that is missed is said and is no failure: times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from deploy.local import console as progress
from deploy.local.demo.jobs_stage import NAMESPACE, stage
from deploy.local.demo.left_up import not_over_another
from deploy.local.demo.shared.cast import ALONE, ARMS, GPUS, SHARED, job_name, pool
from deploy.local.demo.shared.findings import Result, lanes, rows
from deploy.local.demo.shared.story import Story
from deploy.local.demo.told import looking_around, told
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane

MOST_JOBS = 3  # as many residents as a group has by default


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.demo.shared", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo-shared"), help="folder for everything")
    parser.add_argument("--jobs", type=int, default=2, help="jobs of each arm, 2 or 3 (default %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of a job (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, with runs that share")
    parser.add_argument("--fresh", action="store_true", help="end a demo that was left up, and begin anew")
    parser.add_argument(
        "--queue",
        choices=("builtin", "kueue"),
        default="builtin",
        help="who queues the jobs: the pool itself",
    )
    given = parser.parse_args(arguments)
    if given.queue == "kueue":
        parser.error("--queue kueue: a pool whose delegate is Kueue has no worker groups; leave QUEUE out")
    if not 2 <= given.jobs <= MOST_JOBS:
        parser.error(f"--jobs: {given.jobs}, expected 2 to {MOST_JOBS}, as many as a group takes")
    if given.steps < 25:
        parser.error(f"--steps: {given.steps}, expected at least 25: a kind of jobs is measured for up to 20")
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False)
    began = time.monotonic()
    try:
        not_over_another(given.out, given.fresh, "shared")
        result, decisions, tour = _play(given)
    except PlaneError as error:
        console.print(f"error: {error}", style="bold red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; every process of the demo was ended")
        return 130
    console.print("turns in the shared group, 0.4 s a character (#: holds it, ~: a switch to it):")
    for line in lanes(result.arms[SHARED].turns, [job_name(SHARED, i) for i in range(1, given.jobs + 1)]):
        console.print(line, soft_wrap=True, markup=False)
    told(rows(result), result.problems, decisions, console)
    summary = _write(result, given.out)
    for problem in result.problems:
        console.print(f"not as it should be: {problem}", style="bold red", soft_wrap=True, markup=False)
    if tour:
        console.print(tour, soft_wrap=True, markup=False)
    console.print(f"facts: {summary}; the whole story took {time.monotonic() - began:.0f} s")
    return 1 if result.problems else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _play(given: argparse.Namespace) -> tuple[Result, Path, str]:
    checkpoints = (given.out / "checkpoints").resolve()
    shutil.rmtree(checkpoints, ignore_errors=True)  # a trainer goes on from what it finds
    device = Path(tempfile.mkdtemp(prefix="evalstop-demo-", dir="/dev/shm"))
    kept = False
    try:
        with (
            progress.Console() as announce,
            stage(given.out / "plane", announce, pool(ALONE, device), 1, GPUS) as built,
        ):
            story = Story(built, announce, device, checkpoints, given.jobs, given.steps)
            for arm in ARMS:
                story.play(arm)
                _write(story.result, given.out)  # the later arm may fail
            tour, decisions = "", built.decisions
            if given.keep:
                decisions = Path(shutil.copy(built.decisions, given.out))  # that one goes on
                story.leave_runs()
                tour = tour_of(built.plane)
                built.plane.detach()
                kept = True
        return story.result, decisions, tour
    finally:
        if not kept:
            shutil.rmtree(device, ignore_errors=True)


def _write(result: Result, out: Path) -> Path:
    """Write what was found so far; return the file."""
    summary = out / "summary.json"
    summary.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    return summary


def tour_of(plane: Plane) -> str:
    """Return lines to paste for a cluster that is left up, on which runs take turns."""
    return looking_around(
        plane,
        [
            "kubectl -n evalstop-workers get wgr",
            "evalstop groups -w",
            f"evalstop why run-1 -n {NAMESPACE}",
            f"evalstop top -n {NAMESPACE}",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
