"""Shared worker groups end to end: a real control plane and kube-scheduler, operator, group, workers and
trainers as the processes that they are."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from groups_audit import (
    end_is_in_order,
    next_start_is_in_order,
    of_members,
    start_is_in_order,
    turns_are_not_written,
    would_be_seen,
)
from prometheus_client.parser import text_string_to_metric_families
from rollouts_cluster import Jobs, Operator, rollout
from rollouts_groups import (
    ONE,
    POOL,
    TWO,
    alone,
    command,
    completed,
    digest,
    groups,
    make,
    processes_of,
    shared_pool,
    told,
    workers,
)
from typer.testing import CliRunner

from controller import names
from controller.cli.main import app
from deploy.local.demo.elastic.observer import gpus_of
from deploy.local.demo.jobs_manifests import JOB_NAME
from deploy.local.demo.shared.cast import FAMILY, MB
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.scheduler import Extender, start_pair
from tests.support import given_cluster
from tests.support.api_writes import api_writes
from tests.support.group_audit import GroupAudit
from tests.support.rig_fixtures import installed

__all__ = ["installed"]

pytestmark = pytest.mark.timeout(300)
SOON = 6.0  # s


@pytest.fixture(scope="module")
def gpu_node(plane: Plane) -> Iterator[Nodes]:
    if given_cluster.given() is not None:
        pytest.skip("pods as local processes: a cluster with kubelets of its own runs none")
    with Nodes(
        plane, 1, 1, labels={"pool": POOL}, provision=False, prefix="shared-", process="shared-nodes"
    ) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def extender(plane: Plane, installed: Path) -> Iterator[Extender]:
    """The scheduler extender as a process, and the kube-scheduler that asks it."""
    extender, scheduler = start_pair(plane)
    yield extender
    scheduler.stop()
    extender.stop()


@pytest.fixture
def jobs(
    request: pytest.FixtureRequest,
    plane: Plane,
    installed: Path,
    gpu_node: Nodes,
    extender: Extender,
    namespace: str,
    tmp_path: Path,
) -> Iterator[Jobs]:
    """Jobs of a pool whose groups share. A parameter: s after which the operator takes one for silent."""
    operator = Operator(tmp_path, installed, silent=getattr(request, "param", None))
    found = Jobs(plane, namespace, POOL, operator)
    with shared_pool(found, schedulerName=names.SCHEDULER_NAME):
        yield found


@contextmanager
def silent_api(plane: Plane) -> Iterator[None]:
    """An API server that answers nobody until the block ends."""
    (pid,) = (one.pid for one in plane.status().processes if one.name == "kube-apiserver")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def filtered(extender: Extender) -> float:
    """Return how often the extender let a node through to a pod with GPUs; it is asked about no others."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(extender.metrics) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    (found,) = (one for one in families if one.name == "evalstop_extender_nodes")
    wanted = {"verb": "filter", "way": "passed"}
    return sum(sample.value for sample in found.samples if sample.labels == wanted)


