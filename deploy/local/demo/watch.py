"""Watch the API: one thread that follows all kinds, one queue to the demo's own thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.kube import kubeconfig
from controller.kube.client import Api
from controller.kube.direct import DirectTransport
from controller.kube.errors import ApiError
from controller.kube.resources import EVENTS, PODS, RLHFJOBS

_KINDS = {"jobs": RLHFJOBS, "pods": PODS, "events": EVENTS}
# s that one watch lasts, where what exists may well be told again: one that has gone silent costs no more.
_LASTS = {"jobs": 5}
_PAUSE_S = 0.5  # after a broken watch


@dataclass(frozen=True)
class Change:
    """``kind`` of what changed (jobs, pods, events); ``verb`` is ADDED, MODIFIED, DELETED or RELIST.

    RELIST, with an empty object: the watch starts anew, and everything that exists follows as ADDED.
    """

    kind: str
    verb: str
    obj: Mapping[str, Any]


class Watcher:
    """Watches RLHFJobs, pods and Events of one namespace until closed."""

    def __init__(self, config: Path, namespace: str) -> None:
        self.changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self._config, self._namespace = config, namespace
        self._loop = asyncio.new_event_loop()
        self._following = self._loop.create_task(self._follow())
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._following.cancel)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._following)
        self._loop.close()

    async def _follow(self) -> None:
        connection = (await kubeconfig.caller([self._config])).connection
        async with (
            Api(connection, user_agent="evalstop-demo", transport=DirectTransport(connection)) as api,
            asyncio.TaskGroup() as group,
        ):
            for kind in _KINDS:
                group.create_task(self._one(api, kind))

    async def _one(self, api: Api, kind: str) -> None:
        resource = _KINDS[kind]
        while True:
            self.changes.put(Change(kind, "RELIST", {}))
            try:
                found, version = await api.list(resource, self._namespace)
                for obj in found:
                    self.changes.put(Change(kind, "ADDED", obj))
                watch = api.watch(
                    resource, version, namespace=self._namespace, seconds=_LASTS.get(kind, 600), quiet=600.0
                )
                async for event in watch:
                    if event["type"] != "BOOKMARK":
                        self.changes.put(Change(kind, event["type"], event["object"]))
            except ApiError:  # the plane restarts, a connection drops: list again
                await asyncio.sleep(_PAUSE_S)
