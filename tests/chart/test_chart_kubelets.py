"""What only kubelets, containers and a pod network can show: mounts, users, Pod Security, Services, policies.

On a cluster that `make test-kind` has made, with the image of `root_image` on its nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kubelets import (
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    STORY_S,
    gpus_of_a_node,
    holds,
    home,
    looked,
    on_claims,
    peer,
    phase,
    wait,
)
from rendering import NAMESPACE

from controller import names
from controller.checkpoints.access_jobs import AccessSettings, access_job
from controller.policy.job.record import Operation, ProtectedCheckpoint
from controller.policy.job.types import StartAccess
from deploy.helm.cluster import ChartCluster, until
from deploy.kind.testing import ROOT_IMAGE
from deploy.local.errors import PlaneError
from tests.support import given_cluster

Json = dict[str, Any]
SPACES = {"kubelets": "privileged", "kubelets-restricted": "restricted"}  # namespace -> Pod Security level
SPACE, RESTRICTED = SPACES
pytestmark = [
    pytest.mark.kubelets,
    pytest.mark.skipif(given_cluster.given() is None, reason="needs kubelets: make test-kind"),
    pytest.mark.timeout(2 * STORY_S),
]


@pytest.fixture(scope="module", autouse=True)
def spaces(cluster: ChartCluster, notes: str) -> Iterator[None]:
    """Namespaces of their own, each with a claim for checkpoints and one for what is retained."""
    with contextlib.ExitStack() as homes:
        for space, level in SPACES.items():
            homes.enter_context(home(cluster, space, level))
        yield


# -- runs ----------------------------------------------------------------------------------------------------


def run(space: str, name: str, pods: int = 1, gpus: int = 1, **spec: Any) -> Json:
    """A run of the root image, which gets worse after its sixth eval, in a template that names no user."""
    container: Json = {
        "name": "trainer",
        "image": ROOT_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "/opt/trainer.py", f"/checkpoints/{name}"],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"requests": {"cpu": "50m"}, "limits": {names.GPU_RESOURCE: str(gpus)}},
        "volumeMounts": [{"name": "work", "mountPath": "/checkpoints"}],
    }
    pod: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "work"}}],
    }
    if pods > 1:  # as torchrun: all meet at the first one, by its name behind a Service without an address
        pod["subdomain"] = name
        container["env"].append({"name": "RANK_0", "value": f"{name}-0.{name}"})
    if space == RESTRICTED:
        pod["securityContext"], container["securityContext"] = RESTRICTED_POD, RESTRICTED_CONTAINER
    ignored = {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}]}
    workload = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "podFailurePolicy": ignored,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": space},
        "spec": {
            "pool": "research",
            "gang": {"replicas": pods, "gpusPerReplica": gpus},
            "metrics": [{"name": "score"}],
            "stopRule": {"kDeclines": {"k": 3}},
            "modifiers": [],
            "scrape": {"intervalSeconds": 5},
            "checkpoints": {**on_claims(name), "keep": "Best"},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": workload}},
            **spec,
        },
    }


# -- row 7 of part 8: what a Job only reads it cannot write --------------------------------------------------

# Tries to write a file at each mount point.
WRITE = """
import errno, pathlib, sys
for place in sys.argv[1:]:
    try:
        (pathlib.Path(place) / "written").write_text("x")
        print(place, "written")
    except OSError as error:
        print(place, errno.errorcode[error.errno])
