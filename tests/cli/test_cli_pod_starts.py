"""Doctor says why a pod does not start: it was \"nothing keeps any from running\"."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.cli import job_view
from controller.cli.doctor import job as checks
from controller.cli.doctor.findings import Level
from controller.kube.errors import Refused
from controller.kube.resources import EVENTS, PODS
from tests.support import cli_world as w

MOUNT = "configmap 'prompts' not found"
EVENT = {"reason": "FailedMount", "message": MOUNT, "lastTimestamp": "2026-11-27T00:00:00Z"}
POD = {
    "metadata": {"name": "run-0", "uid": "u"},
    "spec": {"nodeName": "n"},
    "status": {
        "phase": "Pending",
        "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}],
    },
}


class OnePod:
    """An API server with one pod, and its Events or an error."""

    def __init__(self, events: Any) -> None:
        self.events = events

    async def list(self, resource: Any, namespace: str, *, labels: str = "", fields: str = "") -> Any:
        if resource == PODS:
            return [POD], "1"
        assert resource == EVENTS
        if fields != "involvedObject.uid=u":
            return [], "1"
        if isinstance(self.events, Exception):
            raise self.events
        return self.events, "1"

    async def get(self, resource: Any, name: str, namespace: str = "") -> Any:
        raise Refused(403, "Forbidden", "no")


@pytest.mark.parametrize(
    ("events", "level", "said"),
    [
        ([EVENT], Level.WRONG, f"run-0: FailedMount, {MOUNT}"),
        (
            [],
            Level.OK,
            "1, nothing keeps any from running; 1 not started yet, the image may be on its way",
        ),
        (
            Refused(403, "Forbidden", "no"),
            Level.UNKNOWN,
            "run-0 has not started; its Events cannot be read: no",
        ),
    ],
)
def test_a_pod_that_waits_is_a_finding(events: Any, level: Level, said: str) -> None:
    async def look() -> list[tuple[Level, str, str]]:
        run = job_view.read(w.whole("run", w.running()))
        return [(f.level, f.text, f.cure.command) async for f in checks.pods(OnePod(events), run)]  # type: ignore[arg-type]

    ((found, text, cure),) = asyncio.run(look())
    assert (found, text) == (level, said)
    assert cure.startswith("kubectl describe pod run-0") or level is Level.OK
