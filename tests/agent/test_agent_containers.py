"""What a container finds when it starts: environment, command, volumes, identity."""

import json
import os
import time
from pathlib import Path

import pytest
from agent_pods import Object, Pods, container, state

from deploy.local.nodes import Nodes, folder_of_claim

DUMP = "python -c 'import os, json; print(json.dumps(dict(os.environ)))'"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_environment_is_resolved_as_kubernetes_does(pods: Pods) -> None:
    pods.make("configmaps", "settings", {"data": {"COLOR": "blue", "SIZE": "7"}})
    pods.make("secrets", "hidden", {"stringData": {"password": "s3cret"}})
    env = [
        {"name": "FIRST", "value": "1"},
        {"name": "SECOND", "value": "$(FIRST)+$(COLOR) $$(FIRST) $(UNKNOWN)"},
        {"name": "COLOR", "value": "red"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "password"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "nothere", "key": "x", "optional": True}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {
            "name": "MEMORY",
            "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}},
        },
    ]
    resources = {"limits": {"cpu": "1500m", "memory": "100M"}}
    main = container(
        DUMP, env=env, envFrom=[{"configMapRef": {"name": "settings"}, "prefix": ""}], resources=resources
    )
    body = {"restartPolicy": "Never", "containers": [main]}
    pods.client.post(
        f"{pods.root}/pods",
        {"metadata": {"name": "p", "labels": {"team": "a b".replace(" ", "-")}}, "spec": body},
    )
    found = json.loads(pods.output("p"))
    pod = pods.get("p")
    assert pod is not None
    assert found["SECOND"] == "1+blue $(FIRST) $(UNKNOWN)"
    assert (found["COLOR"], found["SIZE"], found["PASSWORD"], found["TEAM"]) == ("red", "7", "s3cret", "a-b")
    assert (found["CPU"], found["MEMORY"]) == ("1500", "96")
    assert "NONE" not in found
    assert found["POD_IP"] == pod["status"]["podIP"]
    assert found["NODE"] == pod["spec"]["nodeName"]
    assert found["HOSTNAME"] == "p"
    assert found["KUBERNETES_SERVICE_HOST"] == "127.0.0.1"
    assert found["KUBERNETES_SERVICE_PORT"] == str(pods.plane.port)
    assert "KUBEBUILDER_ASSETS" not in found, "the agent's own environment must not leak into containers"


def test_command_args_and_working_directory(pods: Pods) -> None:
    main = container(
        name="main",
        command=["sh", "-c", 'pwd; echo "$0-$1"', "$(A)"],
        args=["$$(A)"],
        env=[{"name": "A", "value": "x"}],
        workingDir="/no/such/place",
    )
    pods.create("p", main)
    assert pods.output("p").split() == ["/no/such/place", "x-$(A)"]
    assert not os.path.exists("/no")


def test_each_pod_has_its_own_loopback_address(pods: Pods) -> None:
    serve = "exec python -m http.server 8123 --bind $(POD_IP)"
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    for name in ("a", "b"):
        probe = {"httpGet": {"port": 8123}, "periodSeconds": 1}
        pods.create(name, container(serve, env=env, readinessProbe=probe), nodeName="node-1")
    found = [pods.wait(name, lambda pod: state(pod).get("ready")) for name in ("a", "b")]
    addresses = {pod["status"]["podIP"] for pod in found}
    assert len(addresses) == 2
    host = found[0]["status"]["hostIP"]
    assert all(ip.startswith(host.rsplit(".", 1)[0]) and ip != host for ip in addresses)
    assert not any(ip.startswith("127.0.0.") for ip in addresses)


