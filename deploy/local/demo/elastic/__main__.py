"""`python -m deploy.local.demo.elastic`: exit status 0 if the story happened, 1 if not, 130 after Ctrl-C.

A goal that is missed is said and is no failure: times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.local import console as progress
from deploy.local.demo import jobs_story
from deploy.local.demo.elastic.cast import GPUS, NODES, POOL, pool
from deploy.local.demo.elastic.story import KEPT, Result, Story, rows
from deploy.local.demo.jobs_stage import NAMESPACE, stage
from deploy.local.demo.told import looking_around
from deploy.local.plane import Plane

ACTS = ("alone", "shared", "gang")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the story itself."""
    parser.add_argument("--runs", type=int, default=3, help="runs of each arm (default %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a run, 3 to 8 (default %(default)s)")
    parser.add_argument("--train-seconds", type=float, default=30.0, help="that a step trains (default 30)")
    parser.add_argument("--act", choices=ACTS, action="append", help="only this act; repeatable")


def check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Exit with a message where one of these is not right."""
    if given.runs < 1 or not 3 <= given.steps <= 8:
        parser.error("--runs: expected at least 1; --steps: expected 3 to 8, as many as a status keeps")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.demo.elastic", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo-elastic"), help="folder for everything")
    options(parser)
    given = jobs_story.parsed(
        parser,
        arguments,
        left="an elastic run on it",
        lacks="rollout actors, as it does not place them",
    )
    check(parser, given)
    return jobs_story.run("elastic", given, _play, rows)


def _play(given: argparse.Namespace) -> jobs_story.Played[Result]:
    with progress.Console() as announce, stage(given.out / "plane", announce, pool(), NODES, GPUS) as built:
        story = Story(built, announce, given.runs, given.steps, given.train_seconds)
        acts = [getattr(story, act) for act in given.act or ACTS]
        return jobs_story.acted(built, given, story.result, acts, story.leave_a_run, tour_of)


def tour_of(plane: Plane, job: str = KEPT) -> str:
    """Return lines to paste for a cluster that is left up, on which ``job`` runs."""
    return looking_around(
        plane,
        [
            f"evalstop rollouts {job} -n {NAMESPACE} -w",
            f"evalstop why {job} -n {NAMESPACE}",
            f"evalstop pools {POOL} -o wide",
            f"kubectl -n {NAMESPACE} get pods -o wide -l evalstop.dev/component=actor",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
