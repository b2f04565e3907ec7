"""Faults of worker groups on a real control plane, with trainers as the processes that they are: what takes
minutes, and so is no part of `make test` (there: the operator killed while the API server is silent).
Every scene ends with the same final checkpoint as the run without a group.

A job is overdue after a minute at the earliest, so runs of these scenes are long, and mostly wait.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from tests.support.operator_rig import install

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rollouts"))  # as for its tests

from rollouts_cluster import Jobs, Operator
from rollouts_groups import POOL, WORKERS, alone, completed, digest, groups, make, shared_pool, workers

LONG, OTHER, LATE = "one-400", "two-400", "late-40"  # their numbers are steps; a step takes .3 s, by turns .4
OVERDUE = {"maxWaitSeconds": 60}
FIRST = 900.0  # s for a run of 400 steps to be done, however slow the machine is
Say = Callable[[str], None]


def run(names: Sequence[str], say: Say) -> list[str]:
    """Play scenes; return what did not come about."""
    wrong = []
    with (
        tempfile.TemporaryDirectory(prefix="evalstop-scenes-") as folder,
        Plane(Path(folder, "plane")) as plane,
    ):
        kubeconfig = install(plane)
        with Nodes(plane, 1, 1, labels={"pool": POOL}, provision=False) as nodes:
            for name in names:
                began = time.monotonic()
                try:
                    SCENES[name](_stage(plane, kubeconfig, Path(folder, name)), nodes, Path(folder, name))
                    say(f"{name}: as it should be, {time.monotonic() - began:.0f} s")
                except AssertionError as error:
                    wrong.append(f"{name}: {error}")
    return wrong


def _stage(plane: Plane, kubeconfig: Path, folder: Path) -> Jobs:
    folder.mkdir()
    namespace = f"scene-{folder.name}"
    plane.kubectl("create", "namespace", namespace)
    return Jobs(plane, namespace, POOL, Operator(folder, kubeconfig))


def closing(jobs: Jobs, nodes: Nodes, folder: Path) -> None:
    """A group takes no newcomers while an overdue job waits for its GPU, which gets it before them."""
    local = [alone(folder / "alone", name) for name in (LONG, LATE)]
    with shared_pool(jobs, **OVERDUE):
        make(jobs, LONG, folder)
        jobs.until((folder / LONG / "step-40").exists, "its kind is measured")
        jobs.make("next", ["sleep", "600"])
        time.sleep(OVERDUE["maxWaitSeconds"])  # by the operator's clock nothing tells it sooner
        make(jobs, LATE, folder)
        jobs.until(lambda: "overdue" in _waits(jobs, LATE), "the newcomer is told why it waits")
        assert len(groups(jobs)[0]["status"]["residents"]) == 1
        completed(jobs, LONG, FIRST)
        jobs.until(lambda: jobs.condition("next", "Running")[0] == "True", "the overdue job has the GPU")
        assert not (folder / LATE).exists()
        jobs.plane.kubectl("-n", jobs.namespace, "delete", "rlhfjob", "next", "--wait=true")
        completed(jobs, LATE, FIRST)
    _equal(folder, local, (LONG, LATE))


def preemption(jobs: Jobs, nodes: Nodes, folder: Path) -> None:
    """A policy that preempts takes a whole group for an overdue job; both residents go on afterwards."""
    local = [alone(folder / "alone", name) for name in (LONG, OTHER)]
    preempts = {"queuePolicy": {"las": {}}, "preemption": {"graceSeconds": 0}}
    with shared_pool(jobs, **preempts):
        for name in (LONG, OTHER):
            make(jobs, name, folder)
        jobs.until(lambda: _residents(jobs) == 2, "both are residents", FIRST)
        # Not before: the second waits until their kind is measured. Overdue, it would displace the first.
        patch = json.dumps({"spec": OVERDUE})
        jobs.plane.kubectl("patch", "gpupool", POOL, "--type=merge", "-p", patch)
        jobs.make("next", ["sleep", "600"])
        jobs.until(lambda: jobs.condition("next", "Running")[0] == "True", "it has the GPU", FIRST)
        jobs.until(lambda: not groups(jobs), "the group is gone")
        for name in (LONG, OTHER):
            found = jobs.status(name).get("preemptions", 0)
            assert found == 1, f"{name} was preempted {found} times, expected once"
        jobs.plane.kubectl("-n", jobs.namespace, "delete", "rlhfjob", "next", "--wait=true")
        for name in (LONG, OTHER):
            completed(jobs, name, FIRST)
            attempt = jobs.status(name)["attempt"]
            assert attempt == 2, f"{name} is done in attempt {attempt}, expected 2"
    _equal(folder, local, (LONG, OTHER))


def volume(jobs: Jobs, nodes: Nodes, folder: Path) -> None:
    """A node reboots: it keeps the group's pod, not its memory volume. Residents go on from checkpoints."""
    local = [alone(folder / "alone", LONG)]
    with shared_pool(jobs):
        make(jobs, LONG, folder)
        jobs.until((folder / LONG / "step-40").exists, "it trains")
        (pod,) = workers(jobs)
        uid = pod["metadata"]["uid"]
        (memory,) = nodes.folder.glob(f"**/{uid}/**/evalstop-memory")
        processes = _processes_of(uid)
        assert processes
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)  # nobody writes while it is emptied
        for one in memory.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        completed(jobs, LONG, FIRST)
        assert jobs.status(LONG)["attempt"] == 2
    _equal(folder, local, (LONG,))


def deleted(jobs: Jobs, nodes: Nodes, folder: Path) -> None:
    """The group's pod is deleted by hand while there is no operator: the group starts under the next number,
    and the run goes on."""
    local = [alone(folder / "alone", LATE)]
    with shared_pool(jobs):
        make(jobs, LATE, folder)
        jobs.until((folder / LATE / "step-20").exists, "it trains")
        jobs.operator.kill()
        jobs.plane.kubectl("-n", WORKERS, "delete", "pods", "--all", "--wait=false")
        jobs.operator.start()
        jobs.until(lambda: jobs.status(LATE)["attempt"] == 2, "its trainer starts again", FIRST)
        completed(jobs, LATE, FIRST)
    _equal(folder, local, (LATE,))


SCENES: dict[str, Callable[[Jobs, Nodes, Path], None]] = {
    "closing": closing,
    "deleted": deleted,
    "preemption": preemption,
    "volume": volume,
}


def _residents(jobs: Jobs) -> int:
    """Return how many residents the only group has taken in."""
    found = groups(jobs)
    residents = (found[0].get("status") or {}).get("residents") or () if len(found) == 1 else ()
    return sum(one.get("joined", False) for one in residents)


def _waits(jobs: Jobs, name: str) -> str:
    conditions = jobs.status(name).get("conditions") or ()
    return " ".join(str(one.get("message")) for one in conditions if one["type"] == "Admitted")


def _processes_of(uid: str) -> list[int]:
    """Return the processes of a pod, by their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"POD_UID={uid}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


def _equal(folder: Path, local: Sequence[Any], names: Sequence[str]) -> None:
    assert [one.wait(300) for one in local] == [0] * len(local)
    for name in names:
        assert digest(folder, name) == digest(folder / "alone", name), f"{name} ended with another checkpoint"