def test_volumes_of_every_kind(pods: Pods, tmp_path: Path) -> None:
    pods.make("configmaps", "settings", {"data": {"a": "A", "b": "B"}})
    pods.make("secrets", "hidden", {"stringData": {"key": "k"}})
    (tmp_path / "host.txt").write_text("host")
    volumes: list[Object] = [
        {
            "name": "config",
            "configMap": {"name": "settings", "items": [{"key": "a", "path": "deep/a", "mode": 0o400}]},
        },
        {"name": "whole", "configMap": {"name": "settings"}},
        {"name": "secret", "secret": {"secretName": "hidden", "defaultMode": 0o440}},
        {
            "name": "fields",
            "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]},
        },
        {"name": "none", "configMap": {"name": "nothere", "optional": True}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
        {"name": "made", "hostPath": {"path": str(tmp_path / "made"), "type": "DirectoryOrCreate"}},
    ]
    mounts = [
        {"name": "config", "mountPath": "/etc/evalstop-test/config"},
        {"name": "whole", "mountPath": "/etc/evalstop-test/one", "subPath": "b"},
        {"name": "secret", "mountPath": "/opt-test/secret"},
        {"name": "fields", "mountPath": "/fields"},
        {"name": "none", "mountPath": "/none"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "scratch", "mountPath": "/scratch-part", "subPath": "part"},
        {"name": "host", "mountPath": "/host-test", "readOnly": True},
        {"name": "made", "mountPath": "/host-test/made"},
    ]
    script = """
        cat /etc/evalstop-test/config/deep/a /etc/evalstop-test/one /opt-test/secret/key /fields/name; echo
        stat -Lc %a /etc/evalstop-test/config/deep/a /opt-test/secret/key
        ls /none | wc -l; cat /scratch/from-init; cat /scratch-part/x; cat /host-test/host.txt; echo
        touch /host-test/y 2>/dev/null && echo writable
        touch /etc/evalstop-test/config/y 2>/dev/null && echo writable
        touch /host-test/made/z; ls /etc/passwd"""
    init = container(
        "echo init > /scratch/from-init; mkdir -p /scratch/part; echo part > /scratch/part/x", "init"
    )
    init["volumeMounts"] = [mounts[5]]
    pods.create("p", container(script, volumeMounts=mounts), initContainers=[init], volumes=volumes)
    assert pods.output("p").split() == ["ABkp", "400", "440", "0", "init", "part", "host", "/etc/passwd"]
    assert (tmp_path / "made" / "z").exists()
    assert not [
        path for path in ("/etc/evalstop-test", "/opt-test", "/fields", "/scratch") if os.path.exists(path)
    ]


def test_a_config_map_volume_changes_atomically_and_soon(pods: Pods) -> None:
    pods.make("configmaps", "run", {"data": {"run.json": json.dumps({"number": 0, "pad": "x" * 20000})}})
    watch = """
import json, pathlib
last = None
while last != 5:
    try:
        text = pathlib.Path("/etc/evalstop/run/run.json").read_text()
    except FileNotFoundError:  # the old folder went while its link was being followed; kubelet's goes, too
        continue
    number = json.loads(text)["number"]  # raises if torn
    if number != last:
        print(number, flush=True)
        last = number
"""
    mounts = [{"name": "run", "mountPath": "/etc/evalstop/run"}]
    main = container(name="main", command=["python", "-c", watch], volumeMounts=mounts)
    pods.create("p", main, volumes=[{"name": "run", "configMap": {"name": "run"}}])
    pods.wait_phase("p", "Running")
    assert pods.wait_words("p") == ["0"]  # it has begun to read
    for number in range(1, 6):
        data = {"data": {"run.json": json.dumps({"number": number, "pad": "x" * 20000})}}
        pods.client.request("PUT", f"{pods.root}/configmaps/run", {"metadata": {"name": "run"}, **data}, 30)
        # Soon: kubelet itself may take more than a minute.
        pods.wait_words("p", number + 1, seconds=15)
    assert pods.output("p").split() == ["0", "1", "2", "3", "4", "5"]


def test_the_bound_token_authenticates_at_the_api_server(pods: Pods) -> None:
    ask = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
url = "https://%s:%s/apis/authentication.k8s.io/v1/selfsubjectreviews" % (
    os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
headers = {"Authorization": "Bearer " + open(folder + "/token").read(), "Content-Type": "application/json"}
context = ssl.create_default_context(cafile=folder + "/ca.crt")
answer = urllib.request.urlopen(urllib.request.Request(url, body, headers), context=context).read()
print(json.dumps(json.loads(answer)))
print(open(folder + "/namespace").read())
"""
    pods.create("p", container(name="main", command=["python", "-c", ask]))
    answer, namespace = pods.output("p").strip().split("\n")
    user = json.loads(answer)["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{pods.namespace}:default"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    assert namespace == pods.namespace


def test_a_token_has_the_audience_and_life_that_were_asked_for(pods: Pods) -> None:
    """(The API grants no less than 600 s; renewal: test_agent_parts.py; readers: test_agent_refusals.py.)"""
    source = {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}}
    volumes = [{"name": "token", "projected": {"sources": [source]}}]
    show = (
        'python -c "import base64, json; '
        "t = open('/tokens/vault').read().split('.')[1]; "
        "c = json.loads(base64.urlsafe_b64decode(t + '==')); print(c['aud'][0], c['exp'] - c['iat'])\""
    )
    pods.create(
        "p", container(show, volumeMounts=[{"name": "token", "mountPath": "/tokens"}]), volumes=volumes
    )
    assert pods.output("p").split() == ["vault", "600"]


@pytest.mark.parametrize("mode", ["ReadWriteMany", "ReadWriteOnce"])
def test_a_claim_gets_a_folder_of_its_own(pods: Pods, nodes: Nodes, mode: str) -> None:
    claim = {"spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}}
    pods.make("persistentvolumeclaims", "data", claim)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts = [{"name": "data", "mountPath": "/data-test/ckpt"}]
    pods.create(
        "writer",
        container(
            "echo hi > /data-test/ckpt/a; until [ -e /data-test/ckpt/go ]; do sleep 0.1; done",
            volumeMounts=mounts,
        ),
        volumes=volumes,
        nodeName="node-1",
    )
    reader = container(
        "until cat /data-test/ckpt/a; do sleep 0.1; done; ls /data-test/ckpt", volumeMounts=mounts
    )
    pods.wait_phase("writer", "Running")
    folder = folder_of_claim(nodes, pods.namespace, "data")
    pods.create("reader", reader, volumes=volumes, nodeName="node-2")
    # The writer uses the volume until it finds `go`: what the reader saw tells whether both did at once.
    if mode == "ReadWriteOnce":
        assert "node-1" in pods.wait_event("reader", "FailedAttachVolume")
        (folder / "go").touch()
        assert pods.output("reader").split() == ["hi", "a", "go"]
    else:
        assert pods.output("reader").split() == ["hi", "a"]
        (folder / "go").touch()
    pods.wait_phase("writer", "Succeeded")
    assert (folder / "a").read_text() == "hi\n"
    for name in ("writer", "reader"):
        pods.delete(name, 0)
    pods.client.delete(f"{pods.root}/persistentvolumeclaims/data")
    deadline = time.monotonic() + 15
    while folder.exists():
        assert time.monotonic() < deadline, "the folder of a deleted claim stays"
        time.sleep(0.1)
