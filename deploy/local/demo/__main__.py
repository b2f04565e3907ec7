"""`python -m deploy.local.demo [--keep]`: exit status 0 if the story happened, 1 if not, 130 after Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from deploy.local import console as progress
from deploy.local.demo import cast as casting
from deploy.local.demo import report
from deploy.local.demo.left_up import not_over_another
from deploy.local.demo.picture import draw
from deploy.local.demo.stage import stage
from deploy.local.demo.story import run_story
from deploy.local.errors import PlaneError

DEFAULT_OUT = Path("build/demo")
PATIENCE_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--fresh", action="store_true", help="end a demo that was left up, and begin anew")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="folder for everything (default %(default)s)"
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds for the jobs (default %(default)g)"
    )
    parser.add_argument(
        "--queue",
        choices=("builtin", "kueue"),
        default="builtin",
        help="who queues the jobs: the pool itself, or a real Kueue (default %(default)s)",
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False)
    try:
        not_over_another(given.out, given.fresh)
        return _run(given.out, given.keep, given.patience, console, kueue=given.queue == "kueue")
    except (PlaneError, ValueError) as error:
        console.print(f"error: {error}", style="bold red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; every process of the demo was ended")
        return 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(out: Path, keep: bool, patience: float, console: Console, kueue: bool = False) -> int:
    began = time.monotonic()
    cast = casting.under_kueue(casting.load()) if kueue else casting.load()
    with (
        progress.Console() as announce,
        stage(out / "plane", cast.node_labels, announce, kueue=kueue) as built,
    ):
        ready = time.monotonic()
        outcome = run_story(built, cast, console, patience)
        facts = report.gather(outcome, [job for job, _ in cast.jobs], built)
        same, words = report.replay(built.decision_log(), out / "decisions.jsonl")
        if not same:
            facts["problems"].append(f"decision log: {words}")
        facts["secondsToReady"] = round(ready - began, 3)
        report.write(facts, out / "summary.json")
        draw(facts, out / "demo.png")
        report.print_summary(facts, console)
        console.print(f"evalstop replay: {words}", soft_wrap=True)
        for what, path in (
            ("picture", "demo.png"),
            ("facts", "summary.json"),
            ("decision log", "decisions.jsonl"),
        ):
            console.print(f"{what + ':':14}{out / path}", soft_wrap=True)
        for problem in facts["problems"]:
            console.print(f"not as it should be: {problem}", style="bold red", soft_wrap=True, markup=False)
        if facts["problems"]:
            console.print(f"the operator's last words:\n{built.operator_log()}", soft_wrap=True, markup=False)
        if keep:
            built.plane.detach()
            over = next((job["name"] for job in facts["jobs"] if job["decision"]), facts["jobs"][0]["name"])
            tour = report.looking_around(built, casting.NAMESPACE, over, cast.jobs[0][0]["spec"]["pool"])
            console.print(tour, soft_wrap=True, markup=False)
    console.print(f"the whole demo took {time.monotonic() - began:.0f} s")
    return 1 if facts["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
