"""Shared worker groups end to end: a real control plane and kube-scheduler, operator, group, workers and
trainers as the processes that they are."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rollouts_cluster import Jobs, Operator, gpus_of, running, template
from rollouts_world import ROOT, environment
from typer.testing import CliRunner

from controller import names
from controller.cli.main import app
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from tests.support import given_cluster
from tests.support.rig_fixtures import installed

__all__ = ["installed"]

pytestmark = pytest.mark.timeout(300)

POOL, MB = "shared", 1 << 20
# Steps of each job, by its name. A kind is measured within 22 steps, and then the other joins.
ONE, TWO = "one-120", "two-40"
RUN = ["--seed", "5", "--eval-every", "20", "--eval-samples", "64", "--batch", "32"]
RUN += ["--preferences", "100", "--port", "0"]
PACE = ["--rollout-seconds", "0.2", "--train-seconds", "0.05"]
TRAIN = " ".join(["exec python -m examples.trainer", *RUN, "--group", *PACE])
WORKERS = "evalstop-workers"


@pytest.fixture
def device() -> Iterator[Path]:
    """A folder in memory, where each group's pod has its device."""
    with tempfile.TemporaryDirectory(prefix="evalstop-groups-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def gpu_node(plane: Plane) -> Iterator[Nodes]:
    if given_cluster.given() is not None:
        pytest.skip("pods as local processes: a cluster with kubelets of its own runs none")
    with Nodes(
        plane, 1, 1, labels={"pool": POOL}, provision=False, prefix="shared-", process="shared-nodes"
    ) as nodes:
        yield nodes


@pytest.fixture
def jobs(
    plane: Plane, installed: Path, gpu_node: Nodes, namespace: str, tmp_path: Path, device: Path
) -> Iterator[Jobs]:
    with running(Operator(tmp_path, installed)) as operator:
        found = Jobs(plane, namespace, POOL, operator)
        # Whoever else uses this machine makes turns longer: duties are not to bar anybody here.
        found.make_pool(sharing={"families": [family(device)], "maxDutyPercent": 100})
        yield found
        plane.kubectl("-n", namespace, "delete", "rlhfjobs", "--all", "--wait=true")
        found.until(lambda: not found.pods(), "all pods are gone")
        plane.kubectl("delete", "gpupool", POOL)
        found.until(lambda: not groups(found), "the groups are gone with their pool")


def family(device: Path) -> dict[str, Any]:
    container = {
        "name": "workers",
        "image": names.TRAINER_IMAGE,
        "command": ["python", "-m", "controller.group"],
        "env": [
            {"name": "EVALSTOP_GROUP_FAMILY", "value": "examples.softmax_family:SoftmaxFamily"},
            {"name": "EVALSTOP_GROUP_DEVICE", "value": f"{device}/$(POD_UID)"},
            {"name": "EVALSTOP_GROUP_LISTEN", "value": "$(POD_IP)"},  # the pods here share one network
            {"name": "EVALSTOP_GROUP_REGISTER_SECONDS", "value": "1"},
        ],
        "resources": {"limits": {names.GPU_RESOURCE: "1", "memory": "1Gi"}},
    }
    return {
        "name": "softmax",
        "replicas": 1,
        "gpusPerReplica": 1,
        "deviceBytes": 4 * MB,
        "hostBytes": 32 * MB,
        "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
    }


def make(jobs: Jobs, name: str, folder: Path, **sharing: Any) -> None:
    """Make a job that trains in a group. Both have the same template: they are of one kind."""
    label = f"metadata.labels['{names.LABEL_JOB}']"
    container = {
        "name": "trainer",
        "image": names.TRAINER_IMAGE,
        "command": ["sh", "-c", f"{TRAIN} --steps ${{JOB#*-}} --checkpoints {folder}/$JOB"],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "env": [{"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": label}}}],
    }
    asked = {"family": "softmax", "stateBytes": 2 * MB, "maxSlowdownPercent": 1000, **sharing}
    jobs.make(
        name,
        [],
        gang={"replicas": 1, "gpusPerReplica": 0},
        workload={"template": template(container)},
        sharing=asked,
    )


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


