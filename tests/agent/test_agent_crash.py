"""Agents that die, agents that come back, and nodes without mount namespaces."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from agent_pods import Pods, container, state
from test_agent_process import PRIVATE, assert_soon_gone, running

from controller.workloads.pods import unheard
from deploy.local.agent.images import python_environment
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from tests.support.agent_fixture import SHELL_IMAGE
from tests.support.waiting import wait_until


def agent_pid(plane: Plane, process: str = "nodes") -> int:
    found = next(part.pid for part in plane.status().processes if part.name == process)
    assert found is not None
    return found


def test_a_killed_agent_comes_back_and_goes_on(pods: Pods, nodes: Nodes) -> None:
    mark = f"34{os.getpid()}"
    pods.create("always", container(f"echo run; sleep {mark}"), restart="Always")
    pods.create("never", container(f"sleep {mark}"))
    pods.create("done", container("echo kept"))
    for name in ("always", "never"):
        pods.wait_phase(name, "Running")
    pods.wait_phase("done", "Succeeded")
    os.kill(agent_pid(pods.plane), signal.SIGKILL)
    assert_soon_gone(mark)
    pods.plane.restart("nodes")
    pod = pods.wait(
        "always", lambda pod: state(pod).get("restartCount") == 1 and "running" in state(pod)["state"]
    )
    assert state(pod)["lastState"]["terminated"]["exitCode"] == 137
    assert pod["status"]["phase"] == "Running"
    lost = pods.wait_phase("never", "Failed")
    assert state(lost)["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert pods.wait_words("done") == ["kept"]
    for name in ("always", "never", "done"):
        pods.delete(name)
    for name in ("always", "never", "done"):
        pods.wait_gone(name)
    assert_soon_gone(mark)


def test_a_pod_of_a_silent_node_is_told_from_one_that_is_not_ready(pods: Pods, nodes: Nodes) -> None:
    """By what the cluster's own node controller writes of it, 50 s after the last heartbeat."""
    images = {SHELL_IMAGE: python_environment(cmd=("sh", "-c", "sleep 3600"))}
    with Nodes(pods.plane, images=images, provision=False, prefix="silent-", process="silent") as silent:
        there = {"nodeName": silent.names[0]}
        pods.create("p", container("sleep 600"), **there)
        assert not unheard(pods.wait_phase("p", "Running"))
        probe = {"readinessProbe": {"exec": {"command": ["false"]}}}
        pods.create("unready", container("sleep 600", **probe), nodeName=nodes.names[0])
        assert not unheard(pods.wait_phase("unready", "Running"))
        agent = agent_pid(pods.plane, "silent")
        os.kill(agent, signal.SIGSTOP)
        try:
            pods.wait("p", unheard, seconds=150.0)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert not unheard(pods.wait_phase("unready", "Running"))
        pods.wait("p", lambda pod: not unheard(pod))
        for name in ("p", "unready"):
            pods.delete(name)
            pods.wait_gone(name)
    pods.plane.kubectl("delete", "node", *silent.names)


def test_an_agent_told_to_leave_stops_its_pods_first(pods: Pods, nodes: Nodes) -> None:
    mark = f"35{os.getpid()}"
    folder = pods.plane.work / "goodbye"
    volumes = [{"name": "x", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}]
    script = f"trap 'echo bye > /x/bye; exit 0' TERM; touch /x/up; sleep {mark} & wait"
    pods.create("p", container(script, volumeMounts=[{"name": "x", "mountPath": "/x"}]), volumes=volumes)
    pods.create("stays", container(f"sleep {mark}"), restart="Always")
    pods.wait_phase("p", "Running")
    former = pods.wait_phase("stays", "Running")["status"]["podIP"]
    wait_until((folder / "up").exists, "the container to have its trap")
    began = time.monotonic()
    nodes.stop()
    assert time.monotonic() - began < 15, "it did not leave by itself: `stop` had to kill it"
    assert not running(mark)
    assert (folder / "bye").exists()
    node = pods.client.get("/api/v1/nodes/node-1")
    assert [c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"] == ["False"]
    assert nodes.start() is nodes
    assert nodes.start() is nodes, "the same nodes again are no error"
    pods.wait_phase("p", "Failed", "Succeeded")
    back = pods.wait(
        "stays", lambda pod: state(pod)["restartCount"] == 1 and "running" in state(pod)["state"]
    )
    assert back["status"]["podIP"] != former, "the node has another block of addresses now"
    assert back["status"]["podIPs"] == [{"ip": back["status"]["podIP"]}]
    pods.create("next", container("echo works"))
    assert pods.output("next", seconds=20) == "works\n"


@pytest.fixture(params=["none", *(["user"] if "user" in PRIVATE else [])])
def bare(request: pytest.FixtureRequest, plane: Plane, nodes: Nodes) -> Iterator[Nodes]:
    """One node more, which mounts in another way."""
    images = {SHELL_IMAGE: python_environment()}
    name = f"bare-{request.param}"
    with Nodes(
        plane, 1, 0, images=images, mounting=request.param, provision=False, prefix=f"{name}-", process=name
    ) as found:
        yield found
    plane.kubectl("delete", "node", *found.names)


def test_nodes_without_the_machines_rights(pods: Pods, bare: Nodes) -> None:
    """Without namespaces mount paths are rewritten in args and env; in a user namespace they are mounts."""
    pods.make("configmaps", "run", {"data": {"run.json": "{}"}})
    mounts = [{"name": "run", "mountPath": "/etc/evalstop-test/run"}, {"name": "x", "mountPath": "/x-test"}]
    script = "cat $RUN/run.json; cat /etc/evalstop-test/run/run.json; "
    script += "cd /x-test && echo hi > /x-test/out && cat out"
    main = container(script, volumeMounts=mounts, env=[{"name": "RUN", "value": "/etc/evalstop-test/run"}])
    volumes = [{"name": "run", "configMap": {"name": "run"}}, {"name": "x", "emptyDir": {}}]
    pods.create("p", main, volumes=volumes, nodeName=bare.names[0])
    assert pods.output("p") == "{}{}hi\n"
    assert not os.path.exists("/etc/evalstop-test")
    assert not os.path.exists("/x-test")
