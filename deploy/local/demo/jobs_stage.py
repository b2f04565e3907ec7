"""The stage of the stories of jobs: a plane with nodes, one pool, and an operator as a process that serves
the step and queue APIs."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from controller import names
from controller.kube.errors import ApiError
from controller.web.certificates import issue_server, make_authority
from deploy.local.agent.images import REPOSITORY
from deploy.local.errors import PlaneError
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.report import Report
from deploy.local.scheduler import start_pair

NAMESPACE = "demo"  # of the story's jobs
OPERATOR = "operator"  # its name among the plane's processes
Json = dict[str, Any]


class Stage:
    """A running plane, and the operator beside it, a process of the plane's.

    Attributes:
        decisions: the operator's decision log.
        queue: URL of its queue API.
    """

    def __init__(self, plane: Plane, decisions: Path, queue: str) -> None:
        self.plane, self.decisions, self.queue = plane, decisions, queue
        self.client = plane.client()

    @property
    def log(self) -> Path:
        """The log of the operator."""
        return self.plane.log(OPERATOR)

    def apply(self, *manifests: Json) -> None:
        """Run ``kubectl apply``. Errors: PlaneError, with kubectl's words."""
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def delete(self, name: str) -> None:
        """Delete an RLHFJob, and wait until it is gone."""
        self.plane.kubectl("-n", NAMESPACE, "delete", "rlhfjob", name, "--wait=true")

    def status(self, name: str) -> Json:
        """Return an RLHFJob's status."""
        path = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/rlhfjobs/{name}"
        return dict(self.client.get(path).get("status") or {})

    def pods(self, namespace: str = NAMESPACE) -> list[Json]:
        """Return all pods of a namespace."""
        return list(self.client.get(f"/api/v1/namespaces/{namespace}/pods")["items"])

    def has(self, name: str, condition: str) -> bool:
        """Return whether a job's condition is true. Errors: PlaneError, if it has failed."""
        found = {c["type"]: c["status"] for c in self.status(name).get("conditions") or ()}
        if found.get("Failed") == "True":
            raise PlaneError(f"{name} failed: {self.log.read_text()[-2000:]}")
        return found.get(condition) == "True"

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait for a condition; what is not there yet is not true. Errors: PlaneError, after ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (ApiError, KeyError):  # not there yet
                pass
            if (problem := self.problem()) is not None:
                raise PlaneError(problem)
            if time.monotonic() > end:
                raise PlaneError(f"not within {seconds:.0f} s: {what}\n{self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def problem(self) -> str | None:
        """Return why the story cannot go on; None: it can."""
        problem = self.plane.status().problem
        return problem and f"{problem}: {self.log.read_text()[-2000:]}"


@contextlib.contextmanager
def stage(work: Path, report: Report, pool: Json, nodes: int, gpus: int) -> Iterator[Stage]:
    """Bring everything up in ``work``, afresh; on the way out, end every process of it.
    ``plane.detach()`` in the body lets all of it live on.

    ``pool`` is the GPUPool, whose nodes have the label ``pool`` with its name; if it names a scheduler, that
    one runs, and the extender. ``gpus`` are of each node.

    Raises:
        PlaneError: something did not start.
    """
    plane = Plane(work, report=report)
    plane.up(fresh=True)
    try:
        report(f"starting {nodes} nodes with {gpus} GPUs each …", progress=True)
        Nodes(plane, nodes, gpus, labels={"pool": pool["metadata"]["name"]}).start()
        plane.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        plane.established()
        for name in ("namespace", "priorityclass"):
            plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "manifests" / f"{name}.yaml"))
        plane.kubectl("create", "namespace", NAMESPACE)
        if pool["spec"].get("schedulerName"):
            report("starting the scheduler extender and its kube-scheduler …", progress=True)
            start_pair(plane)
        built = _with_operator(plane, work)
        built.apply(pool)
        report("nodes, operator and pool are there (pods are local processes)")
        yield built
    finally:
        plane.__exit__(None, None, None)


def _with_operator(plane: Plane, work: Path) -> Stage:
    """Start the operator as a process of the plane's, and return the stage."""
    folder = work / "operator"
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    authority = make_authority(now)
    pair = issue_server(authority, ["127.0.0.1"], now)
    for name, text in (
        ("tls.crt", pair.certificate),
        ("tls.key", pair.key),
        ("ca.crt", authority.certificate),
    ):
        (folder / name).write_text(text)
    with socket.socket() as free, socket.socket() as other:
        for one in (free, other):
            one.bind(("127.0.0.1", 0))
        port, queue = free.getsockname()[1], other.getsockname()[1]
    decisions = folder / "decisions.jsonl"
    decisions.unlink(missing_ok=True)  # of an earlier story, by other code perhaps
    settings = {
        "HOST": "127.0.0.1", "PORT": "0", "METRICS_PORT": "0", "METRICS_ACCESS": "open",
        "QUEUE_PORT": str(queue), "LEADER_ELECT": "false", "DECISION_LOG": str(decisions),
        "DECISION_LOG_BYTES": str(2**30),
        "STEPS_HOST": "127.0.0.1", "STEPS_PORT": str(port), "STEPS_URLS": f"https://127.0.0.1:{port}",
        "STEPS_CERTIFICATE": str(folder / "tls.crt"), "STEPS_KEY": str(folder / "tls.key"),
        "STEPS_CA": str(folder / "ca.crt"), "SCRAPE_ADDRESSES": "Loopback",
    }  # fmt: skip
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "clients" / "python")))
    environment = {"PYTHONPATH": paths, "KUBECONFIG": str(plane.kubeconfig)}
    environment |= {f"EVALSTOP_{name}": value for name, value in settings.items()}
    argv = [sys.executable, "-m", "controller.operator"]
    plane.start_process(OPERATOR, argv, environment, REPOSITORY, grace_s=30.0)
    return Stage(plane, decisions, f"http://127.0.0.1:{queue}")
