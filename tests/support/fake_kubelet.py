"""Nodes without machines: registers them, keeps them Ready, and plays their pods by writing pod status.

Everything else is real: the API server, the Job controller that makes and deletes the pods, the scheduler
that binds them. Training pods run until told otherwise; access pods answer from a `FakeStore` at once.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from string import ascii_lowercase
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from controller import names

GPUS = names.GPU_RESOURCE
DIGEST = "sha256:" + "d" * 64


@dataclass
class FakeStore:
    """What is in the checkpoint store, as far as an access Job's answer tells of it."""

    steps: set[int] = field(default_factory=lambda: set(range(0, 2000, 10)))
    failures: list[tuple[str, str]] = field(default_factory=list)  # (operation, reason), used up in order
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        operation, step = request["operation"], request["step"]
        if operation == "claim":
            return {"ok": True}
        if self.failures and self.failures[0][0] == operation:
            _, reason = self.failures.pop(0)
            return {"ok": False, "reason": reason, "message": f"made to fail: {reason}"}
        if operation == "secure":
            there = [s for s in self.steps if step - request.get("maxStepLag", 0) <= s <= step]
            if not there:
                return {
                    "ok": False,
                    "reason": "CheckpointMissing",
                    "message": f"no checkpoint of step {step}",
                }
            step = max(there)
        folder = {"secure": "pins", "check": "pins", "retain": "kept", "restore": "resume"}[operation]
        return {
            "ok": True,
            "step": step,
            "path": f"s3://{folder}/{request['owner']}/{step}",
            "digest": DIGEST,
            "sourceDigest": DIGEST,
            "bytes": 10,
            "files": 1,
        }

    def done(self, operation: str) -> list[int]:
        return [r["step"] for r in self.asked if r["operation"] == operation]


