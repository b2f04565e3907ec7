"""Worker groups on a real control plane: a pool's family, jobs that train by turns, what is seen of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollouts_cluster import Jobs, running
from rollouts_world import ROOT, environment
from typer.testing import CliRunner

from controller.cli.main import app
from deploy.local.demo.jobs_manifests import JOB_NAME
from deploy.local.demo.shared.cast import FAMILY, MB, family

POOL = "shared"
# Steps of each job, by its name. A kind is measured within 22 steps, and then the other joins.
ONE, TWO = "one-120", "two-40"
RUN = ["--seed", "5", "--eval-every", "20", "--eval-samples", "64", "--batch", "32"]
RUN += ["--preferences", "100"]
PACE = ["--rollout-seconds", "0.2", "--train-seconds", "0.05"]
TRAIN = " ".join(["exec python -m examples.trainer", *RUN, "--group", *PACE])
WORKERS = "evalstop-workers"
# Where a trainer serves its evals.
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@contextmanager
def shared_pool(jobs: Jobs, **spec: Any) -> Iterator[None]:
    """The operator and the pool, until the block ends; then all of its jobs, pods and groups are gone."""
    # A folder in memory, where each group's pod has its device.
    memory = tempfile.TemporaryDirectory(
        prefix="evalstop-groups-", dir="/dev/shm", ignore_cleanup_errors=True
    )
    with memory as device, running(jobs.operator):
        # Whoever else uses this machine makes turns longer: duties are not to bar anybody here.
        sharing = {"families": [family(Path(device))], "maxDutyPercent": 100}
        jobs.make_pool(sharing=sharing, **spec)
        yield
        jobs.plane.kubectl("-n", jobs.namespace, "delete", "rlhfjobs", "--all", "--wait=true")
        jobs.until(lambda: not jobs.pods(), "all pods are gone")
        jobs.plane.kubectl("delete", "gpupool", POOL)
        jobs.until(lambda: not groups(jobs), "the groups are gone with their pool")


def make(jobs: Jobs, name: str, folder: Path, mode: str = "Off", **sharing: Any) -> None:
    """Make a job that trains in a group. Both have the same template: they are of one kind."""
    asked = {"family": FAMILY, "stateBytes": 2 * MB, "maxSlowdownPercent": 1000, **sharing}
    read = {"intervalSeconds": 5}
    jobs.make(name, command(folder), gpus=0, env=[*JOB_NAME, POD_IP], sharing=asked, scrape=read, mode=mode)


def command(folder: Path) -> list[str]:
    """Return the command of a job's container."""
    return ["sh", "-c", f"{TRAIN} --steps ${{JOB#*-}} --checkpoints {folder}/$JOB"]


def groups(jobs: Jobs) -> list[dict[str, Any]]:
    """Return the pool's WorkerGroups."""
    found = json.loads(jobs.plane.kubectl("-n", WORKERS, "get", "workergroups", "-o", "json"))["items"]
    return [one for one in found if one["spec"]["pool"] == POOL]


def told(jobs: Jobs, name: str) -> dict[str, Any]:
    """Return what `evalstop groups` prints of a group, by the operator's queue API."""
    address = f"http://127.0.0.1:{jobs.operator.queue}"
    result = CliRunner().invoke(app, ["groups", name, "--url", address, "-o", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def steps(name: str) -> str:
    return name.partition("-")[2]


def completed(jobs: Jobs, name: str, seconds: float = 120.0) -> None:
    """Wait until a job is done."""
    jobs.until(lambda: jobs.condition(name, "Completed")[0] == "True", f"{name} is done", seconds)


def workers(jobs: Jobs) -> list[dict[str, Any]]:
    """Return the pods of all groups."""
    found = json.loads(jobs.plane.kubectl("-n", WORKERS, "get", "pods", "-o", "json"))["items"]
    return list(found)


def processes_of(pod: str) -> list[int]:
    """Return the processes of a pod, given by UID, by their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if pod.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def digest(folder: Path, name: str) -> str:
    manifest = json.loads((folder / name / f"step-{steps(name)}" / "manifest.json").read_text())
    return str(manifest["files"]["params.npz"]["sha256"])


def alone(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start the run of a job without a group."""
    command = [sys.executable, "-m", "examples.trainer", *RUN, "--port", "0", "--steps", steps(name)]
    # Pods have none of this machine's hints to its linear algebra, by which last bits differ.
    environ = {key: value for key, value in environment().items() if not key.startswith("OPENBLAS_C")}
    return subprocess.Popen([*command, "--checkpoints", folder / name], env=environ, cwd=ROOT)
