"""A cluster by its kubeconfig, with kubectl and Helm: whatever runs it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controller import names
from deploy.helm.generate import CHART
from deploy.local.errors import PlaneError
from deploy.local.helm.client import Helm
from deploy.local.helm.recipe import PROGRAM
from deploy.local.plane import Plane

Object = Mapping[str, Any]

RELEASE = "evalstop"
NAMESPACE = names.NAMESPACE


@dataclass(frozen=True)
class ChartCluster:
    """``binary``: kubectl. Errors of all methods: PlaneError, with the program's own words."""

    kubeconfig: Path
    binary: Path
    helm: Helm

    @staticmethod
    def of(plane: Plane, helm_program: Path) -> ChartCluster:
        """Return a local plane as a cluster."""
        helm = Helm(helm_program, plane.kubeconfig, plane.folder.config / PROGRAM)
        return ChartCluster(plane.kubeconfig, plane.binaries["kubectl"], helm)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        """Return the standard output of ``kubectl`` with these arguments."""
        command = [str(self.binary), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = {**os.environ, "KUBERC": "off"}
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise PlaneError(f"kubectl {' '.join(arguments)}: no answer within {timeout_s:g} s") from error
        if done.returncode != 0:
            raise PlaneError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get … -o json`, parsed."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, manifests: Sequence[Object]) -> None:
        """Run ``kubectl apply``, in the given order."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def install(self, values: Object, *more: str, chart: Path = CHART, wait_s: int = 180) -> str:
        """`helm upgrade --install` of the chart, until its pods are ready; what Helm says (the NOTES).

        Errors: PlaneError, with what each pod waits for that is not ready.
        """
        try:
            return self.helm(
                *("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE),
                *("--create-namespace", "--wait", f"--timeout={wait_s}s", "--values=-", *more),
                stdin=json.dumps(values),
                timeout_s=wait_s + 60.0,
            )
        except PlaneError as error:
            waiting = self.waiting(NAMESPACE)
            if not waiting:
                raise
            raise PlaneError("\n".join([str(error), *waiting])) from error

    def waiting(self, namespace: str) -> list[str]:
        """Return a line for each pod of a namespace that is not ready: what it waits for, by its conditions,
        its containers and its newest warning."""
        try:
            pods = self.get("pods", "-n", namespace)["items"]
            events = self.get("events", "-n", namespace, "--field-selector", "type=Warning")["items"]
        except PlaneError:
            return []
        return list(waits(pods, events))

    def condition(self, namespace: str, job: str, kind: str) -> Object | None:
        """Return a condition of an RLHFJob; None: it has none of that kind."""
        found = self.get("rlhfjob", job, "-n", namespace)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return next((c for c in conditions if c["type"] == kind), None)


def waits(pods: Sequence[Object], events: Sequence[Object]) -> Iterator[str]:
    """Yield for each pod that is not ready what it waits for. ``events``: warnings of its namespace."""
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        if (conditions.get("Ready") or {}).get("status") == "True" or status.get("phase") == "Succeeded":
            continue
        messages = [
            f"{state['reason']}: {state.get('message', '')}".rstrip(": ")
            for container in status.get("containerStatuses") or ()
            if (state := (container.get("state") or {}).get("waiting")) and state.get("reason")
        ]
        scheduled = conditions.get("PodScheduled") or {}
        if scheduled.get("status") == "False":
            messages.append(str(scheduled.get("message") or scheduled.get("reason")))
        newest = [e for e in events if (e.get("involvedObject") or {}).get("name") == name]
        if newest:
            messages.append(str(max(newest, key=lambda e: str(e.get("lastTimestamp") or ""))["message"]))
        yield f"pod {name} is not ready: {'; '.join(messages) or status.get('phase', 'no status yet')}"


def until(what: str, done: Callable[[], Any], patience: float = 60.0, pause: float = 1.0) -> Any:
    """Return what ``done`` returns, once that is true. Errors: PlaneError when it is not in
    ``patience`` s."""
    deadline = time.monotonic() + patience
    while True:
        found = done()
        if found:
            return found
        if time.monotonic() > deadline:
            raise PlaneError(f"waited {patience:g} s for {what}")
        time.sleep(pause)
