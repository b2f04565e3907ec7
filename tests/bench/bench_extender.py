"""What the extender costs kube-scheduler: milliseconds per request, and pods per second.

Requests: sequential, over one keep-alive connection with mutual TLS, every node kept for some gang, so that
all but one is refused by a sentence. Baseline: an echo of the same request on the same HTTPS stack, asked in
turn with it by the hundred, so that both see the same machine.

Pods per second: pods that wait before their scheduler starts, on nodes without kubelets. Identical ones of
nobody's, beside an extender that lets everything pass, and beside none at all, which is what the default
scheduler has; and the members of admitted gangs, each of which may have its planned node only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.extender import scheduler_config
from controller.kube.errors import ApiError
from controller.objects import COMPLETION_INDEX
from deploy.local.agent.images import REPOSITORY
from deploy.local.components import Options
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane
from deploy.local.scheduler import Certificates, Scheduler
from tests.bench.extender_server import HOST, MEMBERS, job, node, planned
from tests.bench.rows import Row, quantile
from tests.support.process_cpu import cpu_seconds

REQUESTS, BLOCK = 2_000, 100
SIZES = (100, 1_000, 5_000)
NODES, GANGS, QPS, ROUNDS = 500, 200, 5_000.0, 3
PODS = GANGS * MEMBERS
_PATIENCE_S = 600.0


def run(say: Callable[[str], None]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="evalstop-bench-", dir="/var/tmp") as folder:
        for size in SIZES:
            say(f"{REQUESTS} requests with {size} node names")
            with _servers(Path(folder) / f"pki-{size}", size, size, 0) as served:
                yield from _latency(served, size)
        yield from _throughput(Path(folder), say)


# -- requests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """Ports of the servers in `tests.bench.extender_server`, and how to be let in."""

    certificates: Certificates
    ports: dict[str, int]
    pid: int

    def cpu(self) -> float:
        """CPU seconds that the servers' process has used."""
        return cpu_seconds(self.pid)

    def connect(self, name: str) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        context.load_cert_chain(self.certificates.client.certificate, self.certificates.client.key)
        return http.client.HTTPSConnection(HOST, self.ports[name], timeout=30, context=context)


