"""Nodes without machines: registers them, keeps them Ready, and plays their pods by writing pod status.

Everything else is real: the API server, the Job controller that makes and deletes the pods, the scheduler
that binds them. Training pods run until told otherwise; access pods answer from a `FakeStore` at once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from string import ascii_lowercase
from typing import Any

from controller import names
from controller.kube.errors import ApiError
from deploy.local.api import LocalApi

Object = dict[str, Any]
PATIENCE = 60.0  # s: a machine may be busy, and nobody asks again

GPUS = names.GPU_RESOURCE
DIGEST = "sha256:" + "d" * 64


@dataclass
class FakeStore:
    """What is in the checkpoint store, as far as an access Job's answer tells of it."""

    steps: set[int] = field(default_factory=lambda: set(range(0, 2000, 10)))
    failures: list[tuple[str, str]] = field(default_factory=list)  # (operation, reason), used up in order
    asked: list[dict[str, Any]] = field(default_factory=list)
    pills: dict[str, str] = field(default_factory=dict)  # job -> what its access pods say, whatever is asked

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

    def __init__(self, api: LocalApi, nodes: Iterable[str], labels: dict[str, str], gpus: int = 2) -> None:
        self.store = FakeStore()
        self.holding = threading.Event()
        self.slow_store = threading.Event()
        self.pod_ip = "127.0.0.1"
        self.pool = labels.get("pool", "")
        self._api = api
        self.nodes, self._labels, self._gpus = list(nodes), labels, gpus
        self._answers: dict[str, str] = {}  # uid of an access pod -> what it says
        self._answering = threading.Lock()
        self._stop = threading.Event()
        self._watches = [PodWatch(api, name) for name in self.nodes]
        self._threads = [
            threading.Thread(target=self._follow, args=[watch], daemon=True) for watch in self._watches
        ]
        self._threads.append(threading.Thread(target=self._beat, daemon=True))

    def __enter__(self) -> FakeKubelet:
        for name in self.nodes:
            self._register(name)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for watch in self._watches:
            watch.end()
        for name in self.nodes:
            with contextlib.suppress(ApiError):
                self._api.delete(f"/api/v1/nodes/{name}", PATIENCE)

    def request(self, method: str, path: str, body: Object) -> None:
        """What the product's own client cannot ask for."""
        self._api.request(method, path, body, PATIENCE)

    def finish(self, namespace: str, job: str, phase: str = "Succeeded", code: int = 1) -> None:
        """The training pods of a job end by themselves; ``code``: exit code of those that fail."""
        selector = f"{names.LABEL_JOB}%3D{job},{names.LABEL_COMPONENT}%3Dworkload"
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}"
        for pod in self._api.get(path, PATIENCE)["items"]:
            if pod["status"].get("phase") == "Running":
                ended = _ended(pod, 0 if phase == "Succeeded" else code, "")
                self._patch(pod, {"phase": phase, "containerStatuses": [ended]})

    def say(self, namespace: str, job: str, message: str) -> bool:
        """Let the pods of a Job succeed with this message. Return whether there are any."""
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name%3D{job}"
        pods = self._api.get(path, PATIENCE)["items"]
        for pod in pods:
            self._patch(pod, {"phase": "Succeeded", "containerStatuses": [_ended(pod, 0, message)]})
        return bool(pods)

    def release(self) -> None:
        """Let pods that were held while terminating go."""
        self.holding.clear()
        for pod in self._pods():
            if pod["metadata"].get("deletionTimestamp"):
                self._remove(pod)

    def answer_late(self) -> None:
        """Answer the access pods that were left waiting."""
        self.slow_store.clear()
        for pod in self._pods():
            self._play(pod)

    def _pods(self) -> list[Object]:
        return [pod for name in self.nodes for pod in self._api.get(pods_of(name), PATIENCE)["items"]]

    def _register(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, **self._labels}
        self._api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}}, PATIENCE)
        self._status(f"/api/v1/nodes/{name}", self._node_status())
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
        self._api.post(LEASES, {"metadata": {"name": name}, "spec": spec}, PATIENCE)

    def _node_status(self) -> Object:
        room = {"cpu": "64", "memory": "64Gi", "pods": "110", GPUS: str(self._gpus)}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": now}
        return {"capacity": room, "allocatable": room, "conditions": [ready]}

    def _beat(self) -> None:
        while not self._stop.wait(8.0):
            for name in self.nodes:
                with contextlib.suppress(ApiError):
                    lease = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
                    self._api.patch(f"{LEASES}/{name}", lease, PATIENCE)
                    self._status(f"/api/v1/nodes/{name}", self._node_status())

    def _follow(self, watch: PodWatch) -> None:
        while not self._stop.is_set():
            # An API server that is away, or has forgotten the version that is watched from, is asked anew.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, ApiError):
                for kind, pod in watch.events():
                    if self._stop.is_set():
                        return
                    if kind in ("ADDED", "MODIFIED"):
                        self._play(pod)
            self._stop.wait(0.1)

    def _play(self, pod: Object) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            if not self.holding.is_set():
                self._remove(pod)
        elif pod["status"].get("phase") == "Pending":
            if (pod["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) == "access":
                if not self.slow_store.is_set():
                    self._answer(pod)
            else:
                self._run(pod)

    def _remove(self, pod: Object) -> None:
        with contextlib.suppress(ApiError):
            self._api.delete(f"{_path(pod)}?gracePeriodSeconds=0", PATIENCE)

    def _run(self, pod: Object) -> None:
        statuses = [
            {
                "name": c["name"],
                "image": c["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
            for c in pod["spec"]["containers"]
        ]
        conditions = [{"type": t, "status": "True"} for t in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "podIP": self.pod_ip, "conditions": conditions}
        self._patch(pod, {**status, "containerStatuses": statuses})

    def _answer(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        with self._answering:  # the watch and `answer_late` may both come to a pod: it asks the store once
            if uid not in self._answers:
                env = {v["name"]: v.get("value", "") for v in pod["spec"]["containers"][0]["env"]}
                request = json.loads(env["EVALSTOP_REQUEST"])
                pill = self.store.pills.get(request.get("job", ""))
                self._answers[uid] = pill or json.dumps(self.store.answer(request))
        message = self._answers[uid]
        self._patch(pod, {"phase": "Succeeded", "containerStatuses": [_ended(pod, 0, message)]})

    def _patch(self, pod: Object, status: Object) -> None:
        with contextlib.suppress(ApiError):
            self._status(_path(pod), status)

    def _status(self, path: str, status: Object) -> None:
        """Change what is named of a status: of lists, as of conditions, the entries of the same type."""
        kind = "application/strategic-merge-patch+json"
        self._api.request("PATCH", f"{path}/status", {"status": status}, PATIENCE, kind)


class PodWatch:
    """The pods of one node as plain JSON: the official client's objects cost most of what a test costs."""

    def __init__(self, api: LocalApi, node: str) -> None:
        self._api, self._node = api, node
        self._wire: socket.socket | None = None

    def events(self) -> Iterator[tuple[str, Object]]:
        """Yield the pods that are there, then what changes, until the server ends it or `end` does."""
        connection = http.client.HTTPSConnection(
            self._api.host, self._api.port, timeout=330.0, context=self._api.context
        )
        with contextlib.closing(connection):
            connection.request("GET", f"{pods_of(self._node)}&watch=true&timeoutSeconds=300")
            self._wire = connection.sock
            for line in connection.getresponse():
                event = json.loads(line)
                yield event["type"], event["object"]

    def end(self) -> None:
        """End what is read, from another thread."""
        if (wire := self._wire) is not None:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def pods_of(node: str) -> str:
    """Return the path of the pods that are bound to a node."""
    return f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"


def _path(pod: Object) -> str:
    about = pod["metadata"]
    return f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"


def _ended(pod: Object, code: int, message: str) -> Object:
    container = pod["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "message": message, "reason": "Completed"}},
    }


@contextlib.contextmanager
def pool_of_its_own(api: LocalApi, nodes: int = 2, gpus: int = 2) -> Iterator[FakeKubelet]:
    """So many nodes of so many GPUs, labelled for a pool that no other test has (`FakeKubelet.pool`); a
    GPUPool of that name is deleted afterwards."""
    pool = f"p-{secrets.token_hex(3)}"
    members = [f"{pool}-{letter}" for letter in ascii_lowercase[:nodes]]
    with FakeKubelet(api, members, {"pool": pool}, gpus) as running:
        yield running
        with contextlib.suppress(ApiError):
            api.delete(f"/apis/{names.API_VERSION}/gpupools/{pool}", PATIENCE)
