"""Doctor says why a pod does not start: it was \"nothing keeps any from running\"."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.cli import job_view
from controller.cli.doctor import job as checks
from controller.cli.doctor.findings import Level
from controller.kube.errors import Refused
from controller.kube.resources import EVENTS, JOBS, PODS
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


class NoPod:
    """An API server with no pod, and the Job of the run."""

    def __init__(self, parallelism: int, unlabelled: str = "") -> None:
        self.parallelism, self.unlabelled = parallelism, unlabelled

    async def list(self, resource: Any, namespace: str, *, labels: str = "", fields: str = "") -> Any:
        if not self.unlabelled or labels != "evalstop.dev/job!=run":
            return [], "1"
        owner = {"kind": "Job", "name": "run", "uid": "job-uid", "controller": True}
        pods = [
            {"metadata": {"name": self.unlabelled, "ownerReferences": [owner]}, "status": {}},
            {"metadata": {"name": "done", "ownerReferences": [owner]}, "status": {"phase": "Failed"}},
            {"metadata": {"name": "other", "ownerReferences": [{**owner, "uid": "x"}]}, "status": {}},
        ]
        return pods, "1"

    async def get(self, resource: Any, name: str, namespace: str = "") -> Any:
        if resource != JOBS:
            raise Refused(403, "Forbidden", "no")
        spec = {"completions": 1, "parallelism": self.parallelism}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "uid": "job-uid"},
            "spec": spec,
        }


@pytest.mark.parametrize(
    ("parallelism", "unlabelled", "said", "cure"),
    [
        (
            0,
            "",
            "Job run: spec.parallelism is 0, expected 1 as in spec.gang.replicas: somebody scaled it, and it "
            "keeps its GPUs",
            "kubectl patch job run -n team --type merge -p "
            """'{"spec":{"completions":1,"parallelism":1}}'""",
        ),
        (
            1,
            "run-0-x7",
            "pod run-0-x7 of Job run lacks label evalstop.dev/job=run, so nobody reads it",
            "kubectl label pods -n team run-0-x7 evalstop.dev/job=run --overwrite",
        ),
        (
            1,
            "",
            "0 of 1 pod are there, though it was admitted and ran: its Job makes none",
            "kubectl describe job run -n team",
        ),
    ],
)
def test_a_run_without_a_pod_is_no_ok(parallelism: int, unlabelled: str, said: str, cure: str) -> None:
    """It was \"0, nothing keeps any from running\"."""

    async def look() -> list[tuple[Level, str, str]]:
        run = job_view.read(w.whole("run", w.running()))
        api: Any = NoPod(parallelism, unlabelled)
        return [(f.level, f.text, f.cure.command) async for f in checks.pods(api, run)]

    (found,) = [one for one in asyncio.run(look()) if "node" not in one[1]]
    assert found == (Level.WRONG, said, cure)
