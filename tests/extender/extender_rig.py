"""Real kube-schedulers, a real extender, a cluster of plain objects: the test plays operator and kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from controller import names
from controller.extender.process import Extender
from controller.extender.requeueing import ANNOTATION_RETRY
from controller.extender.settings import Settings
from controller.kube.connect import connect
from controller.kube.errors import ApiError
from controller.kube.packed import key_of
from controller.kube.resources import GPUPOOLS, PODS, RLHFJOBS, Resource
from deploy.local.api import LocalApi
from deploy.local.scheduler import Certificates, Scheduler
from tests.support.waiting import wait_until

Object = Mapping[str, Any]

CORE = "/api/v1"
OURS = f"/apis/{names.API_VERSION}"


def settled(scheduler: Scheduler) -> bool:
    """Whether a scheduler has parked what it could not place, and is about to try none of it."""
    for _ in range(3):
        queues = scheduler.pending()
        if queues["active"] or queues["backoff"] or not queues["unschedulable"]:
            return False
        time.sleep(0.1)
    return True


def stamp(seconds: float = 0.0) -> str:
    """The time ``seconds`` from now, as the API has it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class ExtenderThread:
    """An extender in a thread and loop of its own. `delayed`: its watch brings nothing for a while."""

    def __init__(self, kubeconfig: Path, certificates: Certificates, **settings: Any) -> None:
        self._kubeconfig, self.certificates = kubeconfig, certificates
        pair = certificates.server
        self._settings = Settings(
            host="127.0.0.1",
            port=0,
            certificate=str(pair.certificate),
            key=str(pair.key),
            client_ca=str(certificates.ca),
            status_host="127.0.0.1",
            status_port=0,
            metrics_port=0,
            **{"metrics_access": "open", **settings},
        )
        self._late: list[tuple[Resource, Object, bool]] | None = None
        self._ended = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ExtenderThread:
        self._thread.start()
        wait_until(lambda: self._ended.is_set() or self.ready, "the extender to be ready")
        assert self.error is None
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        assert self._ended.wait(20)
        assert self.error is None

    @property
    def ready(self) -> bool:
        extender = getattr(self, "extender", None)
        return extender is not None and not extender.health.unready() and extender.port > 0

    @property
    def port(self) -> int:
        return self.extender.port

    @contextlib.contextmanager
    def delayed(self) -> Iterator[None]:
        self._call(lambda: setattr(self, "_late", []))
        try:
            yield
        finally:
            self.catch_up()

    def catch_up(self) -> None:
        """Bring what was held back; from now on nothing is late."""
        self._call(self._catch_up)

    def ask(self, verb: str, message: Any) -> Any:
        """The answer to a request that kube-scheduler could have sent. It must be a success."""
        status, answer = request(self.certificates, self.port, f"/{verb}", json.dumps(message).encode())
        assert status == 200, answer
        return answer

    def metric(self, text: str) -> float:
        """The value of a sample, named with its labels; 0 if there is none."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.extender.metrics_port)
        ) as connection:
            connection.request("GET", "/metrics")
            for line in connection.getresponse().read().decode().splitlines():
                if line.startswith(text + " "):
                    return float(line.rpartition(" ")[2])
        return 0.0

    def heard(self, resource: Resource, obj: Object) -> bool:
        """Whether it knows this state of an object, or a later one. While events are held back: nobody is to
        wait for that."""
        found: list[bool] = []
        # In its own thread: what is in its cache is then in its ledger, too.
        self._call(lambda: found.append(self._late is not None or self.extender.cache.knows(resource, obj)))
        return found[0]

    def _call(self, function: Callable[[], Any]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)

    def _take(self, resource: Resource, obj: Object, deleted: bool) -> None:
        if self._late is None:
            self.extender.take(resource, obj, deleted)
        else:
            self._late.append((resource, obj, deleted))

    def _catch_up(self) -> None:
        late, self._late = self._late or [], None
        for event in late:
            self._take(*event)

    def _run(self) -> None:
        try:
            assert asyncio.run(self._live()) == 0
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()

    async def _live(self) -> int:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connection = await connect({"KUBECONFIG": str(self._kubeconfig)})
        self.extender = Extender(self._settings, connection, sink=self._take)
        return await self.extender.run(self._stop)


def request(
    certificates: Certificates,
    port: int,
    path: str,
    body: bytes,
    method: str = "POST",
    content_type: str = "application/json",
) -> tuple[int, Any]:
    """(status, parsed answer) of one request with the scheduler's certificate."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.load_cert_chain(certificates.client.certificate, certificates.client.key)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