"""


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Operation.RETAIN, {"work": "EROFS", "kept": "written"}),
        (Operation.RESTORE, {"work": "written", "kept": "EROFS"}),
        (Operation.CHECK, {"work": "EROFS"}),
        (Operation.PIN, {"work": "written"}),
    ],
)
def test_what_an_access_job_only_reads_is_read_only_to_it(
    cluster: ChartCluster, operation: Operation, expected: Json
) -> None:
    """The Job as the operator makes it, in which another program runs."""
    source = ProtectedCheckpoint(10, 10, "/checkpoints/step-10", "sha256:" + "ab" * 32, 0.0)
    reads = operation in (Operation.RETAIN, Operation.RESTORE)
    action = StartAccess("mounts", operation, 10, source=source if reads else None)
    job = run(SPACE, "mounts")
    job["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    template = job["spec"]["workload"]["template"]["spec"]["template"]
    claims = {name: cluster.get("pvc", name, "-n", SPACE) for name in ("work", "kept")}
    made = access_job(job, template, action, AccessSettings(), claims=claims)
    made["metadata"]["name"] = name = f"mounts-{operation.lower()}"
    made["spec"]["suspend"] = False
    (container,) = made["spec"]["template"]["spec"]["containers"]
    of_claim = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in made["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    places = {mount["mountPath"]: of_claim[mount["name"]] for mount in container["volumeMounts"]}
    container["command"] = ["python", "-c", WRITE, *places]
    cluster.apply([made])
    found = until("the Job", lambda: cluster.get("job", name, "-n", SPACE)["status"].get("conditions"), 120)
    said = cluster.kubectl("logs", f"job/{name}", "-n", SPACE)
    assert {c["type"] for c in found if c["status"] == "True"} & {"Complete"}, said
    seen = {places[place]: result for place, result in (line.split() for line in said.splitlines())}
    assert seen == expected


# -- part 10: an image that runs as root, and weights that only their owner may read -------------------------


@pytest.mark.parametrize("space", SPACES)
def test_a_run_is_stopped_and_its_weights_are_kept(cluster: ChartCluster, space: str) -> None:
    """As root, in a template without any securityContext; and as a user, where `restricted` is enforced."""
    user = RESTRICTED_POD["runAsUser"] if space == RESTRICTED else 0
    cluster.apply([run(space, "rooted")])
    over = wait(cluster, space, "rooted", "stopped", lambda s: holds(s, "GPUsReleased"))
    assert over["best"]["step"] == 120
    (kept,) = over["retained"]
    assert kept["step"] == 120
    if user == 0:  # nothing names it: it was found by the files
        assert (over["fileOwner"]["user"], over["fileOwner"]["group"]) == (0, 0)
    script = """
import os, pathlib
for place in ("/work", "/kept"):
    for path in sorted(pathlib.Path(place).rglob("model.safetensors")):
        found = path.stat()
        print(place, path.parent.name, oct(found.st_mode & 0o777), found.st_uid, len(path.read_bytes()))
