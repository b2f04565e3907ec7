"""A trace replayed on kind's kubelets and in the simulator, by `evalstop parity`."""

from __future__ import annotations

import subprocess
import sys

from controller import names
from deploy.images import build
from deploy.kind import stage as staging
from deploy.kind.nodes import POOL_LABEL, STORAGE_CLASS, WORKERS
from deploy.local.agent.images import REPOSITORY
from deploy.local.report import Report

GPUS = 16  # of each worker: together as many as four nodes of eight
TRACE = "examples/traces/sixty.jsonl"


def run(stage: staging.KindStage, identity: str, report: Report, more: list[str]) -> int:
    """Install the chart without pools, since parity makes its own of the workers, and play.

    Args:
        stage: the cluster.
        identity: of the operator's image.
        report: called with each line on the progress.
        more: arguments for `evalstop parity`; a trace among them replaces `TRACE`.

    Returns:
        `evalstop parity`'s exit status. Errors: PlaneError.
    """
    cluster = stage.cluster
    if cluster.kubectl("get", "crd", "rlhfjobs.evalstop.dev", "--ignore-not-found", "-o", "name"):
        cluster.kubectl("delete", "rlhfjobs", "--all", "--all-namespaces", "--wait", timeout_s=300)
    staging.remove_pools(cluster)
    seconds = staging.install(stage, [], identity)
    report(f"the chart is installed and all its pods are ready after {seconds:.1f} s")
    trace = [] if any(word.endswith((".jsonl", ".csv")) for word in more) else [TRACE]
    command = [
        *(sys.executable, "-m", "controller.cli", "parity", *trace, *more),
        *("--kubeconfig", str(stage.kubeconfig), "--nodes", f"{WORKERS}x{stage.kind.gpus}"),
        *("--nodes-of", POOL_LABEL, "--storage-class", STORAGE_CLASS),
        *("--scheduler-name", names.SCHEDULER_NAME),
        *("--image", build.tagged(names.TRAINER_IMAGE), "--decision-log", str(stage.decision_log())),
    ]
    report(f"evalstop parity {' '.join(command[4:])}")
    return subprocess.run(command, cwd=REPOSITORY).returncode
