"""Worker groups and rollout actors from their images: pods on kubelets, reached by Service, name and address.

On a cluster that `make test-kind` has made. All pods of jobs are in a namespace that enforces Pod Security
level `restricted`, those of groups in `evalstop-workers`, which enforces `baseline`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from kubelets import (
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    STORY_S,
    Json,
    gpus_of_a_node,
    holds,
    home,
    looked,
    on_claims,
    wait,
)
from typer.testing import CliRunner

from controller import names
from controller.cli.main import app
from controller.policy.group_types import GROUPS_NAMESPACE
from deploy.helm.cluster import ChartCluster, until
from deploy.helm.local import POOL
from deploy.images.build import tagged
from deploy.local.demo.jobs_manifests import JOB_NAME
from tests.support import given_cluster

SPACE = "turns"
MB = 1 << 20
TRAIN = ["--seed", "5", "--eval-every", "20", "--eval-samples", "64", "--batch", "32"]
TRAIN += ["--preferences", "100", "--port", "9400"]
SHARED = [*TRAIN, "--steps", "60", "--group", "--rollout-seconds", "0.2", "--train-seconds", "0.05"]
ROLLED = ["--steps", "6", "--seed", "11", "--eval-every", "100", "--rollout-most", "48", "--port", "9400"]
ENGINE = ["python", "-m", "examples.engine", "--socket", "/run/engine/engine.sock", "--slots", "4"]
pytestmark = [
    pytest.mark.kubelets,
    pytest.mark.skipif(given_cluster.given() is None, reason="needs kubelets: make test-kind"),
    pytest.mark.timeout(2 * STORY_S),
]


@pytest.fixture(scope="module")
def node_gpus(cluster: ChartCluster) -> int:
    return gpus_of_a_node(cluster)


@pytest.fixture(scope="module", autouse=True)
def space(cluster: ChartCluster, values: dict[str, Any], node_gpus: int, notes: str) -> Iterator[None]:
    """The chart with its step API, a pool that offers a family, and a namespace of the jobs' own."""
    pool = {**values["pools"][0]}
    pool["spec"] = {**pool["spec"], "sharing": {"families": [family(node_gpus)], "maxDutyPercent": 100}}
    cluster.install({**values, "rollouts": {"enabled": True}, "pools": [pool]}, wait_s=300)
    with home(cluster, SPACE, "restricted"):
        yield


def family(gpus: int) -> Json:
    """Two members that take a node each: what they tell each other goes over the cluster's network."""
    container = {
        "name": "workers",
        "image": tagged(names.WORKERS_IMAGE),
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "controller.group"],
        "env": [
            {"name": "EVALSTOP_GROUP_FAMILY", "value": "examples.softmax_family:SoftmaxFamily"},
            {"name": "EVALSTOP_GROUP_DEVICE", "value": "/run/device/gpu"},  # there is no GPU here
        ],
        "resources": {
            "requests": {"cpu": "50m", "memory": "256Mi"},
            "limits": {names.GPU_RESOURCE: str(gpus), "memory": "1Gi"},
        },
        "volumeMounts": [{"name": "device", "mountPath": "/run/device"}],
    }
    pod = {
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": "device", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}],
    }
    return {
        "name": "softmax",
        "replicas": 2,
        "gpusPerReplica": gpus,
        "deviceBytes": 4 * MB,
        "hostBytes": 32 * MB,
        "template": {"spec": pod},
    }


def job(name: str, arguments: list[str], gpus: int, **spec: Any) -> Json:
    """An RLHFJob of the example trainer, all of whose pods are as `restricted` asks."""
    container: Json = {
        "name": "trainer",
        "image": tagged(names.TRAINER_IMAGE),
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "examples.trainer", *arguments],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"requests": {"cpu": "50m"}},
        "volumeMounts": [{"name": "work", "mountPath": "/checkpoints"}],
        "securityContext": RESTRICTED_CONTAINER,
    }
    if gpus:
        container["resources"]["limits"] = {names.GPU_RESOURCE: str(gpus)}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "securityContext": RESTRICTED_POD,
        "containers": [container],
        "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "work"}}],
    }
    workload = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "pool": POOL["name"],
            "gang": {"replicas": 1, "gpusPerReplica": gpus},
            "metrics": [{"name": "gold_reward"}],
            "mode": "Off",
            "checkpoints": on_claims(name),
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": workload}},
            **spec,
        },
    }


def words(cluster: ChartCluster, name: str) -> str:
    return cluster.kubectl("logs", "-n", SPACE, "-l", f"batch.kubernetes.io/job-name={name}", "--tail=-1")


