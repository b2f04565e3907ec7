"""RLHFJobs of one namespace of a demo stage: read, waited for, deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from controller import names
from deploy.local.demo.stage import Stage

Json = dict[str, Any]
KINDS = {
    "configmap": ("api/v1", "configmaps"),
    "job": ("apis/batch/v1", "jobs"),
    "rlhfjob": (f"apis/{names.API_VERSION}", "rlhfjobs"),
}


@dataclass(frozen=True)
class StageJobs:
    """The objects of a namespace. ``patience`` (s): what is waited for at most."""

    stage: Stage
    namespace: str
    patience: float

    def get(self, kind: str, name: str) -> Json:
        """Return the object as it is now. Errors: ApiError."""
        group, plural = KINDS[kind]
        found: Json = self.stage.plane.client().get(f"/{group}/namespaces/{self.namespace}/{plural}/{name}")
        return found

    def wait(self, name: str, what: str, ready: Callable[[Json], Any]) -> Json:
        """Return the status of an RLHFJob once ``ready(status)`` holds; the test fails with that status and
        the operator's last words where it does not come to be ``what``."""
        deadline = time.monotonic() + self.patience
        while not ready(status := self.get("rlhfjob", name).get("status") or {}):
            if time.monotonic() > deadline:
                told = f"{json.dumps(status, indent=1)}\n{self.stage.operator_log(40)}"
                pytest.fail(f"{name}: not {what} within {self.patience:g} s\n{told}")
            time.sleep(0.3)
        return status

    def delete(self, name: str) -> None:
        """Delete an RLHFJob, and wait until it is gone."""
        self.stage.plane.kubectl(
            "-n", self.namespace, "delete", "rlhfjob", name, "--wait=true", "--timeout=120s"
        )


def condition(status: Json, type_: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition; empty ones: there is none."""
    for c in status.get("conditions") or ():
        if c["type"] == type_:
            return c["status"], c["reason"], c["message"]
    return "", "", ""


def holds(status: Json, type_: str) -> bool:
    """Return whether a condition is True."""
    return condition(status, type_)[0] == "True"
