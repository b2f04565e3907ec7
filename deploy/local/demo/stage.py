"""Everything the story needs before it begins: plane, nodes, API, operator, pool; and where things lie."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from controller import names
from controller.policy.wording import counted
from deploy.local.agent.images import REPOSITORY
from deploy.local.components import Options
from deploy.local.errors import PlaneError
from deploy.local.kueue.manager import Kueue
from deploy.local.nodes import Nodes, folder_of_claim
from deploy.local.plane import Plane
from deploy.local.report import Report

NODES, GPUS = 4, 2
SYSTEM = names.NAMESPACE
DEPLOYMENT = "deployment/evalstop-operator"
OPERATOR_CLAIM = "evalstop-data"
_OPERATOR_READY_S = 90.0
_SCHEDULER = Path(__file__).with_name("scheduler.yaml")

Manifest = Mapping[str, Any]


class Scene(Protocol):
    """A cluster as the story needs it, whatever runs it. Errors of all methods: PlaneError."""

    @property
    def kubeconfig(self) -> Path: ...

    @property
    def node_gpus(self) -> Mapping[str, int]:
        """GPUs of each node that is shown."""

    def apply(self, manifests: Sequence[Manifest]) -> None:
        """Run ``kubectl apply``, in the given order."""

    def problem(self) -> str | None:
        """Return why the cluster cannot go on; None: it can."""

    def claim_folder(self, namespace: str, claim: str) -> Path:
        """Return where a claim's volume lies on this machine."""

    def decision_log(self) -> Path:
        """Return the operator's decision log."""

    def operator_log(self, lines: int = 15) -> str:
        """Return the operator's last lines."""


@dataclass(frozen=True)
class Stage:
    """A running plane with its nodes and the operator ready."""

    plane: Plane
    nodes: Nodes

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    @property
    def node_gpus(self) -> Mapping[str, int]:
        return dict.fromkeys(self.nodes.names, GPUS)

    def problem(self) -> str | None:
        """Return why the plane cannot go on; None: it can."""
        return self.plane.status().problem

    def apply(self, manifests: Sequence[Manifest]) -> None:
        """Run ``kubectl apply``, in the given order.

        Raises:
            PlaneError: with kubectl's words.
        """
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def claim_folder(self, namespace: str, claim: str) -> Path:
        """Return where a claim's volume lies on this machine. Errors: PlaneError."""
        return folder_of_claim(self.nodes, namespace, claim)

    def decision_log(self) -> Path:
        """Return the operator's decision log. Errors: PlaneError."""
        return self.claim_folder(SYSTEM, OPERATOR_CLAIM) / "decisions.jsonl"

    def operator_problem(self) -> str | None:
        """Return what is wrong with the operator's pod, in its own last words; None: it is ready."""
        text = self.plane.kubectl("-n", SYSTEM, "get", "pods", "-o", "json")
        pods = json.loads(text)["items"]
        conditions = [c for pod in pods for c in (pod.get("status") or {}).get("conditions") or ()]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return None
        words = []
        for pod in pods:
            for status in (pod.get("status") or {}).get("containerStatuses") or ():
                state = status.get("state") or {}
                waiting = state.get("waiting") or state.get("terminated") or {}
                words.append(
                    f"{pod['metadata']['name']}: {waiting.get('reason', '')} {waiting.get('message', '')}"
                )
        return "\n".join([*words, self.operator_log()])

    def operator_log(self, lines: int = 15) -> str:
        """Return the operator's last lines, or why there are none."""
        problem = "it has said nothing"
        for which in (
            "--previous=false",
            "--previous=true",
        ):  # restarted just now: its former life tells more
            try:
                if found := self.plane.kubectl("-n", SYSTEM, "logs", DEPLOYMENT, f"--tail={lines}", which):
                    return found
            except PlaneError as error:
                problem = str(error)
        return problem


@contextlib.contextmanager
def stage(
    work: Path,
    node_labels: Mapping[str, str],
    report: Report,
    gpus: Sequence[int] = (GPUS,) * NODES,
    kueue: bool = False,
) -> Iterator[Stage]:
    """Bring everything up in ``work``, afresh; on the way out, end every process of it.

    ``gpus``: of each node. ``kueue``: with Kueue. ``plane.detach()`` in the body lets the plane live on.
    Errors: PlaneError.
    """
    plane = Plane(work, Options(scheduler_config=_SCHEDULER), report=report)
    plane.up(fresh=True)
    try:
        what = (
            f"{counted(len(gpus), 'node')} with "
            f"{counted(gpus[0] if len(set(gpus)) == 1 else sum(gpus), 'GPU')}"
        )
        what += " each" if len(set(gpus)) == 1 else " in all"
        report(f"starting {what} …", progress=True)
        nodes = Nodes(plane, len(gpus), gpus, labels=node_labels).start()
        report(f"{what} are ready (pods there are local processes)")
        built = Stage(plane, nodes)
        if kueue:
            report("starting Kueue …", progress=True)
            Kueue(plane).start()
        _install(built, report)
        yield built
    finally:
        plane.__exit__(None, None, None)


def _install(stage: Stage, report: Report) -> None:
    plane = stage.plane
    plane.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
    plane.established()
    plane.kubectl("apply", "-k", str(REPOSITORY / "deploy/local/demo/operator"))
    deadline = time.monotonic() + _OPERATOR_READY_S
    while (problem := stage.operator_problem()) is not None:
        if time.monotonic() > deadline:
            raise PlaneError(f"the operator is not ready after {_OPERATOR_READY_S:g} s: {problem}")
        report("waiting for the operator's pod …", progress=True)
        time.sleep(0.5)
    report("RLHFJob and GPUPool are installed, the operator's pod is ready")
