"""Follows RLHFJobs and hands what happens to them to the receivers: each happening once while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controller import log
from controller.api import record as stored
from controller.kube.cache import key_of
from controller.kube.client import Api
from controller.kube.listwatch import ListWatch
from controller.kube.resources import RLHFJOBS, Resource
from controller.notify.cloud_event import cloud_event
from controller.notify.happenings import happenings
from controller.notify.settings import Settings

_logger = log.get("evalstop.notify")

LOOK_AGAIN = 60.0  # s: a mark becomes a warning by time alone, though its status says so soon after


class Notifier:
    """Hands on what happens to each job, and remembers what it has handed on.

    Args:
        put: takes an event; returns at once.
    """

    def __init__(
        self,
        settings: Settings,
        put: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._put, self._clock = settings, put, clock
        self._since = clock() - settings.again_seconds
        self._jobs: dict[str, Mapping[str, Any]] = {}
        self._sent: dict[str, frozenset[str]] = {}  # by uid: ids
        self.sent = 0
        self.watch: ListWatch | None = None

    def take(self, resource: Resource, obj: Mapping[str, Any], deleted: bool) -> None:
        """One event of the watch."""
        key = key_of(obj)
        if deleted:
            self._notify(obj)  # its last status may tell something new
            self._jobs.pop(key, None)
            self._sent.pop(str(obj["metadata"].get("uid")), None)
            return
        self._jobs[key] = _trimmed(obj)
        self._notify(self._jobs[key])

    def replace(self, resource: Resource, objects: Iterable[Mapping[str, Any]], version: str) -> None:
        """All there is, by a LIST."""
        listed = {key_of(obj): _trimmed(obj) for obj in objects}
        for key in self._jobs.keys() - listed.keys():
            self._sent.pop(str(self._jobs[key]["metadata"].get("uid")), None)
        self._jobs = listed
        self.look()

    def look(self) -> None:
        """Look at every job again."""
        for obj in self._jobs.values():
            self._notify(obj)

    def _notify(self, obj: Mapping[str, Any]) -> None:
        metadata = obj["metadata"]
        uid = str(metadata.get("uid"))
        try:
            record = stored.record(obj.get("status"))
        except stored.StatusError as error:
            _logger.warning(
                "a status is unreadable; nothing is sent about it", job=key_of(obj), why=str(error)
            )
            return
        found = happenings(uid, record, self._clock())
        known = self._sent.get(uid, frozenset())
        for one in found:
            if one.id in known or one.kind not in self._settings.wanted or one.at < self._since:
                continue
            self.sent += 1
            self._put(
                cloud_event(
                    one,
                    namespace=str(metadata.get("namespace")),
                    name=str(metadata["name"]),
                    uid=uid,
                    pool=str((obj.get("spec") or {}).get("pool", "")),
                    source=self._settings.source,
                    link=self._settings.link,
                )
            )
        self._sent[uid] = frozenset(one.id for one in found)

    async def follow(self, api: Api) -> None:
        """Follow the cluster until cancelled."""
        self.watch = watch = ListWatch(api, RLHFJOBS, self.take, self.replace)
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            group.create_task(self._again())

    async def _again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            self.look()


def _trimmed(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is read of an RLHFJob: thousands of templates would be held for nothing."""
    metadata = {k: obj["metadata"].get(k) for k in ("name", "namespace", "uid")}
    return {
        "metadata": metadata,
        "spec": {"pool": (obj.get("spec") or {}).get("pool", "")},
        "status": obj.get("status"),
    }
