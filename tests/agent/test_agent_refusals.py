"""What the node enforces and refuses, and what its identity may not do."""

import asyncio
import json
import os
import pty
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
from agent_pods import Object, Pods, container, state

from controller.names import ACCESS_IMAGE
from deploy.local.agent.process import probe_mounting
from deploy.local.errors import PlaneError
from deploy.local.nodes import PORT, Nodes

GPU = "nvidia.com/gpu"
BEST = asyncio.run(probe_mounting())


def gpus(count: int) -> Object:
    return {"resources": {"limits": {GPU: count}}}


def test_allocatable_gpus_are_enforced_and_numbered(pods: Pods) -> None:
    show = "echo $NVIDIA_VISIBLE_DEVICES; sleep 60"
    pods.create("one", container(show, **gpus(1)), nodeName="node-1")
    pods.create("two", container(show, **gpus(1)), nodeName="node-1")
    pods.create("none", container("echo $NVIDIA_VISIBLE_DEVICES"), nodeName="node-1")
    for name in ("one", "two"):
        pods.wait_phase(name, "Running")
    pods.create("third", container(show, **gpus(1)), nodeName="node-1")  # past the scheduler
    refused = pods.wait_phase("third", "Failed")
    assert refused["status"]["reason"] == f"OutOf{GPU}"
    assert "requested: 1, used: 2, capacity: 2" in refused["status"]["message"]
    assert "requested: 1" in pods.wait_event("third", f"OutOf{GPU}")
    assert pods.output("none").strip() == "void"
    assert sorted(pods.wait_words("one") + pods.wait_words("two")) == ["0", "1"]
    pods.delete("one")
    pods.wait_gone("one")
    pods.create("fourth", container(show, **gpus(1)), nodeName="node-1")
    pods.wait_phase("fourth", "Running")


def test_an_image_outside_the_table_is_refused(pods: Pods) -> None:
    pods.create("p", {"name": "main", "image": "registry.example/nginx:1.27@sha256:" + "0" * 64})
    pod = pods.wait(
        "p",
        lambda pod: (
            "waiting" in state(pod).get("state", {}) and state(pod)["state"]["waiting"].get("message")
        ),
    )
    assert state(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    message = pods.wait_event("p", "Failed")
    assert "registry.example/nginx" in message
    assert "deploy/local/agent/images.py" in message
    pods.delete("p")
    pods.wait_gone("p")


@pytest.mark.parametrize(
    ("fields", "spec", "words"),
    [
        ({}, {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}, "volume 'v' of kind nfs"),
        ({"ports": [{"containerPort": 1, "hostPort": 80}]}, {}, "hostPort without hostNetwork"),
        ({"livenessProbe": {"grpc": {"port": 1}}}, {}, "gRPC livenessProbe"),
        ({}, {"os": {"name": "windows"}, "nodeName": "node-1"}, "os 'windows'"),
    ],
)
def test_what_it_cannot_run_is_refused_with_an_event(
    pods: Pods, fields: Object, spec: Object, words: str
) -> None:
    pods.create("p", container("true", **fields), **spec)
    pod = pods.wait_phase("p", "Failed")
    assert pod["status"]["reason"] == "UnsupportedPod"
    assert words in pod["status"]["message"]
    assert words in pods.wait_event("p", "UnsupportedPod")


def test_what_has_no_effect_of_a_security_context_is_told(pods: Pods) -> None:
    context = {"runAsUser": 1000, "readOnlyRootFilesystem": True}
    pods.create("p", container("true", securityContext=context), securityContext={"fsGroup": 7})
    pods.output("p")
    note = pods.wait_event("p", "SettingsIgnored")
    assert "spec.securityContext.fsGroup" in note
    assert "container main: securityContext.readOnlyRootFilesystem" in note
    assert ("runAsUser" in note) == (BEST != "root")


@pytest.mark.skipif(BEST != "root", reason="only root may give up being root")
def test_a_container_runs_as_the_user_and_group_that_it_asks_for(pods: Pods) -> None:
    """They were ignored: no test saw what another user may not read."""
    program = "import os, yaml; print(os.getuid(), os.getgid(), sorted(os.getgroups()), os.environ['HOME'])"
    python: Object = {"image": f"{ACCESS_IMAGE}:0.1.0", "command": ["python", "-c", program]}
    asked = {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 7}
    pods.create("pod", container(**python), securityContext=asked)
    own = container(**python, securityContext={"runAsUser": 1001})
    pods.create("own", own, securityContext=asked)
    pods.create("root", container(**python), securityContext={"runAsUser": 0})
    assert pods.output("pod") == "1000 2000 [7] /\n"
    assert pods.output("own") == "1001 2000 [7] /\n"
    assert pods.output("root") == "0 0 [] /root\n"


@pytest.mark.skipif(BEST != "root", reason="only root may give up being root")
def test_a_container_reads_its_token_and_its_secrets_as_the_user_that_it_asks_for(pods: Pods) -> None:
    """The token was root's alone: no other user's pod could ask the API server anything."""
    pods.make("secrets", "own", {"stringData": {"key": "s"}})
    volumes = [
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {"name": "secret", "secret": {"secretName": "own", "defaultMode": 0o400}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    look = "stat -Lc '%a %u %g' $f; head -c1 $f >/dev/null 2>&1 && echo read"
    show = f"for f in /token/token /secret/key; do {look}; done; true"
    context = {"runAsUser": 1000, "runAsGroup": 1000}
    shown = container(show, volumeMounts=mounts)
    other = container("true", name="other", securityContext={"runAsUser": 1001})
    pods.create("own", shown, securityContext=context, volumes=volumes)
    pods.create("group", shown, securityContext={**context, "fsGroup": 7}, volumes=volumes)
    pods.create("two", shown, other, securityContext=context, volumes=volumes)
    assert pods.output("own") == "600 1000 0\nread\n400 0 0\n"
    assert pods.output("group") == "640 1000 7\nread\n440 0 7\nread\n"
    pods.wait_phase("two", "Succeeded", "Failed")
    assert pods.logs("two", "-c", "main") == "644 0 0\nread\n400 0 0\n"


def test_a_missing_config_map_is_waited_for(pods: Pods) -> None:
    volumes = [{"name": "v", "configMap": {"name": "later"}}]
    pods.create(
        "volume", container("cat /v/a", volumeMounts=[{"name": "v", "mountPath": "/v"}]), volumes=volumes
    )
    pods.create("env", container("echo $A", envFrom=[{"configMapRef": {"name": "later"}}]))
    assert "'later' not found" in pods.wait_event("volume", "FailedMount")
    pods.wait("env", lambda pod: "CreateContainerConfigError" in json.dumps(pod["status"]))
    pods.make("configmaps", "later", {"data": {"a": "x", "A": "y"}})
    assert pods.output("volume") == "x"
    assert pods.output("env") == "y\n"


def test_a_nodes_identity_makes_no_volumes_and_no_taints(pods: Pods, nodes: Nodes) -> None:
    plane = pods.plane
    mine = plane.kubeconfig_for("system:node:node-1", ["system:nodes"])
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "sneaky"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}},
    }
    with pytest.raises(PlaneError, match="forbidden"):
        plane.kubectl("create", "-f", "-", stdin=json.dumps(volume), kubeconfig=mine)
    with pytest.raises(PlaneError, match=r"not allowed to modify taints|forbidden"):
        plane.kubectl("taint", "node", "node-1", "a=b:NoSchedule", kubeconfig=mine)
    with pytest.raises(PlaneError, match="forbidden"):
        plane.kubectl("label", "node", "node-2", "evalstop.dev/x=y", kubeconfig=mine)
    with pytest.raises(PlaneError, match="forbidden"):
        plane.kubectl("get", "secrets", "-A", kubeconfig=mine)