def test_two_jobs_take_turns_on_one_gpu_and_it_comes_free(
    jobs: Jobs, extender: Extender, group_audit: GroupAudit, tmp_path: Path
) -> None:
    began = group_audit.mark()
    local = [alone(tmp_path / "alone", name) for name in (ONE, TWO)]
    for name in (ONE, TWO):
        make(jobs, name, tmp_path, mode="Shadow")  # its evals are written
    # An unknown kind is alone until it is measured: the other joins the same group then.
    jobs.until(lambda: jobs.status(TWO)["residency"]["joined"], "two is a resident, too")
    (group,) = groups(jobs)
    assert len(group["status"]["residents"]) == 2
    for name in (ONE, TWO):
        assert jobs.status(name)["residency"]["group"] == group["metadata"]["name"]
    (worker,) = workers(jobs)
    assert gpus_of(worker) == 1
    # It was bound through the extender, to the node that its group's status plans.
    assert worker["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert [worker["spec"]["nodeName"]] == group["status"]["nodes"]
    assert filtered(extender) >= 1
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
    # Turns need neither operator nor API server: nothing is written for them, and what it knew in memory it
    # learns again.
    writes, turns, mark = api_writes(jobs.plane), seen["switches"], group_audit.mark()
    jobs.until(lambda: told(jobs, name)["switches"] > turns + 8, "more turns")
    later = api_writes(jobs.plane)
    for kind in ("configmaps", "workergroups"):
        assert later.get(kind) == writes.get(kind), f"{kind} are written while turns are taken"
    turns_are_not_written(group_audit.since(mark), jobs.namespace)
    jobs.until((tmp_path / TWO / "step-20").exists, "both train")
    jobs.operator.kill()
    with silent_api(jobs.plane):
        jobs.until((tmp_path / TWO / "step-40").exists, "they go on")
    jobs.operator.start()
    jobs.make("next", ["sleep", "600"])
    for name in (ONE, TWO):
        completed(jobs, name)
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
    # The audit log says it from outside: nothing was asked by members, all was written in its order.
    seen_outside = group_audit.since(began)
    assert of_members(seen_outside) == []
    evals = [one for one in seen_outside if one.writes("rlhfjobs/status") and "evals" in one.status]
    assert {one.name for one in evals} == {ONE, TWO}
    start_is_in_order(seen_outside, group["metadata"]["name"], ONE, jobs.namespace)
    end_is_in_order(seen_outside, group["metadata"]["name"], ONE, jobs.namespace)
    would_be_seen(jobs.plane, group_audit)


def test_a_group_whose_pod_is_rejected_by_the_kubelet_starts_anew_after_a_pause(
    jobs: Jobs, gpu_node: Nodes, tmp_path: Path
) -> None:
    """A node that tells of more GPUs than its kubelet has had a group start twice a second."""
    jobs.plane.kubectl(
        "patch", "gpupool", POOL, "--type=merge", "-p", '{"spec":{"sharing":{"placement":"Isolated"}}}'
    )
    (node,) = gpu_node.names

    def tells_of(gpus: int) -> None:
        offered = {names.GPU_RESOURCE: str(gpus)}
        given = json.dumps({"status": {"allocatable": offered, "capacity": offered}})
        jobs.plane.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", given)

    long = "long-2000"  # it does not end meanwhile, however slow this machine is
    make(jobs, long, tmp_path)
    jobs.until(lambda: jobs.status(long)["residency"]["joined"], "it has the GPU that there is")
    tells_of(2)
    try:
        make(jobs, TWO, tmp_path)

        def second() -> dict[str, Any]:
            (found,) = (one for one in groups(jobs) if one["status"].get("failedStarts"))
            return dict(found)

        jobs.until(lambda: len(groups(jobs)) == 2, "the other gets a group of its own")
        jobs.until(
            lambda: any(one["status"].get("failedStarts") for one in groups(jobs)), "its pod is rejected"
        )
        seen, began = [], time.monotonic()
        while time.monotonic() < began + 5.0:
            seen.append(second()["status"]["number"])
            time.sleep(0.5)
        assert set(seen) == {2}
        (ready,) = (one for one in second()["status"]["conditions"] if one["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "Restarting")
        assert ready["message"].endswith("it starts anew 10 s later")
        jobs.until(lambda: second()["status"]["number"] == 3, "it is tried again", 20.0)
        assert second()["status"]["failedStarts"] == 2
    finally:
        tells_of(1)


@pytest.mark.parametrize("jobs", [SOON], indirect=True)
def test_a_job_whose_group_does_not_answer_any_more_gets_another_one(jobs: Jobs, tmp_path: Path) -> None:
    first, second = "first-6", "second-6"
    make(jobs, first, tmp_path)
    completed(jobs, first)
    (group,) = groups(jobs)
    name = group["metadata"]["name"]
    jobs.until(
        lambda: not groups(jobs)[0]["status"].get("residents"), "the group is empty, and stays a while"
    )
    (worker,) = workers(jobs)
    for pid in processes_of(worker["metadata"]["uid"]):
        os.kill(pid, signal.SIGSTOP)  # it is there, and silent
    timeout(jobs, 10)
    make(jobs, second, tmp_path)
    jobs.until(lambda: jobs.condition(second, "Running")[1] == "GroupDoesNotAnswer", "it is given up", 60)
    told_why = next(c for c in jobs.status(second)["conditions"] if c["type"] == "Running")["message"]
    assert told_why.startswith(f"worker group {name}: it has not answered since ")
    assert jobs.status(second)["attempt"] == 1
    assert not list((tmp_path).glob(f"{second}/*")), "no pod of it has run"
    # Nobody who was taken in is in it, so it closes, and its GPU is another group's.
    jobs.until(lambda: groups(jobs)[0]["status"].get("closing") == "GroupDoesNotAnswer", "it closes", 60)
    timeout(jobs, 120)
    completed(jobs, second)
    assert jobs.status(second)["attempt"] == 2
    assert [one["metadata"]["name"] for one in groups(jobs)] != [name]


@pytest.mark.parametrize("jobs", [SOON], indirect=True)
def test_a_residency_that_a_silent_group_keeps_is_told_and_ends_with_the_groups_pods(
    jobs: Jobs, group_audit: GroupAudit, tmp_path: Path
) -> None:
    began = group_audit.mark()
    stays, leaves = "stays-60", "leaves-400"
    for name in (stays, leaves):
        make(jobs, name, tmp_path)
    jobs.until(lambda: jobs.status(leaves)["residency"]["joined"], "both are residents")
    (group,) = groups(jobs)
    name = group["metadata"]["name"]
    jobs.until(lambda: list(tmp_path.glob(f"{stays}/step-*")), "one has a checkpoint")
    (worker,) = workers(jobs)
    for pid in processes_of(worker["metadata"]["uid"]):
        os.kill(pid, signal.SIGSTOP)
    jobs.patch(leaves, {"spec": {"runState": "Stopped"}})
    held = jobs.until(lambda: jobs.status(leaves)["residency"].get("unanswered"), "its residency is kept")
    jobs.until(lambda: told(jobs, name)["state"] == "NoAnswer", "the group is seen to be silent", 60)
    (group,) = groups(jobs)
    (answers,) = (one for one in group["status"]["conditions"] if one["type"] == "Answers")
    assert (answers["status"], answers["reason"]) == ("False", "GroupDoesNotAnswer")
    assert answers["lastTransitionTime"] == held
    # The page of the job says it, and what to do; that is done here.
    given = ["why", leaves, "-n", jobs.namespace, "-o", "json"]
    result = CliRunner().invoke(app, given, env={"KUBECONFIG": str(jobs.plane.kubeconfig)})
    assert result.exit_code == 0, result.output
    (mark,) = (one for one in json.loads(result.stdout)["marks"] if one["reason"] == "ResidencyStuck")
    # A deleted job has no page any more: its group tells it.
    jobs.plane.kubectl("-n", jobs.namespace, "delete", "rlhfjob", leaves, "--wait=true")
    jobs.until(lambda: told(jobs, name)["reason"] == "ResidencyStuck", "the group tells that it is kept")
    seen = told(jobs, name)
    assert seen["state"] == "NoAnswer"
    assert seen["message"].endswith(f": {jobs.namespace}/{leaves}")
    cure = mark["cure"]["command"].split()
    assert cure == ["kubectl", "delete", "jobs", "-n", "evalstop-workers", "-l", f"evalstop.dev/group={name}"]
    jobs.plane.kubectl(*cure[1:])
    jobs.until(lambda: leaves not in str(groups(jobs)[0]["status"]["residents"]), "the residency has ended")
    assert not [one for one in workers(jobs) if one["metadata"]["uid"] == worker["metadata"]["uid"]]
    # The other one goes on in the group's next start, from its checkpoint.
    completed(jobs, stays)
    (group,) = groups(jobs)
    assert (group["metadata"]["name"], group["status"]["number"]) == (name, 2)
    assert [c["status"] for c in group["status"]["conditions"]] == ["True", "True"]
    next_start_is_in_order(group_audit.since(began), name)


def test_a_family_that_does_not_work_is_told_to_its_job_and_its_cures_work(
    jobs: Jobs, tmp_path: Path
) -> None:
    name = "new-6"
    sharing = json.loads(jobs.plane.kubectl("get", "gpupool", POOL, "-o", "json"))["spec"]["sharing"]
    container = sharing["families"][0]["template"]["spec"]["containers"][0]
    right = container["env"]

    def have(**wrong: str) -> None:
        """Correct the family, but for these variables."""
        container["env"] = [one | {"value": wrong.get(one["name"], one.get("value"))} for one in right]
        patch = json.dumps({"spec": {"sharing": {"families": sharing["families"]}}})
        jobs.plane.kubectl("patch", "gpupool", POOL, "--type=merge", "-p", patch)

    def mark(reason: str) -> dict[str, Any]:
        """Return the mark that the job's page has with a reason, as an owner reads it."""
        given = ["why", name, "-n", jobs.namespace, "-o", "json"]

        def found() -> Any:
            result = CliRunner().invoke(app, given, env={"KUBECONFIG": str(jobs.plane.kubeconfig)})
            marks = json.loads(result.stdout)["marks"] if result.exit_code == 0 else []
            return next((one for one in marks if one["reason"] == reason), None)

        return jobs.until(found, f"it is told: {reason}", 90)

    def cured(one: dict[str, Any]) -> None:
        """Carry the mark's cure out, but for the edit of the pool."""
        jobs.plane.kubectl(*one["cure"]["command"].partition("; kubectl ")[2].split())

    have(EVALSTOP_GROUP_DEVICE="NVML")
    make(jobs, name, tmp_path)
    crashes = mark("GroupCrashes")
    assert crashes["mark"] == "Crashing"
    assert "ended with exit code" in crashes["message"]
    assert "NVML does not answer" in crashes["message"]
    have(EVALSTOP_GROUP_FAMILY="examples.softmax_family:Softmax")
    cured(crashes)
    lost = mark("TurnsLost")
    assert lost["mark"] == "Crashing"
    assert "examples.softmax_family:Softmax" in lost["message"]
    assert jobs.condition(name, "NeedsAttention")[1] == "Crashing"
    (group,) = groups(jobs)
    seen = jobs.until(
        lambda: (found := told(jobs, group["metadata"]["name"]))["reason"] == "TurnsLost" and found,
        "the group's page tells it",
    )
    assert seen["residents"][0]["lostInRow"] >= 3
    have()
    cured(lost)
    completed(jobs, name)


def timeout(jobs: Jobs, seconds: int) -> None:
    """Set the pool's time-out of gangs."""
    patch = json.dumps({"spec": {"gangTimeoutSeconds": seconds}})
    jobs.plane.kubectl("patch", "gpupool", POOL, "--type=merge", "-p", patch)


def test_a_residency_and_rollout_actors_come_together_and_leave_together(
    plane: Plane, jobs: Jobs, tmp_path: Path
) -> None:
    name = "both-10"
    asked = {"family": FAMILY, "stateBytes": 2 * MB, "maxSlowdownPercent": 1000}
    jobs.make(name, command(tmp_path), rollout(most=1, static=1), gpus=0, env=JOB_NAME, sharing=asked)
    # There is one GPU, which the group would have: without one for its actor it gets neither.
    jobs.until(lambda: jobs.condition(name, "Admitted")[1] not in ("", "Queued"), "it waits for both")
    assert jobs.condition(name, "Admitted")[0] == "False"
    assert groups(jobs) == []
    assert jobs.actors(name) == []
    with Nodes(plane, 1, 1, labels={"pool": POOL}, provision=False, prefix="actor-", process="actor-nodes"):
        jobs.until(lambda: jobs.condition(name, "Running")[0] == "True", "it runs")
        jobs.until(lambda: len(jobs.actors(name, ready=True)) == 1, "its actor serves")
        (group,) = groups(jobs)
        assert jobs.status(name)["residency"]["group"] == group["metadata"]["name"]
        assert sorted(gpus_of(pod) for pod in (*workers(jobs), *jobs.pods())) == [0, 1, 1]
        completed(jobs, name)
        jobs.until(lambda: jobs.condition(name, "GPUsReleased")[0] == "True", "its actor is gone with it")
        jobs.until(lambda: not jobs.status(name).get("residency", {}).get("group"), "and its residency")
        assert jobs.actors(name) == []
        jobs.plane.kubectl("-n", jobs.namespace, "delete", "rlhfjob", name, "--wait=true")
        jobs.until(lambda: not jobs.pods(), "all pods are gone")