def test_two_jobs_take_turns_on_a_group_of_two_nodes(cluster: ChartCluster, node_gpus: int) -> None:
    asked = {"family": "softmax", "stateBytes": 2 * MB, "maxSlowdownPercent": 1000}
    jobs = ("one", "two")
    for name in jobs:
        # Of one kind: their templates are equal, and a pod's name tells them apart.
        folder = "--checkpoints=/checkpoints/$(JOB)"
        made = job(name, [*SHARED, folder], 0, sharing=asked)
        (container,) = made["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"]
        container["env"] = JOB_NAME
        cluster.apply([made])
    wait(cluster, SPACE, "two", "a resident, too", lambda s: (s.get("residency") or {}).get("joined"))
    (group,) = cluster.get("workergroups", "-n", GROUPS_NAMESPACE)["items"]
    name = group["metadata"]["name"]
    pods = cluster.get("pods", "-n", GROUPS_NAMESPACE)["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2, "each member has a node"
    assert all(pod["status"]["phase"] == "Running" for pod in pods)
    assert cluster.get("gpupool", POOL["name"])["status"]["shared"] == 2 * node_gpus

    def told() -> Json | None:
        """What `evalstop groups` says by a port-forward to the operator, once turns are told."""
        path = f"{cluster.binary.parent}{os.pathsep}{os.environ['PATH']}"
        environ = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": path}  # it runs kubectl
        result = CliRunner().invoke(app, ["groups", name, "-o", "json"], env=environ)
        assert result.exit_code == 0, result.output
        found: Json = json.loads(result.stdout)
        turns = {one["job"] for one in found.get("recent") or ()}
        return found if len(turns) == 2 else None

    seen = until("turns of both to be told", told, 180)
    turns = sorted((one["began"], one["ended"]) for one in seen["recent"])
    assert all(one[1] <= other[0] for one, other in pairwise(turns)), "one at a time"
    assert (seen["state"], seen["problem"]) == ("Ready", "")
    for one in jobs:
        wait(cluster, SPACE, one, "done", lambda s: holds(s, "Completed"))
        # Once the group has said that its worker and state are gone, and what it held.
        over = wait(cluster, SPACE, one, "charged", lambda s: float(s.get("chargedGPUSeconds", 0)) > 0)
        assert over["attempt"] == 1
    # Equal seeds and steps: whatever was mixed up between the two would be seen.
    script = """
import json
for name in ("one", "two"):
    found = json.load(open(f"/work/{name}/step-60/manifest.json"))
    print(found["files"]["params.npz"]["sha256"])
"""
    first, second = looked(cluster, SPACE, script, "work", user=4321).split()
    assert first == second

    def gone() -> bool:
        return not cluster.get("workergroups", "-n", GROUPS_NAMESPACE)["items"]

    until("the group to close, a minute after its last resident", gone, 180)


def test_an_actor_generates_what_the_trainer_would(cluster: ChartCluster) -> None:
    """Trainer and actor meet by the operator's Service; a run by itself ends with the same parameters."""
    engine = {
        "name": "engine",
        "image": tagged(names.TRAINER_IMAGE),
        "imagePullPolicy": "Never",
        "command": [*ENGINE, "--iteration", "0.02"],
        "resources": {"requests": {"cpu": "50m"}, "limits": {names.GPU_RESOURCE: "1"}},
        "securityContext": RESTRICTED_CONTAINER,
    }
    rollout = {
        "template": {"spec": {"securityContext": RESTRICTED_POD, "containers": [engine]}},
        "gpusPerActor": 1,
        "actors": {"min": 1, "max": 2, "static": 2},
        "slots": 4,
    }
    folder = "--checkpoints=/checkpoints/rolled"
    cluster.apply([job("rolled", [*ROLLED, "--rollouts", "pods", folder], 1, rollout=rollout)])
    cluster.apply([job("alone", [*ROLLED, "--rollouts", "local", folder.replace("rolled", "alone")], 1)])
    wait(cluster, SPACE, "rolled", "done", lambda s: holds(s, "Completed"))
    over = wait(cluster, SPACE, "rolled", "rid of its actors", lambda s: holds(s, "GPUsReleased"))
    assert over["rollout"]["plan"]["step"] >= 6, "one plan for each step"
    assert float(over["rollout"]["heldGPUSeconds"]) > 0
    wait(cluster, SPACE, "alone", "done", lambda s: holds(s, "Completed"))
    ends = [
        re.findall(r"parameters sha256 (\w{64}) after (\d+) tokens", words(cluster, n))
        for n in ("rolled", "alone")
    ]
    assert len(ends[0]) == 1
    assert ends[0] == ends[1]
