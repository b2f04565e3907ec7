"""A plane with nodes of two GPUs, a pool, and an operator as a process that serves the step API."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from controller import names
from controller.web.certificates import issue_server, make_authority
from deploy.local.agent.images import REPOSITORY
from deploy.local.demo.elastic.cast import NAMESPACE, POOL, pool
from deploy.local.errors import PlaneError
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.report import Report

NODES, GPUS = 4, 2
OPERATOR = "operator"  # its name among the plane's processes
Json = dict[str, Any]


class Stage:
    """A running plane, and the operator beside it, a process of the plane's."""

    def __init__(self, plane: Plane, decisions: Path) -> None:
        self.plane, self.decisions = plane, decisions
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

    def pods(self) -> list[Json]:
        """Return all pods of the story's namespace."""
        return list(self.client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"])

    def problem(self) -> str | None:
        """Return why the story cannot go on; None: it can."""
        problem = self.plane.status().problem
        return problem and f"{problem}: {self.log.read_text()[-2000:]}"


@contextlib.contextmanager
def stage(work: Path, report: Report) -> Iterator[Stage]:
    """Bring everything up in ``work``, afresh; on the way out, end every process of it.
    ``plane.detach()`` in the body lets all of it live on.

    Raises:
        PlaneError: something did not start.
    """
    plane = Plane(work, report=report)
    plane.up(fresh=True)
    try:
        report(f"starting {NODES} nodes with {GPUS} GPUs each …", progress=True)
        Nodes(plane, NODES, GPUS, labels={"pool": POOL}).start()
        plane.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        plane.established()
        plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "manifests" / "priorityclass.yaml"))
        plane.kubectl("create", "namespace", NAMESPACE)
        built = Stage(plane, _start_operator(plane, work))
        built.apply(pool())
        report("nodes, operator and pool are there (pods are local processes)")
        yield built
    finally:
        plane.__exit__(None, None, None)


def _start_operator(plane: Plane, work: Path) -> Path:
    """Start the operator as a process of the plane's; return its decision log."""
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    decisions = folder / "decisions.jsonl"
    decisions.unlink(missing_ok=True)  # of an earlier story, by other code perhaps
    settings = {
        "HOST": "127.0.0.1", "PORT": "0", "METRICS_PORT": "0", "METRICS_ACCESS": "open", "QUEUE_PORT": "0",
        "LEADER_ELECT": "false", "DECISION_LOG": str(decisions), "DECISION_LOG_BYTES": str(2**30),
        "STEPS_HOST": "127.0.0.1", "STEPS_PORT": str(port), "STEPS_URLS": f"https://127.0.0.1:{port}",
        "STEPS_CERTIFICATE": str(folder / "tls.crt"), "STEPS_KEY": str(folder / "tls.key"),
        "STEPS_CA": str(folder / "ca.crt"), "SCRAPE_ADDRESSES": "Loopback",
    }  # fmt: skip
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "clients" / "python")))
    environment = {"PYTHONPATH": paths, "KUBECONFIG": str(plane.kubeconfig)}
    environment |= {f"EVALSTOP_{name}": value for name, value in settings.items()}
    argv = [sys.executable, "-m", "controller.operator"]
    plane.start_process(OPERATOR, argv, environment, REPOSITORY, grace_s=30.0)
    return decisions


__all__ = ["GPUS", "NODES", "PlaneError", "Stage", "stage"]