def digest(folder: Path, name: str) -> str:
    manifest = json.loads((folder / name / f"step-{steps(name)}" / "manifest.json").read_text())
    return str(manifest["files"]["params.npz"]["sha256"])


def alone(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start the run of a job without a group."""
    command = [sys.executable, "-m", "examples.trainer", *RUN, "--steps", steps(name)]
    # Pods have none of this machine's hints to its linear algebra, by which last bits differ.
    environ = {key: value for key, value in environment().items() if not key.startswith("OPENBLAS_C")}
    return subprocess.Popen([*command, "--checkpoints", folder / name], env=environ, cwd=ROOT)


def test_two_jobs_take_turns_on_one_gpu_and_it_comes_free(jobs: Jobs, tmp_path: Path) -> None:
    local = [alone(tmp_path / "alone", name) for name in (ONE, TWO)]
    for name in (ONE, TWO):
        make(jobs, name, tmp_path)
    # An unknown kind is alone until it is measured: the other joins the same group then.
    jobs.until(lambda: jobs.status(TWO)["residency"]["joined"], "two is a resident, too")
    (group,) = groups(jobs)
    assert len(group["status"]["residents"]) == 2
    for name in (ONE, TWO):
        assert jobs.status(name)["residency"]["group"] == group["metadata"]["name"]
    pods = json.loads(jobs.plane.kubectl("-n", WORKERS, "get", "pods", "-o", "json"))["items"]
    assert [gpus_of(pod) for pod in pods] == [1]
    assert all(gpus_of(pod) == 0 for pod in jobs.pods()), "the GPU is the group's, and counted once"
    assert jobs.pool_status()["shared"] == 1
    name = group["metadata"]["name"]
    jobs.until(lambda: len(told(jobs, name)["recent"]) > 4, "turns are told")
    seen = told(jobs, name)
    assert {one["job"].rpartition("/")[2] for one in seen["residents"]} == {ONE, TWO}
    assert (seen["state"], seen["problem"], seen["gpus"]) == ("Ready", "", 1)
    turns = sorted((one["began"], one["ended"]) for one in seen["recent"])
    assert all(one[1] <= other[0] for one, other in pairwise(turns)), "one at a time"
    # There is no Deployment here to forward a port to: then WorkerGroups and jobs tell all but turns.
    result = CliRunner().invoke(app, ["groups", name], env={"KUBECONFIG": str(jobs.plane.kubeconfig)})
    assert result.exit_code == 0, result.output
    assert "note: turns are the operator's to tell, and it was not reached" in result.stderr
    assert f"{jobs.namespace}/{ONE}" in result.stdout
    assert 0 < seen["members"][0]["hostBytes"] <= seen["hostBytes"]
    # Turns need no operator: what it knew in memory it learns again.
    jobs.until((tmp_path / TWO / "step-20").exists, "both train")
    jobs.operator.kill()
    jobs.until((tmp_path / TWO / "step-40").exists, "they go on")
    jobs.operator.start()
    jobs.make("next", ["sleep", "600"])
    for name in (ONE, TWO):
        jobs.until(lambda name=name: jobs.condition(name, "Completed")[0] == "True", f"{name} is done")  # type: ignore[misc]
    # Its last resident has left, and somebody waits: the group closes at once.
    jobs.until(lambda: jobs.condition("next", "Running")[0] == "True", "the GPU is the next job's")
    assert groups(jobs) == []
    assert [run.wait(120) for run in local] == [0, 0]
    for name in (ONE, TWO):
        status = jobs.status(name)
        assert "residency" not in status or not status["residency"].get("group")
        assert float(status["chargedGPUSeconds"]) > 0
        assert status["attempt"] == 1
        assert digest(tmp_path, name) == digest(tmp_path / "alone", name)