@contextlib.contextmanager
def _servers(folder: Path, nodes: int, kept: int, gangs: int) -> Iterator[Served]:
    certificates = Certificates(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.extender_server", str(folder), str(nodes), str(kept), str(gangs)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # The child writes certificates of its own into the same folder, by the same authority.
        ports: dict[str, int] = json.loads(process.stdout.readline())
        yield Served(certificates, ports, process.pid)
    finally:
        process.stdin.close()
        process.wait(30)


def _latency(served: Served, size: int) -> Iterator[Row]:
    body = json.dumps({"Pod": _member(), "Nodes": None, "NodeNames": [node(i) for i in range(size)]}).encode()
    taken: dict[str, list[float]] = {"extender": [], "echo": []}
    used = dict.fromkeys(taken, 0.0)
    lines = {name: served.connect(name) for name in taken}
    for name, line in lines.items():  # connections and caches are warm before anything is measured
        answers = [_ask(line, body) for _ in range(50)]
        if name == "extender" and not _right(answers[0][1], size):
            raise PlaneError(f"not the right answer: {answers[0][1][:200]!r}")
    for _ in range(REQUESTS // BLOCK):
        for name, line in lines.items():
            before = served.cpu()
            taken[name] += [_ask(line, body)[0] for _ in range(BLOCK)]
            used[name] += served.cpu() - before
    what = f"extender: filter, {size} node names"
    for part, share in (("p50", 0.50), ("p99", 0.99)):
        ours, echo = (quantile(taken[name], share) for name in ("extender", "echo"))
        yield Row(f"{what}, {part}", ours, "ms", echo)
    # What a request takes of the machine, however busy the machine is with other things.
    ours, echo = (used[name] / len(taken[name]) * 1000 for name in ("extender", "echo"))
    yield Row(f"{what}, CPU of the server", ours, "ms", echo)


def _ask(line: http.client.HTTPSConnection, body: bytes) -> tuple[float, bytes]:
    """(milliseconds, answer) of one request."""
    began = time.perf_counter()
    line.request("POST", "/filter", body, {"Content-Type": "application/json"})
    answer = line.getresponse()
    data = answer.read()
    spent = time.perf_counter() - began
    if answer.status != 200:
        raise PlaneError(f"{answer.status} {data[:200]!r}")
    return spent * 1000, data


def _member() -> dict[str, Any]:
    """A member of the first gang, of the size that a pod of a trainer has on the wire."""
    container = {
        "name": "trainer",
        "image": "trainer",
        "env": [{"name": f"VARIABLE_{i}", "value": "x" * 60} for i in range(30)],
        "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}},
    }
    namespace, name = job(0).split("/")
    labels = {"evalstop.dev/job": name, COMPLETION_INDEX: "0"}
    annotations = {"evalstop.dev/admission": "1"}
    metadata = {
        "name": "m-0",
        "namespace": namespace,
        "uid": "u",
        "labels": labels,
        "annotations": annotations,
    }
    return {"metadata": metadata, "spec": {"containers": [container]}}


def _right(data: bytes, size: int) -> bool:
    answer = json.loads(data)
    return answer["NodeNames"] == [node(0)] and len(answer["FailedAndUnresolvableNodes"]) == size - 1


# -- pods per second ---------------------------------------------------------------------------------


def _throughput(folder: Path, say: Callable[[str], None]) -> Iterator[Row]:
    options = Options(node_grace_s=24 * 3600, flags={"kube-apiserver": ["--max-requests-inflight=2000"]})
    runs: dict[str, list[Placed]] = {"none": [], "idle": [], "extender": [], "gangs": []}
    with Plane(folder / "plane", options) as plane, _servers(folder / "pki", NODES, 0, GANGS) as served:
        _make_nodes(plane)
        for turn in range(ROUNDS):
            for name, found in runs.items():
                found.append(_place(plane, served, name, turn))
                say(f"{name}: {found[-1].rate:.0f} pods/s, {found[-1].cpu * 1000:.1f} ms of CPU per pod")
    rates = {name: statistics.median(run.rate for run in found) for name, found in runs.items()}
    costs = {name: statistics.median(run.cpu for run in found) * 1000 for name, found in runs.items()}
    identical = f"scheduler: {PODS} identical pods on {NODES} nodes, our extender"
    members = f"scheduler: {PODS} pods of {GANGS} admitted gangs on {NODES} nodes, our extender"
    for what, ours, name, beside in (
        (identical, "extender", "idle", "one that lets all pass"),
        (identical, "extender", "none", "no extender"),
        (members, "gangs", "none", "no extender, identical pods"),
    ):
        yield Row(f"{what} (baseline: {beside})", rates[ours], "pods/s", rates[name])
        cpu = f"{what}, CPU of scheduler and extender per pod (baseline: {beside})"
        yield Row(cpu, costs[ours], "ms", costs[name])


@dataclass(frozen=True)
class Placed:
    """Pods per second, and CPU seconds of kube-scheduler and extender per pod."""

    rate: float
    cpu: float


def _place(plane: Plane, served: Served, name: str, turn: int) -> Placed:
    """Let a scheduler of its own place the pods, which all wait for it."""
    scheduler_name = f"bench-{name}-{turn}"
    gangs = name == "gangs"
    namespace = job(0).partition("/")[0] if gangs else scheduler_name
    if not (gangs and turn):  # the ledger knows its gangs by one namespace
        plane.kubectl("create", "namespace", namespace)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    _until(lambda: plane.client().succeeds(account), "the namespace's service account")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "schedulerName": scheduler_name,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
    metadata = [_gang_member(i) if gangs else {"name": f"p-{i}"} for i in range(PODS)]
    _create(plane, [{**pod, "metadata": {**one, "namespace": namespace}} for one in metadata])
    url = f"https://{HOST}:{served.ports.get(name, 0)}"
    config = scheduler_config.configuration(
        served.certificates.options(url, scheduler_name=scheduler_name, qps=QPS, timeout=30.0)
    )
    if name == "none":
        del config["extenders"]
    scheduler = Scheduler(plane, config, process=scheduler_name).start()
    try:
        (process,) = [p for p in plane.status().processes if p.name == scheduler_name]
        assert process.pid is not None
        pid = process.pid
        found = _measure(scheduler, lambda: served.cpu() + cpu_seconds(pid))
        if gangs:
            _check_places(plane, namespace)
        return found
    finally:
        scheduler.stop()
        # One request for all: kubectl deletes them one by one at its client's limits, minutes for a thousand.
        pods = f"/api/v1/namespaces/{namespace}/pods"
        plane.client().delete(f"{pods}?gracePeriodSeconds=0", timeout_s=_PATIENCE_S)
        _until(lambda: not plane.client().get(f"{pods}?limit=1")["items"], "the pods to go")


def _gang_member(index: int) -> dict[str, Any]:
    gang, member = divmod(index, MEMBERS)
    labels = {"evalstop.dev/job": job(gang).partition("/")[2], COMPLETION_INDEX: str(member)}
    annotations = {"evalstop.dev/admission": "1"}
    return {"name": f"p-{index}", "labels": labels, "annotations": annotations}


def _check_places(plane: Plane, namespace: str) -> None:
    """Errors: PlaneError, for a member that is not on its planned node."""
    for pod in plane.client().get(f"/api/v1/namespaces/{namespace}/pods", timeout_s=120.0)["items"]:
        name, place = pod["metadata"]["name"], pod["spec"].get("nodeName")
        wanted = planned(*divmod(int(name.partition("-")[2]), MEMBERS), NODES)
        if place not in (None, wanted):
            raise PlaneError(f"{name} is on {place}, not on {wanted}")


def _measure(scheduler: Scheduler, cpu: Callable[[], float]) -> Placed:
    """From a tenth of the pods to nearly all of them."""
    first, last = PODS // 10, PODS - PODS // 50
    began: tuple[float, int, float] | None = None
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        placed, now = _placed(scheduler), time.monotonic()
        if began is None and placed >= first:
            began = now, placed, cpu()
        if began is not None and placed >= last:
            pods = placed - began[1]
            return Placed(pods / (now - began[0]), (cpu() - began[2]) / pods)
        time.sleep(0.1)
    raise PlaneError(f"{_placed(scheduler)} of {PODS} pods after {_PATIENCE_S:g} s")


def _placed(scheduler: Scheduler) -> int:
    """Pods that were bound."""
    with contextlib.suppress(ApiError):
        for line in str(scheduler.client.get("/metrics", timeout_s=30.0)).splitlines():
            if line.startswith("scheduler_schedule_attempts_total{") and 'result="scheduled"' in line:
                return int(float(line.rpartition(" ")[2]))
    return 0


def _make_nodes(plane: Plane) -> None:
    room = {"cpu": "640", "memory": "640Gi", "pods": "1000", "nvidia.com/gpu": "64"}
    ready = {"type": "Ready", "status": "True", "reason": "Bench"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    _create(
        plane, [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": node(i)}} for i in range(NODES)]
    )
    client = plane.client()
    for index in range(NODES):
        client.patch(f"/api/v1/nodes/{node(index)}/status", {"status": status})
    _until(
        lambda: not any(n["spec"].get("taints") for n in client.get("/api/v1/nodes")["items"]),
        "the nodes to lose their taints",
    )


def _create(plane: Plane, items: list[dict[str, Any]]) -> None:
    for start in range(0, len(items), 500):
        batch = {"apiVersion": "v1", "kind": "List", "items": items[start : start + 500]}
        plane.kubectl("create", "-f", "-", stdin=json.dumps(batch), timeout_s=_PATIENCE_S)


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise PlaneError(f"waited {_PATIENCE_S:g} s for {what}")
        time.sleep(0.1)