class FakeKubelet:
    """Nodes of one pool. ``holding``: pods told to end go on terminating until `release`;
    ``slow_store``: access pods give no answer until `answer_late`."""

    def __init__(
        self, api: client.ApiClient, nodes: Iterable[str], labels: dict[str, str], gpus: int = 2
    ) -> None:
        self.store = FakeStore()
        self.holding = threading.Event()
        self.slow_store = threading.Event()
        self.pod_ip = "127.0.0.1"
        self.pool = labels.get("pool", "")
        self._core, self._leases = client.CoreV1Api(api), client.CoordinationV1Api(api)
        self.nodes, self._labels, self._gpus = list(nodes), labels, gpus
        self._answers: dict[str, str] = {}  # uid of an access pod -> what it says
        self._answering = threading.Lock()
        self._stop = threading.Event()
        self._watch = watch.Watch()
        self._threads = [
            threading.Thread(target=self._follow, daemon=True),
            threading.Thread(target=self._beat, daemon=True),
        ]

    def __enter__(self) -> FakeKubelet:
        for name in self.nodes:
            self._register(name)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watch.stop()
        for name in self.nodes:
            with contextlib.suppress(ApiException):
                self._core.delete_node(name)

    def finish(self, namespace: str, job: str, phase: str = "Succeeded", code: int = 1) -> None:
        """The training pods of a job end by themselves; ``code``: exit code of those that fail."""
        selector = f"{names.LABEL_JOB}={job},{names.LABEL_COMPONENT}=workload"
        for pod in self._core.list_namespaced_pod(namespace, label_selector=selector).items:
            if pod.status.phase == "Running":
                ended = _ended(pod, 0 if phase == "Succeeded" else code, "")
                self._patch(pod, {"phase": phase, "containerStatuses": [ended]})

    def release(self) -> None:
        """Let pods that were held while terminating go."""
        self.holding.clear()
        for pod in self._core.list_pod_for_all_namespaces().items:
            if pod.spec.node_name in self.nodes and pod.metadata.deletion_timestamp:
                self._remove(pod)

    def answer_late(self) -> None:
        """Answer the access pods that were left waiting."""
        self.slow_store.clear()
        for pod in self._core.list_pod_for_all_namespaces().items:
            if pod.spec.node_name in self.nodes:
                self._play(pod)

    def _register(self, name: str) -> None:
        body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **self._labels}}}
        self._core.create_node(body)
        self._core.patch_node_status(name, {"status": self._node_status()})
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
        self._leases.create_namespaced_lease("kube-node-lease", {"metadata": {"name": name}, "spec": spec})

    def _node_status(self) -> dict[str, Any]:
        room = {"cpu": "64", "memory": "64Gi", "pods": "110", GPUS: str(self._gpus)}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": now}
        return {"capacity": room, "allocatable": room, "conditions": [ready]}

    def _beat(self) -> None:
        while not self._stop.wait(8.0):
            for name in self.nodes:
                with contextlib.suppress(ApiException, HTTPError):
                    lease = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
                    self._leases.patch_namespaced_lease(name, "kube-node-lease", lease)
                    self._core.patch_node_status(name, {"status": self._node_status()})

    def _follow(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(ApiException, OSError, HTTPError):
                for event in self._watch.stream(self._core.list_pod_for_all_namespaces, timeout_seconds=300):
                    if self._stop.is_set():
                        return
                    pod = event["object"]
                    if pod.spec.node_name in self.nodes and event["type"] != "DELETED":
                        self._play(pod)

    def _play(self, pod: client.V1Pod) -> None:
        if pod.metadata.deletion_timestamp is not None:
            if not self.holding.is_set():
                self._remove(pod)
        elif pod.status.phase == "Pending":
            if (pod.metadata.labels or {}).get(names.LABEL_COMPONENT) == "access":
                if not self.slow_store.is_set():
                    self._answer(pod)
            else:
                self._run(pod)

    def _remove(self, pod: client.V1Pod) -> None:
        with contextlib.suppress(ApiException):
            self._core.delete_namespaced_pod(
                pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0
            )

    def _run(self, pod: client.V1Pod) -> None:
        statuses = [
            {
                "name": c.name,
                "image": c.image,
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
            for c in pod.spec.containers
        ]
        conditions = [{"type": t, "status": "True"} for t in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "podIP": self.pod_ip, "conditions": conditions}
        self._patch(pod, {**status, "containerStatuses": statuses})

    def _answer(self, pod: client.V1Pod) -> None:
        uid = pod.metadata.uid
        with self._answering:  # the watch and `answer_late` may both come to a pod: it asks the store once
            if uid not in self._answers:
                env = {v.name: v.value for v in pod.spec.containers[0].env}
                self._answers[uid] = json.dumps(self.store.answer(json.loads(env["EVALSTOP_REQUEST"])))
        message = self._answers[uid]
        self._patch(pod, {"phase": "Succeeded", "containerStatuses": [_ended(pod, 0, message)]})

    def _patch(self, pod: client.V1Pod, status: dict[str, Any]) -> None:
        with contextlib.suppress(ApiException):
            self._core.patch_namespaced_pod_status(
                pod.metadata.name, pod.metadata.namespace, {"status": status}
            )


def _ended(pod: client.V1Pod, code: int, message: str) -> dict[str, Any]:
    container = pod.spec.containers[0]
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "message": message, "reason": "Completed"}},
    }


@contextlib.contextmanager
def pool_of_its_own(api: client.ApiClient, nodes: int = 2, gpus: int = 2) -> Iterator[FakeKubelet]:
    """So many nodes of so many GPUs, labelled for a pool that no other test has (`FakeKubelet.pool`); a
    GPUPool of that name is deleted afterwards."""
    pool = f"p-{secrets.token_hex(3)}"
    members = [f"{pool}-{letter}" for letter in ascii_lowercase[:nodes]]
    with FakeKubelet(api, members, {"pool": pool}, gpus) as running:
        yield running
        with contextlib.suppress(ApiException):
            client.CustomObjectsApi(api).delete_cluster_custom_object(
                names.GROUP, names.VERSION, "gpupools", pool
            )
