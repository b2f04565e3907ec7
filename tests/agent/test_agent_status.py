"""The status of a pod reaches the API server, whatever befalls a patch on its way."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.kube.errors import Conflict, Unavailable
from deploy.local.agent.context import Node
from deploy.local.agent.pod import PodWorker

Object = dict[str, Any]


class Refusing:
    """An API server that answers the first patches with errors."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors, self.taken = errors, []
        self.refused, self.came = asyncio.Event(), asyncio.Event()

    async def merge_patch(self, kind: Any, name: str, patch: Object, namespace: str, **_: Any) -> Object:
        if self.errors:
            self.refused.set()
            raise self.errors.pop(0)
        self.taken.append(patch["status"])
        self.came.set()
        return {"status": patch["status"]}


@pytest.mark.parametrize(
    "error",
    [
        Conflict(409, "Conflict", "somebody else wrote the pod in between"),
        Unavailable(0, "ConnectionBroken", "no answer"),
        KeyError("a defect of ours"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_patch_that_fails_is_tried_again(tmp_path: Path, error: Exception) -> None:
    async def told() -> Object:
        api = Refusing([error])
        node = SimpleNamespace(api=api, folder=tmp_path, name="node-1", ip="127.16.1.1", restart_backoff=1.0)
        spec = {"containers": [{"name": "main", "image": "x"}]}
        pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}
        worker = PodWorker(cast(Node, node), pod, "127.16.1.2", None)
        reporter = asyncio.create_task(worker._report())
        try:
            worker.changed()
            await asyncio.wait_for(api.refused.wait(), 5.0)
            if isinstance(error, KeyError):  # what a defect of ours lost comes with the next change
                worker.changed()
            await asyncio.wait_for(api.came.wait(), 5.0)
        finally:
            reporter.cancel()
        return api.taken[0]

    assert asyncio.run(told())["podIP"] == "127.16.1.2"
