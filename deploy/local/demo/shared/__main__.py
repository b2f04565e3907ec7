"""`python -m deploy.local.demo.shared`: exit status 0 if the story happened, 1 if not, 130 after Ctrl-C.

A goal that is missed is said and is no failure: times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from deploy.local import console as progress
from deploy.local.demo import jobs_story
from deploy.local.demo.jobs_stage import NAMESPACE, stage
from deploy.local.demo.shared.cast import ALONE, ARMS, GPUS, SHARED, Folders, job_name, pool
from deploy.local.demo.shared.findings import Result, lanes, rows
from deploy.local.demo.shared.story import Story
from deploy.local.demo.told import looking_around
from deploy.local.plane import Plane

MOST_JOBS = 3  # as many residents as a group has by default


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the story itself."""
    parser.add_argument("--jobs", type=int, default=2, help="jobs of each arm, 2 or 3 (default %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of a job (default %(default)s)")


def check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Exit with a message where one of these is not right."""
    if not 2 <= given.jobs <= MOST_JOBS:
        parser.error(f"--jobs: {given.jobs}, expected 2 to {MOST_JOBS}, as many as a group takes")
    if given.steps < 25:
        parser.error(f"--steps: {given.steps}, expected at least 25: a kind of jobs is measured for up to 20")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.demo.shared", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo-shared"), help="folder for everything")
    options(parser)
    given = jobs_story.parsed(parser, arguments, left="runs that share", lacks="worker groups")
    check(parser, given)
    return jobs_story.run("shared", given, _play, rows, pictured)


def _play(given: argparse.Namespace) -> jobs_story.Played[Result]:
    checkpoints = (given.out / "checkpoints").resolve()
    shutil.rmtree(checkpoints, ignore_errors=True)  # a trainer goes on from what it finds
    device = Path(tempfile.mkdtemp(prefix="evalstop-demo-", dir="/dev/shm"))
    kept = False
    try:
        with (
            progress.Console() as announce,
            stage(given.out / "plane", announce, pool(ALONE, device), 1, GPUS) as built,
        ):
            story = Story(built, announce, Folders(device, checkpoints, checkpoints), given.jobs, given.steps)
            arms = [partial(story.play, arm) for arm in ARMS]
            tour = partial(tour_of, queue=built.queue)
            played = jobs_story.acted(built, given, story.result, arms, story.leave_runs, tour)
            kept = given.keep
        return played
    finally:
        if not kept:
            shutil.rmtree(device, ignore_errors=True)


def pictured(result: Result) -> list[str]:
    """Return the turns of the shared group as lines."""
    jobs = [job_name(SHARED, number) for number in range(1, result.jobs + 1)]
    return [
        "turns in the shared group, 0.4 s a character (#: holds it, ~: a switch to it):",
        *lanes(result.arms[SHARED].turns, jobs),
    ]


def tour_of(plane: Plane, queue: str) -> str:
    """Return lines to paste for a cluster that is left up, on which runs take turns.

    Args:
        plane: the cluster.
        queue: address of the operator's queue API, which alone knows turns. The operator is a process there:
            no port can be forwarded to it.
    """
    return looking_around(
        plane,
        [
            "kubectl -n evalstop-workers get wgr",
            f"evalstop groups -w --url {queue}",
            f"evalstop why run-1 -n {NAMESPACE}",
            f"evalstop top -n {NAMESPACE}",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