"""
    lines = looked(cluster, space, script, "work", "kept", user=user).split("\n")
    written = [line.split() for line in lines if line.startswith("/work")]
    retained = [line.split() for line in lines if line.startswith("/kept")]
    assert written, lines
    assert {(mode, owner) for _, _, mode, owner, _ in written} == {("0o600", str(user))}
    assert [size for *_, size in retained] == [written[0][-1]]


def test_two_pods_over_a_service_act_in_the_same_step(cluster: ChartCluster) -> None:
    """On two nodes, whose kubelets bring `run.json` when they get to it: one pod reads it for both."""
    gpus = gpus_of_a_node(cluster)  # each pod takes a node
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "gang", "namespace": SPACE},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": "gang"},
        },
    }
    cluster.apply([service, run(SPACE, "gang", pods=2, gpus=gpus)])
    wait(cluster, SPACE, "gang", "evaluated", lambda s: len(s.get("evals") or ()) >= 2)
    mine = ("-n", SPACE, "-l", "batch.kubernetes.io/job-name=gang")
    assert len({pod["spec"]["nodeName"] for pod in cluster.get("pods", *mine)["items"]}) == 2
    stop = json.dumps({"spec": {"runState": "Stopped"}})
    cluster.kubectl("patch", "rlhfjob", "gang", "-n", SPACE, "--type=merge", "-p", stop)
    number = itertools.count()

    def freed(found: Json) -> bool:
        # A kubelet brings a changed ConfigMap within about a minute; a change of the pod has it look at once.
        if not holds(found, "GPUsReleased"):
            with contextlib.suppress(PlaneError):  # pods that go while kubectl annotates them
                cluster.kubectl("annotate", "pods", *mine, f"look={next(number)}", "--overwrite")
        return holds(found, "GPUsReleased")

    wait(cluster, SPACE, "gang", "stopped", freed)
    script = "for rank in (0, 1): print(open(f'/work/gang/acts{rank}').read(), end='---')"
    first, second, _ = looked(cluster, SPACE, script, "work", user=0).split("---")
    print(first)
    assert first == second
    assert first.startswith("request 1: "), "it was asked through run.json, and did not only leave at SIGTERM"
    assert first.strip().endswith("save True, stop True")


# -- our own pods --------------------------------------------------------------------------------------------


def test_our_own_pods_run_where_pod_security_is_restricted(cluster: ChartCluster) -> None:
    """All of them made anew under it; none is root, and none can write to its own files."""
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", NAMESPACE, enforced, "--overwrite")
    deployments = [d["metadata"]["name"] for d in cluster.get("deployments", "-n", NAMESPACE)["items"]]
    assert {"evalstop-operator", "evalstop-extender", "evalstop-scheduler"} <= set(deployments)
    for name in deployments:
        cluster.kubectl("rollout", "restart", f"deployment/{name}", "-n", NAMESPACE)
    for name in deployments:
        cluster.kubectl(
            "rollout", "status", f"deployment/{name}", "-n", NAMESPACE, "--timeout=180s", timeout_s=200
        )
    script = "import os; print(os.getuid()); open('/written', 'w')"
    for name in ("evalstop-operator", "evalstop-extender"):
        with pytest.raises(PlaneError, match="Read-only file system"):
            cluster.kubectl("exec", f"deployment/{name}", "-n", NAMESPACE, "--", "python", "-c", script)


@pytest.fixture(scope="module")
def enforcing(cluster: ChartCluster) -> None:
    """The cluster's network enforces NetworkPolicies: a pod that nobody is let in to is not reached."""
    deny = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": SPACE},
        "spec": {"podSelector": {"matchLabels": {"peer": "closed"}}, "policyTypes": ["Ingress"]},
    }
    cluster.apply([deny, peer("closed", SPACE, ["-m", "http.server", "8000"])])
    address = until(
        "its address", lambda: cluster.get("pod", "closed", "-n", SPACE)["status"].get("podIP"), 60
    )
    until("it", lambda: phase(cluster, SPACE, "closed") == "Running", 60)
    time.sleep(5.0)  # for the network to hear of both: that it does nothing is seen by waiting alone
    if reached(cluster, [(address, 8000)]) == ["reached"]:
        pytest.skip("this cluster's network enforces no NetworkPolicies")


def reached(cluster: ChartCluster, places: list[tuple[str, int]]) -> list[str]:
    """What becomes of a connection to each of them from a pod in a tenant's namespace."""
    script = f"""
import socket
for place in {places!r}:
    try:
        socket.create_connection(place, timeout=4.0).close()
        print("reached")
    except OSError as error:
        print("refused" if isinstance(error, ConnectionRefusedError) else "silence")
"""
    return looked(cluster, SPACE, script).split()


def test_nobody_is_let_in_but_who_is_named(cluster: ChartCluster, enforcing: None) -> None:
    """The extender's own traffic passes: the runs above were placed by way of it."""
    ports = {"evalstop-operator": (8080, 8444), "evalstop-extender": (8443, 8081, 8444)}
    places = []
    for name, open_ports in ports.items():
        pods = cluster.get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={name}")["items"]
        places += [(pods[0]["status"]["podIP"], port) for port in open_ports]
    assert set(reached(cluster, places)) == {"silence"}
