"""Events about pods and nodes, as kubelet posts them: the same one again raises its count."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from controller.kube.client import Api, Object
from controller.kube.errors import ApiError, NotFound
from controller.kube.resources import EVENTS

log = logging.getLogger(__name__)

_REMEMBERED = 1000


def now_text() -> str:
    """Return the time as the API writes it, in seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Recorder:
    """Posts events in the background, in order; a refused or lost one is logged and forgotten."""

    def __init__(self, api: Api, component: str, host: str = "") -> None:
        self._api = api
        self._source = {"component": component, **({"host": host} if host else {})}
        self._queue: asyncio.Queue[tuple[Object, str, str, str]] = asyncio.Queue(_REMEMBERED)
        self._posted: dict[tuple[str, str, str], tuple[str, int]] = {}  # what was said -> (event name, times)

    def post(self, about: Object, reason: str, message: str, warning: bool = False) -> None:
        """Record an event about an object (kind, apiVersion and metadata are read)."""
        try:
            self._queue.put_nowait((about, reason, message[:1000], "Warning" if warning else "Normal"))
        except asyncio.QueueFull:
            log.warning("event lost: %s %s", reason, message)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            about, reason, message, kind = await self._queue.get()
            try:
                await self._post(about, reason, message, kind)
            except ApiError as error:
                log.debug("event %s %s: %s", reason, message, error)

    async def _post(self, about: Object, reason: str, message: str, kind: str) -> None:
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        key = (metadata.get("uid", ""), reason, message)
        name, count = self._posted.get(key, ("", 0))
        if name:
            try:
                body = {"count": count + 1, "lastTimestamp": now_text()}
                await self._api.merge_patch(EVENTS, name, body, namespace)
                self._posted[key] = (name, count + 1)
                return
            except NotFound:
                pass
        event = {
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": namespace},
            "involvedObject": {
                "kind": about.get("kind") or "Pod",
                "apiVersion": about.get("apiVersion") or "v1",
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata.get("uid", ""),
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": now_text(),
            "lastTimestamp": now_text(),
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
        }
        posted = await self._api.create(EVENTS, event)
        if len(self._posted) >= _REMEMBERED:
            del self._posted[next(iter(self._posted))]
        self._posted[key] = (posted["metadata"]["name"], 1)
