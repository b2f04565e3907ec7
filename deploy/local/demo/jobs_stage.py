"""The stage of the stories of jobs: a plane with nodes, one pool, and an operator as a process that serves
the step and queue APIs."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from controller import names
from controller.kube.errors import ApiError
from controller.policy.wording import counted
from controller.web.certificates import issue_server, make_authority
from deploy.local.agent.images import REPOSITORY
from deploy.local.api import LocalApi
from deploy.local.errors import PlaneError
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.report import Report
from deploy.local.scheduler import start_pair

NAMESPACE = "demo"  # of the story's jobs
OPERATOR = "operator"  # its name among the plane's processes
Json = dict[str, Any]


class Stage(ABC):
    """A running cluster with the nodes of one pool, and an operator that serves the step and queue APIs.

    Attributes:
        client: of the API server, with an administrator's rights.
        gpus: of each node.
        decisions: the operator's decision log, on this machine.
        queue: URL of its queue API.
        family_volumes: volumes of worker groups' pods by the path at which they lie there; none where those
            see this machine's folders.
        trainer_volumes: likewise of trainers' pods.
    """

    family_volumes: Mapping[str, Json] = {}
    trainer_volumes: Mapping[str, Json] = {}

    def __init__(self, client: LocalApi, gpus: int, decisions: Path, queue: str) -> None:
        self.client, self.gpus, self.decisions, self.queue = client, gpus, decisions, queue

    @abstractmethod
    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Return what kubectl prints. Errors: PlaneError, with kubectl's words."""

    @abstractmethod
    def words(self) -> str:
        """Return the last lines of the operator's log."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return why the story cannot go on; None: it can."""

    def apply(self, *manifests: Json) -> None:
        """Run ``kubectl apply``. Errors: PlaneError, with kubectl's words."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def delete(self, name: str) -> None:
        """Delete an RLHFJob, and wait until it is gone."""
        self.kubectl("-n", NAMESPACE, "delete", "rlhfjob", name, "--wait=true")

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
            raise PlaneError(f"{name} failed: {self.words()}")
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
                raise PlaneError(f"not within {seconds:.0f} s: {what}\n{self.words()}")
            time.sleep(0.2)


class PlaneStage(Stage):
    """A local plane, with the operator as a process of its own beside it."""

    def __init__(self, plane: Plane, gpus: int, decisions: Path, queue: str) -> None:
        super().__init__(plane.client(), gpus, decisions, queue)
        self.plane = plane

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.kubectl(*arguments, stdin=stdin)

    def words(self) -> str:
        return self.plane.log(OPERATOR).read_text()[-2000:]

    def problem(self) -> str | None:
        problem = self.plane.status().problem
        return problem and f"{problem}: {self.words()}"


@contextlib.contextmanager
def stage(work: Path, report: Report, pool: Json, nodes: int, gpus: int) -> Iterator[PlaneStage]:
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
        report(f"starting {counted(nodes, 'node')} with {counted(gpus, 'GPU')} each …", progress=True)
        Nodes(plane, nodes, gpus, labels={"pool": pool["metadata"]["name"]}).start()
        plane.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        plane.established()
        for name in ("namespace", "priorityclass"):
            plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "manifests" / f"{name}.yaml"))
        plane.kubectl("create", "namespace", NAMESPACE)
        if pool["spec"].get("schedulerName"):
            report("starting the scheduler extender and its kube-scheduler …", progress=True)
            start_pair(plane)
        built = _with_operator(plane, work, gpus)
        built.apply(pool)
        report("nodes, operator and pool are there (pods are local processes)")
        yield built
    finally:
        plane.__exit__(None, None, None)


def _with_operator(plane: Plane, work: Path, gpus: int) -> PlaneStage:
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
    return PlaneStage(plane, gpus, decisions, f"http://127.0.0.1:{queue}")