class Line:
    """A wire between kube-scheduler and extender that can be cut (`down`) or go silent (`slow`)."""

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self.mode = "up"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: str) -> None:
        """``up``, ``down`` or ``slow``; what is connected is cut."""
        self.mode = mode
        for wire in self._open:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.set("down")

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "down":
                near.close()
                continue
            self._open.append(near)
            if self.mode == "up":
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, ValueError),
            near,
            socket.create_connection(("127.0.0.1", self._target())) as far,
        ):
            ends = {near: far, far: near}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    ends[end].sendall(data)


class Cluster:
    """Objects of one test: nodes of one pool, RLHFJobs in one namespace, their pods.

    ``extender``: what is written of pools and jobs, and who is bound, it has heard when a call returns;
    kube-scheduler, which has a watch of its own, could ask it before that about a pod made later.
    """

    def __init__(
        self,
        client: LocalApi,
        namespace: str,
        pool: str,
        scheduler: str,
        extender: ExtenderThread | None = None,
    ) -> None:
        self.client, self.namespace, self.pool, self.scheduler = client, namespace, pool, scheduler
        self._extender = extender
        self.nodes: list[str] = []

    def _heard(self, resource: Resource, obj: Object) -> None:
        extender = self._extender
        if extender is not None:
            what = f"the extender to hear of {resource.kind} {key_of(obj)}"
            wait_until(lambda: extender.heard(resource, obj), what)

    # -- nodes and pools -------------------------------------------------------------------------------------

    def make_nodes(self, count: int, gpus: int = 8) -> list[str]:
        for _ in range(count):
            name = f"{self.pool}-{len(self.nodes)}"
            labels = {"pool": self.pool, "kubernetes.io/hostname": name}
            taint = {"key": names.POOL_TAINT, "value": self.pool, "effect": "NoSchedule"}
            body = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": [taint]}}
            self.client.post(f"{CORE}/nodes", body)
            self.nodes.append(name)
        room = {"cpu": "64", "memory": "64Gi", "pods": "110", names.GPU_RESOURCE: str(gpus)}
        for name in self.nodes[-count:]:
            ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": stamp()}
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            self.client.patch(f"{CORE}/nodes/{name}/status", {"status": status})
        for name in self.nodes[-count:]:
            wait_until(lambda name=name: self._untainted(name), f"node {name} to be usable")
        return self.nodes[-count:]

    def _untainted(self, name: str) -> bool:
        taints = self.client.get(f"{CORE}/nodes/{name}")["spec"].get("taints") or ()
        return all(t["key"] == names.POOL_TAINT for t in taints)

    def make_pool(self, **spec: Any) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUPool",
            "metadata": {"name": self.pool},
            "spec": {
                "nodeSelector": [{"key": "pool", "value": self.pool}],
                "allowedNamespaces": [{"name": self.namespace, "maxPriority": 10}],
                **spec,
            },
        }
        self._heard(GPUPOOLS, self.client.post(f"{OURS}/gpupools", body))

    def promise(self, *reservations: dict[str, Any]) -> None:
        """Write the pool's holds, as the operator does when a stop begins."""
        path = f"{OURS}/gpupools/{self.pool}/status"
        self._heard(GPUPOOLS, self.client.patch(path, {"status": {"reservations": list(reservations)}}))

    def hold(self, source: str, target: str, nodes: list[str], seconds: float = 300.0) -> dict[str, Any]:
        return {
            "source": f"{self.namespace}/{source}",
            "target": f"{self.namespace}/{target}",
            "nodes": nodes,
            "expires": stamp(seconds),
        }

    # -- jobs and pods ---------------------------------------------------------------------------------------

    def make_job(self, name: str, replicas: int = 1, gpus: int = 8) -> None:
        container = {
            "name": "trainer",
            "image": "trainer",
            "ports": [{"name": "metrics", "containerPort": 9400}],
            "resources": {"limits": {names.GPU_RESOURCE: str(gpus)}},
        }
        template = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {
                "completions": replicas,
                "parallelism": replicas,
                "completionMode": "Indexed",
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            },
        }
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "RLHFJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "pool": self.pool,
                "gang": {"replicas": replicas, "gpusPerReplica": gpus},
                "workload": {"template": template},
                "metrics": [{"name": "gold"}],
                "stopRule": {"kDeclines": {"k": 3}},
                "modifiers": [],
                "checkpoints": {
                    "location": {"objectStore": {"uri": f"s3://work/{name}"}},
                    "layout": "Plain",
                    "retention": {"objectStore": {"uri": "s3://kept"}},
                },
            },
        }
        self._heard(RLHFJOBS, self.client.post(f"{OURS}/namespaces/{self.namespace}/rlhfjobs", body))

    def admit(self, name: str, number: int, nodes: list[str]) -> None:
        """Write an admission into a job's status, as the operator does before it unsuspends the workload."""
        admission = {"number": number, "nodes": nodes, "time": stamp(), "unboundSince": stamp()}
        self._status(name, {"attempt": number, "admission": admission})

    def end_admission(self, name: str) -> None:
        self._status(name, {"admission": None})

    def _status(self, name: str, status: dict[str, Any]) -> None:
        path = f"{OURS}/namespaces/{self.namespace}/rlhfjobs/{name}/status"
        self._heard(RLHFJOBS, self.client.patch(path, {"status": status}))

    def make_pod(
        self,
        name: str,
        gpus: int = 8,
        job: str | None = None,
        admission: int | None = None,
        index: int = 0,
        scheduler: str | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """A pod that tolerates the pool's taint; with ``job`` a member of its gang."""
        metadata: dict[str, Any] = {"name": name, "labels": {}, "annotations": {}}
        if job is not None:
            metadata["labels"] = {
                names.LABEL_JOB: job,
                names.LABEL_COMPONENT: "workload",
                "batch.kubernetes.io/job-completion-index": str(index),
            }
        if admission is not None:
            metadata["annotations"] = {names.ANNOTATION_ADMISSION: str(admission)}
        limits = {names.GPU_RESOURCE: str(gpus)} if gpus else {}
        body = {
            "metadata": metadata,
            "spec": {
                "schedulerName": scheduler or self.scheduler,
                "nodeSelector": {"pool": self.pool},
                "tolerations": [{"key": names.POOL_TAINT, "operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
                **spec,
            },
        }
        created: dict[str, Any] = self.client.post(f"{CORE}/namespaces/{self.namespace}/pods", body)
        return created

    def delete_pod(self, name: str) -> None:
        self.client.delete(f"{CORE}/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0")

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{CORE}/namespaces/{self.namespace}/pods/{name}")
        return found

    def node_of(self, name: str) -> str | None:
        return self.pod(name)["spec"].get("nodeName")

    def gone(self, name: str) -> bool:
        try:
            self.pod(name)
        except ApiError as error:
            return error.status == 404
        return False

    def woken(self) -> str:
        """When parked pods were last woken; "": never."""
        root = f"/apis/storage.k8s.io/v1/namespaces/{names.NAMESPACE}/csistoragecapacities"
        found = self.client.get(f"{root}/{names.WAKE_OBJECT}")
        return str((found["metadata"].get("annotations") or {}).get(ANNOTATION_RETRY, ""))

    def questions(self, jobs: list[str]) -> Iterator[dict[str, Any]]:
        """Filter requests of a member of each job, early, in time and late, and of a stranger."""
        names_ = {"NodeNames": [*self.nodes, "nowhere"]}
        container = {"name": "c", "resources": {"limits": {names.GPU_RESOURCE: "8"}}}
        for job in (*jobs, None):
            for number in ("0", "1", "2"):
                labels = {} if job is None else {names.LABEL_JOB: job}
                annotations = {names.ANNOTATION_ADMISSION: number}
                metadata = {
                    "name": "q",
                    "namespace": self.namespace,
                    "labels": labels,
                    "annotations": annotations,
                }
                yield {"Pod": {"metadata": metadata, "spec": {"containers": [container]}}, **names_}

    def told(self, name: str) -> str:
        """What kube-scheduler says of a pod that it could not place; empty: nothing yet."""
        for condition in self.pod(name).get("status", {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message", ""))
        return ""

    def bound(self, name: str, node: str | None = None) -> str:
        """Wait until a pod has a node (this one); its name."""
        found = wait_until(lambda: self.node_of(name), f"pod {name} to be bound; last: {self.told(name)}")
        assert found is not None
        assert node is None or found == node
        pod = self.pod(name)
        if names.LABEL_JOB in (pod["metadata"].get("labels") or {}):  # it watches no others
            self._heard(PODS, pod)
        return found

    def parked(self, name: str, text: str) -> str:
        """Wait until kube-scheduler has parked a pod with these words; all of them."""
        return (
            wait_until(
                lambda: (said := self.told(name)) and text in said and said,
                f"pod {name} to be refused: {text}",
            )
            or ""
        )

    def clear(self) -> None:
        for name in self.nodes:
            with contextlib.suppress(ApiError):
                self.client.delete(f"{CORE}/nodes/{name}")
        with contextlib.suppress(ApiError):
            self.client.delete(f"{OURS}/gpupools/{self.pool}")