def test_logs(pods: Pods) -> None:
    script = "for i in 1 2 3 4 5; do echo line $i; done; printf unfinished"
    pods.create("p", container(script), container("echo other", "second"))
    pods.wait_phase("p", "Succeeded")
    assert pods.logs("p", "-c", "main").split("\n") == [*(f"line {i}" for i in range(1, 6)), "unfinished"]
    assert pods.logs("p", "-c", "second") == "other\n"
    assert pods.logs("p", "-c", "main", "--tail=2") == "line 5\nunfinished"
    assert pods.logs("p", "-c", "main", "--limit-bytes=4") == "line"
    stamped = pods.logs("p", "-c", "main", "--tail=1", "--timestamps")
    assert stamped.endswith("Z unfinished")
    assert pods.logs("p", "-c", "main", "--since-time=2100-01-01T00:00:00Z") == ""
    with pytest.raises(PlaneError, match="previous terminated container"):
        pods.logs("p", "-c", "main", "--previous")
    pods.create("slow", container("echo a; sleep 1; echo b"))
    pods.wait_phase("slow", "Running")
    assert pods.logs("slow", "-f") == "a\nb\n"


def test_exec(pods: Pods) -> None:
    mounts = [{"name": "x", "mountPath": "/x-test"}]
    env = [{"name": "A", "value": "from-env"}]
    main = container("sleep 60", volumeMounts=mounts, env=env, workingDir="/x-test")
    pods.create("p", main, volumes=[{"name": "x", "emptyDir": {}}])
    pods.wait_phase("p", "Running")
    run = ("exec", "-n", pods.namespace, "p", "--")
    assert pods.plane.kubectl(*run, "sh", "-c", "echo $A; pwd; hostname") == "from-env\n/x-test\np\n"
    sent = "line\n" * 5000
    given = ("exec", "-i", "-n", pods.namespace, "p", "--", "sh", "-c", "cat > file; wc -c < file")
    assert pods.plane.kubectl(*given, stdin=sent) == f"{len(sent)}\n"
    with pytest.raises(PlaneError, match="exit code 9"):
        pods.plane.kubectl(*run, "sh", "-c", "echo oops >&2; exit 9")
    with pytest.raises(PlaneError, match="nothere"):
        pods.plane.kubectl(*run, "nothere")


def test_exec_with_a_terminal(pods: Pods) -> None:
    pods.create("p", container("sleep 60"))
    pods.wait_phase("p", "Running")
    ours, theirs = pty.openpty()
    given = ["exec", "-it", "-n", pods.namespace, "p", "--", "sh", "-c", "tty; read line; echo got $line"]
    environment = {**os.environ, "KUBECONFIG": str(pods.plane.kubeconfig)}
    child = subprocess.Popen(
        [pods.plane.binaries["kubectl"], *given], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    try:
        while b"/dev/pts/" not in seen:
            seen += os.read(ours, 1024)
        os.write(ours, b"typed\n")
        while b"got typed" not in seen:
            seen += os.read(ours, 1024)
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def test_only_the_api_server_reads_logs_from_a_node(pods: Pods) -> None:
    pods.create("p", container("echo private"))
    pod = pods.wait_phase("p", "Succeeded")
    url = f"https://{pod['status']['hostIP']}:{PORT}/containerLogs/{pods.namespace}/p/main"
    context = ssl.create_default_context(cafile=pods.plane.ca)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(url, context=context)
    pair = pods.plane.client_cert("system:node:node-1", ["system:nodes"])
    context.load_cert_chain(pair.certificate, pair.key)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, context=context)
    assert refused.value.code == 403
