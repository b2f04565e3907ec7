"""A trial on nodes that their owner keeps others off, with an image that needs a secret.

A real operator, a real kube-scheduler, and the command as a user runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parity_world import known_overheads

from controller import names
from controller.parity.local_cluster import start_local_cluster
from deploy.local.acquire import Found

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HEAD = {"format": "evalstop-trace", "version": 1}
# The second comes when no job is there any more that opens the nodes to the pool.
JOBS = [{"job": name, "submitted": at, "gpus": 4, "work": 3} for name, at in (("first", 0), ("second", 20))]
SECRET = ("create", "secret", "docker-registry", "pulls", "-n", "default", "--docker-server=here.invalid")


def test_tainted_nodes_and_a_pull_secret(tools: dict[str, Found], tmp_path: Path) -> None:
    trace, overheads = tmp_path / "trace.jsonl", tmp_path / "overheads.json"
    trace.write_text("".join(json.dumps(entry) + "\n" for entry in [HEAD, *JOBS]))
    overheads.write_text(known_overheads())
    with start_local_cluster(tmp_path / "cluster", [4], 1, print) as cluster:

        def kubectl(*words: str) -> str:
            command = [str(tools["kubectl"].path), "--kubeconfig", str(cluster.kubeconfig), *words]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        def of_the_trial(kind: str, namespaced: str = "parity-") -> list[dict[str, Any]]:
            items = json.loads(kubectl("get", kind, "-A", "-o", "json"))["items"]
            return [one for one in items if one["metadata"].get("namespace", "").startswith(namespaced)]

        (key, value) = cluster.selectors[0]
        kubectl("taint", "nodes", "-l", f"{key}={value}", "team=lent:NoSchedule")
        kubectl(*SECRET, "--docker-username=u", "--docker-password=p")
        command = [
            *(sys.executable, "-m", "controller.cli", "parity", str(trace), "--json"),
            *("--out", str(tmp_path / "out"), "--nodes", "1x4", "--speed", "1", "--policy", "fifo"),
            *("--overheads", str(overheads), "--kubeconfig", str(cluster.kubeconfig)),
            *("--nodes-of", f"{key}={value}", "--image-pull-secret", "default/pulls"),
        ]
        pods: dict[str, dict[str, Any]] = {}
        secrets: list[dict[str, Any]] = []
        with (
            (tmp_path / "said").open("w") as said,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process,
        ):
            while process.poll() is None:
                pods |= {pod["metadata"]["uid"]: pod for pod in of_the_trial("pods")}
                secrets = of_the_trial("secrets") or secrets
                time.sleep(0.5)
            assert process.stdout is not None
            answer = process.stdout.read()
    assert process.returncode == 0, (tmp_path / "said").read_text()
    (fifo,) = json.loads(answer)["policies"]
    assert (fifo["jobs"], fifo["preemptions"]) == (2, 0)
    # The second was not left waiting for the node to be opened.
    assert fifo["jct_cluster"] < 15.0
    of_jobs = [
        pod["metadata"]["name"]
        for pod in pods.values()
        if names.ANNOTATION_ADMISSION in pod["metadata"].get("annotations", {})
    ]
    assert sorted(name.rpartition("-")[0] for name in of_jobs) == ["first-0-0", "second-1-0"]
    # Pods that secure a checkpoint come at times, and may go to these nodes, too.
    for pod in pods.values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pulls"}]
        keys = {toleration["key"] for toleration in pod["spec"]["tolerations"]}
        assert {"team", names.POOL_TAINT} <= keys
    (copy,) = (one for one in secrets if one["metadata"]["name"] == "pulls")
    assert copy["type"] == "kubernetes.io/dockerconfigjson"
    assert set(copy["data"]) == {".dockerconfigjson"}
