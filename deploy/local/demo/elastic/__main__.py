"""`python -m deploy.local.demo.elastic`: exit status 0 if the story happened, 1 if not, 130 after Ctrl-C.

A goal that is missed is said and is no failure: times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from deploy.local import console as progress
from deploy.local.demo.elastic.cast import GPUS, NODES, POOL, pool
from deploy.local.demo.elastic.story import KEPT, Result, Story, rows
from deploy.local.demo.jobs_stage import NAMESPACE, stage
from deploy.local.demo.left_up import not_over_another
from deploy.local.demo.told import looking_around, told
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane

ACTS = ("alone", "shared", "gang")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.demo.elastic", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo-elastic"), help="folder for everything")
    parser.add_argument("--runs", type=int, default=3, help="runs of each arm (default %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a run, 3 to 8 (default %(default)s)")
    parser.add_argument("--train-seconds", type=float, default=30.0, help="that a step trains (default 30)")
    parser.add_argument("--act", choices=ACTS, action="append", help="only this act; repeatable")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, with an elastic run on it")
    parser.add_argument("--fresh", action="store_true", help="end a demo that was left up, and begin anew")
    parser.add_argument(
        "--queue",
        choices=("builtin", "kueue"),
        default="builtin",
        help="who queues the jobs: the pool itself",
    )
    given = parser.parse_args(arguments)
    if given.queue == "kueue":
        parser.error(
            "--queue kueue: a pool whose delegate is Kueue has no rollout actors, as it does not place them; "
            "leave QUEUE out"
        )
    if given.runs < 1 or not 3 <= given.steps <= 8:
        parser.error("--runs: expected at least 1; --steps: expected 3 to 8, as many as a status keeps")
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False)
    began = time.monotonic()
    try:
        not_over_another(given.out, given.fresh, "elastic")
        result, decisions, tour = _play(given)
    except PlaneError as error:
        console.print(f"error: {error}", style="bold red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; every process of the demo was ended")
        return 130
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
    with progress.Console() as announce, stage(given.out / "plane", announce, pool(), NODES, GPUS) as built:
        story = Story(built, announce, given.runs, given.steps, given.train_seconds)
        for act in given.act or ACTS:
            getattr(story, act)()
            _write(story.result, given.out)  # a later act may fail
        tour, decisions = "", built.decisions
        if given.keep:
            decisions = Path(shutil.copy(built.decisions, given.out))  # that one goes on
            story.leave_a_run()
            tour = tour_of(built.plane, KEPT)
            built.plane.detach()
    return story.result, decisions, tour


def _write(result: Result, out: Path) -> Path:
    """Write what was found so far; return the file."""
    summary = out / "summary.json"
    summary.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    return summary


def tour_of(plane: Plane, job: str) -> str:
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
