"""`python -m deploy.kind [demo|elastic|shared|up|test|parity|down]`: EvalStop on a kind cluster.

demo: make the cluster if it is not there, build and load the images, install the chart with the second
kube-scheduler, run the sample jobs, and draw what happened. elastic, shared: instead of these jobs the story
of rollout actors or of worker groups (what follows are its options). up: the same without jobs. test: make
the cluster, load the images, and run the cluster tests on it (what follows goes to pytest). parity: replay a
trace on it and in the simulator (what follows goes to `evalstop parity`). down: delete it.
Exit status 0 if the story happened, 1 if not, 130 after Ctrl-C.

From the environment: KIND_CLUSTER (evalstop), KIND_NODE_IMAGE (kind's own), and those of the images, which
are built for a trial (deploy/images/build.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from controller.names import OPERATOR_IMAGE, TRAINER_IMAGE
from deploy.helm.cluster import ChartCluster
from deploy.images import build
from deploy.kind import parity, stories, testing
from deploy.kind import stage as staging
from deploy.kind.nodes import GPUS, Kind, settings
from deploy.local import console as progress
from deploy.local.demo import cast as casting
from deploy.local.demo import report
from deploy.local.demo.picture import draw
from deploy.local.demo.story import run_story
from deploy.local.errors import PlaneError
from deploy.local.report import Report

DEFAULT_WORK = Path("build/kind")
PATIENCE_S = 600.0


def arguments() -> argparse.ArgumentParser:
    """Return the reader of this program's arguments."""
    parser = argparse.ArgumentParser(prog="python -m deploy.kind", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=("demo", *stories.STORIES, "up", "test", "parity", "down"), default="demo"
    )
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="folder (default %(default)s)")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds for the jobs (default %(default)g)"
    )
    parser.add_argument("--keep-images", action="store_true", help="use the images that the nodes have")
    parser.add_argument("--gpus", type=int, help="that each worker counts (default: 4; 16 for parity)")
    parser.add_argument("more", nargs="*", help="for test: arguments of pytest; for the others: their own")
    return parser


def main() -> int:
    given = arguments().parse_args()
    usual = {"parity": parity.GPUS} | {story: each for story, (_, each) in stories.NODES.items()}
    gpus = given.gpus or usual.get(given.what, GPUS)
    if given.what in stories.STORIES:
        stories.parsed(given.what, given.more)  # before a cluster is made for it
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False)
    name, image = settings()
    try:
        with progress.Console() as announce:
            kind = Kind(name, given.work.absolute(), image, announce, gpus)
            if given.what == "down":
                kind.down()
                return 0
            if given.what == "test":
                cluster, _ = _with_images(kind, announce, given.keep_images)
                return testing.run(kind, cluster, announce, given.more, given.keep_images)
            if given.what == "parity":
                cluster, identity = _with_images(kind, announce, given.keep_images)
                return parity.run(staging.KindStage(kind, cluster), identity, announce, given.more)
            if given.what in stories.STORIES:
                cluster, identity = _with_images(kind, announce, given.keep_images)
                return stories.play(given.what, kind, cluster, identity, announce, given.more)
            stage, cast, seconds, began = _up(kind, announce, given.keep_images)
            if given.what == "demo":
                return _demo(stage, cast, seconds, began, given.work, given.patience, console)
            announce(f"export KUBECONFIG={stage.kubeconfig}")
            return 0
    except (PlaneError, ValueError) as error:
        console.print(f"error: {error}", style="bold red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the cluster is left as it is (`make kind-down` deletes it)")
        return 130


def _with_images(kind: Kind, announce: Report, keep: bool) -> tuple[ChartCluster, str]:
    """Return the cluster with the images on its nodes, and the id of the operator's."""
    if not keep:
        announce("building the images …")
        build.build({**os.environ, "TRIAL": "1"})  # nobody but this cluster runs them
    images = build.identities()
    cluster = kind.up()
    if not keep:
        kind.load(build.OUT / build.ARCHIVE)
    return cluster, images[build.tagged(OPERATOR_IMAGE)]


def _up(kind: Kind, announce: Report, keep: bool) -> tuple[staging.KindStage, casting.Cast, float, float]:
    """Return the cluster with everything installed; seconds that the installation took, and when it began."""
    cluster, identity = _with_images(kind, announce, keep)
    scenes = casting.load()
    pools = [d for d in scenes.supplies if d["kind"] == "GPUPool"]
    stage = staging.KindStage(kind, cluster)
    began = time.time()
    seconds = staging.install(stage, pools, identity)
    announce(f"the chart is installed and all its pods are ready after {seconds:.1f} s")
    return stage, staging.fitted(scenes, build.tagged(TRAINER_IMAGE)), seconds, began


def _demo(
    stage: staging.KindStage,
    cast: casting.Cast,
    seconds: float,
    began: float,
    out: Path,
    patience: float,
    console: Console,
) -> int:
    stage.cluster.kubectl("delete", "rlhfjobs", "--all", "-n", casting.NAMESPACE, "--ignore-not-found")
    outcome = run_story(stage, cast, console, patience)
    facts = report.gather(outcome, [job for job, _ in cast.jobs], stage)
    same, words = report.replay(stage.decision_log(), out / "decisions.jsonl")
    if not same:
        facts["problems"].append(f"decision log: {words}")
    admissions = [c.admission.at for c in outcome.chronicles if c.admission is not None]
    facts["secondsToInstall"] = round(seconds, 3)
    facts["secondsFromInstallToFirstAdmission"] = round(min(admissions) - began, 3) if admissions else None
    report.write(facts, out / "summary.json")
    draw(facts, out / "kind.png")
    report.print_summary(facts, console)
    console.print(f"evalstop replay: {words}", soft_wrap=True)
    console.print(
        f"helm install took {seconds:.1f} s; the first job was admitted "
        f"{facts['secondsFromInstallToFirstAdmission']} s after it had begun"
    )
    for problem in facts["problems"]:
        console.print(f"not as it should be: {problem}", style="bold red", soft_wrap=True, markup=False)
    if facts["problems"]:
        console.print(f"the operator's last words:\n{stage.operator_log()}", soft_wrap=True, markup=False)
    console.print(
        f"picture: {out / 'kind.png'}\nThe cluster is left up: export KUBECONFIG={stage.kubeconfig}\n"
        "`make kind-down` deletes it.",
        soft_wrap=True,
    )
    return 1 if facts["problems"] else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
